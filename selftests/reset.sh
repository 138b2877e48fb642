#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A queue makes no sense, by the driver's doing or the device's: the device asks for a reset, or the
# driver gives it up. It is dead, and programs are told. A driver that is bound again has it back.
# more:
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

kverbs=${TESTBED_MODULES:-$top/build}/kverbs/kverbs.ko

# Breaks it by the driver's nonsense, or by its own.
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

# Nobody runs a command meanwhile, whose answer would be missed.
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

# The MAD layer's CQ is armed at all times.
test_idle_when_dead() {
	break_device
	until_ok 60 is_dead
	workers_are_idle
	rebind
}

# The end of a CQ meets what the end of the device has set going.
test_again_and_again() {
	for _ in {1..5}; do
		break_device
		rebind
	done
	# By an interrupt, not by the look at an idle device every few seconds.
	local log
	log=$(dmesg)
	[[ $log == *'needs a reset: '* && $log != *'of which no interrupt told'* ]]
	traffic
}

# The queue says nothing more, and nobody runs a command.
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
