#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Statistics of queue pairs, as the rdma tool sets, binds and shows them.
# testbed: --path direct
# more: --withhold counter-sets
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

link=$(device 1)/1

after_failure() {
	[[ ! ${soak:-} ]] || kill "$soak" 2>/dev/null
	rdma statistic qp set link "$link" auto off 2>/dev/null
}

# Prints a counter of the port, as the rdma tool shows it.
port() { rdma statistic show link "$link" | sed -n "s/.*\b$1 \([0-9]*\).*/\1/p"; }

# Prints, for each counter of queue pairs: its number, its QPNs, and the value of one field.
counters() {
	rdma -j statistic qp show link "$link" >"$work/counters"
	python3 - "$work/counters" "$1" <<-'PYTHON'
		import json, sys
		with open(sys.argv[1]) as file:
		    text = file.read().strip()
		for entry in json.loads(text or "[]"):
		    qpns = entry["lqpn"]
		    qpns = qpns if isinstance(qpns, list) else [qpns]
		    print(entry["cntn"], ",".join(map(str, qpns)), entry[sys.argv[2]])
	PYTHON
}

refused() {
	if "$@"; then
		fail "not refused: $*"
	fi
}

# Prints the QPN of the traffic's QP.
soak_qpn() {
	rdma res show qp link "$link" type RC | sed -n 's/.*lqpn \([0-9]*\) .*verbs-test.*/\1/p'
}

# One QP is bound and unbound by its number.
test_manual() {
	local qpn counter bound count before after
	rdma statistic qp mode link "$link"
	start_soak
	rdma statistic qp show link "$link"
	[[ ! $(counters direct_tx_messages) ]]
	qpn=$(soak_qpn)
	# abi: R-1204
	rdma statistic qp bind link "$link" lqpn "$qpn"
	rdma statistic qp mode link "$link"
	rdma statistic qp show link "$link"
	rdma -j statistic qp show link "$link"
	more() {
		read -r counter bound count <<<"$(counters direct_tx_messages)"
		((count > 10))
	}
	# abi: R-1206
	until_ok 20 more
	echo "counter $counter of $bound: $count"
	[[ $bound == "$qpn" ]]
	refused rdma statistic qp bind link "$link" lqpn "$qpn"
	refused rdma statistic qp set link "$link" auto type on
	before=$(port direct_tx_messages)
	# abi: R-1216, R-1217
	((before >= count))
	rdma statistic qp unbind link "$link" cntn "$counter" lqpn "$qpn"
	[[ ! $(counters direct_tx_messages) ]]
	after=$(port direct_tx_messages)
	# abi: R-1211, R-1215
	((after >= before))
	stop_soak
	refused rdma statistic qp bind link "$link" lqpn "$qpn"
}

# Prints how many messages the port has sent during a ping-pong, which uses one QP.
messages() {
	local before
	before=$(port direct_tx_messages)
	pair -g ibv_rc_pingpong -n 300 -c >&2
	echo $(($(port direct_tx_messages) - before))
}

# All QPs of a type are bound when they are initialized. The port's counters are the same with and
# without counters of QPs, while these exist and afterwards.
# abi: R-1202, R-1203, R-1212, R-1217
test_automatic() {
	local without with bound count sysfs
	without=$(messages)
	rdma statistic qp set link "$link" auto type on
	rdma statistic qp mode link "$link" | tee "$work/mode"
	grep -q "auto type on" "$work/mode"
	with=$(messages)
	echo "$without messages without counters of QPs, $with with them"
	((without == with && with > 0))
	[[ ! $(counters direct_tx_messages) ]]
	start_soak
	rdma statistic qp show link "$link" | tee "$work/show"
	grep -q "cntn [0-9]* qp-type RC" "$work/show"
	more() {
		read -r _ bound count <<<"$(counters direct_tx_messages)"
		((count > 10))
	}
	until_ok 20 more
	[[ $bound == "$(soak_qpn)" ]]
	stop_soak
	gone() { [[ ! $(counters direct_tx_messages) ]]; }
	until_ok 10 gone
	sysfs=/sys/class/infiniband/${link%/*}/ports/1/hw_counters/direct_tx_messages
	(($(cat "$sysfs") == $(port direct_tx_messages)))
	rdma statistic qp set link "$link" auto off
	[[ $(rdma statistic qp mode link "$link") == *"auto off"* ]]
}

# A device without counter sets: no QP can be bound, and the port has its counters.
# abi: R-13
test_withheld() {
	local before
	start_soak
	refused rdma statistic qp bind link "$link" lqpn "$(soak_qpn)"
	before=$(port direct_tx_messages)
	more() { (($(port direct_tx_messages) > before)); }
	until_ok 20 more
	stop_soak
}

# The counters that all devices have in sysfs: programs that collect them read every file, and fail
# if one is missing. They count messages on both paths.
test_standard_counters() {
	local files=/sys/class/infiniband/${link%/*}/ports/1/counters name before after
	for name in symbol_error link_error_recovery link_downed port_rcv_errors \
		port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_discards \
		port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors \
		excessive_buffer_overrun_errors VL15_dropped port_xmit_wait port_xmit_data \
		port_rcv_data port_xmit_packets port_rcv_packets unicast_xmit_packets \
		unicast_rcv_packets multicast_xmit_packets multicast_rcv_packets; do
		[[ $(<"$files/$name") =~ ^[0-9]+$ ]] || fail "$name"
	done
	for name in symbol_error port_xmit_discards multicast_rcv_packets; do
		(($(<"$files/$name") == 0)) || fail "$name"
	done
	before=$(<"$files/port_xmit_packets")
	pair -g ibv_rc_pingpong -n 300 -c
	after=$(<"$files/port_xmit_packets")
	echo "$before packets before, $after after"
	((after >= before + 300))
	# Data counts in units of 4 bytes; the messages have 4,096.
	(($(<"$files/port_rcv_data") >= 300 * 1024))
	[[ $(ibv_devinfo -v -d "$(device 1)") == *"max_vl_num:"*"1 (1)"* ]]
}

if ! has_feature 14; then
	run_tests test_withheld test_standard_counters
	exit
fi
run_tests test_manual test_automatic test_standard_counters
