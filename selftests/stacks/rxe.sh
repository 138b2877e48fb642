#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The same software over Linux's rdma_rxe in both VMs, whose server falls silent: what it does then
# is its own way. A test fails if the software does not work before.
# testbed: --no-device
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Prints the network interface of a VM.
interface() { at "$1" ip -o -4 address show to "$(address "$1")" | cut -d ' ' -f 2; }

# Creates the device of a VM.
add_device() {
	at "$1" modprobe rdma_rxe
	at "$1" rdma link add rxe0 type rxe netdev "$(interface "$1")"
}

sent_packets() { cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }

# Runs the function $2, which is the work of the software $1.
meets_loss() {
	local status=0 began before work_of
	before=$(sent_packets)
	("$2") >"$work/said" 2>&1
	(($(sent_packets) > before))
	began=$SECONDS
	("$2") >"$work/said" 2>&1 &
	work_of=$!
	sleep 3
	at 2 ip link set "$silent" down
	wait "$work_of" || status=$?
	printf '%s on rxe | the link of the server is down | %s, %d s\n' "$1" "$(outcome "$status")" \
		$((SECONDS - began)) >>"$outcomes"
	end_programs
	at 2 ip link set "$silent" up
}

test_ucx() { meets_loss ucx exchange_ucx; }
test_libfabric() { meets_loss libfabric exchange_libfabric; }

test_mooncake() {
	need_mooncake
	meets_loss mooncake exchange_mooncake
}

add_device 1
add_device 2
silent=$(interface 2)
run_telling test_ucx test_libfabric test_mooncake
