#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Linux's rdma_rxe as the peer, on the device's switch: the verbs tests with either side as the
# requester, and the stock programs. Arguments are prefixes of names of verbs tests to run instead
# of all. tools/dev/check-capture checks the packets afterwards.
# more: --rxe 1 --pcap build/rxe.pcap
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Tests that rxe does not pass even with rxe as the peer (foreign), as the responder
# (foreign_answers) or as the requester (foreign_requests).
#
# In both roles, rxe
# - keeps the CQEs of a destroyed QP
# - does not count an error as solicited
# - completes a receive that violates protection or length with LOC_QP_OP_ERR
# - completes a work request with a bad local key, and a failed binding, as flushed
# - lets a peer invalidate the key of a process's MR
# - is atomic among its own operations, but not with respect to the processor
# - creates QPs for operations that its extended interface can't send
# - does not block the loopback of multicast groups
# - does not register DMA buffers
# - does not re-register regions
# - takes path MTUs and datagrams that are longer than the port's MTU
# - includes the headers of a FLUSH twice in its ICRC, unlike any other device
# - accepts a resize of a QP's queues and ignores it
# - has no rate limits
# - has other vendor errors
# - has no thread domains, and sends datagrams that were built without a destination
#
# As the responder, rxe
# - reports an invalidated key to a process by the kernel's flag
# - checks the bounds of a window's region, not those of the window
#
# As the requester, rxe
# - treats inline data of the extended interface as an SGE, and assumes that all SGEs of a list are
#   as long as the first
# - does not post an atomic operation on a misaligned word
# - sends each Q_Key unchanged, even with its top bit set
# - has address vectors of another layout than the test forges
foreign=(queue_destroyed_with_work event_of_error error_recv_bad_lkey error_local_other_pd
	error_recv_without_local_write error_recv_too_short error_recv_beyond_region
	error_invalidate_user_key error_reasons datagram_too_long state_bad_transitions
	atomic_beside_the_processor
	extended_control extended_destination extended_parent_domain extended_refusals
	group_without_echo dmabuf_udmabuf
	memory_changed memory_change_refused memory_changed_under_traffic window_failed_binding
	window_keeps_memory window_revoked
	flush_range_and_region flush_refusals state_sizes rate_limit_refusals)
foreign_answers=(window_remote_invalidation window_access_flags)
foreign_requests=(error_send_bad_lkey error_local_out_of_range error_region_gone_local
	extended_inline
	extended_reliable_sends extended_unreliable_sends extended_datagram_sends atomic_misaligned
	datagram_controlled_qkey
	datagram_forged)

test_verbs_with_rxe_as_server() {
	start_server
	client client "$peer" "${foreign[@]/#/--except=}" "${foreign_answers[@]/#/--except=}" \
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
	on 2 "$verbs" -d "$(device 2)" client "$own" "${foreign[@]/#/--except=}" \
		"${foreign_requests[@]/#/--except=}" \
		"${verbs_tests[@]}" >"$work/report" || {
		grep -v '^ok' "$work/report"
		return 1
	}
	tail -n 1 "$work/report"
}

test_rc_pingpong() { pair -g ibv_rc_pingpong -n 100 -c; }
test_rc_pingpong_events() { pair -g ibv_rc_pingpong -n 100 -c -e; }
# rxe answers when its VM gets a processor, which may take longer than perftest's default timeout, 7
# times 67 ms: -u sets a longer timeout. perftest assumes that both sides support the same number of
# outstanding READs, but rxe supports more than our device: -o sets the number.
test_write_bw() { pair -x ib_write_bw -s 65536 -n 100 -u 18; }
test_read_bw() { pair -x ib_read_bw -s 65536 -n 100 -u 18 -o 16; }
test_send_bw() { pair -x ib_send_bw -s 65536 -n 100 -u 18; }

test_multicast() { mckey_from_to 1 2; }
# Sends the messages up to 100 times, until the receiver ends.
test_multicast_back() { mckey_from_to 2 1 100; }

# The last test: faults were injected, and our device has counted them. rxe's counters have other
# names.
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
