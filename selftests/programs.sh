#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Programs that were not written for this device, between two VMs: qperf, rsockets, libfabric, and
# Open MPI over UCX and over libfabric. See Documentation/programs.md.
# more: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

cleanup() {
	pkill -x prted
	on 2 pkill -x 'qperf|rstream|prted'
}

# Prints the number of messages and packets that the device of VM 1 has sent.
sent() {
	local counters
	counters=/sys/class/infiniband/$(device 1)/ports/1/hw_counters
	echo $(($(<"$counters/direct_tx_messages") + $(<"$counters/tx_packets")))
}

# Runs a command, and checks that the device of VM 1 sends at least $1 messages meanwhile: many
# programs silently fall back to TCP.
over_rdma() {
	local least=$1 before after
	shift
	before=$(sent)
	"$@"
	after=$(sent)
	echo "# messages sent: $((after - before))"
	((after - before >= least))
}

# Runs tests of qperf, with one server for all tests. The tests connect with the connection manager,
# by the device's address. qperf's tests of UC and UD do not use the connection manager and support
# no GIDs, so they work on no RoCE device.
qperf_tests() {
	local name
	on 2 timeout 500 qperf -lp 18515 >"$work/passive" 2>&1 &
	until_ok 60 waits qperf
	for name; do
		timeout 120 qperf "$peer" -lp 18515 -cm1 -t 1 "$name" >"$work/active" 2>&1 || {
			cat "$work/active" "$work/passive"
			return 1
		}
		cat "$work/active"
		grep -qE '^ +(bw|recv_bw|latency|msg_rate) += +[1-9]' "$work/active"
	done
}

# Most tests move data in one direction: one side's QP has no send queue, the other's no receive
# queue.
test_qperf() {
	qperf_tests rc_bw rc_bi_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw \
		rc_rdma_write_lat rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr
}

# Sockets over RDMA. The program compares the received data. Its datagram mode supports no GIDs, so
# it is not tested.
rstream_options="-T v -C 200 -S 65536"
test_rsockets() {
	over_rdma 200 meet rstream "-b $peer -T b $rstream_options" \
		"-s $peer -T b $rstream_options"
}

test_rsockets_asynchronous() { over_rdma 200 rstream_asynchronous; }

# The asynchronous server never sleeps, so `waits` can't detect that it is ready: the client is
# retried until the server is ready. A client whose server ends first reports an error, over rxe
# too, so the test checks the server's status instead.
rstream_asynchronous() {
	local server
	# shellcheck disable=SC2086
	on 2 timeout 120 rstream -b "$peer" -T a $rstream_options >"$work/passive" 2>&1 &
	server=$!
	while kill -0 "$server" 2>/dev/null; do
		# shellcheck disable=SC2086
		timeout 60 rstream -s "$peer" -T a $rstream_options >"$work/active" 2>&1 || sleep 0.2
	done
	wait "$server" || {
		cat "$work/passive" "$work/active"
		return 1
	}
	cat "$work/passive"
}

# Runs fi_pingpong, whose server waits at TCP port 18515. With -c it compares the data.
pingpong() {
	local command="fi_pingpong $* -c"
	over_rdma 100 meet env "$command -B 18515" "$command -P 18515 $peer"
}

test_libfabric_connections() { pingpong -p verbs -e msg -I 20; }

# Connectionless messages: libfabric makes the connections by itself (ofi_rxm).
test_libfabric_messages() { pingpong -p 'verbs;ofi_rxm' -e rdm -I 20; }
test_libfabric_tagged() { pingpong -p 'verbs;ofi_rxm' -e rdm -m tagged -I 20; }

# Runs parts of mpi/exchange.py with one process on each VM: mpi [MPIRUN-OPTION...] -- PART...
mpi() {
	local options=()
	while [[ $1 != -- ]]; do
		options+=("$1")
		shift
	done
	shift
	timeout 500 mpirun --allow-run-as-root --prtemca plm_ssh_agent "$top/selftests/mpi/agent" \
		--host "$(uname -n),$(on -n 2 uname -n)" --map-by node -np 2 "${options[@]}" \
		python3 -m mpi4py "$top/selftests/mpi/exchange.py" "$@" </dev/null >"$work/mpi" 2>&1 || {
		cat "$work/mpi"
		return 1
	}
	cat "$work/mpi"
	(($(grep -c '^passed: ' "$work/mpi") == $#))
}

# UCX selects the GID of the IPv4 address.
test_mpi_ucx() { over_rdma 500 mpi --mca pml ucx -- messages burst collectives; }
test_mpi_ucx_one_sided() { over_rdma 20 mpi --mca pml ucx --mca osc ucx -- create allocate; }

# libfabric's registration cache is disabled: it corrupts data, over rxe too.
test_mpi_libfabric() {
	over_rdma 500 mpi --mca pml cm --mca mtl ofi -x 'FI_PROVIDER=verbs;ofi_rxm' \
		-x FI_MR_CACHE_MAX_COUNT=0 -- messages burst collectives
}

run_tests test_qperf test_rsockets test_rsockets_asynchronous test_libfabric_connections \
	test_libfabric_messages test_libfabric_tagged test_mpi_ucx test_mpi_ucx_one_sided \
	test_mpi_libfabric
