#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A second driver on the abstractions of the virtio bus: samples/virtio_rng.rs, with two entropy
# devices of QEMU. One device answers. The other never answers, so reads from it wait.
# testbed: --vms 1 --no-device --rng
machines=(1)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

sample=$modules/module/samples/virtio_rng_sample.ko
driver=/sys/bus/virtio/drivers/virtio_rng_sample
core=/sys/class/misc/hw_random
hooks=$modules/kverbs/hooks.ko

# Prints the entropy devices in the order of their slots. The first one answers.
devices() {
	local device id
	for device in /sys/bus/pci/devices/*/virtio*; do
		read -r id <"$device/device"
		((id != 4)) || echo "${device##*/}"
	done
}

# Whether a device has a generator in the kernel's list.
has_generator() { [[ " $(<$core/rng_available) " == *" virtio_rng_sample.$1 "* ]]; }

lacks_generator() { ! has_generator "$1"; }

# Makes /dev/hwrng read from a device.
use() { echo "virtio_rng_sample.$1" >$core/rng_current; }

# Reads 64 bytes.
draw() { timeout 60 dd if=/dev/hwrng bs=64 count=1 iflag=fullblock status=none | od -An -v -tx1; }

# Whether /dev/hwrng returns bytes that are neither zero nor the same twice.
draws() {
	local first second zero
	zero=$(head -c 64 /dev/zero | od -An -v -tx1)
	first=$(draw)
	second=$(draw)
	printf '%s\n' "$first" "$second"
	((${#first} == ${#zero} && ${#second} == ${#zero}))
	[[ $first != "$zero" && $second != "$zero" && $first != "$second" ]]
}

# Starts a read from the device that never answers, and waits until the reader sleeps.
start_read() {
	use "$silent"
	: >"$work/read"
	dd if=/dev/hwrng bs=64 count=1 status=none >"$work/read" 2>"$work/error" &
	reader=$!
	until_ok 30 sleeps
}

sleeps() { [[ $(ps -o state= -p "$reader") == S* ]]; }

# Checks that the read of start_read ends with an error and without bytes.
read_ends() {
	local status=0
	timeout 60 tail --pid="$reader" -f /dev/null || fail "the read still waits"
	wait "$reader" || status=$?
	cat "$work/error"
	((status != 0))
	[[ ! -s $work/read ]]
}

# Unbinds the kernel's own driver from both devices, then loads the sample, which binds to them. The
# kernel's driver may be a module or built in.
insert() {
	local device
	mapfile -t found < <(devices)
	((${#found[@]} == 2))
	modprobe virtio_rng
	for device in "${found[@]}"; do
		[[ -e /sys/bus/virtio/devices/$device/driver ]] ||
			echo "$device" >/sys/bus/virtio/drivers/virtio_rng/bind
		echo "$device" >"/sys/bus/virtio/devices/$device/driver/unbind"
	done
	modprobe -r virtio_rng || [[ ! -d /sys/module/virtio_rng/holders ]]
	good=${found[0]} silent=${found[1]}
	insmod "$sample"
	[[ -e $driver/$good && -e $driver/$silent ]]
	has_generator "$good"
	has_generator "$silent"
}

# Unloads the sample.
remove() {
	timeout 60 rmmod virtio_rng_sample
	[[ ! -d $driver ]]
}

cleanup() {
	echo 1 >/sys/bus/pci/rescan
	[[ ! -d /sys/module/hooks ]] || rmmod hooks
	[[ ! -d $driver ]] || timeout 60 rmmod virtio_rng_sample
}

test_reads_differ() {
	insert
	use "$good"
	[[ $(<$core/rng_current) == "virtio_rng_sample.$good" ]]
	draws
	# Pieces of another length than the device's buffer. The total length is a multiple of the
	# core's buffer of 64 bytes: bytes left in that buffer would answer a later read.
	timeout 60 dd if=/dev/hwrng bs=100 count=48 iflag=fullblock status=none >"$work/bytes"
	(($(stat -c %s "$work/bytes") == 4800))
	# The probability that a given one of the 256 values is missing is about 1e-8.
	(($(od -An -v -w1 -tu1 "$work/bytes" | sort -u | wc -l) > 250))
	remove
}

test_bind_and_unbind() {
	insert
	for _ in {1..5}; do
		echo "$good" >$driver/unbind
		lacks_generator "$good"
		echo "$good" >$driver/bind
		has_generator "$good"
	done
	use "$good"
	draws
	remove
}

test_unbind_while_a_read_waits() {
	insert
	start_read
	echo "$silent" >$driver/unbind
	read_ends
	use "$good"
	draws
	remove
}

# A reader notifies the device while the driver is unbound. The queue is deleted only after the
# notification has ended.
test_unbind_during_a_notification() {
	insert
	use "$good"
	draw >"$work/drawn"
	insmod "$hooks" slow_notify="$good"
	draw >"$work/drawn" 2>&1 &
	until_ok 30 grep -q Y /sys/module/hooks/parameters/notifying
	echo "$good" >$driver/unbind
	wait $! || true
	grep -q N /sys/module/hooks/parameters/overtaken
	grep -q N /sys/module/hooks/parameters/unprotected
	rmmod hooks
	echo "$good" >$driver/bind
	use "$good"
	draws
	remove
}

test_unplug_while_a_read_waits() {
	insert
	start_read
	local function
	function=$(function_of "$silent")
	echo 1 >"$function/remove"
	[[ ! -e $function ]]
	read_ends
	lacks_generator "$silent"
	use "$good"
	draws
	# The device returns with another name.
	echo 1 >/sys/bus/pci/rescan
	until_ok 30 takes_two
	remove
}

# Binds the sample to the devices that the kernel's built-in driver has taken before.
takes_two() {
	local device
	for device in $(devices); do
		if [[ -e /sys/bus/virtio/drivers/virtio_rng/$device ]]; then
			echo "$device" >/sys/bus/virtio/drivers/virtio_rng/unbind
			echo "$device" >$driver/bind
		fi
	done
	(($(devices | wc -l) == 2 && $(find $driver/ -name 'virtio[0-9]*' | wc -l) == 2))
}

test_remove_module_while_a_read_waits() {
	insert
	start_read
	remove
	read_ends
	insert
	use "$good"
	draws
	remove
}

# A reset of the function: the device loses its queues. The driver keeps its generator, because a
# reader may be waiting for it.
test_reset_of_the_function() {
	insert
	local function
	function=$(function_of "$good")
	cat "$function/reset_method"
	use "$good"
	for _ in {1..3}; do
		echo 1 >"$function/reset"
		has_generator "$good"
		draws
	done
	start_read
	echo 1 >"$(function_of "$silent")/reset"
	sleeps
	has_generator "$silent"
	echo "$silent" >$driver/unbind
	read_ends
	remove
}

run_tests test_reads_differ test_bind_and_unbind test_unbind_while_a_read_waits \
	test_unbind_during_a_notification test_unplug_while_a_read_waits \
	test_remove_module_while_a_read_waits \
	test_reset_of_the_function
