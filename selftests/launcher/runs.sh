#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma`: parallel runs, time limits, reports, the check of the machine.
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

# At a timeout, the end of each log is shown. With --artifacts, all logs are kept.
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

# A receiver stops while its peer sends. `ctl` says why the sender hangs, and so does the end of a
# command that must be killed.
test_hanging_qp_is_explained() {
	local launcher status
	"${as_user[@]}" "$bundle/bin/virtio-rdma" run --tools --json "$work/dir/run.json" -- sh -c '
		trap "" INT
		on -n 2 sh -c "ib_send_bw --run_infinitely & echo \$! >/tmp/pid; wait" >/dev/null &
		until ib_send_bw --run_infinitely vm2 >/dev/null; do sleep 1; done &
		until grep -qv "^.\{0,5\}$" /sys/class/infiniband/*/ports/1/counters/port_xmit_data; do
			sleep 1
		done
		on 2 sh -c "kill -STOP \$(cat /tmp/pid)"
		echo stopped; wait' </dev/null >"$work/out" 2>"$work/err" &
	launcher=$!
	has_stopped() {
		grep -q stopped "$work/out" && return
		jobs -pr | grep -qx "$launcher" || fail "virtio-rdma has ended before the receiver stopped"
		return 1
	}
	until_ok has_stopped
	says_why() { virtio_rdma ctl qp vm1 --why | tee "$work/why" | grep -q 'no receive posted'; }
	until_ok says_why
	kill -INT "$launcher"
	await_launcher
	((status == 130))
	grep -q '^virtio-rdma: port vm1: QP .*no receive posted' "$work/err"
	grep -q '"port vm1: QP .*no receive posted' "$work/dir/run.json"
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

# The least number of open files that is not refused suffices.
test_few_open_files() {
	(
		ulimit -n 1024
		virtio_rdma run --vms 1 -- true </dev/null >"$work/out" 2>"$work/err"
	)
	nothing_left
	# A soft limit is raised.
	(
		ulimit -Sn 256
		virtio_rdma run --vms 1 -- true </dev/null >"$work/out" 2>"$work/err"
	)
}

test_missing_commands() {
	local status=0
	virtio_rdma run -- sh -c 'on 2 missing; exit $?' </dev/null >"$work/out" 2>"$work/err" ||
		status=$?
	((status == 127))
	grep -q "^virtio-rdma: can't run missing: " "$work/err"
	status=0
	virtio_rdma run --vms 1 -- missing </dev/null >"$work/out" 2>"$work/err" || status=$?
	((status == 127))
	grep -q "^virtio-rdma: can't run missing: " "$work/err"
	if grep testbed "$work/err"; then
		fail 'the name of a program that users do not have'
	fi
}

# The directory of a run may hold links of a stranger.
test_reports_follow_no_links() {
	local status=0
	echo kept >"$work/dir/private"
	chmod 666 "$work/dir/private"
	ln -s private "$work/dir/linked.xml"
	virtio_rdma run --vms 1 --junit "$work/dir/linked.xml" -- true </dev/null 2>"$work/err" ||
		status=$?
	((status == 125))
	grep -q "can't write .*linked.xml" "$work/err"
	[[ $(<"$work/dir/private") == kept ]]
}

# Users other than root and the caller's can't make commands run in other VMs.
test_others_do_not_reach_other_vms() {
	# shellcheck disable=SC2016 # of the VM's shell
	virtio_rdma run -- sh -c '
		on 2 true || exit 1
		stat -c "%a %u" /run/virtio-rdma/agent; id -u' </dev/null >"$work/out" 2>"$work/err"
	local uid=$EUID
	((uid != 0)) || uid=1000
	[[ $(<"$work/out") == "600 $uid"$'\n'"$uid" ]]
}

test_machine_is_checked() {
	virtio_rdma check >"$work/out"
	grep -q 'Secure Boot' "$work/out"
	# The VMs might not use all of their memory.
	virtio_rdma check --vms 64 --mem 1000G >"$work/out" || grep -q '^FAIL memory' "$work/out"
	grep -q '^[noteFAIL]* memory: .* MiB are free' "$work/out"
	local status=0
	(
		ulimit -n 256
		virtio_rdma check >"$work/out"
	) || status=$?
	((status == 1))
	grep -q '^FAIL files: 256 open files are allowed' "$work/out"
}

run_tests test_side_by_side test_time_is_over test_hanging_qp_is_explained test_reports \
	test_few_open_files test_missing_commands test_reports_follow_no_links \
	test_others_do_not_reach_other_vms test_machine_is_checked
