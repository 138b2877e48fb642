#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The same software over Linux's rdma_rxe in both VMs, whose server loses its device while TCP goes
# on: what it does then is its own way. A test fails if the software does not work before.
# testbed: --no-device
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

outcomes=$(mktemp)

after_failure() { cat "$work/said"; }

# Creates the device of a VM.
add_device() {
	at "$1" bash -euc '
		modprobe rdma_rxe
		read -r _ netdev _ < <(ip -o -4 address show to "$0")
		rdma link add rxe0 type rxe netdev "$netdev"' "$(address "$1")"
}

sent_packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

# Runs the function $2, which is the work of the software $1.
meets_loss() {
	local status=0 began before
	before=$(sent_packets)
	("$2") >"$work/said" 2>&1
	(($(sent_packets) > before))
	began=$SECONDS
	("$2") >"$work/said" 2>&1 &
	sleep 3
	at 2 rdma link delete rxe0
	wait $! || status=$?
	printf '%s on rxe | the device of the server is gone | %s, %d s\n' "$1" "$(outcome "$status")" \
		$((SECONDS - began)) >>"$outcomes"
	end_programs
	add_device 2
}

test_ucx() { meets_loss ucx exchange_ucx; }
test_libfabric() { meets_loss libfabric exchange_libfabric; }

test_mooncake() {
	need_mooncake
	meets_loss mooncake exchange_mooncake
}

add_device 1
add_device 2
status=0
run_tests test_ucx test_libfabric test_mooncake || status=$?
sed 's/^/# /' "$outcomes"
exit "$status"
