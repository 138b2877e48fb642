#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A process that corrupts its own queues harms no other process: the verified traffic of another
# process continues meanwhile.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Prints the number of rounds that the process with verified traffic has completed.
rounds() {
	sed -n 's/^# soak: round //p' "$work/soak" | tail -n 1
}

# Runs a hostile test while traffic of another process must make progress and stay correct.
beside_traffic() {
	local before
	start_soak
	start_server 18800
	before=$(rounds)
	client -p 18800 client "$peer" --rounds 8 "$1" >"$work/hostile" 2>&1 || {
		cat "$work/hostile"
		fail "the hostile process could not connect again"
	}
	further() { (($(rounds) > before)); }
	until_ok 120 further
	touch "$work/stop"
	wait "$soak" || {
		cat "$work/soak"
		fail "the bystander was disturbed"
	}
	traffic
}

test_garbage_in_rings() { beside_traffic hostile_rings; }
test_unmapped_rings() { beside_traffic hostile_unmapped; }
test_doorbell_storm() { beside_traffic hostile_doorbell; }
test_other_mappings() { beside_traffic hostile_mappings; }
test_opcode_of_the_kernel() { beside_traffic hostile_registration; }

# A process that is killed in the middle of its work leaves no objects.
test_killed_in_flight() {
	local before
	count() { rdma -j res show "$(device 1)" | tr -d ' \n\t'; }
	before=$(count)
	for _ in {1..3}; do
		start_soak
		kill -KILL "$soak"
		wait "$soak" || true
	done
	is_as_before() { [[ $(count) == "$before" ]]; }
	until_ok 20 is_as_before
	traffic
}

run_tests test_garbage_in_rings test_unmapped_rings test_doorbell_storm test_other_mappings \
	test_opcode_of_the_kernel test_killed_in_flight
