#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# `virtio-rdma`: several ports, rxe as the peer, the demo.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Two ports for each VM, on the same switch.
test_several_ports() {
	virtio_rdma run --ports 2 --tools -- sh -c '
		ibv_devices | grep -c virtio_rdma
		on -n 2 ib_write_bw -d virtio_rdma1 -x 1 -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do kill -0 $! || exit; done
		ib_write_bw -d virtio_rdma1 -x 1 -F -n 100 vm2-p2
		wait
		on vm2-p2 hostname' </dev/null >"$work/out" 2>"$work/err"
	grep -qx 2 "$work/out"
	grep -qx vm2 "$work/out"
	grep -q '#bytes' "$work/out"
	nothing_left
}

# The last VM has Linux's rxe, in a root without the rxe provider.
test_rxe() {
	virtio_rdma run --rxe 1 --tools -- sh -c '
		on 2 ibv_devinfo
		gid=/sys/class/infiniband/rxe0/ports/1/gids
		gid=$(on 2 sh -c "grep -l ffff:0a09 $gid/*")
		on -n 2 ib_write_bw -x "${gid##*/}" -F >/dev/null &
		while ! on -n 2 ss -Hltn "sport = :18515" | { read -r _; }; do kill -0 $! || exit; done
		ib_write_bw -x 1 -F -n 100 vm2
		wait' </dev/null >"$work/out" 2>"$work/err"
	grep -q 'hca_id:.rxe0' "$work/out"
	grep -q '#bytes' "$work/out"
	nothing_left
}

test_demo() {
	virtio_rdma demo </dev/null >"$work/out" 2>"$work/err"
	grep -q 'state ACTIVE' "$work/out"
	(($(grep -c '^ib_.*_bw  *[0-9.]*  *[0-9.]*  MiB/s$' "$work/out") == 3))
	nothing_left
}

run_tests test_several_ports test_rxe test_demo
