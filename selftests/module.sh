#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The driver can be removed at any time: unbound or unloaded, with traffic, with an open context.
# testbed: --path direct
# more: --withhold all
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

unbind() { virtio_device 1 >"$driver/unbind"; }
bind() {
	virtio_device 1 >"$driver/bind"
	until_ok 20 device_up
}
remove() {
	timeout 60 rmmod virtio_rdma
	[[ -z $(device 1) ]]
}
insert() {
	insmod "$module"
	until_ok 20 device_up
}

# A failed test may have left the device without its driver.
after_failure() {
	[[ -d $driver ]] || insmod "$module"
	[[ -n $(device 1) ]] || bind
}

test_unbind_and_bind() {
	for _ in {1..5}; do
		unbind
		[[ -z $(device 1) ]]
		bind
	done
	traffic
}

test_remove_and_insert() {
	for _ in {1..3}; do
		remove
		insert
	done
	traffic
}

test_unbind_with_traffic() {
	start_soak
	unbind
	soak_ends
	bind
	traffic
}

test_remove_with_traffic() {
	for _ in 1 2; do
		start_soak
		remove
		soak_ends
		insert
	done
	traffic
}

# A context stays open during the removal. It gets an event, and its program can end.
test_remove_with_open_context() {
	for _ in 1 2; do
		start_watch
		remove
		watch_is_told
		insert
	done
	traffic
}

# The peer of a removed device runs out of retries, and can connect again later.
test_peer_survives() {
	on 2 rdma link show
	start_soak
	remove
	soak_ends
	insert
	link_is 2 ACTIVE
	traffic
}

tests=(test_unbind_and_bind test_remove_with_traffic)
in_rfc_mode || tests+=(test_remove_and_insert test_unbind_with_traffic test_remove_with_open_context
	test_peer_survives)
run_tests "${tests[@]}"
