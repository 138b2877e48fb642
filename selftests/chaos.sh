#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Failures on order: rules of a scenario choose what fails, and stock programs see it as they would
# see it of a network adapter.
# testbed: --path direct
# more: --path wire
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Adds a rule to the scenario of a VM. There is one at a time.
order() { on 0 daemon chaos "$1" --add "rule: $2"; }

# Checks that the rule has applied, and removes it.
forget() {
	on 0 daemon applied "$1" rule
	on 0 daemon chaos "$1" --remove rule
}

counter() { cat "/sys/class/infiniband/$(device 1)/ports/1/hw_counters/$1"; }

pingpong() { pair -g ibv_rc_pingpong -n 40 -s 20000; }

# Checks that the pingpong fails on a VM with this number of a status, and of which work request.
# ibv_rc_pingpong gives receives the ID 1 and sends the ID 2.
fails() {
	local file
	file=$([[ $1 == 1 ]] && echo "$work/active" || echo "$work/passive")
	grep -q "Failed status .* ($2) for wr_id $3" "$file"
}

# Every status of send work requests, by the numbers of enum ibv_wc_status.
test_send_work_requests() {
	local status
	for status in LOC_LEN_ERR:1 LOC_QP_OP_ERR:2 LOC_PROT_ERR:4 MW_BIND_ERR:6 BAD_RESP_ERR:7 \
		REM_INV_REQ_ERR:9 REM_ACCESS_ERR:10 REM_OP_ERR:11 RETRY_EXC_ERR:12 \
		RNR_RETRY_EXC_ERR:13; do
		order 1 "send any nth 7 then fail ${status%:*}"
		! pingpong || fail "$status was not noticed"
		fails 1 "${status#*:}" 2
		forget 1
	done
	pingpong
}

# A receive that fails ends its sender's work request too, on the other VM.
test_receives() {
	local status
	for status in LOC_LEN_ERR:1 LOC_QP_OP_ERR:2 LOC_PROT_ERR:4; do
		order 1 "receive nth 7 then fail ${status%:*}"
		! pingpong || fail "$status was not noticed"
		fails 1 "${status#*:}" 1
		fails 2 11 2
		forget 1
	done
}

# Messages that find no receive, and packets that are lost, are sent again: programs notice nothing.
test_repetitions() {
	local before
	before=$(counter rnr_naks_sent)
	order 1 "receive every 7 then withhold"
	pingpong
	(($(counter rnr_naks_sent) >= before + 5))
	forget 1
	before=$(counter retransmitted_packets)
	order 1 "packet every 50 then drop"
	pingpong
	(($(counter retransmitted_packets) > before))
	forget 1
}

# Commands are refused at the call that the rule names.
test_commands() {
	local name case
	name=$(device 1)
	for case in "CREATE_PD:allocate PD" "CREATE_CQ:create CQ" "REG_USER_MR:register MR" \
		"CREATE_QP:create QP" "MODIFY_QP:modify QP to INIT"; do
		order 1 "command ${case%:*} nth 1 then refuse ENOMEM"
		! ibv_rc_pingpong -d "$name" >"$work/refused" 2>&1 || fail "$case was not noticed"
		cat "$work/refused"
		grep -qi "${case#*:}" "$work/refused"
		forget 1
	done
	order 1 "command any then wait 30ms"
	pingpong
	forget 1
}

# A peer's request is refused where its memory is: the side that asked gets the status, and the QP
# of the other one fails.
test_accesses() {
	local case
	for case in ib_read_bw:REMOTE_READ ib_write_bw:REMOTE_WRITE; do
		order 2 "access ${case#*:} nth 7 then fail REM_ACCESS_ERR"
		! pair -x "${case%:*}" -n 20 -s 4096 || fail "$case was not noticed"
		grep -q 'Failed status 10' "$work/active"
		forget 2
		pair -x "${case%:*}" -n 20 -s 4096
	done
}

