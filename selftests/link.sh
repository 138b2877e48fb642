#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The device's attributes, as rdma-core's and the kernel's tools show them.
# testbed: --path direct
# more: --withhold rate-limit --withhold counters
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

after_failure() {
	ip address del 10.77.0.1/24 dev "$(netdev 1)" 2>/dev/null
}

# Prints the value of a field of `ibv_devinfo -v`.
devinfo() {
	ibv_devinfo -v -d "$(device 1)" | sed -n "s/^[[:space:]]*$1:[[:space:]]*//p" | head -n 1
}

# Prints a network device's MAC address as modified EUI-64.
eui64() {
	local a b c d e f
	IFS=: read -r a b c d e f <"/sys/class/net/$1/address"
	printf '%02x%s:%sff:fe%s:%s%s\n' $((0x$a ^ 2)) "$b" "$c" "$d" "$e" "$f"
}

test_link_active() {
	local vm
	for vm in 1 2; do
		at "$vm" rdma link show
		link_is "$vm" ACTIVE
		[[ $(at "$vm" rdma link show) == *"physical_state LINK_UP netdev $(netdev "$vm")"* ]]
	done
}

# abi: R-31, R-81
test_device_identity() {
	local net guid
	net=$(netdev 1)
	guid=$(eui64 "$net")
	rdma dev show
	[[ $(rdma dev show "$(device 1)") == *"node_type ca"*"node_guid $guid sys_image_guid $guid"* ]]
	[[ $(devinfo node_guid) == "$guid" ]]
	[[ $(devinfo sys_image_guid) == "$guid" ]]
	[[ $(devinfo transport) == "InfiniBand (0)" ]]
	[[ $(devinfo phys_port_cnt) == 1 ]]
}

# Programs that read the topology (NCCL, hwloc, UCX) find the PCI function of the device.
# abi: R-9
test_topology() {
	local parent virtio
	parent=/sys/class/infiniband/$(device 1)/device
	virtio=$(virtio_device 1)
	[[ $(basename "$(readlink -f "$parent/subsystem")") == pci ]]
	[[ $(<"$parent/vendor") == 0x1af4 && $(<"$parent/device") == 0x106a ]]
	[[ $parent/$virtio/driver -ef $driver ]]
	[[ $parent/$virtio -ef /sys/bus/virtio/devices/$virtio ]]
	[[ -d $parent/infiniband/$(device 1) ]]
	compgen -G "$parent/infiniband_verbs/uverbs*"
	compgen -G "$parent/infiniband_mad/umad*"
}

