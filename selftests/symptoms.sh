#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Each symptom of Documentation/debugging.md is caused on purpose, and the commands there print what
# the document says.
# testbed: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

dev=$(device 1)
net=$(netdev 1)

after_failure() {
	local virtio
	[[ ! -s $work/cause ]] || cat "$work/cause"
	ip link set "$net" up
	virtio=$(virtio_device 1)
	[[ -e $driver/$virtio ]] || echo "$virtio" >"$driver/bind"
}

# Prints a counter of the port, as the rdma tool shows it.
counter() { rdma statistic show link "$dev/1" | sed -n "s/.*\b$1 \([0-9]*\).*/\1/p"; }

# Causes a symptom. A program must print the second argument, and the other arguments are names of
# counters that must grow.
cause() {
	local symptom=$1 sees=$2 name before=()
	shift 2
	for name; do
		before+=("$(counter "$name")")
	done
	timeout 120 "$top/selftests/symptoms/cause.py" "$dev" "$(gid_index 1)" "$symptom" |
		tee "$work/cause"
	grep -q "$sees" "$work/cause"
	rdma statistic show link "$dev/1"
	for name; do
		(($(counter "$name") > before[0])) || fail "$name has not grown"
		before=("${before[@]:1}")
	done
}

test_connects_and_hangs() {
	local before qpn
	before=$(counter rnr_naks_received)
	# shellcheck disable=SC2094 # a FIFO
	mkfifo "$work/end"
	"$top/selftests/symptoms/cause.py" "$dev" "$(gid_index 1)" hang <"$work/end" \
		>"$work/cause" 2>&1 &
	exec {end}>"$work/end"
	until_ok 240 grep -q QPN "$work/cause"
	qpn=$(sed -n 's/QPN //p' "$work/cause")
	rdma resource show qp link "$dev/1" lqpn "$qpn" | tee "$work/qp"
	grep -q "lqpn $qpn .*type RC state RTS " "$work/qp"
	refused_again() { (($(counter rnr_naks_received) > before + 3)); }
	until_ok 60 refused_again
	exec {end}>&-
	wait $!
}

test_rnr_retry_exceeded() {
	cause rnr 'status RNR_RETRY_EXC_ERR' rnr_naks_sent rnr_naks_received
}

test_transport_retry_exceeded() {
	cause retry 'status RETRY_EXC_ERR' timeouts
}

test_protection_errors() {
	cause local 'status LOC_PROT_ERR' lkey_violations
	cause remote 'status REM_ACCESS_ERR' rkey_violations
}

# The driver refuses the queue pair: no command reaches the device.
test_einval_of_create_qp() {
	cause create 'error .*Errno: 22'
	ibv_devinfo -v -d "$dev" | grep -q 'max_qp_wr:[[:space:]]*[1-9]'
}

test_memory_cannot_be_registered() {
	cause memory 'error .*Errno: 12'
	cause locked 'error .*Errno: 1,'
}

# Counters tell which path the messages take.
test_slow() {
	local direct packets
	direct=$(counter direct_tx_messages)
	packets=$(counter tx_packets)
	start_soak
	stop_soak
	echo "$(counter direct_tx_messages) messages, $(counter tx_packets) packets"
	(($(counter direct_tx_messages) - direct > $(counter tx_packets) - packets)) ||
		(($(counter tx_packets) - packets > 100))
}

test_link_is_down() {
	ip link set "$net" down
	is_down() { [[ $(rdma link show "$dev/1") == *"state DOWN "*"netdev $net"* ]]; }
	until_ok 20 is_down
	rdma link show "$dev/1"
	ip link show "$net"
	ip link set "$net" up
	until_ok 20 link_is 1 ACTIVE
}

# Without its driver, the virtio device exists, but the RDMA device does not.
test_no_device() {
	local virtio
	virtio=$(virtio_device 1)
	echo "$virtio" >"$driver/unbind"
	[[ $(rdma dev show) != *"$dev"* && $(ibv_devices) != *"$dev"* ]]
	[[ $(<"/sys/bus/virtio/devices/$virtio/device") == 0x002a ]]
	[[ ! -e /sys/bus/virtio/devices/$virtio/driver ]]
	echo "$virtio" >"$driver/bind"
	until_ok 20 device_up
}

run_tests test_connects_and_hangs test_rnr_retry_exceeded test_transport_retry_exceeded \
	test_protection_errors test_einval_of_create_qp test_memory_cannot_be_registered test_slow \
	test_link_is_down test_no_device
