#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The tests of failing.sh that make check leaves out: the device answers no command for a minute,
# but continues to work; it does not answer a command for which no task waits; a machine is powered
# off while its device has not confirmed a reset.
# more:
# more: --withhold all
TESTS='test_silent_device test_gid_without_answer test_power_off' exec "$(dirname "$0")/failing.sh"
