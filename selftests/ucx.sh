#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# UCX between two VMs, a communication library of large programs: RC with SRQs, connected by way of UD. It has transports
# of its own over verbs, which ask for more than the programs of rdma-core.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

cleanup() {
	pkill -x ucx_perftest
	on 2 pkill -x ucx_perftest
}

# Nothing but verbs of our device, on a VM.
environment() {
	printf 'UCX_TLS=rc_v,self UCX_NET_DEVICES=%s:1 UCX_IB_GID_INDEX=%s' "$(device "$1")" "$(gid_index "$1")"
}

# A test of ucx_perftest with VM 2, without MPI; the arguments are the client's.
perftest() {
	meet env "$(environment 2) ucx_perftest -P 0 -p 18515" "$(environment 1) ucx_perftest vm2 -P 0 -p 18515 -w 10 $*"
}

# UCX takes SRQs for its receives, else RC is no transport of it.
test_ucx_transports() {
	env "UCX_NET_DEVICES=$(device 1):1" ucx_info -d >"$work/info"
	cat "$work/info"
	grep -q 'Transport: rc_verbs' "$work/info"
	grep -q 'Transport: ud_verbs' "$work/info"
}

test_ucx_tagged_small() { perftest -t tag_lat -n 300 -s 8; }
test_ucx_tagged_large() { perftest -t tag_bw -n 100 -s 262144; }
test_ucx_put() { perftest -t ucp_put_bw -n 100 -s 65536; }
test_ucx_get() { perftest -t ucp_get -n 100 -s 65536; }
test_ucx_active_messages() { perftest -t ucp_am_bw -n 100 -s 4096; }
test_ucx_atomics() { perftest -t ucp_fadd -n 300 -s 8; }

run_tests test_ucx_transports test_ucx_tagged_small test_ucx_tagged_large test_ucx_put test_ucx_get \
	test_ucx_active_messages test_ucx_atomics
