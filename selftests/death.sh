#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon dies, and the device with it: work of the kernel ends, programs are told, the driver
# can be removed and the machine powered off. Each VM has a daemon of its own; that of VM 1 goes
# first.
# more: --joined unix --allow-warnings
# more: --joined unix --allow-warnings --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

kverbs=${TESTBED_MODULES:-$top/build}/kverbs/kverbs.ko
# The virtio core can't reset a device that has gone, and says so.
# shellcheck disable=SC2034
accepted='WARNING: drivers/virtio/virtio\.c:[0-9]+ at virtio_dev_remove'

# A program must end, in whatever way.
ends() {
	local status=0
	timeout 60 "$@" || status=$?
	((status != 124)) || fail "still runs: $*"
	return "$status"
}

test_work_ends() {
	local mark=death.$$ loading status=0
	log() { dmesg | sed "1,/selftests: $mark\$/d" | grep kverbs: ; }
	start_watch
	start_soak
	echo "selftests: $mark" >/dev/kmsg
	insmod "$kverbs" device="$(device 1)" gid_index="$(gid_index 1)" death=1 &
	loading=$!
	waits() { log | grep -q 'may die now'; }
	until_ok 60 waits
	on 0 daemon kill 1
	wait "$loading" || status=$?
	log
	((status == 0)) || fail "see the lines above"
	rmmod kverbs
	told() { grep -q IBV_EVENT_DEVICE_FATAL "$work/watch"; }
	until_ok 20 told
	# The MAD layer's CQ is armed at all times, and no completion comes.
	workers_are_idle
	# Objects of processes go with them.
	kill "$watch" "$soak"
	wait "$watch" "$soak" || true
}

# The device can be opened, but nothing can be made of it.
test_programs_fail() {
	ends ibv_devinfo || true
	if ends ibv_rc_pingpong -d "$(device 1)" -g 1 </dev/null >"$work/pingpong" 2>&1; then
		fail "a program that works with a dead device"
	fi
	cat "$work/pingpong"
	grep -qE "Couldn't (get (context|port info)|allocate PD|register MR|create (CQ|QP))|Failed to modify QP" "$work/pingpong"
}

# The dead device goes before the driver comes again: Linux's virtio core follows a null pointer
# when any driver meets a device whose features read all-ones.
test_driver_and_device_can_be_removed() {
	local function
	function=$(readlink -f "/sys/bus/virtio/devices/$(virtio_device 1)/..")
	ends rmmod virtio_rdma
	[[ -z $(device 1) ]]
	ends sh -c "echo 1 >$function/remove"
	[[ ! -e $function ]]
	ends insmod "$module"
	[[ -z $(device 1) ]]
	ends rmmod virtio_rdma
}

# The peer is not harmed.
test_other_machine() {
	link_is 2 ACTIVE
	on 2 timeout 60 ibv_devinfo
}

# Last, since VM 2 ends. Nothing has found its device dead yet.
test_power_off() {
	on 0 daemon kill 2
	on 2 sh -c 'echo o >/proc/sysrq-trigger; sleep 100' || true
	gone() { ! on 2 true; }
	until_ok 60 gone
}

run_tests test_work_ends test_programs_fail test_driver_and_device_can_be_removed \
	test_other_machine test_power_off
