#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon's engine is killed, and the daemon starts another one, or the daemon's program is
# replaced. Programs get an event, the driver recovers the device, and the Ethernet link and RDMA
# work again, without any help.
# testbed:
# more: --path wire
# more: --withhold all
# more: --joined unix
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Prints the stacks of the tasks that wait for something that does not come.
after_failure() {
	echo w >/proc/sysrq-trigger
	dmesg | tail -n 80
}

# Crashes or upgrades the daemon, and waits for the devices of both VMs.
both_recover_from() {
	recovers_from "$1"
	until_ok 120 traffic
}

# Frames of the VMs' Ethernet interfaces pass through the daemon too.
pings() { ping -c 1 -W 2 "$peer" >/dev/null; }

programs_are_told_of() {
	local name
	name=$(device 1)
	start_watch
	start_soak
	both_recover_from "$1"
	watch_is_told
	soak_ends
	[[ $(device 1) == "$name" ]]
	log_since 'the device needs a reset: it is not used any more, but reset'
	until_ok 60 pings
}

test_programs_are_told() { programs_are_told_of crash; }

test_the_program_is_replaced() { programs_are_told_of upgrade; }

test_again_and_again() {
	for _ in {1..3}; do
		both_recover_from crash
		until_ok 60 pings
	done
}

# The engine dies while the driver uses the new device for the first time.
test_within_a_recovery() {
	mark_log
	on 0 daemon crash 1
	until_ok 60 log_since 'the device is reset and probed again'
	again() { on 0 daemon crash 1; }
	until_ok 60 again
	works() { device_up && traffic; }
	until_ok 180 works
	until_ok 60 pings
}

run_tests test_programs_are_told test_the_program_is_replaced test_again_and_again \
	test_within_a_recovery