# Each event queue interrupts a CPU of its own, unless the administrator chooses another one.
test_interrupts_are_spread() {
	local virtio irq hint seen=
	virtio=$(virtio_device 1)
	mapfile -t irqs < <(sed -n "s/^ *\([0-9]*\):.*$virtio-event\.[0-9]*\$/\1/p" /proc/interrupts)
	((${#irqs[@]} == $(nproc)))
	for irq in "${irqs[@]}"; do
		hint=$((0x$(</proc/irq/"$irq"/affinity_hint)))
		echo "interrupt $irq: CPUs $hint"
		((hint != 0 && (hint & (hint - 1)) == 0))
		((hint == 0x$(</proc/irq/"$irq"/smp_affinity)))
		[[ $seen != *" $hint "* ]]
		seen+=" $hint "
	done
	printf 1 >"/proc/irq/$irq/smp_affinity"
	((1 == 0x$(<"/proc/irq/$irq/smp_affinity")))
	printf '%x' "$hint" >"/proc/irq/$irq/smp_affinity"
}

# The tool ibstat reads sysfs. It prints no type and no hardware version of the CA: the core has no
# attributes for them, and a new driver must not add its own.
test_ibstat() {
	local name guid
	name=$(device 1)
	guid=$(eui64 "$(netdev 1)")
	guid=0x${guid//:/}
	[[ $(devinfo fw_ver) =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]
	diff - <(ibstat "$name" | sed 's/^\t*//; s/ *$//') <<-IBSTAT
		CA '$name'
		CA type:
		Number of ports: 1
		Firmware version: $(devinfo fw_ver)
		Hardware version:
		Node GUID: $guid
		System image GUID: $guid
		Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 100
		Base lid: 0
		LMC: 0
		SM lid: 0
		Capability mask: 0x00010000
		Port GUID: $guid
		Link layer: Ethernet
	IBSTAT
	[[ $(ibstatus "$name") == *"4: ACTIVE"*"5: LinkUp"*"100 Gb/sec (4X EDR)"*Ethernet* ]]
}

# The node description has a default, and can be changed, as rdma-ndd does.
test_node_description() {
	local file
	file=/sys/class/infiniband/$(device 1)/node_desc
	[[ $(<"$file") == virtio_rdma ]]
	printf 'machine 1' >"$file"
	[[ $(<"$file") == "machine 1" ]]
	[[ $(rdma dev show "$(device 1)") == *"node_type ca"* ]]
	# A description of the maximum length, followed by a shorter one, which replaces all of it.
	printf 'x%.0s' {1..64} >"$file"
	[[ $(<"$file") == "$(printf 'x%.0s' {1..63})" ]]
	printf virtio_rdma >"$file"
	[[ $(<"$file") == virtio_rdma ]]
}

# abi: R-127, R-139
test_port_attributes() {
	local mtu
	ibv_devinfo -v -d "$(device 1)"
	[[ $(devinfo state) == "PORT_ACTIVE (4)" ]]
	[[ $(devinfo phys_state) == "LINK_UP (5)" ]]
	[[ $(devinfo link_layer) == Ethernet ]]
	mtu=$(cat "/sys/class/net/$(netdev 1)/mtu")
	case $mtu in
	1500) [[ $(devinfo active_mtu) == "1024 (3)" ]] ;;
	*) fail "the network device has an MTU of $mtu" ;;
	esac
}

# The table has a RoCE v2 entry for every address of the network device, and no other.
test_gid_table() {
	local port net
	port=/sys/class/infiniband/$(device 1)/ports/1
	net=$(netdev 1)
	gids() {
		local index kind netdev gid
		for index in {0..63}; do
			{ read -r kind <"$port/gid_attrs/types/$index"; } 2>/dev/null || continue
			[[ $kind == "RoCE v2" ]] || continue
			read -r netdev <"$port/gid_attrs/ndevs/$index"
			read -r gid <"$port/gids/$index"
			[[ $netdev == "$net" ]]
			echo "$gid"
		done | sort
	}
	expected() {
		python3 - "$net" <<'PYTHON'
import ipaddress, json, subprocess, sys
addresses = json.loads(subprocess.check_output(["ip", "-j", "address", "show", sys.argv[1]]))[0]
mac = bytes.fromhex(addresses["address"].replace(":", ""))
# The default GID is the link-local address that is derived from the MAC address. The GID table has
# this entry even if the network device does not have the address.
gids = {b"\xfe\x80" + bytes(6) + bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]}
for entry in addresses["addr_info"]:
    address = ipaddress.ip_address(entry["local"]).packed
    gids.add(address if len(address) == 16 else bytes(10) + b"\xff\xff" + address)
for gid in sorted(gids):
    print(gid.hex(":", 2))
PYTHON
	}
	diff <(expected) <(gids)
	ip address add 10.77.0.1/24 dev "$net"
	until_ok 10 grep -qr 0000:0000:0000:0000:0000:ffff:0a4d:0001 "$port/gids"
	diff <(expected) <(gids)
	ip address del 10.77.0.1/24 dev "$net"
	gone() { ! grep -qr 0000:0000:0000:0000:0000:ffff:0a4d:0001 "$port/gids"; }
	until_ok 10 gone
	diff <(expected) <(gids)
}

# The resource counters count the objects of a program, and have their old values when it has ended.
test_resources() {
	local dev before during
	dev=$(device 1)
	# PDs, CQs, QPs, MRs and contexts, in this order.
	count() {
		rdma res show "$dev" |
			sed -E 's/.*pd ([0-9]+) cq ([0-9]+) qp ([0-9]+) cm_id [0-9]+ mr ([0-9]+) ctx ([0-9]+).*/\1 \2 \3 \4 \5/'
	}
	before=$(count)
	start_soak
	rdma res show qp
	during=$(count)
	echo "before $before, during $during"
	read -r -a b <<<"$before"
	read -r -a d <<<"$during"
	[[ "$((d[0] - b[0])) $((d[1] - b[1])) $((d[2] - b[2])) $((d[3] - b[3])) $((d[4] - b[4]))" == "1 2 1 1 1" ]]
	rdma res show qp link "$dev/1" type RC | grep -q 'state RTS'
	stop_soak
	is_as_before() { [[ $(count) == "$before" ]]; }
	until_ok 10 is_as_before
}

# The port counts its traffic. sysfs and the rdma tool show the counters, and the tool also shows
# the driver's details.
# abi: R-18, R-853
test_counters_and_details() {
	local dev port
	dev=$(device 1)
	port=/sys/class/infiniband/$dev/ports/1
	statistic() { rdma statistic show link "$dev/1" | sed -n "s/.*\b$1 \([0-9]*\).*/\1/p"; }
	rdma statistic show link "$dev/1"
	(($(statistic lkey_violations) == $(cat "$port/hw_counters/lkey_violations")))
	before=$(statistic direct_tx_messages)
	start_soak
	more() { (($(statistic direct_tx_messages) > before)); }
	until_ok 20 more
	rdma -dd res show qp link "$dev/1" type RC | tee "$work/qp"
	grep -q 'drv_queues own-rings drv_sq_size [0-9]* drv_rq_size [0-9]* ' "$work/qp"
	rdma -dd res show cq | tee "$work/cq"
	grep -q 'drv_queues own-rings drv_cqn [0-9]' "$work/cq"
	rdma -dd res show mr | tee "$work/mr"
	grep -q 'drv_mrn [0-9]* drv_memory user drv_page_shift [0-9]' "$work/mr"
	stop_soak
}

# Programs see the device's rate limits.
# abi: R-75, R-76, R-845
test_packet_pacing() {
	[[ $(devinfo qp_rate_limit_min) == 100kbps && $(devinfo qp_rate_limit_max) == 100000000kbps ]]
}

# A device without rate limits and counters: the tools show none, and programs can't set a rate.
# abi: R-844, R-876
test_withheld() {
	[[ $(devinfo qp_rate_limit_max) == 0kbps ]]
	[[ ! -e /sys/class/infiniband/$(device 1)/ports/1/hw_counters ]]
	[[ $(rdma statistic show link "$(device 1)/1") != *tx_packets* ]]
	start_server
	client client --skip "rate_limit_refusals=the machines withhold rate limits" "$peer" rate_limit
}

# The reported limits can be reached, but not exceeded.
test_limits() {
	start_server
	client client "$peer" limits
}

if ! has_feature 7; then
	run_tests test_link_active test_withheld
	exit
fi
run_tests test_link_active test_device_identity test_topology test_interrupts_are_spread \
	test_ibstat test_node_description test_port_attributes test_gid_table test_resources \
	test_counters_and_details test_packet_pacing test_limits
