#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Linux's rdma_rxe as the peer, on the device's switch: the verbs tests with either side as the one
# that asks, the stock programs. Arguments are beginnings of the names of verbs tests to run instead
# of all. A look at the packets follows: tools/testbed/check-capture.
# more: --rxe 1 --pcap build/rxe.pcap
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Tests that rxe itself does not pass with rxe as the peer either, since it
# - keeps the CQEs of a QP that is destroyed
# - does not count an error as solicited
# - reports a receive that violates protection or length as LOC_QP_OP_ERR
# - completes a request with a bad local key, and a binding that fails, as flushed
# - lets a peer invalidate the key of a process's MR
# - is atomic among its own operations, not beside the processor
# - refuses no QP for what its extended interface can't send
# - blocks no loopback of groups
# - registers no DMA buffers
# - changes no regions
# - counts the headers of a FLUSH twice in its ICRC, which only itself does
# - takes other sizes of a QP's queues and leaves them as they are
# - limits no rates
# - has no thread domains, and sends datagrams that were built without a destination
# and as the side that answers
# - tells a process of an invalidated key by the bit that the kernel has for it
# - checks the bounds of a window's region, not those of the window
# and as the side that asks
# - takes inline data of that interface for an SGE, and all SGEs of a list to be as long as the
#   first
# - does not post an atomic operation on a misaligned word
# - sends each Q_Key as it is, with its top bit set too
# - has other address vectors than those that are forged
foreign=(queue_destroyed_with_work event_of_error error_recv_bad_lkey error_local_other_pd
	error_recv_without_local_write error_recv_too_short error_invalidate_user_key
	atomic_beside_the_processor
	extended_control extended_destination extended_parent_domain extended_refusals
	group_without_echo dmabuf_udmabuf
	memory_changed memory_change_refused memory_changed_under_traffic window_failed_binding
	window_keeps_memory
	flush_range_and_region flush_refusals state_sizes rate_limit_refusals)
foreign_answers=(window_remote_invalidation window_rights)
foreign_requests=(error_send_bad_lkey error_local_out_of_range error_region_gone_local
	extended_inline
	extended_reliable_sends extended_unreliable_sends extended_datagram_sends atomic_misaligned
	datagram_controlled_qkey
	datagram_forged)

test_verbs_with_rxe_as_server() {
	start_server
	client client vm2 "${foreign[@]/#/--except=}" "${foreign_answers[@]/#/--except=}" \
		"${verbs_tests[@]}" >"$work/report" || {
		grep -v '^ok' "$work/report"
		return 1
	}
	tail -n 1 "$work/report"
}

test_verbs_with_rxe_as_client() {
	: >"$work/server"
	"$verbs" -d "$(device 1)" server >"$work/server" 2>&1 &
	until_ok 60 grep -q listening "$work/server"
	on 2 "$verbs" -d "$(device 2)" client vm1 "${foreign[@]/#/--except=}" \
		"${foreign_requests[@]/#/--except=}" \
		"${verbs_tests[@]}" >"$work/report" || {
		grep -v '^ok' "$work/report"
		return 1
	}
	tail -n 1 "$work/report"
}

test_rc_pingpong() { pair -g ibv_rc_pingpong -n 100 -c; }
test_rc_pingpong_events() { pair -g ibv_rc_pingpong -n 100 -c -e; }
# rxe answers when its machine comes to it, which may take longer than perftest waits unless told
# otherwise: 7 times 67 ms. And it takes the peer's number of outstanding READs for its own, and
# rxe's is larger than our device allows.
test_write_bw() { pair -x ib_write_bw -s 65536 -n 100 -u 18; }
test_read_bw() { pair -x ib_read_bw -s 65536 -n 100 -u 18 -o 16; }
test_send_bw() { pair -x ib_send_bw -s 65536 -n 100 -u 18; }

test_multicast() { mckey_from_to 1 2; }
# As often as it takes until the receiver ends.
test_multicast_back() { mckey_from_to 2 1 100; }

# Behind the others: faults were injected, and our device met them. rxe counts in other files.
test_faults_were_met() { losses_seen 1; }

verbs_tests=("$@")
tests=(test_verbs_with_rxe_as_server test_verbs_with_rxe_as_client test_rc_pingpong
	test_rc_pingpong_events
	test_write_bw test_read_bw test_send_bw test_multicast test_multicast_back)
if [[ ${1:-} == --lossy ]]; then
	losses_begin 1
	tests+=(test_faults_were_met)
fi
run_tests "${tests[@]}"
