#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma`: runs side by side, limits of time, what is kept and where, other roots, reports.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_side_by_side() {
	local number pids=() statuses=()
	for number in 1 2 3; do
		virtio_rdma run -- sh -c "on 2 echo $number; exit $number" \
			</dev/null >"$work/out.$number" 2>/dev/null &
		pids+=($!)
	done
	for number in "${pids[@]}"; do
		status=0
		wait "$number" || status=$?
		statuses+=("$status")
	done
	[[ ${statuses[*]} == '1 2 3' ]]
	cat "$work"/out.* | diff - <(printf '%s\n' 1 2 3)
	nothing_left
}

# The end of each log is shown, and all logs are kept where that is asked for.
test_time_is_over() {
	local status=0
	virtio_rdma run --vms 1 --timeout 120 --artifacts "$work/dir/logs" -- \
		sh -c 'echo "<3>a mark in the log" >/dev/kmsg 2>&1; echo started; sleep 3600' \
		</dev/null >"$work/out" 2>"$work/err" || status=$?
	((status == 125))
	grep -q 'the time is over' "$work/err"
	grep -q '^--- rdmad.log' "$work/err"
	[[ -s $work/dir/logs/vm1.dmesg ]]
	nothing_left
}

test_what_is_written_stays() {
	rm -f "$work/dir/here"
	virtio_rdma run --vms 1 --rw -- sh -c 'echo x >here; mkdir sub; ln -s here sub/link' </dev/null
	[[ $(<"$work/dir/here") == x && -L $work/dir/sub/link ]]
	# Only root can keep the rest, and is told so.
	local keep=$work/dir/keep status=0
	if ((${#as_user[@]} == 0)); then
		virtio_rdma run --overlay "$keep" -- true </dev/null 2>"$work/err" || status=$?
		((status == 125))
		grep -q 'only root' "$work/err"
		return
	fi
	as_user=()
	virtio_rdma run --overlay "$keep" -- \
		sh -c 'echo kept >/tmp/kept; rm here; on 2 sh -c "test -e here"' </dev/null
	[[ -e $work/dir/here ]]
	virtio_rdma run --overlay "$keep" -- \
		sh -c 'cat /tmp/kept; ! test -e here; on 2 sh -c "! test -e /tmp/kept"' \
		</dev/null >"$work/out"
	[[ $(<"$work/out") == kept ]]
	nothing_left
}

# The root is an unpacked image without libibverbs: a shell and its libraries.
test_another_root() {
	local root=$work/dir/root file
	mkdir -p "$root/etc"
	# Neither this directory nor one that the user may enter is there.
	mkdir -m 700 "$root/root"
	for file in /bin/sh $(ldd /bin/sh | grep -o '/lib[^ ]*'); do
		mkdir -p "$root$(dirname "$file")"
		cp -L "$file" "$root$file"
	done
	virtio_rdma run --vms 1 --root "$root" -- /bin/sh -c 'echo here; echo /etc/* >&2' \
		</dev/null >"$work/out" 2>"$work/err"
	[[ $(<"$work/out") == here ]]
	grep -q 'has no libibverbs' "$work/err"
	grep -qF '/etc/hosts /etc/libibverbs.d' "$work/err"
	if grep -q passwd "$work/err"; then
		fail "the root has files of the host"
	fi
	virtio_rdma run --root "$root" --tools -- /bin/sh -c '
		on 2 /bin/sh -c "cd ."
		on -n 2 ib_write_bw -x 1 -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do :; done
		ib_write_bw -x 1 -F -n 100 vm2
		wait' </dev/null >"$work/out" 2>"$work/err"
	grep -q '#bytes' "$work/out"
	nothing_left
}

# A set of devices for each VM, one more on the same switch.
test_several_ports() {
	virtio_rdma run --ports 2 --tools -- sh -c '
		ibv_devices | grep -c virtio_rdma
		on -n 2 ib_write_bw -d virtio_rdma1 -x 1 -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do :; done
		ib_write_bw -d virtio_rdma1 -x 1 -F -n 100 vm2-p2
		wait' </dev/null >"$work/out" 2>"$work/err"
	grep -qx 2 "$work/out"
	grep -q '#bytes' "$work/out"
	nothing_left
}

# The last VM has Linux's device, in a root without its provider.
test_rxe() {
	virtio_rdma run --rxe 1 --tools -- sh -c '
		on 2 ibv_devinfo
		gid=/sys/class/infiniband/rxe0/ports/1/gids
		gid=$(on 2 sh -c "grep -l ffff:0a09 $gid/*")
		on -n 2 ib_write_bw -x "${gid##*/}" -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do kill -0 $!; done
		ib_write_bw -x 1 -F -n 100 vm2
		wait' </dev/null >"$work/out" 2>"$work/err"
	grep -q 'hca_id:.rxe0' "$work/out"
	grep -q '#bytes' "$work/out"
	nothing_left
}

test_demo() {
	virtio_rdma demo </dev/null >"$work/out" 2>"$work/err"
	grep -q 'state ACTIVE' "$work/out"
	(($(grep -c '^ib_.*_bw  *[0-9.]*  *[0-9.]*  MiB/s$' "$work/out") == 3))
	nothing_left
}

test_reports() {
	local status=0
	virtio_rdma run --vms 1 --junit "$work/dir/junit.xml" --json "$work/dir/run.json" -- \
		sh -c 'echo "KTAP version 1"; echo 1..2; echo ok 1 a; echo not ok 2 b; exit 1' \
		</dev/null >/dev/null || status=$?
	((status == 1))
	grep -q 'tests="2" failures="1"' "$work/dir/junit.xml"
	grep -q '"status": 1' "$work/dir/run.json"
}

test_machine_is_checked() {
	virtio_rdma check >"$work/out"
	grep -q 'Secure Boot' "$work/out"
	local status=0
	virtio_rdma check --vms 64 --mem 1000G >"$work/out" || status=$?
	((status == 1))
	grep -q '^FAIL memory' "$work/out"
}

run_tests test_side_by_side test_time_is_over test_what_is_written_stays test_another_root \
	test_several_ports test_rxe test_demo test_reports test_machine_is_checked
