#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Network namespaces and the rdma cgroup: the device is one namespace's own, goes into another and comes back, also when
# that namespace is deleted under traffic; a group's processes have no more objects than it may have.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

group=/run/cgroup/virtio-rdma-test

# Back to where the other tests want it: one namespace that shares its devices, the network device with its addresses.
restore() {
	if ip netns list | grep -q .; then
		ip -all netns delete
	fi
	until_ok 20 ip link show eth0
	ip link set eth0 up
	ip address replace 10.9.0.1/24 dev eth0
	ip address replace fd09::1/64 dev eth0 nodad
	until_ok 20 device_up
	# Namespaces that were deleted go a little later.
	[[ $(rdma system show) == *"netns shared"* ]] || until_ok 20 rdma system set netns shared
}

cleanup() {
	restore
	if [[ -d $group ]]; then
		rmdir "$group"
	fi
	if mountpoint -q /run/cgroup; then
		umount /run/cgroup
	fi
}

# Devices belong to one namespace each from here on; a new one named "inside" gets ours.
move_inside() {
	local name
	name=$(device 1)
	rdma system set netns exclusive
	ip netns add inside
	ip link set eth0 netns inside
	rdma dev set "$name" netns inside
	ip -netns inside -batch - <<-IP
		link set lo up
		address add 10.9.0.1/24 dev eth0
		address add fd09::1/64 dev eth0 nodad
		link set eth0 up
	IP
	[[ -z $(rdma dev show) ]]
	active() { ip netns exec inside rdma link show | grep -q 'state ACTIVE .*netdev eth0'; }
	until_ok 20 active
}

# The device and its address work within the namespace, and nobody outside opens the device.
test_exclusive() {
	local name
	name=$(device 1)
	move_inside
	start_server
	if timeout 60 "$verbs" -d "$name" client vm2 queue_one_cq >"$work/outside" 2>&1; then
		fail "the device was opened outside of its namespace"
	fi
	on 2 timeout 60 rping -s -a 10.9.0.2 -C 10 -V >"$work/passive" 2>&1 &
	until_ok 30 waits rping
	ip netns exec inside timeout 60 rping -c -a 10.9.0.2 -C 10 -V
	restore
	traffic
}

# The devices of a namespace that is deleted come back to the first one.
test_deleted_under_traffic() {
	move_inside
	on 2 timeout 100 rping -s -a 10.9.0.2 -V >"$work/passive" 2>&1 &
	until_ok 30 waits rping
	ip netns exec inside timeout 100 rping -c -a 10.9.0.2 -C 1000000 -v -V >"$work/active" 2>&1 &
	until_ok 30 grep -q 'ping data' "$work/active"
	ip netns delete inside
	ip netns pids inside 2>/dev/null | xargs -r kill || true
	pkill -x rping || true
	restore
	[[ $(netdev 1) == eth0 ]]
	traffic
}

# A network device that is taken away under traffic does not wait for those who use it.
test_netdev_removed_under_traffic() {
	local virtio
	start_soak
	virtio=$(basename "$(readlink -f /sys/class/net/eth0/device)")
	timeout 30 sh -c "echo $virtio >/sys/bus/virtio/drivers/virtio_net/unbind"
	until_ok 10 link_is 1 DOWN
	timeout 30 sh -c "echo $virtio >/sys/bus/virtio/drivers/virtio_net/bind"
	# It ends by itself once it misses its peer for long.
	kill "$soak" || true
	wait "$soak" || true
	restore
	traffic
}

# Contexts and objects are counted and limited.
test_cgroup() {
	local name status=0
	name=$(device 1)
	mkdir -p /run/cgroup
	mount -t cgroup2 none /run/cgroup
	echo +rdma >/run/cgroup/cgroup.subtree_control
	mkdir "$group"
	echo "$name hca_handle=1 hca_object=3" >"$group/rdma.max"
	grep "$name hca_handle=1 hca_object=3" "$group/rdma.max"
	start_server
	sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" \
		"$verbs" -d "$name" client vm2 queue_one_cq >"$work/limited" 2>&1 || status=$?
	((status != 0)) || fail "more objects than the group may have"
	echo "$name hca_handle=max hca_object=max" >"$group/rdma.max"
	start_server
	sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$verbs" -d "$name" client vm2 queue_one_cq
	idle() { ! grep -q "$name hca_handle=[1-9]" "$group/rdma.current"; }
	until_ok 10 idle
}

run_tests test_exclusive test_deleted_under_traffic test_netdev_removed_under_traffic test_cgroup
