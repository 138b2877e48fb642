#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The daemon's engine is killed at named points: at commands, in turns, and at system calls while
# the driver sets the device up or the daemon is upgraded. Each time the devices of both VMs must
# be there again without help, and no kernel may complain. A line for each point tells how often
# it was met, how often VM 1's driver noticed it, and median and maximum of the milliseconds until
# its link was ACTIVE. ROUNDS says how often each point is met. Sets of points can run side by
# side, by TESTS, since most of the time is spent waiting.
# testbed:
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

rounds=${ROUNDS:-10}

# The work in which points lie. It ends in any way, since its device goes.
# Nobody listens there, so this creates and destroys a QP.
creates() { timeout 20 ibv_rc_pingpong -g "$(gid_index 1)" 127.0.0.1; }
sends() { patience=15 pair -g ibv_rc_pingpong -e -n 40 -s 20000; }
writes() { patience=15 pair -x ib_write_bw -n 200 -s 20000; }
writes_back() { patience=15 pair -x ib_write_bw -b -n 200 -s 20000; }
shares() { patience=15 pair -g ibv_srq_pingpong -n 40; }
changes() {
	start_server
	timeout 20 "$verbs" -d "$(device 1)" client "$peer" "$@"
}
addresses() {
	local act netdev
	netdev=$(netdev 1)
	for act in add delete; do
		ip address "$act" 10.77.0.1/24 dev "$netdev"
		sleep 0.5
	done
}
binds() {
	local device act
	device=$(virtio_device 1)
	for act in unbind bind; do
		echo "$device" >"/sys/bus/virtio/drivers/virtio_rdma/$act"
	done
}
upgrades() { on 0 daemon upgrade 1; }

# Rules of VM 1, and the work that meets them.
objects=(
	"command CREATE_PD:creates" "command CREATE_CQ:creates" "command REG_USER_MR:creates"
	"command CREATE_QP:creates" "command MODIFY_QP:creates" "command DESTROY_QP:creates"
	"command DESTROY_CQ:creates" "command DEREG_MR:creates" "command DESTROY_PD:creates"
	"command CREATE_SRQ:shares" "command DESTROY_SRQ:shares"
)
others=(
	"command MODIFY_QP nth 3:sends" "command QUERY_QP:changes state_query"
	"command REREG_MR:changes memory_changed" "command ALLOC_MW:changes window_type"
	"command ADD_GID:addresses" "command DEL_GID:addresses" "send any nth 7:sends"
	"receive nth 7:sends" "completion nth 9:sends" "event nth 5:sends"
	"access any nth 7:writes_back" "send RDMA_WRITE nth 7:writes"
)

# System calls, and the work within which the engine makes them.
calls=(recvmsg:binds recvfrom:binds write:binds splice:binds close:binds ppoll:binds
	pwrite64:upgrades)

# Milliseconds since the start of VM 1.
now() {
	local seconds
	read -r seconds _ </proc/uptime
	echo $((10#${seconds/./} * 10))
}

# The time of the line of the kernel's log with the text $1 since the mark, in milliseconds.
time_of() {
	local line
	line=$(log_since "$1" | head -n 1)
	[[ $line =~ ^\[\ *([0-9]+)\.([0-9]{3}) ]] && echo $((10#${BASH_REMATCH[1]}${BASH_REMATCH[2]}))
}

# Notes each time at which VM 1's link gets ACTIVE, until it is ended.
watch_link() {
	local state is_up=1 file pause
	file=/sys/class/infiniband/$(device 1)/ports/1/state
	exec {pause}<> <(:)
	while :; do
		if { read -r state <"$file"; } 2>/dev/null && [[ $state == 4:* ]]; then
			((is_up)) || now >"$work/up"
			is_up=1
		else
			is_up=0
		fi
		read -rt 0.02 -u "$pause" || true
	done
}

# Whether the link of VM 1 was seen to get ACTIVE after this time.
is_up_since() { [[ -s $work/up ]] && (($(<"$work/up") > $1)); }

# How often VM 2's driver has lost its device.
resets_of_2() { at 2 bash -c "dmesg | grep -c 'needs a reset' || true"; }
second_knows() { (($(resets_of_2) > $1)); }

# Runs $1, which kills the engine in its course. Then waits until the devices of both VMs work, and
# notes for how long VM 1's driver was without its device. It does not know of a death for as long
# as it is unbound itself.
meets() {
	local began watch before
	mark_log
	before=$(resets_of_2)
	rm -f "$work/up"
	watch_link &
	watch=$!
	"$@"
	until_ok 120 second_knows "$before"
	until_ok 120 device_up
	until_ok 120 link_is 2 ACTIVE
	if began=$(time_of 'needs a reset'); then
		until_ok 10 is_up_since "$began"
		echo $(($(<"$work/up") - began)) >>"$work/times"
	fi
	kill "$watch"
	# Failures within this time are taken for repeated ones: driver and daemon wait then.
	sleep 11
}

# Prints how often the engine was killed at a point, how often the driver noticed it, and median and
# maximum of the times.
tell() {
	sort -n "$work/times" | awk -v point="$1" -v rounds="$rounds" '
		{ time[NR] = $1 }
		END {
			printf "%s | %d | %d | %d | %d\n", point, rounds, NR,
				time[int((NR + 1) / 2)], time[NR]
		}' | tee -a "$outcomes" >/dev/kmsg
}

# Kills the engine by a rule, during this work.
dies_by() {
	on 0 daemon chaos 1 --add "kill: $1 then kill"
	# Some of the verbs tests change objects of the server.
	[[ $2 != changes* ]] || on 0 daemon chaos 2 --add "kill: $1 then kill"
	($2) >"$work/said" 2>&1 || true
	until_ok 60 log_since 'needs a reset'
}

# Kills the engine when one of its threads begins its Nth system call of a kind from now on, during
# this work.
dies_at() {
	on 0 daemon crash 1 "$1" "$2"
	($3) >"$work/said" 2>&1 || true
}

# Kills the engine by rules, each followed by the work that meets it.
killed_by() {
	local point rule work_of
	for point; do
		rule=${point%:*} work_of=${point##*:}
		: >"$work/times"
		for ((round = 0; round < rounds; round++)); do
			meets dies_by "$rule" "$work_of"
		done
		tell "$rule"
	done
	until_ok 60 traffic
}

test_objects() { killed_by "${objects[@]}"; }
test_others() { killed_by "${others[@]}"; }

test_system_calls() {
	local point call work_of nth
	for point in "${calls[@]}"; do
		call=${point%:*} work_of=${point##*:}
		: >"$work/times"
		for ((round = 1; round <= rounds; round++)); do
			# An upgrade writes the state once.
			[[ $work_of == upgrades ]] && nth=1 || nth=$((1 + round % 3))
			meets dies_at "$call" "$nth" "$work_of"
		done
		tell "system call $call: $work_of"
	done
	until_ok 60 traffic
}

run_telling test_objects test_others test_system_calls
