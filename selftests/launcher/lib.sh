# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Common functions of the tests of `virtio-rdma`. The tests run on the host with the bundle of
# `make bundle-dir`, as an ordinary user: root drops its rights for each run. A test is a function
# whose commands must all succeed; run_tests reports in KTAP. TESTS="NAME..." selects tests.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
export LC_ALL=C
# Time limit in seconds. Longer than an emulated machine needs on a busy host, so only a hanging
# command reaches it.
PATIENCE=600

fail() {
	printf '%s\n' "$*"
	exit 1
}

# Skips a test, with a reason.
skip() {
	printf '%s\n' "$*"
	exit 4
}

until_ok() {
	local end=$((SECONDS + PATIENCE))
	until "$@"; do
		((SECONDS < end)) || fail "still fails: $*"
		sleep 0.2
	done
}

# Words before a command that run it as an ordinary user.
as_user=()
if ((EUID == 0)); then
	as_user=(setpriv --reuid 1000 --regid 1000 --clear-groups)
fi

virtio_rdma() {
	"${as_user[@]}" "$bundle/bin/virtio-rdma" "$@"
}

# Whether a run has left nothing: no file in its TMPDIR, no process with this path in its arguments.
nothing_left() {
	local file
	[[ -z $(ls -A "$TMPDIR") ]] || return 1
	for file in /proc/[0-9]*/cmdline; do
		if { tr '\0' ' ' <"$file"; } 2>/dev/null | grep -qF "$TMPDIR/"; then
			return 1
		fi
	done
}

# Whether the command of $launcher has started. Fails the test if virtio-rdma has ended.
has_started() {
	grep -q started "$work/out" && return
	jobs -pr | grep -qx "$launcher" || fail "virtio-rdma has ended before its command started"
	return 1
}

# Starts a command in a VM, and waits until it runs. $launcher is the process of virtio-rdma.
start_command() {
	"${as_user[@]}" "$bundle/bin/virtio-rdma" run "$@" -- sh -c 'echo started; exec sleep 3600' \
		</dev/null >"$work/out" 2>"$work/err" &
	launcher=$!
	until_ok has_started
}

# Waits for $launcher, and sets $status to its exit status.
await_launcher() {
	status=0
	# shellcheck disable=SC2034 # for the tests
	wait "$launcher" || status=$?
}

run_tests() {
	local name status number=0 failed=0 skipped=0
	if [[ -n ${TESTS:-} ]]; then
		# shellcheck disable=SC2086 # words
		set -- $TESTS
	fi
	# The path has a blank, which must work too.
	bundle="$(mktemp -d)/a bundle"
	work=$(mktemp -d)
	export TMPDIR=$work/tmp
	# shellcheck disable=SC2064 # the present paths
	trap "rm -rf '$work' '${bundle%/*}'" EXIT
	cp -a --reflink=auto "$top/build/bundle" "$bundle"
	chmod 755 "${bundle%/*}"
	mkdir "$TMPDIR" "$work/dir"
	chmod 755 "$work"
	chmod 1777 "$TMPDIR"
	chmod 777 "$work/dir"
	cd "$work/dir" || exit 1
	printf 'KTAP version 1\n1..%d\n' $#
	for name in "$@"; do
		((++number))
		# In the background, since errexit has no effect in a condition.
		(
			set -e
			"$name"
		) >"$work/log" 2>&1 &
		status=0
		wait $! || status=$?
		case $status in
		0) printf 'ok %d %s\n' "$number" "${name#test_}" ;;
		4)
			# The last line of output is the reason.
			((++skipped))
			printf 'ok %d %s # SKIP %s\n' "$number" "${name#test_}" "$(tail -n 1 "$work/log")"
			;;
		*)
			((++failed))
			sed 's/^/# /' "$work/log" "$work/err" 2>/dev/null
			printf 'not ok %d %s\n' "$number" "${name#test_}"
			;;
		esac
	done
	printf 'selftests: %d passed, %d failed, %d skipped\n' \
		$(($# - failed - skipped)) "$failed" "$skipped"
	((failed == 0))
}
