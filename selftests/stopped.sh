#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon is stopped for so long that QEMU answers in its place. Until it is known that the
# device is gone, it may go on and write to memory, so no work of kernel clients ends.
# more: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

kverbs=${TESTBED_MODULES:-$top/build}/kverbs/kverbs.ko

# QEMU closes the connection at the first answer that it no longer waits for. Then the device is
# gone.
# abi: R-115
test_stopped_daemon() {
	local mark=stopped.$$ loading
	since() { dmesg | sed "1,/selftests: $mark\$/d" | grep "$1"; }
	echo "selftests: $mark" >/dev/kmsg
	insmod "$kverbs" device="$(device 1)" gid_index="$(gid_index 1)" death=1 &
	loading=$!
	until_ok 60 since 'may die now'
	on 0 daemon stop 1
	until_ok 120 since 'it is waited for'
	if since 'it is not used any more'; then
		fail "the driver gave the device up"
	fi
	kill -0 $loading
	on 0 daemon continue 1
	until_ok 120 since 'the device is gone: it is not used any more'
	wait $loading
	rmmod kverbs
}

run_tests test_stopped_daemon
