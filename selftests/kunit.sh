#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# KUnit suites that need no device: those of the abstractions, and that of the driver. They have run
# when the kernel started or the driver was loaded. Only a kernel with the driver in its tree has
# them; Documentation/in-tree.md lists them.
# testbed: --vms 1
# shellcheck disable=SC2034 # for lib.sh
machines=(1)
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

results=/sys/kernel/debug/kunit
suites=(rust_rdma_{memory,null,qp_attr,registers,udata,verbs} rust_sync rust_virtio
	virtio_rdma_decode)

# Whether a case of a suite has passed. Without a case, fails since the suite has none.
passed() {
	local file=$results/$1/results
	[[ -e $file ]] || fail "$file: no such suite"
	grep -qxE " *ok [0-9]+ $2" "$file" || {
		cat "$file"
		return 1
	}
}

test_suites() { skip "this kernel has no KUnit suites of virtio-rdma"; }

if [[ ! -e $results/${suites[0]} ]]; then
	run_tests test_suites
	exit
fi
tests=()
for suite in "${suites[@]}"; do
	mapfile -t cases < <(sed -nE 's/^ +(not )?ok [0-9]+ (\w+).*/\2/p' "$results/$suite/results")
	for name in "${cases[@]:-}"; do
		tests+=("test_$suite.$name")
		eval "test_$suite.$name() { passed $suite $name; }"
	done
done
run_tests "${tests[@]}"
