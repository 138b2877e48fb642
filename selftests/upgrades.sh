#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon's program is replaced again and again while stock programs and the kernel's clients
# work, which notice nothing.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=ulp-lib.sh
. "$(dirname "$0")/ulp-lib.sh"

# Runs a command while the daemon is upgraded eight times. Then the programs can end: their Ethernet
# connection, over which they meet, comes back a while after the last upgrade.
under_upgrades() {
	local program word status=0
	runs() { rdma res show qp | grep -q 'type RC state RTS'; }
	mark_log
	"$@" &
	program=$!
	until_ok 60 runs
	for _ in {1..8}; do
		sleep 1
		kill -0 "$program" || fail "it has ended too early"
		on 0 daemon upgrade 1
	done
	touch "$work/stop"
	wait "$program" || status=$?
	((status == 0)) || fail "it has ended with status $status"
	for word in virtio_rdma nvme iser iscsi rpcrdma nfs; do
		if log_since "$word"; then
			fail "the kernel has noticed something"
		fi
	done
}

# Writes random data to the file or disk, reads it back and compares, until it is told to stop.
compare() {
	local -a direct=(bs=64k count=64)
	rm -f "$work/stop"
	while [[ ! -e $work/stop ]]; do
		dd if=/dev/urandom of="$work/data" "${direct[@]}"
		dd if="$work/data" of="$1" oflag=direct conv=notrunc "${direct[@]}"
		dd if="$1" iflag=direct "${direct[@]}" | cmp - "$work/data" || return
	done 2>"$work/compare"
}

# Compares data of a client of the kernel.
compare_over() {
	"connect_$1"
	under_upgrades compare "$("file_of_$1")"
	cleanup
}

test_nfs() { compare_over nfs; }
test_nvme() { compare_over nvme; }
test_iser() { compare_over iser; }

test_rc_pingpong() { under_upgrades pair -g ibv_rc_pingpong -n 60000 -c; }
test_rc_pingpong_events() { under_upgrades pair -g ibv_rc_pingpong -n 30000 -c -e; }
test_rc_pingpong_large() { under_upgrades pair -g ibv_rc_pingpong -n 20000 -s 1000000 -c; }
test_srq_pingpong_events() { under_upgrades pair -g ibv_srq_pingpong -n 60000 -q 4 -c -e; }
test_write_bw() { under_upgrades pair -x ib_write_bw -s 65536 -D 20; }
test_read_bw() { under_upgrades pair -x ib_read_bw -s 65536 -D 20; }
test_send_bw_srq() { under_upgrades pair -x ib_send_bw -s 65536 -D 20 -q 4 --use-srq; }
test_atomic_bw() { under_upgrades pair -x ib_atomic_bw -D 20; }

run_tests test_rc_pingpong test_rc_pingpong_events test_rc_pingpong_large \
	test_srq_pingpong_events test_write_bw test_read_bw test_send_bw_srq test_atomic_bw \
	test_nfs test_nvme test_iser
