#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The device fails but still accesses memory: it is slow, or it breaks a queue. The driver resets
# it, gives buffers back only after the reset, and then probes the device again. A module of the
# tests takes the answers away from the driver and delays the reset.
# testbed:
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

is_unbound() { [[ ! -e $driver/$(virtio_device 1) ]]; }

bind() {
	virtio_device 1 >"$driver/bind"
	until_ok 120 device_up
}

rebind() {
	virtio_device 1 >"$driver/unbind"
	bind
}

# After a failure the device may be bound or not, and a module of the tests may delay its reset.
after_failure() {
	if [[ -d /sys/module/kverbs ]]; then
		rmmod kverbs
	fi
	delete_gid 2>/dev/null || true
	is_unbound || virtio_device 1 >"$driver/unbind"
	bind
}

# Buffers of kernel clients are written by the peer until the reset, and not afterwards.
# abi: R-115
test_buffers_of_the_kernel() {
	load_kverbs broken_queue=1
	rmmod kverbs
	log_since 'broke a queue: it is not used any more, but reset'
	log_since 'the device was reset: it is at rest'
	until_ok 60 recovers
	traffic
}

# The same, after a minute without an answer. The script slow.sh runs this test.
# abi: R-115
test_silent_device() {
	load_kverbs no_answer=1
	rmmod kverbs
	log_since 'does not answer command=' | grep ' ms=[0-9]*: it is not used any more, but reset'
	until_ok 60 recovers
	traffic
}

# Unbinding waits for the reset, and says so. Programs get the event before.
test_unbind_waits() {
	start_watch
	load_kverbs slow_reset=1
	watch_is_told
	local name unbinding
	name=$(virtio_device 1)
	echo "$name" >"$driver/unbind" &
	unbinding=$!
	waits() { log_since 'unbinding waits'; }
	until_ok 60 waits
	kill -0 $unbinding
	rmmod kverbs
	wait $unbinding
	is_unbound
	bind
	traffic
}

# The same if the device works: an unbinding, and a reset of the function, whose callback a suspend
# of the machine calls too.
test_reset_of_a_working_device() {
	local name function how waiting
	name=$(virtio_device 1)
	function=$(function_of "$name")
	unbind() { echo "$name" >"$driver/unbind"; }
	reset() { echo 1 >"$function/reset"; }
	waits() { log_since 'unbinding waits'; }
	for how in unbind reset; do
		load_kverbs late_reset=1
		"$how" &
		waiting=$!
		until_ok 60 waits
		kill -0 $waiting
		rmmod kverbs
		wait $waiting
		! is_unbound || bind
		until_ok 120 device_up
	done
	traffic
}

# A machine is powered off while its device does not confirm a reset. The script slow.sh runs this
# test last, since it ends VM 2.
test_power_off() {
	on 2 insmod "$kverbs" device="$(device 2)" slow_reset=1
	until_ok 60 link_is 2 DOWN
	on 2 sh -c 'echo o >/proc/sysrq-trigger; sleep 100' || true
	gone() { ! on 2 true; }
	until_ok 60 gone
}

# Pages that programs have pinned: those of memory regions and rings.
pinned() {
	# Adds the counts of the processors to the total.
	echo 1 >/proc/sys/vm/stat_refresh
	awk '/^nr_foll_pin_acquired / { n += $2 } /^nr_foll_pin_released / { n -= $2 } END { print n }' \
		/proc/vmstat
}

# A process ends while the device fails. The memory that it has registered stays pinned until the
# reset.
# abi: R-115
test_pages_stay_pinned() {
	local before holder held
	before=$(pinned)
	stdbuf -oL ibv_rc_pingpong -d "$(device 1)" -g "$(gid_index 1)" -s 1048576 >"$work/holder" &
	holder=$!
	holds() { (($(pinned) >= before + 256)); }
	until_ok 60 holds
	# The program waits for its peer.
	until_ok 60 grep -q 'local address' "$work/holder"
	held=$(pinned)
	load_kverbs slow_reset=1
	until_ok 60 link_is 1 DOWN
	kill $holder
	wait $holder || true
	echo "before: $before, registered: $held, now: $(pinned)"
	(($(pinned) == held))
	rmmod kverbs
	until_ok 60 recovers
	echo "recovered: $(pinned)"
	(($(pinned) == before))
}

# The virtqueue of a CQ breaks. A completion that the driver has taken out of it reaches its client.
test_completion_of_a_broken_cq() {
	in_virtqueue_mode || skip "CQs are not virtqueues"
	load_kverbs broken_cq=1
	rmmod kverbs
	until_ok 60 recovers
	traffic
}

# Adds an address. The device answers late that it adds the GID: with this status, when the module
# is unloaded.
begin_add_gid() {
	load_kverbs withheld="$(control_irq)" gid_answer="$1"
	ip address add 10.9.0.77/24 dev eth0
}

add_gid() {
	begin_add_gid "$1"
	late() { log_since 'has not added GID'; }
	until_ok 60 late
	rmmod kverbs
}

delete_gid() { ip address del 10.9.0.77/24 dev eth0; }

# A refusal for which no task waits any more is in the log. The core keeps the GID.
test_late_refusal() {
	add_gid 98
	log_since 'the device has refused GID'
	delete_gid
	rebind
	traffic
}

# An answer without a status fails the device, however late it comes.
test_late_nonsense() {
	add_gid 255
	failed() {
		log_since 'gave an invalid answer to an asynchronous command: it is not used any more, but reset'
	}
	until_ok 60 failed
	log_since 'its answer is invalid'
	delete_gid
	until_ok 60 recovers
	traffic
}

# A command for which no task waits is not answered. The script slow.sh runs this test.
test_gid_without_answer() {
	begin_add_gid 98
	failed() {
		log_since 'does not answer an asynchronous command: it is not used any more, but reset'
	}
	until_ok 240 failed
	rmmod kverbs
	delete_gid
	until_ok 60 recovers
	traffic
}

# The device gives the number of a QP twice. The first QP keeps its completions.
test_same_number() {
	! in_virtqueue_mode || skip "there are no SRQs"
	load_kverbs same_number=1
	rmmod kverbs
	rebind
	traffic
}

run_tests test_buffers_of_the_kernel test_unbind_waits test_reset_of_a_working_device \
	test_pages_stay_pinned test_completion_of_a_broken_cq test_late_refusal test_late_nonsense \
	test_same_number
