#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Queues in memory that is fragmented down to single pages: rings need no contiguous pages.
# more: --path direct --mem 600
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_single_pages() {
	start_server
	client client "$peer" scattered_rings
}

run_tests test_single_pages
