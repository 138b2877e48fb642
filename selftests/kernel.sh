#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The verbs of kernel clients: a module posts and polls, and its completion handlers are called.
# testbed:
# more: --withhold all
# more: --order-platform
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

exporter=$modules/kverbs/exporter.ko

# abi: R-893, R-904
test_kernel_verbs() {
	load_kverbs
	rmmod kverbs
}

# Impossible completions, which are forged in the device's buffers.
test_lies() {
	in_virtqueue_mode || skip "own rings can't be found in memory"
	load_kverbs lies=1
	rmmod kverbs
}

# An exporter moves its memory, and later revokes it, while the peer writes to this memory by RDMA.
# No byte is written to the old pages.
test_buffers_that_move() {
	has_feature 12 || skip "withheld"
	on 2 insmod "$exporter"
	start_server
	client client "$peer" dmabuf_moves
	on 2 pkill -f 'verbs-test .* server' || true
	until_ok 30 on 2 rmmod exporter
}

# Only the objects of the kernel's own clients are left.
test_nothing_left() {
	rdma res show
	echo "before: $before"
	[[ $(rdma res show "$(device 1)") == "$before" ]]
}

before=$(rdma res show "$(device 1)")
run_tests test_kernel_verbs test_lies test_buffers_that_move test_nothing_left
