#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Tests of the kernel abstractions under rust/ that need no RDMA device, and the examples in their
# documentation. A module runs both when it is loaded, and writes the results to the kernel's log.
# testbed: --vms 1 --no-device --rng
machines=(1)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_module() {
	local status=0 plan
	modprobe ib_uverbs
	dmesg -C
	insmod "$modules/module/rust/abstractions_test.ko" || status=$?
	dmesg -t | grep -F 'abstractions_test: ' | tee "$work/report"
	((status == 0)) && rmmod abstractions_test
	plan=$(sed -n 's/.*abstractions_test: 1\.\.//p' "$work/report")
	((plan > 0))
	(($(grep -c ' ok [0-9]' "$work/report") == plan))
	! grep -q ' not ok ' "$work/report"
}

run_tests test_module
