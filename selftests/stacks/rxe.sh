#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The same software over Linux's rdma_rxe in both VMs, where one packet in twenty is lost, and where
# the server's link goes down in its middle: what it does then is its own way. A reaction fails no
# test.
# testbed: --faults drop=0.05,seed=7
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

outcomes=$(mktemp)
# Seconds after which the link goes down.
pause=5

# No other script gets these VMs.
for vm in 1 2; do
	at "$vm" bash -euc "
		rmmod virtio_rdma
		modprobe rdma_rxe
		rdma link add rxe0 type rxe netdev $(netdev "$vm")"
done

# Runs the function $2, which is the work of the software $1.
meets_losses() {
	local status began what
	for what in "each 20th frame is lost" "the link goes down too"; do
		began=$SECONDS status=0
		if [[ $what == *link* ]]; then
			(sleep "$pause" && at 2 ip link set "$(netdev 2)" down) &
		fi
		"$2" >"$work/said" 2>&1 || status=$?
		printf '%s on rxe | %s | %s, %d s\n' "$1" "$what" "$(outcome "$status")" \
			$((SECONDS - began)) >>"$outcomes"
		end_programs
		at 2 ip link set "$(netdev 2)" up
	done
}

test_ucx() { meets_losses ucx exchange_ucx; }
test_libfabric() { meets_losses libfabric exchange_libfabric; }
test_mooncake() { meets_losses mooncake exchange_mooncake; }

status=0
run_tests test_ucx test_libfabric test_mooncake || status=$?
sed 's/^/# /' "$outcomes"
exit "$status"
