#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Unmodified suites and programs of distributions, in VMs with the root of the distribution. Each
# test is a script of selftests/suites; see Documentation/foreign-suites.md. ROOT=DIR is the root.
# LOGS=DIR keeps the output of each test.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

: "${ROOT:?a directory with an unpacked root}"
logs=${LOGS:-}

# suite NAME [OPTION...]
suite() {
	local name=$1 status=0
	shift
	# The output goes to the logs at once, so that it is available if a suite hangs.
	if [[ -n $logs ]]; then
		ln -sf "$logs/$name" "$work/out"
		ln -sf "$logs/$name.err" "$work/err"
	fi
	cp -r "$top/selftests/suites" "$work/dir/"
	chmod -R a+rX "$work/dir/suites"
	cd "$work/dir/suites"
	virtio_rdma run --rw --root "$ROOT" --timeout 1800 "$@" -- "./$name" \
		</dev/null >"$work/out" 2>"$work/err" || status=$?
	cat "$work/out"
	((status != 4)) || exit 4
	((status == 0)) || fail "status $status"
	nothing_left
}

test_perftest() { suite perftest; }
test_libfabric() { suite libfabric; }
test_ucx() { suite ucx; }
test_openmpi() { suite openmpi; }
test_rsockets() { suite rsockets; }
test_qperf() { suite qperf; }
test_fio() { suite fio; }

# Runs only if it is named: it needs the root of tools/launcher/packages/crate.
test_sideway() { suite sideway --vms 1; }

run_tests test_perftest test_libfabric test_ucx test_openmpi test_rsockets test_qperf test_fio
