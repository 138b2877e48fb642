#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Data stays correct over a wire that loses, duplicates, reorders and corrupts packets.
# testbed: --path wire --faults drop=0.005,duplicate=0.005,reorder=0.005,corrupt=0.005,seed=7
exec "$(dirname "$0")/data.sh" --lossy data_send data_write data_read sge_ queue_wraps \
	queue_both_directions queue_many_pairs \
	queue_fence event_none_lost error_remote
