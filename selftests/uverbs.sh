#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The driver checks its driver data in uverbs commands, whatever a program writes there.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# Prints the node in /dev of VM 1's device.
node() {
	local node name
	for node in /sys/class/infiniband_verbs/uverbs*; do
		read -r name <"$node/ibdev"
		[[ $name != "$(device 1)" ]] || echo "/dev/infiniband/${node##*/}"
	done
}

driver_data() { python3 "$top/selftests/uverbs/driver_data.py" "$(node)" "$1"; }
contexts() { python3 -B "$top/selftests/uverbs/contexts.py" "$(node)" "$1"; }
versions() { python3 -B "$top/selftests/uverbs/versions.py" "$(node)" "$(gid_index 1)" "$1"; }
ring_memory() { python3 -B "$top/selftests/uverbs/ring_memory.py" "$(node)" "$1"; }

# abi: R-935
test_response_is_written() { driver_data response_is_written; }
# abi: R-935
test_short_response_is_cut_off() { driver_data short_response_is_cut_off; }
# abi: R-933, R-934
test_unknown_request_is_refused() { driver_data unknown_request_is_refused; }
# abi: R-372
test_buffers_have_no_windows() { driver_data buffers_have_no_windows; }
# abi: R-936
test_cq_buffer_is_refused() { driver_data cq_buffer_is_refused; }

# abi: R-946, R-972, R-973
test_ring_mapping_rules() { ring_memory mapping_rules; }
test_large_rings() { ring_memory large_rings; }
# abi: R-974
test_children_have_no_rings() { ring_memory children_have_none; }
# abi: R-972, R-975
test_ring_mappings_outlive_objects() { ring_memory mappings_outlive_objects; }
# abi: R-951, R-952, R-979, R-980
test_cq_resize_in_two_steps() { ring_memory resize_in_two_steps; }
# abi: R-957, R-980
test_srq_resize_in_two_steps() { ring_memory srq_in_two_steps; }

# abi: R-519, R-981
test_own_memory() { ring_memory own_memory; }
# abi: R-542, R-543
test_pages_of_doorbells() { contexts pages_of_doorbells; }
# abi: R-552
test_one_event_at_a_time() {
	grep -q O "/sys/module/virtio_rdma/taint" 2>/dev/null ||
		skip 'as a part of the kernel, the driver has no limit of unread events'
	contexts one_event_at_a_time
}
# abi: R-945
test_commands_of_other_queues() { contexts commands_of_other_queues; }
# abi: R-194
test_management_is_the_kernels() { contexts management_is_the_kernels; }

# abi: R-1126
test_versions_agreed() { versions agreed; }
# abi: R-1126, R-1128
test_versions_unstated() { versions unstated; }

# The log says which side is older, at a limited rate.
# abi: R-1127
test_versions_refused() {
	local lines
	mark_log
	versions refused
	refusals() { log_since 'its provider speaks interface versions'; }
	refusals
	grep -q 'versions 8 to 9, this module 6 to 7: the module is older: update the module$' \
		<(refusals)
	grep -q 'versions 1 to 5, this module 6 to 7: the provider is older: update the provider$' \
		<(refusals)
	versions refused_often
	lines=$(refusals | wc -l)
	echo "$lines lines"
	((lines < 100))
}

# abi: R-930, R-933, R-934, R-1129
test_requests_by_size() { versions requests; }
# abi: R-935
test_responses_by_size() { versions responses; }

# Queues need neither privileges nor locked memory.
test_many_queues() {
	chmod 666 "$(node)"
	(
		ulimit -l 64
		setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set=-all --inh-caps=-all \
			python3 -B "$top/selftests/uverbs/many_queues.py" "$(device 1)"
	)
}

# Rings are charged to the memory cgroup of the process: at its limit, queues can't be created, and
# no process is killed.
test_rings_are_charged() {
	local group=/run/cgroup/rings before made
	mkdir -p /run/cgroup
	mountpoint -q /run/cgroup || mount -t cgroup2 none /run/cgroup
	echo +memory >/run/cgroup/cgroup.subtree_control
	mkdir -p "$group"
	echo 64M >"$group/memory.max"
	# shellcheck disable=SC2016 # of the inner shell
	made=$(bash -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" \
		python3 -B "$top/selftests/uverbs/ring_memory.py" "$(node)" all_that_there_is)
	echo "$made"
	made=${made% MiB}
	((made > 16 && made < 64))
	grep -qx 'oom_kill 0' "$group/memory.events"
	# All memory is freed again.
	is_free() {
		echo 64M >"$group/memory.reclaim" 2>/dev/null || true
		(($(<"$group/memory.current") < 16 << 20))
	}
	until_ok 20 is_free
	rmdir "$group"
}

# All rings together use at most a quarter of the memory. The test creates rings of 2 MiB until one
# does not fit, so slightly less than a quarter may be in use.
test_rings_are_bounded() {
	local total made
	read -r _ total _ </proc/meminfo
	made=$(ring_memory all_that_there_is)
	echo "$made of $((total >> 10)) MiB"
	made=${made% MiB}
	((made <= total >> 12 && made + 4 > total >> 12))
}

run_tests test_response_is_written test_short_response_is_cut_off test_unknown_request_is_refused \
	test_buffers_have_no_windows test_cq_buffer_is_refused test_ring_mapping_rules \
	test_large_rings test_children_have_no_rings \
	test_ring_mappings_outlive_objects test_cq_resize_in_two_steps test_srq_resize_in_two_steps \
	test_own_memory test_pages_of_doorbells test_one_event_at_a_time test_commands_of_other_queues \
	test_management_is_the_kernels test_versions_agreed test_versions_unstated \
	test_versions_refused test_requests_by_size test_responses_by_size test_many_queues \
	test_rings_are_charged test_rings_are_bounded
