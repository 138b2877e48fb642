#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The test bed itself: data and signals that `on` passes between two VMs.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Bytes are sent to VM 2 and back at the same time, completely and unchanged.
test_input_comes_back() {
	head -c 10M /dev/urandom >"$work/random"
	on 2 cat <"$work/random" >"$work/back"
	cmp "$work/random" "$work/back"
	on 2 md5sum <"$work/random" >"$work/sum"
	[[ $(<"$work/sum") == "$(md5sum <"$work/random")" ]]
}

test_tree_is_copied() {
	tar -C "$top" -c selftests |
		on 2 sh -c 'rm -rf /tmp/tree && mkdir /tmp/tree && tar -C /tmp/tree -x'
	on 2 tar -C /tmp/tree -c --sort=name --mtime=@0 selftests | tar -x -O >"$work/there"
	tar -C "$top" -c --sort=name --mtime=@0 selftests | tar -x -O | cmp - "$work/there"
}

# A command need not read its input, or not all of it.
test_input_that_nobody_reads() {
	yes | on 2 true
	[[ $(yes | on 2 head -n 1) == y ]]
	[[ $(yes | timeout 60 on 2 sh -c 'sleep 1; echo done') == "done" ]]
}

test_no_input() {
	[[ -z $(on 2 cat </dev/null) ]]
	[[ -z $(on 2 cat <&-) ]]
	local line lines=
	while read -r line; do
		on -n 2 cat
		at 2 cat
		lines+=$line
	done < <(printf 'a\nb\nc\n')
	[[ $lines == abc ]]
}

test_status_and_errors() {
	local status=0
	on 2 sh -c 'cat >/dev/null; echo out; echo err >&2; exit 7' >"$work/out" 2>"$work/err" \
		<<<x || status=$?
	((status == 7))
	[[ $(<"$work/out") == out && $(<"$work/err") == err ]]
	status=0
	on 2 no-such-command 2>/dev/null || status=$?
	((status == 127))
	status=0
	on 2 sh -c 'kill -9 $$' || status=$?
	((status == 137))
}

run_tests test_input_comes_back test_tree_is_copied test_input_that_nobody_reads test_no_input \
	test_status_and_errors
