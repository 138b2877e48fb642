#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon's engine is killed, and the daemon starts another one. Programs get an event, the
# driver recovers the device, and the Ethernet link and RDMA work again, without any help. If the
# daemon's program is replaced, programs notice nothing.
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

# Crashes the daemon, and waits for the devices of both VMs.
both_recover() {
	crash
	until_ok 120 traffic
}

# Frames of the VMs' Ethernet interfaces pass through the daemon too.
pings() { ping -c 1 -W 2 "$peer" >/dev/null; }

test_programs_are_told() {
	local name
	name=$(device 1)
	start_watch
	start_soak
	both_recover
	watch_is_told
	soak_ends
	[[ $(device 1) == "$name" ]]
	log_since 'the device needs a reset: it is not used any more, but reset'
	until_ok 60 pings
}

# Traffic that compares its data goes on over upgrades of the daemon's program.
test_the_program_is_replaced() {
	local round
	if in_virtqueue_mode; then
		# Its queues can't be handed over, so the device is recovered.
		mark_log
		on 0 daemon upgrade 1
		until_ok 120 recovers
		until_ok 120 traffic
		return
	fi
	rounds() { grep -c 'soak: round' "$work/soak"; }
	goes_on() { (($(rounds) > round + 1)); }
	start_watch
	start_soak
	mark_log
	for _ in {1..5}; do
		round=$(rounds)
		on 0 daemon upgrade 1
		until_ok 60 goes_on
	done
	stop_soak
	if log_since virtio_rdma; then
		fail "the driver has noticed something"
	fi
	if grep IBV_EVENT "$work/watch"; then
		fail "programs have got events"
	fi
	kill "$watch"
	pings
}

test_again_and_again() {
	for _ in {1..3}; do
		both_recover
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
