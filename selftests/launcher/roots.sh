#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma run`: other roots, and persistent changes.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Whether the file systems on these disks are clean: ext4 has a flag for "needs recovery".
is_clean() {
	local disk bits
	for disk in "$@"; do
		bits=$(od -An -tu1 -j $((0x460)) -N1 "$disk")
		((!(bits & 4))) || fail "$disk was not unmounted"
	done
}

test_working_directory() {
	virtio_rdma run --vms 1 --rw -- sh -c 'echo x >here; mkdir sub; ln -s here sub/link' </dev/null
	[[ $(<"$work/dir/here") == x && -L $work/dir/sub/link ]]
	nothing_left
}

# Each VM has its own changes, which do not affect the files of the host.
test_overlay() {
	local keep=$work/dir/keep
	echo x >"$work/dir/there"
	chmod 666 "$work/dir/there"
	virtio_rdma run --overlay "$keep" -- \
		sh -c 'echo kept >/tmp/kept; rm there; on 2 sh -c "test -e there"' </dev/null
	[[ -e $work/dir/there ]]
	is_clean "$keep"/vm[12].img
	virtio_rdma run --overlay "$keep" -- \
		sh -c 'cat /tmp/kept; ! test -e there; on 2 sh -c "! test -e /tmp/kept"' \
		</dev/null >"$work/out"
	[[ $(<"$work/out") == kept ]]
	nothing_left
}

# Programs that are still writing are killed before the disk is unmounted.
test_overlay_after_all_ends() {
	local keep=$work/dir/keep status=0
	virtio_rdma run --vms 1 --overlay "$keep" --timeout 120 -- \
		sh -c 'echo 1 >/tmp/first; while :; do echo x; done >/tmp/second' \
		</dev/null 2>"$work/err" || status=$?
	((status == 125))
	is_clean "$keep/vm1.img"
	# After a killed run, the next run recovers the file system from its journal.
	start_command --vms 1 --overlay "$keep"
	status=0
	virtio_rdma run --vms 1 --overlay "$keep" -- true </dev/null 2>"$work/err" || status=$?
	((status == 125))
	grep -q 'another run uses .*/vm1.img' "$work/err"
	kill -KILL "$launcher"
	await_launcher
	until_ok nothing_left
	virtio_rdma run --vms 1 --overlay "$keep" -- cat /tmp/first </dev/null >"$work/out"
	[[ $(<"$work/out") == 1 ]]
}

# The root is an unpacked image without libibverbs: a shell and its libraries.
test_another_root() {
	local root=$work/dir/root file
	mkdir -p "$root/etc"
	# The caller's directory does not exist here, and the user may not enter root's home.
	mkdir -m 700 "$root/root"
	for file in /bin/sh $(ldd /bin/sh | grep -o '/lib[^ ]*'); do
		mkdir -p "$root$(dirname "$file")"
		cp -L "$file" "$root$file"
	done
	TOKEN=secret virtio_rdma run --vms 1 --root "$root" -- \
		/bin/sh -c 'echo "here$TOKEN"; echo /etc/* >&2' </dev/null >"$work/out" 2>"$work/err"
	[[ $(<"$work/out") == here ]]
	grep -q 'has no libibverbs' "$work/err"
	grep -qF '/etc/hosts /etc/libibverbs.d' "$work/err"
	if grep -q passwd "$work/err"; then
		fail "the root has files of the host"
	fi
	virtio_rdma run --root "$root" --tools -- /bin/sh -c '
		on 2 /bin/sh -c "cd ."
		on -n 2 ib_write_bw -x 1 -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do kill -0 $! || exit; done
		ib_write_bw -x 1 -F -n 100 vm2
		wait' </dev/null >"$work/out" 2>"$work/err"
	grep -q '#bytes' "$work/out"
	nothing_left
}

# The selftests run between VMs of `virtio-rdma`, as root and with the sysroot's programs.
test_selftests() {
	((EUID == 0)) || skip "not root"
	cd "$top"
	# shellcheck disable=SC2016 # of the VM's shell
	"$bundle/bin/virtio-rdma" run --rw --root "${SYSROOT:-build/sysroot}" -- sh -ec '
		link() { make -s -C selftests run_tests TEST_PROGS=link.sh "$@"; }
		link TESTS=test_link_active
		! link TESTS=no_such_test
		link TESTBED_PROGRAMS=/missing' </dev/null >"$work/out" 2>"$work/err"
	grep -q '^    ok 1 link_active' "$work/out"
	[[ $(grep -c '^ok 1 link ' "$work/out") == 1 ]]
	grep -q '^not ok 1 link ' "$work/out"
	grep -q '^1[.][.]0 # SKIP cannot run /missing/verbs-test' "$work/out"
	nothing_left
}

# A caller's variables may hold secrets, and another root may be a stranger's.
test_secrets_stay_outside() {
	local root=$work/dir/root file
	for file in /bin/sh $(ldd /bin/sh | grep -o '/lib[^ ]*'); do
		mkdir -p "$root$(dirname "$file")"
		cp -L "$file" "$root$file"
	done
	local show='echo "$TOKEN $GIVEN $OTHER $LC_ALL"'
	TOKEN=secret GIVEN=1 OTHER=2 virtio_rdma run --vms 1 --root "$root" --env GIVEN \
		--env OTHER=3 -- /bin/sh -c "$show" </dev/null >"$work/out" 2>"$work/err"
	[[ $(<"$work/out") == ' 1 3 C' ]]
}

# A root like Alpine's with its package gcompat, which gives musl the file name of glibc.
test_root_without_glibc() {
	local root=$work/dir/musl status=0
	mkdir -p "$root/lib" "$root/etc"
	echo 'musl libc (x86_64)' >"$root/lib/ld-musl-x86_64.so.1"
	ln -s ld-musl-x86_64.so.1 "$root/lib/libc.so.6"
	echo 'ID=alpine' >"$root/etc/os-release"
	virtio_rdma run --vms 1 --root "$root" -- missing </dev/null >"$work/out" 2>"$work/err" ||
		status=$?
	((status == 127))
	grep -q 'C library is not glibc.*--tools' "$work/err"
	virtio_rdma run --root "$root" --tools -- ibv_devinfo </dev/null >"$work/out" 2>"$work/err"
	grep -q PORT_ACTIVE "$work/out"
	if grep -q glibc "$work/err"; then
		fail "with --tools, the C library does not matter"
	fi
	nothing_left
}

run_tests test_working_directory test_overlay test_overlay_after_all_ends \
	test_another_root test_selftests test_secrets_stay_outside test_root_without_glibc
