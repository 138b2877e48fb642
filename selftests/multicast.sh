#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Multicast groups that programs join with the connection manager. Datagrams are not retransmitted,
# and the receiver waits for all ten.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_multicast() { mckey_from_to 1 2; }
test_multicast_back() { mckey_from_to 2 1; }

run_tests test_multicast test_multicast_back
