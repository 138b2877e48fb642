#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The port follows its network device: down and up, renamed, with another MTU, removed and added
# again, in a bond.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Restores the network device of VM 1 for other tests.
restore() {
	local net
	net=$(basename "$(dirname "$(ls -d /sys/class/net/*/device)")")
	ip link set "$net" down
	ip link set "$net" name eth0 mtu 1500 2>/dev/null || ip link set "$net" mtu 1500
	ip link set eth0 up
	ip address replace "$own/24" dev eth0
	ip address replace "$own_v6/64" dev eth0 nodad
	until_ok 20 link_is 1 ACTIVE
}

after_failure() {
	end_children
	[[ ! -e /run/netns/pod ]] || ip netns delete pod
	[[ ! -d /sys/module/twin ]] || rmmod twin
	ip link set eth0 nomaster 2>/dev/null
	ip link set eth0 mode default
	restore
}

# Removes the bond that a test made.
cleanup() { ip link del bond0 2>/dev/null; }

active_mtu() {
	ibv_devinfo -v -d "$(device 1)" | sed -n 's/.*active_mtu:[[:space:]]*\([0-9]*\).*/\1/p'
}

mtu_is() { [[ $(active_mtu) == "$1" ]]; }

test_down_and_up() {
	start_watch
	for _ in 1 2 3; do
		ip link set eth0 down
		until_ok 10 link_is 1 DOWN
		ip link set eth0 up
		until_ok 10 link_is 1 ACTIVE
	done
	heard() {
		(($(grep -c IBV_EVENT_PORT_ERR "$work/watch") >= 3)) &&
			(($(grep -c IBV_EVENT_PORT_ACTIVE "$work/watch") >= 3))
	}
	until_ok 10 heard
	restore
	traffic
}

# While its network device is down, the port sends nothing.
test_down_is_silent() {
	has_feature 15 || skip "the device is not told"
	start_server
	client client "$peer" port_down
	restore
	traffic
}

test_rename() {
	ip link set eth0 down
	ip link set eth0 name wire0
	ip link set wire0 up
	until_ok 10 link_is 1 ACTIVE
	[[ $(netdev 1) == wire0 ]]
	restore
	[[ $(netdev 1) == eth0 ]]
	traffic
}

test_mtu() {
	mtu_is 1024
	# The longest headers take 96 bytes of the network device's MTU.
	ip link set eth0 mtu 1119
	until_ok 10 mtu_is 512
	ip link set eth0 mtu 1120
	until_ok 10 mtu_is 1024
	ip link set eth0 mtu 607
	until_ok 10 mtu_is 256
	ip link set eth0 mtu 608
	until_ok 10 mtu_is 512
	ip link set eth0 mtu 1500
	until_ok 10 mtu_is 1024
	restore
	traffic
}

# The network device is removed, and another one takes its place.
test_removed_and_back() {
	local virtio
	virtio=$(basename "$(readlink -f /sys/class/net/eth0/device)")
	echo "$virtio" >/sys/bus/virtio/drivers/virtio_net/unbind
	until_ok 10 link_is 1 DOWN
	[[ -z $(netdev 1) ]]
	echo "$virtio" >/sys/bus/virtio/drivers/virtio_net/bind
	restore
	[[ $(netdev 1) == eth0 ]]
	traffic
}

# Two network devices have the port's address. When one goes, the port takes the other.
test_twins() {
	local virtio
	virtio=$(basename "$(readlink -f /sys/class/net/eth0/device)")
	insmod "$modules/kverbs/twin.ko" mac="$(</sys/class/net/eth0/address)"
	[[ $(netdev 1) == eth0 ]]
	echo "$virtio" >/sys/bus/virtio/drivers/virtio_net/unbind
	[[ $(netdev 1) == twin0 ]]
	echo "$virtio" >/sys/bus/virtio/drivers/virtio_net/bind
	rmmod twin
	restore
	[[ $(netdev 1) == eth0 ]]
	traffic
}

# The port is active while there is a carrier, as in the port events of ib_core. The operational
# state may differ: the kernel updates it later, and a dormant link waits for authentication.
test_dormant_link() {
	is_dormant() { [[ $(</sys/class/net/eth0/operstate) == dormant ]]; }
	ip link set eth0 mode dormant
	ip link set eth0 down
	ip link set eth0 up
	until_ok 10 is_dormant
	link_is 1 ACTIVE
	ip link set eth0 mode default
	restore
	traffic
}

# The switch of the host drops frames with another MAC address than the port's: the module says so,
# and the network device works again with its own address.
test_another_address() {
	local mac before
	mac=$(</sys/class/net/eth0/address)
	warnings() { dmesg | grep -c "another MAC address than the port" || true; }
	before=$(warnings)
	ip link set eth0 address 52:54:00:99:99:99
	warned() { (($(warnings) > before)); }
	until_ok 10 warned
	ip link set eth0 address "$mac"
	restore
	traffic
}

# A macvlan interface with a MAC address that the port was given (macs=), in a namespace as those of
# containers: its TCP works, and so do connections with its address in both directions.
test_macvlan() {
	local mac index
	mac=$(</sys/class/net/eth0/address)
	modprobe macvlan
	ip netns add pod
	ip link add mv0 link eth0 address "56${mac:2}" type macvlan mode bridge
	ip link set mv0 netns pod
	ip -netns pod -batch - <<-IP
		link set lo up
		address add 10.9.0.50/24 dev mv0
		link set mv0 up
	IP
	ip netns exec pod ping -c 1 -w 20 "$peer"
	pod_gid() {
		for index in {0..255}; do
			[[ $(<"/sys/class/infiniband/$(device 1)/ports/1/gids/$index") != *:ffff:0a09:0032 ]] ||
				return 0
		done
		return 1
	}
	until_ok 20 pod_gid
	on 2 timeout 60 rping -s -a "$peer" -C 10 -V >"$work/passive" 2>&1 &
	until_ok 30 waits rping
	ip netns exec pod timeout 60 rping -c -a "$peer" -C 10 -V
	wait $!
	ip netns exec pod timeout 60 rping -s -a 10.9.0.50 -C 10 -V >"$work/passive" 2>&1 &
	waits_in_pod() { grep -q rping <(ip netns exec pod rdma res show cm_id); }
	until_ok 30 waits_in_pod
	on 2 timeout 60 rping -c -a 10.9.0.50 -C 10 -V
	wait $!
	ip netns delete pod
	restore
	traffic
}

# For a network device in a bond, the driver itself must report port events: ib_core does not.
test_port_of_a_bond() {
	modprobe bonding max_bonds=0
	ip link add bond0 type bond mode active-backup
	start_watch
	ip link set eth0 down
	until_ok 10 grep -q IBV_EVENT_PORT_ERR "$work/watch"
	ip link set eth0 master bond0
	ip link set bond0 up
	until_ok 10 link_is 1 ACTIVE
	until_ok 10 grep -q IBV_EVENT_PORT_ACTIVE "$work/watch"
	ip link set eth0 down
	until_ok 10 link_is 1 DOWN
	heard() { (($(grep -c IBV_EVENT_PORT_ERR "$work/watch") == 2)); }
	until_ok 10 heard
	ip link set eth0 nomaster
	ip link del bond0
	restore
	traffic
}

run_tests test_down_and_up test_down_is_silent test_rename test_mtu test_removed_and_back \
	test_twins test_dormant_link test_another_address test_macvlan test_port_of_a_bond
