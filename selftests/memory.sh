#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Registration of 8 GiB of memory if the VMs have enough, else of 1 GiB: with small pages, whose
# addresses are passed to the device in a list of two levels, and with huge pages.
# more: --path direct --mem 1600
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

thp=/sys/kernel/mm/transparent_hugepage/enabled
before=$(sed 's/.*\[\(.*\)\].*/\1/' "$thp")

# Sets whether programs get huge pages, on both VMs.
huge_pages() {
	local vm
	for vm in 1 2; do
		at "$vm" sh -c "echo $1 >$thp"
	done
}
cleanup() { huge_pages "$before"; }

test_small_pages() {
	huge_pages never
	start_server
	client client "$peer" memory_gigabytes
}

test_huge_pages() {
	huge_pages always
	start_server
	client client "$peer" memory_gigabytes
}

run_tests test_small_pages test_huge_pages
