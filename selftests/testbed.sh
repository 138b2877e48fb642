#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The test bed itself: data and signals that `on` passes between two VMs. The scripts also run
# without it.
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

# The scripts against a peer that variables name. A program with the name of ssh reaches VM 2.
test_scripts_over_ssh() {
	local peers=(REMOTE_TYPE=ssh REMOTE_ARGS=root@peer "LOCAL_V4=$own" "REMOTE_V4=$peer")
	mkdir "$work/bin"
	cat >"$work/bin/ssh" <<-SSH
		#!/bin/bash
		echo "\$*" >>"$work/calls"
		options=()
		[[ \$1 != -n ]] || options=(-n)
		shift \${#options[@]}
		[[ \$# == 2 && \$1 == root@peer ]] && exec on "\${options[@]}" 2 sh -c "\$2"
	SSH
	chmod 755 "$work/bin/ssh"
	scripts() {
		PATH=$work/bin:$PATH make -s -C "$top/selftests" run_tests "$@" >"$work/report" ||
			status=$?
		cat "$work/report"
	}

	status=0
	scripts TEST_PROGS=link.sh TESTS=test_link_active "${peers[@]}"
	((status == 0))
	grep -q '^    ok 1 link_active' "$work/report"
	grep -q '^ok 1 link ' "$work/report"
	grep -q 'rdma.*link.*show' "$work/calls"

	scripts TEST_PROGS=link.sh TESTS=no_such_test "${peers[@]}"
	((status != 0))
	grep -q '^not ok 1 link ' "$work/report"
}

# A script is skipped on a machine that is not in a test bed, if nothing names a peer.
test_scripts_without_peer() {
	unshare -m sh -ec 'mount --bind /dev/null /usr/bin/on
		exec make -s -C "$0" run_tests TEST_PROGS="link.sh data.sh"' "$top/selftests" |
		tee "$work/report"
	[[ $(grep -c '^ok [12] .* # SKIP' "$work/report") == 2 ]]
	grep -q 'SKIP REMOTE_TYPE=ssh, .* do not name a peer' "$work/report"
}

run_tests test_input_comes_back test_tree_is_copied test_input_that_nobody_reads test_no_input \
	test_status_and_errors test_scripts_over_ssh test_scripts_without_peer
