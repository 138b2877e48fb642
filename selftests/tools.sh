#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The stock programs of rdma-core and perftest run between two VMs.
# testbed: --path direct
# more: --path wire
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# abi: R-888, R-891, R-893, R-904
test_rc_pingpong_polling() { pair -g ibv_rc_pingpong -n 300 -c; }
test_rc_pingpong_events() { pair -g ibv_rc_pingpong -n 300 -c -e; }
test_rc_pingpong_large() { pair -g ibv_rc_pingpong -n 20 -s 1000000 -c; }
test_srq_pingpong() { pair -g ibv_srq_pingpong -n 300 -q 4 -c; }
test_srq_pingpong_events() { pair -g ibv_srq_pingpong -n 300 -q 4 -c -e; }
test_send_bw_srq() { pair -x ib_send_bw -s 65536 -n 300 -q 4 --use-srq; }
# Receives of one length in a ring, of which the last ones reach beyond the MR.
test_send_bw_srq_small() { pair -x ib_send_bw -s 64 -n 300 --use-srq; }
test_write_bw() { pair -x ib_write_bw -s 65536 -n 500; }
test_read_bw() { pair -x ib_read_bw -s 65536 -n 500; }
test_send_bw() { pair -x ib_send_bw -s 65536 -n 500; }
test_send_bw_events() { pair -x ib_send_bw -s 4096 -n 500 -e; }
test_write_lat() {
	local options=()
	# uverbs does not copy the payload of inline data.
	in_virtqueue_mode && options+=(-I 0)
	pair -x ib_write_lat -s 8 -n 300 "${options[@]}"
}
test_write_bw_both_ways() { pair -x ib_write_bw -s 65536 -n 300 -b; }
test_write_bw_many_pairs() { pair -x ib_write_bw -s 16384 -n 100 -q 8; }

# The project's example of a libibverbs program.
test_first_steps() {
	local example=$programs/examples/first_steps
	on 2 timeout 120 "$example" "$(device 2)" "$(gid_index 2)" >"$work/passive" 2>&1 &
	listens_for_example() { [[ -n $(on 2 ss -Hltn 'sport = :18900') ]]; }
	until_ok 60 listens_for_example
	timeout 120 "$example" "$(device 1)" "$(gid_index 1)" "$peer" >"$work/active"
	wait $!
	grep -qx 'read back: left in your memory' "$work/active"
	grep -qx 'received: is anybody there?' "$work/passive"
}

tests=(test_rc_pingpong_polling test_rc_pingpong_events test_write_bw test_write_lat
	test_first_steps)
# In virtqueue mode the tests above are enough: posting and polling work in the same way for other
# operations, message sizes and numbers of QPs, and there are no SRQs.
in_virtqueue_mode || tests+=(test_rc_pingpong_large test_read_bw test_send_bw test_send_bw_events
	test_write_bw_both_ways
	test_write_bw_many_pairs test_srq_pingpong test_srq_pingpong_events test_send_bw_srq
	test_send_bw_srq_small)
run_tests "${tests[@]}"
