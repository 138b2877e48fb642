#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# What the driver does with its own data in the verbs of processes, whatever a program writes there.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

driver_data() {
	local node name
	for node in /sys/class/infiniband_verbs/uverbs*; do
		read -r name <"$node/ibdev"
		[[ $name == "$(device 1)" ]] || continue
		python3 "$top/selftests/uverbs/driver_data.py" "/dev/infiniband/${node##*/}" "$1"
	done
}

# abi: R-935
test_response_is_written() { driver_data response_is_written; }
# abi: R-933, R-934
test_unknown_request_is_refused() { driver_data unknown_request_is_refused; }
# abi: R-936
test_cq_buffer_is_refused() { driver_data cq_buffer_is_refused; }

run_tests test_response_is_written test_unknown_request_is_refused test_cq_buffer_is_refused
