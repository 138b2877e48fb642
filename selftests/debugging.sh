#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Traces and details of driver and device are what Documentation/debugging.md says.
# testbed: --path direct
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

tracing=/sys/kernel/tracing
events=$tracing/events/virtio_rdma

after_failure() {
	[[ ! -d /sys/module/withhold ]] || rmmod withhold
	[[ ! -d $events || $(<"$events/enable") == 0 ]] || tail -n 40 "$tracing/trace"
	cleanup
}

cleanup() {
	[[ ! -d $events ]] || trace_off
}

trace_on() {
	mountpoint -q "$tracing" || mount -t tracefs none "$tracing"
	: >"$tracing/trace"
	echo 1 >"$events/enable"
}

trace_off() { echo 0 >"$events/enable"; }

# Prints the trace without its header.
traced() { grep -v '^#' "$tracing/trace"; }

# Prints the number in the first line of the trace with this text.
number_in() { traced | grep -F -- "$1" | sed -n 's/.* number=\([0-9]*\) .*/\1/p' | head -n 1; }

# Each command is traced when it is sent and when it is answered, with its object.
test_commands_are_traced() {
	local dev qpn
	dev=$(virtio_device 1)
	trace_on
	pair -g ibv_rc_pingpong -n 10
	trace_off
	traced | head -n 40
	traced | grep -q "virtio_rdma_command: dev=$dev command=CREATE_QP number=-1\$"
	qpn=$(number_in 'answer: dev='"$dev"' command=CREATE_QP')
	traced | grep -q "virtio_rdma_answer: dev=$dev command=CREATE_QP number=$qpn result=OK us=[0-9]*\$"
	grep -q "QPN 0x0*$(printf '%x' "$qpn")" "$work/active"
	traced | grep -q "virtio_rdma_command: dev=$dev command=MODIFY_QP number=$qpn\$"
	traced | grep -q "virtio_rdma_answer: dev=$dev command=DESTROY_QP number=$qpn result=OK "
	# The tracepoints are off.
	: >"$tracing/trace"
	pair -g ibv_rc_pingpong -n 10
	[[ ! $(traced) ]]
}

# A refused command is traced with the name of its errno.
test_refusals_are_traced() {
	trace_on
	ip address add "$peer/24" dev "$(netdev 1)"
	refused() { traced | grep 'command=ADD_GID number=[0-9]* result=EADDRINUSE '; }
	until_ok 20 refused
	ip address del "$peer/24" dev "$(netdev 1)"
}

# Events are traced with their object.
test_events_are_traced() {
	local dev cqn event
	dev=$(virtio_device 1)
	trace_on
	pair -g ibv_rc_pingpong -n 10 -e
	cqn=$(number_in 'answer: dev='"$dev"' command=CREATE_CQ')
	event="dev=$dev kind=COMPLETION object=CQ number=$cqn value=0x[0-9a-f]*"
	traced | grep "virtio_rdma_event: $event\$"
}

# Prints objects with the driver's details, all in one line: the rdma tool breaks lines of objects.
details() { rdma -dd resource show "$@" | tr -s ' \t\n' ' '; }

# The rdma tool shows the positions of the kernel's queues, and whether a CQ is armed. The GSI QP
# belongs to the kernel's MAD layer, which has posted receives and has armed its CQ.
test_details_of_the_kernels_queues() {
	local dev positions
	dev=$(device 1)
	details qp link "$dev/1" type GSI | tee "$work/qp"
	positions='drv_posted_by kernel drv_sq_pi ([0-9]+) drv_sq_ci ([0-9]+) '
	positions+='drv_rq_pi ([0-9]+) drv_rq_ci ([0-9]+) drv_events [0-9]'
	[[ $(<"$work/qp") =~ $positions ]]
	((BASH_REMATCH[1] == BASH_REMATCH[2] && BASH_REMATCH[3] > BASH_REMATCH[4]))
	details cq dev "$dev" | tee "$work/cq"
	positions=' drv_pi [0-9]* drv_ci [0-9]*'
	! in_virtqueue_mode || positions=
	positions="drv_polled_by kernel$positions drv_armed next drv_events [0-9]"
	grep -q "comm \[ib_core\] drv_[^[]* $positions" "$work/cq"
}

# The kernel knows little of the queues of processes: that processes use them, and their events.
test_details_of_queues_of_processes() {
	local dev by=process pid
	dev=$(device 1)
	! in_virtqueue_mode || by=kernel
	start_soak
	details qp link "$dev/1" type RC | tee "$work/qp"
	grep -q " drv_posted_by $by .*drv_events [0-9]" "$work/qp"
	details cq dev "$dev" | tee "$work/cq"
	grep -q " comm verbs-test drv_queues [a-z-]* drv_cqn [0-9]* drv_polled_by $by .*drv_events [0-9]" \
		"$work/cq"
	stop_soak
	! in_virtqueue_mode || return 0
	# Waits for a client.
	# shellcheck disable=SC2046
	ibv_srq_pingpong $(endpoint 1 -g) >"$work/srq_pingpong" 2>&1 &
	pid=$!
	has_srq() {
		details srq dev "$dev" | grep ' drv_srqn [0-9]* drv_posted_by process drv_events 0'
	}
	until_ok 60 has_srq
	kill "$pid"
	wait "$pid" || true
}

# A command that the device does not answer is shown with its object and its age. Reading does not
# wait for the device.
test_commands_under_way() {
	local file
	mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug
	file=/sys/kernel/debug/virtio_rdma-$(virtio_device 1)/commands
	cat "$file"
	is_idle() { [[ $(<"$file") == $'state=working\nasynchronous=0' ]]; }
	until_ok 20 is_idle
	insmod "$modules/kverbs/withhold.ko" irq="$(control_irq)"
	ibv_devinfo -d "$(device 1)" >"$work/devinfo" 2>&1 &
	waits() { timeout 20 cat "$file" | grep 'command=QUERY_PORT number=1 ms=[0-9]'; }
	until_ok 60 waits
	rmmod withhold
	wait $!
	until_ok 20 is_idle
}

run_tests test_commands_are_traced test_refusals_are_traced test_events_are_traced \
	test_details_of_the_kernels_queues test_details_of_queues_of_processes \
	test_commands_under_way
