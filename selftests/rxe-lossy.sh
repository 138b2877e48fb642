#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Data to and from Linux's rdma_rxe stays correct over a wire that loses, duplicates, reorders and
# corrupts packets. Only few packets are affected: rxe ignores a second NAK until the packets of the
# first one are acknowledged, and waits for its timer, a second or more, after each lost packet of a
# READ.
# more: --rxe 1 --faults drop=0.0003,duplicate=0.0003,reorder=0.0003,corrupt=0.0003,seed=7 --pcap build/rxe-lossy.pcap
exec "$(dirname "$0")/rxe.sh" --lossy data_send data_write data_read sge_ atomic_values \
	queue_wraps queue_both_directions \
	queue_many_pairs queue_fence event_none_lost error_remote
