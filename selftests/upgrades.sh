#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon's program is replaced again and again while stock programs and the kernel's clients
# work, which notice nothing. ROUNDS is the number of upgrades under each of them.
# more: --path direct
# more: --path wire
# more: --rxe 1
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=ulp-lib.sh
. "$(dirname "$0")/ulp-lib.sh"

upgrades=${ROUNDS:-8}
# Seconds of a program, which must not end before the last upgrade.
duration=$((upgrades * 5 / 4 + 10))
# shellcheck disable=SC2034 # of meet
patience=$((2 * duration + 120))

# Upgrades the daemon under the process $1.
upgrade_under() {
	local round
	for ((round = 0; round < upgrades; round++)); do
		sleep 0.5
		kill -0 "$1" || fail "it has ended before upgrade $((round + 1))"
		on 0 daemon upgrade 1
	done
}

unnoticed() {
	local word
	for word in virtio_rdma nvme iser iscsi rpcrdma nfs; do
		if log_since "$word"; then
			fail "the kernel has noticed something"
		fi
	done
}

# Starts a command, $program, and waits until it has a QP. Then upgrades the daemon.
start_and_upgrade() {
	runs() { rdma res show qp | grep -q 'type RC state RTS'; }
	[[ $* != *' UD '* ]] || runs() { rdma res show qp | grep -q 'type UD .*comm ib_'; }
	mark_log
	rm -f "$work/stop"
	"$@" &
	program=$!
	until_ok 60 runs
	upgrade_under "$program"
}

# Runs a command while the daemon is upgraded. Then the programs can end: their Ethernet connection,
# over which they meet, comes back a while after the last upgrade.
under_upgrades() {
	local program status=0
	start_and_upgrade "$@"
	touch "$work/stop"
	wait "$program" || status=$?
	((status == 0)) || fail "it has ended with status $status"
	unnoticed
}

# Each message and operation has its effect once.
test_exactly_once() {
	# shellcheck disable=SC2034 # of start_soak
	local soak_test=counted
	mark_log
	start_soak
	upgrade_under "$soak"
	stop_soak
	tail -n 3 "$work/soak"
	unnoticed
}

# Writes random data to the file or disk, reads it back and compares, until it is told to stop.
compare() {
	local -a direct=(bs=64k count=64)
	while [[ ! -e $work/stop ]]; do
		dd if=/dev/urandom of="$work/data" "${direct[@]}"
		dd if="$work/data" of="$1" oflag=direct conv=notrunc "${direct[@]}"
		dd if="$1" iflag=direct "${direct[@]}" | cmp - "$work/data" || return
	done 2>"$work/compare"
}

# Compares data of a client of the kernel.
compare_over() {
	"connect_$1"
	under_upgrades compare "$(file_of_"$1")"
	cleanup
}

test_nfs() { compare_over nfs; }
test_nvme() { compare_over nvme; }
test_iser() { compare_over iser; }

# fio writes blocks that tell their place and content, and verifies them.
verify() {
	local libraries=$tools/usr/lib/x86_64-linux-gnu
	LD_LIBRARY_PATH=$libraries:$libraries/ceph "$tools/usr/bin/fio" --name=verify \
		--filename="$1" --rw=randrw --bs=4k-64k --iodepth=8 --ioengine=libaio --direct=1 \
		--size=16m --time_based --runtime="$duration" --verify=crc32c --verify_fatal=1 \
		--verify_backlog=64 --output="$work/fio"
	grep -E 'err=|IOPS' "$work/fio"
}

test_nvme_fio() {
	tools=$top/build/tools
	[[ -e $tools/usr/bin/fio ]] || skip '"tools/dev/extra fio" gets it'
	connect_nvme
	under_upgrades verify /dev/nvme0n1
	cleanup
}

# Runs a program of rdma-core, which compares its data, during the upgrades. It goes on after them.
pingpong_under_upgrades() {
	local program before name=$1
	shift
	sent() { cat "/sys/class/infiniband/$(device 1)/ports/1/counters/port_xmit_packets"; }
	goes_on() { (($(sent) > before)); }
	start_and_upgrade pair -g "$name" -n 1000000000 -c "$@"
	before=$(sent)
	until_ok 20 goes_on
	kill -0 "$program" || fail "it has ended after the last upgrade"
	unnoticed
	# A process has the first 15 bytes of its program's name.
	pkill -x "${name:0:15}"
	on 2 pkill -x "${name:0:15}" || true
	wait "$program" || true
}

test_rc_pingpong() { pingpong_under_upgrades ibv_rc_pingpong; }
test_rc_pingpong_events() { pingpong_under_upgrades ibv_rc_pingpong -e; }
test_rc_pingpong_large() { pingpong_under_upgrades ibv_rc_pingpong -s 1000000; }
test_srq_pingpong_events() { pingpong_under_upgrades ibv_srq_pingpong -q 4 -e; }
test_write_bw() { under_upgrades pair -x ib_write_bw -s 65536 -D "$duration" "${slow[@]}"; }
test_read_bw() { under_upgrades pair -x ib_read_bw -s 65536 -D "$duration" "${slow[@]}" -o 16; }
test_send_bw() { under_upgrades pair -x ib_send_bw -s 65536 -D "$duration" "${slow[@]}"; }
test_send_bw_srq() {
	under_upgrades pair -x ib_send_bw -s 65536 -D "$duration" -q 4 --use-srq
}
test_send_bw_ud() { under_upgrades pair -x ib_send_bw -c UD -s 1024 -D "$duration"; }
test_atomic_bw() { under_upgrades pair -x ib_atomic_bw -D "$duration"; }

# UCX compares the blocks that it writes and reads.
test_ucx() {
	on 2 env "UCX_NET_DEVICES=$(device 2):1" UCX_TLS=rc_v,self io_demo -q -p 19001 \
		-d 1:100000 >"$work/passive" 2>&1 &
	until_ok 60 io_demo_listens
	under_upgrades env "UCX_NET_DEVICES=$(device 1):1" UCX_TLS=rc_v,self io_demo -q -p 19001 \
		-i 1000000000 -l "${duration}s" -d 1:100000 -o read,write "$peer"
	on 2 pkill -x io_demo
}

slow=()
if [[ $(on 2 rdma link show) == *rxe* ]]; then
	# As in rxe.sh.
	slow=(-u 18)
	run_tests test_exactly_once test_rc_pingpong test_rc_pingpong_events test_write_bw \
		test_read_bw test_send_bw test_send_bw_ud
else
	run_tests test_exactly_once test_rc_pingpong test_rc_pingpong_events \
		test_rc_pingpong_large test_srq_pingpong_events test_write_bw test_read_bw \
		test_send_bw_srq test_send_bw_ud test_atomic_bw test_ucx test_nfs test_nvme \
		test_nvme_fio test_iser
fi
