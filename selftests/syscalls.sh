#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A process that polls makes no system call between its first post and its last poll.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Traces one side of the test, which posts and polls 1,000 messages. Prints the system calls between
# the marks in the trace.
traced() {
	strace -f -o "$work/trace" "$@"
	grep -c verbs-test-mark "$work/trace" | grep -qx 2 || fail "no marks in the trace"
	sed '1,/verbs-test-mark\/begin/d; /verbs-test-mark\/end/,$d' "$work/trace"
}

test_no_system_call() {
	start_server
	traced "$verbs" -d "$(device 1)" client "$peer" quiet >"$work/calls"
	grep -v '^KTAP\|^1\.\.\|^ok 1 quiet' "$work/calls" >"$work/between" || true
	head -n 20 "$work/between"
	echo "$(wc -l <"$work/between") system calls between the first post and the last poll"
	[[ ! -s $work/between ]]
}

# The trace does show system calls: a sleeping consumer makes some.
test_trace_sees_system_calls() {
	start_server
	strace -f -c -o "$work/summary" "$verbs" -d "$(device 1)" client "$peer" event_next
	cat "$work/summary"
	grep -Eq ' (poll|ppoll)$' "$work/summary"
}

run_tests test_no_system_call test_trace_sees_system_calls
