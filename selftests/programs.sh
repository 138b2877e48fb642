#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Programs between two VMs that nobody wrote for this device: qperf, rsockets, libfabric, and Open
# MPI over UCX and over libfabric. See Documentation/programs.md.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

cleanup() {
	pkill -x prted
	on 2 pkill -x 'qperf|rstream|prted'
}

# Messages that the device of VM 1 has sent: directly, or as packets.
sent() {
	local counters
	counters=/sys/class/infiniband/$(device 1)/ports/1/hw_counters
	echo $(($(<"$counters/direct_tx_messages") + $(<"$counters/tx_packets")))
}

# Whether the device of VM 1 sends at least so many messages while a command runs: many programs
# take TCP without a word.
over_rdma() {
	local least=$1 before after
	shift
	before=$(sent)
	"$@"
	after=$(sent)
	echo "# messages sent: $((after - before))"
	((after - before >= least))
}

# Tests of qperf, whose server serves them all. The connection manager finds the device by its
# address. Tests of UC and UD do without it and know no GIDs: no RoCE device can run them.
qperf_tests() {
	local name
	on 2 timeout 500 qperf -lp 18515 >"$work/passive" 2>&1 &
	until_ok 60 waits qperf
	for name; do
		timeout 120 qperf 10.9.0.2 -lp 18515 -cm1 -t 1 "$name" >"$work/active" 2>&1 || {
			cat "$work/active" "$work/passive"
			return 1
		}
		cat "$work/active"
		grep -qE '^ +(bw|recv_bw|latency|msg_rate) += +[1-9]' "$work/active"
	done
}

# Data goes one way in most: the QP of one side has no SQ, that of the other no RQ.
test_qperf() {
	qperf_tests rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw \
		rc_rdma_write_lat rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr
}

# Sockets over RDMA. The program compares what it receives. Its datagrams know no GIDs either.
rstream_options="-T v -C 200 -S 65536"
test_rsockets() {
	over_rdma 200 meet rstream "-b 10.9.0.2 -T b $rstream_options" \
		"-s 10.9.0.2 -T b $rstream_options"
}

test_rsockets_asynchronous() { over_rdma 200 rstream_asynchronous; }

# This server never sleeps, so that nobody sees when it waits: the client tries until it is there. A
# client that is told of the server's end before its own takes that for an error, over rxe too: the
# server's status is what counts.
rstream_asynchronous() {
	local server
	# shellcheck disable=SC2086
	on 2 timeout 120 rstream -b 10.9.0.2 -T a $rstream_options >"$work/passive" 2>&1 &
	server=$!
	while kill -0 "$server" 2>/dev/null; do
		# shellcheck disable=SC2086
		timeout 60 rstream -s 10.9.0.2 -T a $rstream_options >"$work/active" 2>&1 || sleep 0.2
	done
	wait "$server" || {
		cat "$work/passive" "$work/active"
		return 1
	}
	cat "$work/passive"
}

# The server waits at a TCP port of its own. Data is compared with -c.
pingpong() {
	local command="fi_pingpong $* -c"
	over_rdma 100 meet env "$command -B 18515" "$command -P 18515 10.9.0.2"
}

test_libfabric_connections() { pingpong -p verbs -e msg -I 20; }

# Messages without connections: libfabric makes them by itself (ofi_rxm).
test_libfabric_messages() { pingpong -p 'verbs;ofi_rxm' -e rdm -I 20; }
test_libfabric_tagged() { pingpong -p 'verbs;ofi_rxm' -e rdm -m tagged -I 20; }

# Parts of mpi/exchange.py, one process on each VM, with options of mpirun.
mpi() {
	local options=()
	while [[ $1 != -- ]]; do
		options+=("$1")
		shift
	done
	shift
	timeout 500 mpirun --allow-run-as-root --prtemca plm_ssh_agent "$top/selftests/mpi/agent" \
		--host vm1,vm2 --map-by node -np 2 "${options[@]}" \
		python3 -m mpi4py "$top/selftests/mpi/exchange.py" "$@" </dev/null >"$work/mpi" 2>&1 || {
		cat "$work/mpi"
		return 1
	}
	cat "$work/mpi"
	(($(grep -c '^passed: ' "$work/mpi") == $#))
}

# UCX takes the GID of the IPv4 address.
test_mpi_ucx() { over_rdma 500 mpi --mca pml ucx -- messages burst collectives; }
test_mpi_ucx_one_sided() { over_rdma 20 mpi --mca pml ucx --mca osc ucx -- create allocate; }

# Without libfabric's cache of registrations, with which data arrives wrong over rxe too.
test_mpi_libfabric() {
	over_rdma 500 mpi --mca pml cm --mca mtl ofi -x 'FI_PROVIDER=verbs;ofi_rxm' \
		-x FI_MR_CACHE_MAX_COUNT=0 -- messages burst collectives
}

run_tests test_qperf test_rsockets test_rsockets_asynchronous test_libfabric_connections \
	test_libfabric_messages test_libfabric_tagged test_mpi_ucx test_mpi_ucx_one_sided \
	test_mpi_libfabric
