#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma run`: streams, status, user and directory of the command, `on`, signals, and cleanup.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# The input is random bytes, so that any conversion of text would be noticed. The command reads the
# caller's file; a file that the command writes does not appear on the host.
test_command_is_at_home() {
	local status=0
	head -c 3M /dev/urandom >"$work/random"
	echo hello >"$work/dir/file"
	FLAVOUR='a b' virtio_rdma run -- sh -c '
		sha256sum
		cat file
		touch new
		echo "$(id -u) $FLAVOUR $PWD $(hostname) $(on 2 hostname) $(on vm2 "echo \$((1 + 1))")"
		test -e /sys/class/infiniband/virtio_rdma0
		on 2 sh -c "test -e /sys/class/infiniband/virtio_rdma0; cat >&2; exit 7" <file
	' <"$work/random" >"$work/out" 2>"$work/err" || status=$?
	((status == 7))
	local uid=$EUID
	((uid != 0)) || uid=1000
	diff "$work/out" - <<-OUT
		$(sha256sum <"$work/random")
		hello
		$uid a b $work/dir vm1 vm2 2
	OUT
	grep -q '^virtio-rdma: 2 VMs up' "$work/err"
	grep -qx hello "$work/err"
	[[ ! -e $work/dir/new ]]
	nothing_left
}

test_interrupted() {
	start_command --vms 1
	kill -INT "$launcher"
	await_launcher
	((status == 130))
	nothing_left
}

test_killed() {
	start_command
	kill -KILL "$launcher"
	await_launcher
	((status == 137))
	until_ok nothing_left
}

# A kernel that panics while it boots is started once more. Here it panics again: it finds no first
# process. The product has no option for the kernel's command line, but shares this code with
# testbed.
test_panic_of_the_kernel() {
	local status=0
	"$top/tools/dev/testbed" run --vms 1 --append rdinit=/nothing -- true 2>"$work/err" || status=$?
	((status == 125))
	local again='testbed: once more, since the kernel of VM 1 panicked early: '
	(($(grep -c "^$again.*Unable to mount root" "$work/err") == 1))
	grep -qx 'testbed: VM 1 ended before it was up:' "$work/err"
	nothing_left
}

run_tests test_command_is_at_home test_interrupted test_killed test_panic_of_the_kernel
