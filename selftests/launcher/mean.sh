#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma` works on a mean runner, or refuses what it can't carry: one processor, no KVM, no
# mounts, no namespaces, no system calls that container engines deny, no network, no IPv6, a
# read-only HOME, a /tmp without programs, TERM unset, an ordinary user, 1,024 open files. It needs
# root or user namespaces to make such a runner.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Size of the runner's directory of temporary files.
room=1G
# Maximum number of open files.
files=1024

# Runs a command on such a runner.
on_runner() {
	local namespaces=(--mount --net)
	((EUID == 0)) || namespaces+=(--map-current-user --keep-caps)
	unshare "${namespaces[@]}" bash -euc '
		mount -t tmpfs -o noexec,nosuid,mode=1777,size="$1" none "$2"
		mount -t tmpfs -o ro,size=1M none "$3"
		[[ ! -e /dev/kvm ]] || mount --bind /dev/null /dev/kvm
		! [[ -e /proc/sys/net/ipv6 ]] || echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
		[[ -z $4 ]] || echo $$ >"$4/cgroup.procs"
		files=$5
		shift 5
		unset TERM
		exec taskset -c 0 prlimit --nofile="$files:$files" "$@"' \
		bash "$room" "$TMPDIR" "$work/home" "${group:-}" "$files" \
		"${as_user[@]}" env HOME="$work/home" "$top/selftests/launcher/deny.py" "$@"
}

# Runs virtio-rdma on the runner. Sets $status.
virtio_rdma_there() {
	status=0
	mkdir -p "$work/home"
	on_runner "$bundle/bin/virtio-rdma" "$@" >"$work/out" 2>"$work/err" || status=$?
	cat "$work/out" "$work/err"
}

# Makes a control group with 300 MB of memory and sets $group to it.
make_group() {
	local memory=/sys/fs/cgroup
	[[ -e $memory/cgroup.controllers ]] || memory+=/memory
	group=$memory/virtio-rdma-test.$$
	mkdir "$group" 2>/dev/null || skip "no control group can be made"
	trap 'rmdir "$group"' EXIT
	{ echo 300M >"$group/memory.max" || echo 300M >"$group/memory.limit_in_bytes"; } 2>/dev/null ||
		skip "control groups do not limit memory"
}

test_runner_is_mean() {
	local script
	# shellcheck disable=SC2016 # of the runner's shell
	script='fails() { if "$@" 2>/dev/null; then echo "$* works"; exit 1; fi; }
		fails mount -t tmpfs none /mnt
		fails unshare -U true
		fails touch "$HOME/file"
		fails grep -qz ^TERM= /proc/$$/environ
		[[ $(nproc) == 1 && $(ulimit -Hn) == 1024 && $(id -u) != 0 ]]
		[[ $(awk "NR > 2 { print \$1 }" /proc/net/dev) == lo: ]]
		[[ ! -c /dev/kvm || /dev/kvm -ef /dev/null ]]
		echo "#!/bin/sh" >"$TMPDIR/program"
		chmod 755 "$TMPDIR/program"
		fails "$TMPDIR/program"
		echo mean'
	mkdir -p "$work/home"
	[[ $(on_runner bash -ec "$script" | tee /dev/stderr) == mean ]]
}

# A lack of the runner is reported in one line before anything starts. `check` reports the same.
refused() {
	local lacking=$1 text=$2
	virtio_rdma_there run --tools --json "$work/dir/run.json" -- true </dev/null
	((status == 125))
	[[ $(wc -l <"$work/err") == 1 ]]
	grep -q "^virtio-rdma: VMs can't run on this machine; $lacking: .*$text" "$work/err"
	grep -A 1 '"missing"' "$work/dir/run.json" | grep -q "\"$lacking\""
	virtio_rdma_there check </dev/null
	((status == 1))
	grep -q "^FAIL $lacking: .*$text" "$work/out"
	nothing_left
}

test_full_disk() { room=20M refused disk '20 MiB are free, [0-9]* are needed'; }
test_few_open_files() { files=256 refused files '256 open files are allowed'; }

test_little_memory() {
	make_group
	refused memory '[0-9]* MiB are free, 2 VMs take'
}

# A command succeeds in the VMs and prints a line.
prints() {
	local line=$1
	shift
	virtio_rdma_there run --tools "$@" </dev/null
	((status == 0))
	[[ $(<"$work/out") == "$line" ]]
	nothing_left
}

test_two_vms() {
	prints vm2 -- sh -c 'on -n 2 ibv_rc_pingpong -g 1 -n 10 >/dev/null &
		until ibv_rc_pingpong -g 1 -n 10 vm2 >/dev/null 2>&1; do sleep 0.1; done
		wait $! && on 2 hostname'
}

test_rxe() { prints rxe0 --rxe 1 -- on 2 ls /sys/class/infiniband; }
test_four_vms_with_two_ports() {
	prints 2 --vms 4 --ports 2 -- on 4 sh -c 'ls /sys/class/infiniband | wc -l'
}

test_long_input() {
	head -c 1G /dev/zero | {
		virtio_rdma_there run --vms 1 --tools -- wc -c
		((status == 0))
	}
	[[ $(<"$work/out") == 1073741824 ]]
	nothing_left
}

# A signal ends each phase, and nothing is left.
test_signals() {
	local launcher delay
	for delay in 0.2 2 8 started; do
		rm -f "$work/out"
		mkdir -p "$work/home"
		on_runner "$bundle/bin/virtio-rdma" run --vms 1 --tools -- sh -c 'echo up; sleep 3600' \
			</dev/null >"$work/out" 2>"$work/err" &
		launcher=$!
		if [[ $delay == started ]]; then
			until_ok grep -q up "$work/out"
		else
			sleep "$delay"
		fi
		until_ok interrupted "$launcher"
		await_launcher
		((status == 130))
		until_ok nothing_left
	done
}

# Sends SIGINT to virtio-rdma below a process, once it has started.
interrupted() {
	local pid
	pid=$(pgrep -f "^$bundle/bin/virtio-rdma run" | head -n 1)
	[[ -n $pid ]] && kill -INT "$pid"
}

type python3 >/dev/null || {
	printf 'KTAP version 1\n1..0 # SKIP python3 is missing\n'
	exit 4
}
run_tests test_runner_is_mean test_full_disk test_few_open_files test_little_memory test_two_vms \
	test_rxe test_four_vms_with_two_ports test_long_input test_signals
