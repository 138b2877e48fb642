#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The connection manager: the programs of librdmacm and perftest connect over management datagrams,
# by addresses of every kind. Some tests add and remove addresses. tools/dev/check-capture
# checks the packets afterwards.
# testbed: --path direct
# more: --path wire --pcap build/cm.pcap
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

after_failure() {
	local vm
	for vm in 1 2; do
		at "$vm" ip address del "10.77.0.$vm/24" dev "$(netdev "$vm")" 2>/dev/null
		at "$vm" ip link delete vlan77 2>/dev/null
	done
	on 2 pkill -f '^timeout .* (rping|ucmatose|udaddy|cmtime|ib_)' || true
}

# Runs rping against VM 2, at its address $1. The data is verified.
ping() { meet rping "-s -a $1 -C 10 -V" "-c -a $1 -C 10 -V"; }

# Whether a VM has a GID for a network device and an address.
has_gid() { gid_of "$@" >/dev/null; }

# Prints the GID of an IPv4 address, whose four numbers are the arguments.
gid4() { printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x\n' "$@"; }

test_agents() {
	ls /sys/class/infiniband_mad
	ibstat "$(device 1)"
	# The MAD layer's QP is number 1.
	rdma res show qp | grep 'lqpn 1 type GSI state RTS'
}

test_ipv4() { ping "$peer"; }
test_ipv6() { ping "$peer_v6"; }

test_link_local() {
	local address
	address=$(on 2 ip -6 -o address show dev "$(netdev 2)" scope link |
		sed 's/.*inet6 \([^/]*\).*/\1/')
	meet rping "-s -a $address%$(netdev 2) -C 10 -V" "-c -a $address%$(netdev 1) -C 10 -V"
}

test_connections() { meet ucmatose "-b $peer -c 10 -C 20" "-s $peer -c 10 -C 20"; }

# Connections one after the other and many at a time, with and without QPs. Both sides of the
# program first synchronize over TCP.
test_connection_rate() {
	waits() { [[ -n $(on 2 ss -Hltn 'sport = :7471') ]]; }
	meet cmtime "-b $peer -c 20" "-s $peer -c 20"
}

# The server replies to the address in the header of the received datagram.
test_datagrams() { meet udaddy "-b $peer -c 3 -C 20" "-s $peer -c 3 -C 20"; }
test_datagrams_ipv6() { meet udaddy "-b $peer_v6 -c 3 -C 20" "-s $peer_v6 -c 3 -C 20"; }

test_perftest() {
	local program
	for program in ib_write_bw ib_read_bw ib_send_bw; do
		meet "$program" "-R -d $(device 2) -s 4096 -n 200" "-R -d $(device 1) -s 4096 -n 200 $peer"
	done
	meet ib_send_lat "-R -d $(device 2) -c UD -s 256 -n 200" \
		"-R -d $(device 1) -c UD -s 256 -n 200 $peer"
}

# Nobody listens at the port: the peer rejects the connection at once.
test_refused() {
	local status=0
	timeout 30 rping -c -a "$peer" -p 9999 -C 1 >"$work/refused" 2>&1 || status=$?
	cat "$work/refused"
	((status != 0 && status != 124))
	grep -q RDMA_CM_EVENT_REJECTED "$work/refused"
}

# Addresses are added and removed while a connection by another address is in use.
test_address_changes() {
	local vm steady
	on 2 timeout 400 rping -s -a "$peer" -V >"$work/passive" 2>&1 &
	until_ok 60 waits rping
	timeout 400 rping -c -a "$peer" -C 1000000 -v -V >"$work/steady" 2>&1 &
	steady=$!
	until_ok 30 grep -q 'ping data' "$work/steady"
	for _ in 1 2 3; do
		for vm in 1 2; do
			at "$vm" ip address add "10.77.0.$vm/24" dev "$(netdev "$vm")"
			until_ok 10 has_gid "$vm" "$(netdev "$vm")" "$(gid4 10 77 0 "$vm")"
		done
		meet ucmatose "-b 10.77.0.2 -c 1 -C 5" "-s 10.77.0.2 -c 1 -C 5"
		for vm in 1 2; do
			at "$vm" ip address del "10.77.0.$vm/24" dev "$(netdev "$vm")"
		done
		lacks() { ! has_gid 1 "$(netdev 1)" "$(gid4 10 77 0 1)"; }
		until_ok 10 lacks
	done
	kill -0 "$steady" || {
		tail -n 5 "$work/steady" "$work/passive"
		return 1
	}
	kill "$steady"
	wait
}

# Packets from and to the addresses of VLAN interfaces have the VLAN's tag, whose priority is the
# service level. tools/dev/check-capture checks the tags.
# abi: R-795
test_vlan() {
	local vm program
	vlan_gid() { gid_of "$1" vlan77 "$(gid4 10 78 0 "$1")"; }
	for vm in 1 2; do
		at "$vm" modprobe 8021q
		at "$vm" ip link add link "$(netdev "$vm")" name vlan77 type vlan id 77
		at "$vm" ip address add "10.78.0.$vm/24" dev vlan77
		at "$vm" ip link set vlan77 up
		until_ok 10 vlan_gid "$vm"
	done
	ping 10.78.0.2
	meet udaddy "-b 10.78.0.2 -c 3 -C 20" "-s 10.78.0.2 -c 3 -C 20"
	for program in ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong; do
		meet "$program" "-l 5 -n 100 -d $(device 2) -g $(vlan_gid 2)" \
			"-l 5 -n 100 -d $(device 1) -g $(vlan_gid 1) $peer"
	done
	for vm in 1 2; do
		at "$vm" ip link delete vlan77
	done
	lacks() { ! vlan_gid 1; }
	until_ok 10 lacks
	ping "$peer"
}

run_tests test_agents test_ipv4 test_ipv6 test_link_local test_connections test_datagrams \
	test_datagrams_ipv6 test_connection_rate test_perftest test_refused test_address_changes \
	test_vlan
