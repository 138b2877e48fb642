#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A corrupt virtqueue. If the driver has corrupted the virtqueue, the device requests a reset. If
# the device has corrupted it, the driver gives the device up. In both cases programs get an
# event. The device works again after its driver was unbound and bound again.
# more:
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Breaks the device by a corruption of the driver (nonsense) or of the device (device_nonsense).
break_device() {
	insmod "$kverbs" device="$(device 1)" "${1:-nonsense}=1"
	rmmod kverbs
}

is_dead() { link_is 1 DOWN; }

unbind() {
	virtio_device 1 >"$driver/unbind"
	[[ -z $(device 1) ]]
}

bind() {
	virtio_device 1 >"$driver/bind"
	until_ok 120 device_up
}

rebind() {
	unbind
	bind
}

after_failure() { rebind; }

# The driver detects the death although no command waits for a response.
test_programs_are_told() {
	start_watch
	start_soak
	break_device
	watch_is_told
	unbind
	soak_ends
	bind
	traffic
}

# The kernel's threads are idle, although the MAD layer's CQ is always armed.
test_idle_when_dead() {
	break_device
	until_ok 60 is_dead
	workers_are_idle
	rebind
}

# Destroying a CQ races with the work that the device's death has started.
test_again_and_again() {
	for _ in {1..5}; do
		break_device
		rebind
	done
	# The reset request was detected by an interrupt, not by the periodic check.
	local log
	log=$(dmesg)
	[[ $log == *'needs a reset: '* && $log != *'but sent no configuration interrupt'* ]]
	traffic
}

# The driver detects a queue that the device has corrupted, although the queue reports nothing any
# more and no command is running.
test_broken_queue() {
	break_device device_nonsense
	until_ok 60 is_dead
	local log
	log=$(dmesg)
	[[ $log == *'broke a queue: '* ]]
	rebind
	traffic
}

run_tests test_programs_are_told test_broken_queue test_idle_when_dead test_again_and_again
