#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A corrupt virtqueue. If the driver has corrupted the virtqueue, the device requests a reset. If
# the device has corrupted it, the driver gives the device up. In both cases programs get an event.
# The driver resets the device and probes it again by itself.
# more:
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Breaks the device by a corruption of the driver (nonsense) or of the device (device_nonsense).
break_device() {
	insmod "$kverbs" device="$(device 1)" "${1:-nonsense}=1"
	rmmod kverbs
}

unbind() {
	virtio_device 1 >"$driver/unbind"
	[[ -z $(device 1) ]]
}

bind() {
	virtio_device 1 >"$driver/bind"
	until_ok 120 device_up
}

after_failure() {
	unbind
	bind
}

# The driver detects the failure although no command waits for a response. The device comes back
# under its name, and is still bound, so that its driver needs nobody.
test_programs_are_told() {
	local name guid
	name=$(device 1)
	guid=$(</sys/class/infiniband/"$name"/node_guid)
	start_watch
	start_soak
	mark_log
	break_device
	watch_is_told
	soak_ends
	until_ok 60 recovers
	[[ $(device 1) == "$name" ]]
	[[ $(</sys/class/infiniband/"$name"/node_guid) == "$guid" ]]
	log_since 'the device needs a reset: it is not used any more, but reset'
	log_since 'the device was reset: it is at rest'
	traffic
	workers_are_idle
}

# Destroying a CQ races with the work that the device's failure has started. Recoveries that follow
# each other at once wait longer and longer.
test_again_and_again() {
	local i
	mark_log
	for i in {1..5}; do
		break_device
		recoveries() { (($(log_since 'is reset and probed again' | wc -l) == i)) && device_up; }
		until_ok 120 recoveries
	done
	log_since 'the device fails again and again: its recovery waits for'
	# The reset request was detected by an interrupt, not by the periodic check.
	if log_since 'but sent no configuration interrupt'; then
		fail "the periodic check has detected the request"
	fi
	traffic
}

# A device whose driver is unbound before its recovery stays unbound.
test_unbound_before_the_recovery() {
	mark_log
	break_device
	until_ok 60 recovers
	break_device
	waits() { log_since 'its recovery waits for'; }
	until_ok 60 waits
	unbind
	sleep 10
	[[ -z $(device 1) ]]
	bind
	traffic
}

# The driver detects a queue that the device has corrupted, although the queue reports nothing any
# more and no command is running.
test_broken_queue() {
	mark_log
	break_device device_nonsense
	until_ok 60 recovers
	log_since 'broke a queue: it is not used any more, but reset'
	traffic
}

run_tests test_programs_are_told test_broken_queue test_again_and_again \
	test_unbound_before_the_recovery
