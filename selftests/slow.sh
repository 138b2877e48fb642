#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The device answers no command for a minute, but goes on: the long test of failing.sh.
# more:
# more: --withhold all
TESTS=test_silent_device exec "$(dirname "$0")/failing.sh"
