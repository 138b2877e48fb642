#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Software that was not written for this device meets failures on order. Its reaction is told, one
# line for each. A test fails if data is wrong, if a kernel complains, or if the software does not
# work afterwards without a failure.
# testbed: --path wire
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=../ulp-lib.sh
. "$(dirname "$0")/../ulp-lib.sh"
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# VM and rule of each failure. VM 1 is the active side.
failures=(
	"1 send any nth 20 then fail RETRY_EXC_ERR"
	"1 send any nth 20 then raise QP_FATAL"
	"2 receive nth 20 then fail LOC_PROT_ERR"
	"2 receive from 20 to 22 then withhold"
	"2 access any nth 5 then fail REM_ACCESS_ERR"
	"1 packet every 20 then drop"
	"1 packet nth 30 then silence"
	"1 completion nth 20 then hold 2s"
	"1 completion nth 20 then drop"
	"1 event nth 3 then drop"
	"1 send any nth 20 then flap 3s"
	"1 command any nth 5 then refuse ENOMEM"
)

works_again() { ("$1") >"$work/said" 2>&1; }

# Runs the function $2, which is the work of the software $1, with each failure and then without.
meets_failures() {
	local failure vm rule status began applied
	("$2") >"$work/said" 2>&1 || fail "$1 does not work: $(cat "$work/said")"
	for failure in "${failures[@]}"; do
		vm=${failure%% *} rule=${failure#* }
		on 0 daemon chaos "$vm" --add "rule: $rule"
		began=$SECONDS status=0
		("$2") >"$work/said" 2>&1 || status=$?
		! grep -qiE 'mismatch|corrupt|differ' "$work/said" || fail "wrong data: $(cat "$work/said")"
		applied=
		on 0 daemon applied "$vm" rule || applied="not met: "
		printf '%s | %s | %s%s, %d s\n' "$1" "$failure" "$applied" "$(outcome "$status")" \
			$((SECONDS - began)) >>"$outcomes"
		on 0 daemon chaos "$vm" --remove rule
		"$3"
	done
	until_ok $((3 * limit)) works_again "$2"
}

# Writes a file or disk of the connection, and reads it back from the server.
exchange_blocks() {
	timeout -s KILL "$limit" dd if="$work/data" of="$blocks" bs=64k oflag=direct conv=notrunc \
		status=none &&
		timeout -s KILL "$limit" dd if="$blocks" of="$work/back" bs=64k count=32 iflag=direct \
			status=none && cmp "$work/data" "$work/back"
}

# Waits until the kernel's client has a connection again.
blocks_are_back() { until_ok 120 exchange_blocks >/dev/null 2>&1 || true; }

# The server accesses the memory of the kernel's clients. Without its completion event, a kernel
# waits for ever when it drains a QP: the event comes late instead.
meets_failures_of_kernel() {
	local blocks failures=("${failures[@]/event nth 3 then drop/event nth 3 then hold 5s}")
	failures=("${failures[@]/2 access/1 access}")
	"connect_$1"
	blocks=$("file_of_$1")
	dd if=/dev/urandom of="$work/data" bs=64k count=32 status=none
	meets_failures "$1" exchange_blocks blocks_are_back
}

test_ucx() { meets_failures ucx exchange_ucx end_programs; }
test_libfabric() { meets_failures libfabric exchange_libfabric end_programs; }
test_mpi() { meets_failures mpi exchange_mpi end_programs; }

test_mooncake() {
	need_mooncake
	meets_failures mooncake exchange_mooncake end_programs
}

# Both QPs are of VM 1.
test_sideway() {
	local failures=("${failures[@]/#2 /1 }")
	[[ -d $sideway ]] || skip "\"make check-suites SUITES=crates\" builds it"
	meets_failures sideway exchange_sideway true
}

test_nfs() { meets_failures_of_kernel nfs; }
test_nvme() { meets_failures_of_kernel nvme; }

run_telling test_ucx test_libfabric test_mpi test_mooncake test_sideway test_nfs test_nvme
