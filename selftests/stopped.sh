#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon is stopped for so long that QEMU answers in its place. Until the driver knows that the
# device is gone, the device may continue and write to memory, so no work of kernel clients ends.
# more: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# QEMU closes the connection at the first answer that it no longer waits for. Then the device is
# gone.
# abi: R-115
test_stopped_daemon() {
	local loading
	mark_log
	insmod_kverbs death=1 &
	loading=$!
	until_ok 60 log_since 'may die now'
	on 0 daemon stop 1
	until_ok 120 log_since 'it is waited for'
	if log_since 'it is not used any more'; then
		fail "the driver gave the device up"
	fi
	kill -0 $loading
	on 0 daemon continue 1
	until_ok 120 log_since 'the device is gone: it is not used any more'
	wait $loading
	rmmod kverbs
}

run_tests test_stopped_daemon
