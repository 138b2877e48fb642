#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma run` with a kernel of the user's.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Port of gdb on the first VM's kernel.
PORT=61234

# Image, modules and driver are those of the bundle, named one by one.
test_image_modules_and_driver() {
	local tree
	tree=$(echo "$bundle"/guest/modules/*)
	# shellcheck disable=SC2016 # of the VM's shell
	virtio_rdma run --vms 1 --kernel "$bundle/share/vmlinuz" --modules "$tree" \
		--driver "$bundle/guest/virtio_rdma.ko" --initrd-module dummy --append own.word=7 \
		--console -- sh -c 'cat /proc/cmdline; cat /sys/class/infiniband/*/ports/1/state
			ls -d /sys/module/dummy; readlink "/usr/lib/modules/$(uname -r)"' \
		</dev/null >"$work/out" 2>"$work/err"
	grep -q ' own.word=7$' "$work/out"
	grep -q ACTIVE "$work/out"
	grep -q '^/sys/module/dummy$' "$work/out"
	grep -q '^vm1: .*own.word=7' "$work/err"
	nothing_left
}

# gdb's protocol: the stub answers, and the VM goes on when it is detached.
test_gdb_attaches() {
	local launcher line reply=""
	"${as_user[@]}" "$bundle/bin/virtio-rdma" run --vms 1 --gdb "$PORT" -- \
		sh -c 'echo up; read -r line; echo "read $line"' \
		< <(until [[ -e $work/detached ]]; do sleep 0.2; done; echo go) \
		>"$work/out" 2>"$work/err" &
	launcher=$!
	until_ok grep -q '^up$' "$work/out"
	grep -q "^virtio-rdma: gdb vmlinux -ex 'target remote :$PORT'\$" "$work/err"
	exec 4<>"/dev/tcp/127.0.0.1/$PORT"
	printf '$?#3f' >&4
	until [[ $reply == *'$T'*'#'?? ]]; do
		read -rN 1 -t "$PATIENCE" line <&4
		reply+=$line
	done
	printf '+$D#44' >&4
	exec 4>&-
	touch "$work/detached"
	await_launcher
	((status == 0))
	[[ $(<"$work/out") == $'up\nread go' ]]
	nothing_left
}

# Options that a kernel lacks are named before it starts.
test_lacks_are_named() {
	local dir=$work/dir/kernel status=0
	mkdir -p "$dir"
	echo image >"$dir/vmlinuz-9.9"
	printf '%s\n' CONFIG_64BIT=y CONFIG_FUSE_FS=m '# CONFIG_VIRTIO_FS is not set' >"$dir/config-9.9"
	chmod -R a+rX "$dir"
	virtio_rdma run --kernel "$dir/vmlinuz-9.9" -- true </dev/null >"$work/out" 2>"$work/err" ||
		status=$?
	((status == 125))
	grep -q '^  CONFIG_VIRTIO_FS is not set: ' "$work/err"
	grep -q '^  CONFIG_FUSE_FS=m, but the option --modules is missing: ' "$work/err"
	if grep -q CONFIG_64BIT "$work/err"; then
		fail 'an option that the kernel has'
	fi
	status=0
	virtio_rdma run --kernel "$dir/nothing" -- true </dev/null >"$work/out" 2>"$work/err" ||
		status=$?
	((status == 125))
	grep -q "can't open $dir/nothing" "$work/err"
	nothing_left
}

run_tests test_image_modules_and_driver test_gdb_attaches test_lacks_are_named
