#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A device with little to offer: programs see it, and those that need no more work.
# more: --chaos weak-nic --path direct
# more: --chaos weak-nic --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

test_limits() {
	local limit
	ibv_devinfo -v -d "$(device 1)" >"$work/limits"
	cat "$work/limits"
	for limit in 'max_sge:\s+2$' 'max_qp_wr:\s+512$' 'max_qp_rd_atom:\s+1$' 'max_srq:\s+0$' \
		'atomic_cap:\s+ATOMIC_NONE'; do
		grep -qE "$limit" "$work/limits" || fail "there is no $limit"
	done
}

test_traffic() {
	pair -g ibv_rc_pingpong -n 200 -s 20000
	pair -g ibv_ud_pingpong -n 200 -s 200
	pair -x ib_write_bw -n 100 -s 4096
	pair -x ib_read_bw -n 100 -s 4096 -o 1
	meet rping "-s -a $peer -C 10 -V" "-c -a $peer -C 10 -V"
}

test_what_is_missing() {
	! ibv_rc_pingpong -d "$(device 1)" -r 600 >"$work/refused" 2>&1 || fail "there are receives"
	cat "$work/refused"
	grep -q "create QP" "$work/refused"
	! ibv_srq_pingpong -d "$(device 1)" >"$work/refused" 2>&1 || fail "there is an SRQ"
	cat "$work/refused"
	grep -q "Couldn't create SRQ" "$work/refused"
}

run_tests test_limits test_traffic test_what_is_missing
