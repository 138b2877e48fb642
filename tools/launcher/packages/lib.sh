# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Functions of the package tests: results, and the start of the device for their QEMU. "$run" is the
# directory of the logs.

: "${run:?}"
failed=0
# Process id of the device's daemon, if it was started.
# shellcheck disable=SC2034 # the tests stop it
device=
# shellcheck disable=SC2034 # used by the tests
port=a,vfio=/tmp/vfio,net=/tmp/net,mac=52:54:00:09:00:01

ok() {
	printf 'ok: %s\n' "$*"
}

fail() {
	printf 'not ok: %s\n' "$*"
	# shellcheck disable=SC2034 # used by the tests
	failed=1
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# Starts a daemon with the port "$port" and waits until it is ready. The test stops the daemon.
start_device() {
	mkfifo "$run/ready"
	build/target/release/virtio-rdmad --port "$port" --ready-fd 3 3>"$run/ready" \
		2>"$run/daemon.log" &
	# shellcheck disable=SC2034 # the tests stop it
	device=$!
	read -r <"$run/ready" || die "the device does not start, see $run/daemon.log"
}
