#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The verbs that kernel clients use: a module posts, polls and is told of completions.
# testbed:
# more: --withhold ring-addr --withhold mr-pages --withhold reg-pages --withhold multicast
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

kverbs=${TESTBED_MODULES:-$top/build}/kverbs/kverbs.ko

test_kernel_verbs() {
	local mark=kverbs.$$.$RANDOM status=0
	echo "selftests: $mark" >/dev/kmsg
	insmod "$kverbs" device="$(device 1)" gid_index="$(gid_index 1)" || status=$?
	dmesg | sed "1,/selftests: $mark\$/d" | grep kverbs:
	((status == 0)) || fail "see the lines above"
	rmmod kverbs
}

# Nothing is left behind beside what the kernel's own clients had before.
test_nothing_left() {
	rdma res show
	echo "before: $before"
	[[ $(rdma res show "$(device 1)") == "$before" ]]
}

before=$(rdma res show "$(device 1)")
run_tests test_kernel_verbs test_nothing_left
