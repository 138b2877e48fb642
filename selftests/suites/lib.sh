# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
# shellcheck shell=bash
#
# Common functions of the scripts that run suites and programs of a distribution between two VMs of
# `virtio-rdma run --rw --root DIR`. The servers are on VM 2. A script ends with status 0 if all of
# its parts have passed.

set -eu
# The caller's directories and locale may not exist in another root.
export HOME=/tmp TMPDIR=/tmp LC_ALL=C.UTF-8
device=virtio_rdma0
counters=/sys/class/infiniband/$device/ports/1/hw_counters
# The index of the GID of the port's IPv4 address.
gid=$(grep -l 0000:ffff:0a09:0001 /sys/class/infiniband/$device/ports/1/gids/* | head -n 1)
gid=${gid##*/}
# Time limit of a program in seconds, so that a hanging program fails only its part. It is longer
# than any program of the suites takes in emulated VMs.
patience=300
passed=0
failed=()

# Prints the number of messages and packets that this VM's device has sent.
sent() {
	echo $(($(<$counters/direct_tx_messages) + $(<$counters/tx_packets)))
}

# Runs a part and counts it: part NAME COMMAND. Programs may silently fall back to TCP, so a part
# has failed if the device has sent no message.
part() { run_part 1 "$@"; }

# Runs a part whose program creates objects and sends no messages.
silent_part() { run_part 0 "$@"; }

# run_part MESSAGES NAME COMMAND
run_part() {
	local least=$1 name=$2 before status=0 messages
	shift 2
	printf '# %s\n' "$name"
	before=$(sent)
	# In the background, where errexit is effective.
	(
		set -e
		"$@"
	) &
	wait $! || status=$?
	messages=$(($(sent) - before))
	if ((status == 0 && messages >= least)); then
		((++passed))
		printf 'ok %s\n' "$name"
	else
		failed+=("$name")
		printf 'not ok %s # status %d, %d messages sent\n' "$name" "$status" "$messages"
	fi
}

# Waits until VM $1 listens at TCP port $2, or process $3 has ended.
await() {
	local port
	port=$(printf %04X "$2")
	until on -n "$1" grep -q "^ *[0-9]*: [0-9A-F]*:$port [0-9A-F]*:0000 0A" \
		/proc/net/tcp /proc/net/tcp6; do
		kill -0 "$3"
		sleep 0.2
	done
}

# Runs a client and a server that serves one client: meet PORT SERVER CLIENT. SERVER and CLIENT are
# shell commands.
meet() {
	local server
	on -n 2 timeout $patience sh -c "$2" &
	server=$!
	await 2 "$1" $server
	if ! timeout $patience sh -c "$3"; then
		# The next part's server takes the same port.
		kill $server
		return 1
	fi
	wait $server
}

# Ends the script as skipped if the release's UCX has no transport for verbs. Whether the transport
# finds the device is what the tests show.
need_ucx_verbs() {
	if ! compgen -G '/usr/lib/*/ucx/libuct_ib.so*' >/dev/null; then
		printf 'the UCX of this release has no transport for verbs\n'
		exit 4
	fi
}

# Runs a client and a server whose readiness can't be detected: the client is retried while the
# server runs.
meet_unseen() {
	local server
	on -n 2 timeout $patience sh -c "$1" &
	server=$!
	until timeout $patience sh -c "$2"; do
		kill -0 $server
		sleep 1
	done
	wait $server
}

finish() {
	printf 'suites: %d passed, %d failed: %s\n' "$passed" ${#failed[@]} "${failed[*]}"
	((${#failed[@]} == 0))
}
