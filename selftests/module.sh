#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The driver can be removed at any time: unbound or unloaded, with traffic, with an open context.
# So can its device: by a reset of the PCI function or a suspend.
# testbed: --path direct
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

hooks=$modules/kverbs/hooks.ko

unbind() { virtio_device 1 >"$driver/unbind"; }
bind() {
	virtio_device 1 >"$driver/bind"
	until_ok 20 device_up
}
remove() {
	timeout 60 rmmod virtio_rdma
	[[ -z $(device 1) ]]
}
insert() {
	insmod "$module"
	until_ok 20 device_up
}

# A failed test may have left the device without its driver.
after_failure() {
	[[ ! -d /sys/module/hooks ]] || rmmod hooks
	[[ ! -d /sys/module/suspender ]] || rmmod suspender
	[[ -d $driver ]] || insmod "$module"
	[[ -n $(device 1) ]] || bind
}

test_unbind_and_bind() {
	for _ in {1..5}; do
		unbind
		[[ -z $(device 1) ]]
		bind
	done
	traffic
}

test_remove_and_insert() {
	for _ in {1..3}; do
		remove
		insert
	done
	traffic
}

test_unbind_with_traffic() {
	start_soak
	unbind
	soak_ends
	bind
	traffic
}

test_remove_with_traffic() {
	for _ in 1 2; do
		start_soak
		remove
		soak_ends
		insert
	done
	traffic
}

# A context stays open during the removal. It gets an event, and its program can end.
test_remove_with_open_context() {
	for _ in 1 2; do
		start_watch
		remove
		watch_is_told
		insert
	done
	traffic
}

# The peer of a removed device runs out of retries, and can connect again later.
test_peer_survives() {
	on 2 rdma link show
	start_soak
	remove
	soak_ends
	insert
	link_is 2 ACTIVE
	traffic
}

# The queues share an interrupt vector, as those of a device with few vectors.
test_shared_vector() {
	local function
	function=$(function_of "$(virtio_device 1)")
	unbind
	insmod "$hooks" few_vectors="${function##*/}"
	bind
	grep "$(virtio_device 1)-virtqueues" /proc/interrupts
	traffic
	unbind
	bind
	traffic
	unbind
	rmmod hooks
	bind
	[[ $(</proc/interrupts) != *"$(virtio_device 1)-virtqueues"* ]]
	traffic
}

# A reset of the PCI function. The driver is unbound before it and bound after it.
test_reset_of_the_function() {
	local function
	function=$(function_of "$(virtio_device 1)")
	[[ $(<"$function/reset_method") == *flr* ]]
	for _ in 1 2; do
		start_watch
		echo 1 >"$function/reset"
		watch_is_told
		until_ok 20 device_up
		traffic
	done
	start_soak
	echo 1 >"$function/reset"
	soak_ends
	until_ok 20 device_up
	traffic
	# Its data was dropped once, so the driver can still be unbound.
	unbind
	bind
	traffic
}

# Suspends the virtio device and resumes it.
suspend() {
	insmod "$modules/kverbs/suspender.ko" device="$(device 1)" ms=500
	rmmod suspender
	until_ok 20 device_up
}

# The device loses its state in a suspend, so the driver registers it again.
test_suspend() {
	[[ -e $modules/kverbs/suspender.ko ]] || skip "the kernel has no suspend"
	for _ in 1 2; do
		start_watch
		suspend
		watch_is_told
		traffic
	done
	start_soak
	suspend
	soak_ends
	traffic
	unbind
	bind
	traffic
}

tests=(test_unbind_and_bind test_remove_with_traffic test_shared_vector
	test_reset_of_the_function test_suspend)
in_virtqueue_mode ||
	tests+=(test_remove_and_insert test_unbind_with_traffic test_remove_with_open_context
		test_peer_survives)
run_tests "${tests[@]}"
