#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The kernel's own clients lose their device under traffic: it is unbound, fails, is unplugged, or
# its daemon crashes. The driver releases the device, traffic ends or continues later, and a new
# connection works.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=ulp-lib.sh
. "$(dirname "$0")/ulp-lib.sh"

# Writes without a pause, also after errors. A write may wait for a new connection, so a program
# that does not end is killed at the end of the test. The node of a disk that is gone is not made
# again as a file.
start_writer() {
	rm -f "$work/stop"
	: >"$work/rounds"
	while [[ ! -e $work/stop ]]; do
		if dd if=/dev/zero of="$1" bs=64k count=16 oflag=direct conv=notrunc,nocreat; then
			echo round >>"$work/rounds"
		else
			sleep 1
		fi
	done 2>/dev/null &
	has_written() { (($(wc -l <"$work/rounds") >= 3)); }
	until_ok 60 has_written
}

stop_writer() { touch "$work/stop"; }

# The ways to lose a device. Each returns when the driver has let go of it.
unbind() { timeout 120 bash -c "echo '$(virtio_device 1)' >$driver/unbind"; }

# The device breaks a queue and continues to work, until the driver recovers it.
fail_device() {
	mark_log
	insmod "$kverbs" device="$(device 1)" device_nonsense=1
	rmmod kverbs
	until_ok 120 recovers
	unbind
}

unplug() {
	local function
	function=$(function_of "$(virtio_device 1)")
	timeout 120 bash -c "echo 1 >$function/remove"
	[[ ! -e $function ]]
}

# Binds the device or, after it was unplugged, finds it again.
bind() {
	local name
	name=$(virtio_device 1)
	if [[ -n $name ]]; then
		echo "$name" >"$driver/bind"
	else
		echo 1 >/sys/bus/pci/rescan
	fi
	until_ok 120 device_up
}

after_failure() {
	[[ -n $(device 1) ]] || bind
}

# Connects, loses the device under traffic, and connects again: loses LOSS CLIENT
loses() {
	local loss=$1 client=$2
	"connect_$client"
	start_writer "$("file_of_$client")"
	"$loss"
	[[ -z $(device 1) ]]
	stop_writer
	bind
	cleanup
	# The old connection is gone from the server when its module has noticed.
	"connect_$client"
	start_writer "$("file_of_$client")"
	stop_writer
}

# Connects, and has the daemon crash under traffic, which then continues by itself.
outlives_a_crash() {
	local client=$1 before
	"connect_$client"
	start_writer "$("file_of_$client")"
	crash
	before=$(wc -l <"$work/rounds")
	grows() { (($(wc -l <"$work/rounds") >= before + 3)); }
	until_ok 300 grows
	stop_writer
}

test_unbind_under_nfs() { loses unbind nfs; }
test_fail_under_nfs() { loses fail_device nfs; }
test_unbind_under_nvme() { loses unbind nvme; }
test_unplug_under_nvme() { loses unplug nvme; }
test_fail_under_nvme() { loses fail_device nvme; }
test_unbind_under_iser() { loses unbind iser; }
test_fail_under_iser() { loses fail_device iser; }

test_crash_under_nfs() { outlives_a_crash nfs; }

# ulp-losses.sh runs the others.
run_tests test_fail_under_nvme