# Completions and completion events that are late change nothing but the time; those that are lost
# end a program that waits for them.
test_completions() {
	local effect patience=60
	for effect in "completion every 9 then hold 50ms" "event nth 3 then hold 300ms" \
		"event every 2 then repeat"; do
		order 1 "$effect"
		pair -g ibv_rc_pingpong -e -n 40 -s 20000
		forget 1
	done
	patience=5
	for effect in "completion nth 9 then drop" "event nth 3 then drop"; do
		order 1 "$effect"
		! pair -g ibv_rc_pingpong -e -n 40 -s 20000 || fail "$effect was not noticed"
		forget 1
	done
}

# Objects fail with events of their own.
test_objects() {
	local patience=5
	order 1 "completion nth 9 then raise CQ_ERR"
	! pingpong || fail "the CQ was not missed"
	forget 1
	order 1 "receive nth 7 then raise SRQ_ERR"
	! pair -g ibv_srq_pingpong -n 40 || fail "the SRQ was not missed"
	forget 1
	order 1 "receive nth 7 then raise SRQ_LIMIT_REACHED"
	pair -g ibv_srq_pingpong -n 40
	forget 1
}

# The link goes down and up: both events are told, and connections outlive it.
test_link() {
	start_watch
	order 1 "send any nth 7 then flap 200ms"
	pingpong
	until_ok 20 grep -q IBV_EVENT_PORT_ERR "$work/watch"
	until_ok 20 grep -q IBV_EVENT_PORT_ACTIVE "$work/watch"
	forget 1
	order 1 "send any nth 7 then raise PKEY_CHANGE"
	pingpong
	until_ok 20 grep -q IBV_EVENT_PKEY_CHANGE "$work/watch"
	forget 1
	kill "$watch"
	wait "$watch" || true
}

# Packets that are damaged, doubled or late change nothing but the time. A peer that falls silent in
# the middle of a message is given up.
test_packets() {
	local effect before
	for effect in corrupt repeat "delay 2"; do
		before=$(counter retransmitted_packets)
		order 1 "packet every 50 then $effect"
		pingpong
		forget 1
		[[ $effect == repeat ]] || (($(counter retransmitted_packets) > before))
	done
	order 1 "packet nth 30 then silence"
	! pingpong || fail "the silence was not noticed"
	fails 1 12 2
	forget 1
}

# Messages of the connection manager that are lost are sent again.
test_connection_manager() {
	local case
	for case in 1:REQ 2:REP 1:RTU 2:DREQ; do
		order "${case%:*}" "cm ${case#*:} nth 1 then drop"
		meet ucmatose "-b $peer -c 1 -C 2" "-s $peer -c 1 -C 2"
		forget "${case%:*}"
	done
}

# A QP fails with an event, which is not a completion: its work requests are flushed.
test_events() {
	local event
	for event in QP_FATAL QP_REQ_ERR QP_ACCESS_ERR; do
		order 1 "send any nth 7 then raise $event"
		! pingpong || fail "$event was not noticed"
		fails 1 5 '[12]'
		forget 1
	done
}

# A device fails: programs get the event, the driver resets it and probes it again. The pingpong
# only polls, and gets nothing to poll any more.
test_device() {
	local patience=10
	start_watch
	mark_log
	order 1 "send any nth 7 then crash"
	! pingpong || fail "the failure was not noticed"
	watch_is_told
	until_ok 120 recovers
	forget 1
	until_ok 60 pingpong
	# The process that serves the device dies, and its rules with it.
	start_watch
	mark_log
	order 1 "send any nth 7 then kill"
	! pingpong || fail "the death was not noticed"
	watch_is_told
	until_ok 120 recovers
	! on 0 daemon applied 1 rule || fail "the rule is still there"
	until_ok 60 pingpong
}

# Rules and their counts outlive an upgrade of the daemon.
test_upgrade() {
	order 1 "command CREATE_QP nth 2 then refuse ENOMEM"
	pingpong
	on 0 daemon upgrade 1
	! pingpong || fail "the second QP was not refused"
	grep -q "Couldn't create QP" "$work/active"
	forget 1
}

run_tests test_send_work_requests test_receives test_accesses test_repetitions test_packets \
	test_completions test_objects test_commands test_events test_link test_connection_manager \
	test_device test_upgrade
