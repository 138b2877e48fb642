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

run_tests test_side_by_side test_time_is_over test_reports test_machine_is_checked
