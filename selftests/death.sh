#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon is killed, and the device dies: work of kernel clients is flushed, programs get an
# event, the driver can be removed, and the machine can be powered off. Each VM has its own daemon;
# the daemon of VM 1 is killed first.
# more: --joined unix --allow-warnings
# more: --joined unix --allow-warnings --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# The virtio core warns that it can't reset a device that is gone.
# shellcheck disable=SC2034
accepted='WARNING: drivers/virtio/virtio\.c:[0-9]+ at virtio_dev_remove'

# Runs a program that must end, with any status.
ends() {
	local status=0
	timeout 60 "$@" || status=$?
	((status != 124)) || fail "still runs: $*"
	return "$status"
}

test_work_ends() {
	local loading status=0
	start_watch
	start_soak
	mark_log
	insmod_kverbs death=1 &
	loading=$!
	until_ok 60 log_since 'may die now'
	on 0 daemon kill 1
	wait "$loading" || status=$?
	kverbs_said "$status"
	rmmod kverbs
	told() { grep -q IBV_EVENT_DEVICE_FATAL "$work/watch"; }
	until_ok 20 told
	# The kernel's MAD layer re-arms its CQ after each event. On a device that is gone, this must
	# not keep kernel threads busy.
	workers_are_idle
	# The objects of a process are destroyed with it.
	kill "$watch" "$soak"
	wait "$watch" "$soak" || true
}

# A device that is gone can be opened, but no objects can be created.
test_programs_fail() {
	ends ibv_devinfo || true
	if ends ibv_rc_pingpong -d "$(device 1)" -g 1 </dev/null >"$work/pingpong" 2>&1; then
		fail "a program that works with a device that is gone"
	fi
	cat "$work/pingpong"
	grep -qE "Couldn't (get (context|port info)|allocate PD|register MR|create (CQ|QP))|Failed to modify QP" "$work/pingpong"
}

# The device is removed before the driver is loaded again: Linux's virtio core dereferences a
# null pointer if a driver probes a device whose features read as all-ones.
test_driver_and_device_can_be_removed() {
	local function
	function=$(function_of "$(virtio_device 1)")
	ends rmmod virtio_rdma
	[[ -z $(device 1) ]]
	ends sh -c "echo 1 >$function/remove"
	[[ ! -e $function ]]
	ends insmod "$module"
	[[ -z $(device 1) ]]
	ends rmmod virtio_rdma
}

# The peer still works.
test_other_machine() {
	link_is 2 ACTIVE
	on 2 timeout 60 ibv_devinfo
}

# VM 2 can be powered off although its device is gone and its driver has not detected this yet. This
# test must be the last one, since it ends VM 2.
test_power_off() {
	on 0 daemon kill 2
	on 2 sh -c 'echo o >/proc/sysrq-trigger; sleep 100' || true
	gone() { ! on 2 true; }
	until_ok 60 gone
}

run_tests test_work_ends test_programs_fail test_driver_and_device_can_be_removed \
	test_other_machine test_power_off
