#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The stock programs of rdma-core and perftest run between two VMs.
# testbed: --path direct
# testbed: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Index of the RoCE v2 GID of the IPv4 address.
gid_index() {
	at "$1" bash -c 'p=/sys/class/infiniband/$0/ports/1
	for i in {0..63}; do
		[[ $(cat $p/gid_attrs/types/$i 2>/dev/null) == "RoCE v2" && $(cat $p/gids/$i) == *:ffff:* ]] && echo $i && break
	done' "$(device "$1")"
}

# Whether a program on VM 2 waits at the port that all of these programs use.
listens() { [[ -n $(on 2 ss -Hltn 'sport = :18515') ]]; }

# Runs a program as server on VM 2 and as client here; the first argument is its option for the GID index.
pair() {
	local index_option=$1 status=0
	shift
	on 2 timeout 120 "$@" -d "$(device 2)" "$index_option" "$(gid_index 2)" >"$work/passive" 2>&1 &
	until_ok 60 listens
	timeout 120 "$@" -d "$(device 1)" "$index_option" "$(gid_index 1)" vm2 || {
		status=$?
		on 2 pkill -x "$1" || true
	}
	wait $! || status=$?
	((status == 0)) || cat "$work/passive"
	return "$status"
}

test_rc_pingpong_polling() { pair -g ibv_rc_pingpong -n 300 -c; }
test_rc_pingpong_events() { pair -g ibv_rc_pingpong -n 300 -c -e; }
test_rc_pingpong_large() { pair -g ibv_rc_pingpong -n 20 -s 1000000 -c; }
test_write_bw() { pair -x ib_write_bw -s 65536 -n 500; }
test_read_bw() { pair -x ib_read_bw -s 65536 -n 500; }
test_send_bw() { pair -x ib_send_bw -s 65536 -n 500; }
test_send_bw_events() { pair -x ib_send_bw -s 4096 -n 500 -e; }
test_write_lat() { pair -x ib_write_lat -s 8 -n 300; }
test_write_bw_both_ways() { pair -x ib_write_bw -s 65536 -n 300 -b; }
test_write_bw_many_pairs() { pair -x ib_write_bw -s 16384 -n 100 -q 8; }

run_tests test_rc_pingpong_polling test_rc_pingpong_events test_rc_pingpong_large test_write_bw test_read_bw \
	test_send_bw test_send_bw_events test_write_lat test_write_bw_both_ways test_write_bw_many_pairs
