#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Streams of small messages between VMs with one processor each. QEMU translates such a VM's
# code in another way than that of VMs with several processors.
# more: --path direct --smp 1
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# A lost doorbell stops a QP for ever. With a barrier that QEMU leaves out, this happened in one of
# eight streams.
test_no_doorbell_is_lost() {
	for _ in {1..25}; do
		pair -x ib_write_bw -s 64 -n 200000 -q 8
	done
}

run_tests test_no_doorbell_is_lost
