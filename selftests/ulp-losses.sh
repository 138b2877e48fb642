#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The tests of ulp-loss.sh that make check leaves out.
# more: --path direct
TESTS='test_unbind_under_nfs test_fail_under_nfs test_crash_under_nfs test_unbind_under_nvme
	test_unplug_under_nvme test_unbind_under_iser test_fail_under_iser' \
	exec "$(dirname "$0")/ulp-loss.sh"
