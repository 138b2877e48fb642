#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Network namespaces and the rdma cgroup. In exclusive mode, the device moves to another namespace
# and back, also under traffic, when the namespace is deleted, and when another device has its name.
# The processes of a cgroup can't create more objects than its limit.
# more: --path direct
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

group=/run/cgroup/virtio-rdma-test

# Restores the state for other tests: shared mode without other namespaces, and the network device
# with its addresses.
restore() {
	if ip netns list | grep -q .; then
		ip -all netns delete
	fi
	if [[ -e /sys/class/net/spare0 ]]; then
		ip link delete spare0
	fi
	until_ok 60 ip link show eth0
	ip link set eth0 up
	ip address replace "$own/24" dev eth0
	ip address replace "$own_v6/64" dev eth0 nodad
	until_ok 60 device_up
	# Deleted namespaces disappear a little later.
	[[ $(rdma system show) == *"netns shared"* ]] || until_ok 60 rdma system set netns shared
}

# Whether a namespace has an RDMA device with this name.
has_device() { ip netns exec "$1" rdma dev show "$2"; }

after_failure() {
	# A process in a namespace keeps the namespace and its device.
	end_children
	if [[ -d /sys/module/kverbs ]]; then
		rmmod kverbs
		virtio_device 1 >"$driver/unbind"
		virtio_device 1 >"$driver/bind"
	fi
	restore
}

cleanup() {
	if [[ -d $group ]]; then
		rmdir "$group"
	fi
	if mountpoint -q /run/cgroup; then
		umount /run/cgroup
	fi
}

# Switches to exclusive mode. Creates a namespace "inside", and names this namespace "outside".
separate() {
	rdma system set netns exclusive
	ip netns add inside
	ip netns attach outside 1
}

# Moves the network device to the namespace "inside".
move_netdev_inside() {
	ip link set eth0 netns inside
	ip -netns inside -batch - <<-IP
		link set lo up
		address add $own/24 dev eth0
		address add $own_v6/64 dev eth0 nodad
		link set eth0 up
	IP
	active() { ip netns exec inside rdma link show | grep -q 'state ACTIVE .*netdev eth0'; }
	until_ok 60 active
}

# Moves the RDMA device and the network device to the namespace "inside".
move_inside() {
	separate
	rdma dev set "$(device 1)" netns inside
	[[ -z $(rdma dev show) ]]
	move_netdev_inside
}

# The device and its address work within the namespace; from outside the device can't be opened.
test_exclusive() {
	local name
	name=$(device 1)
	move_inside
	start_server
	if timeout 60 "$verbs" -d "$name" client "$peer" queue_one_cq >"$work/outside" 2>&1; then
		fail "the device was opened outside of its namespace"
	fi
	on 2 timeout 60 rping -s -a "$peer" -C 10 -V >"$work/passive" 2>&1 &
	until_ok 30 waits rping
	ip netns exec inside timeout 60 rping -c -a "$peer" -C 10 -V
	restore
	traffic
}

# The devices of a deleted namespace return to the initial namespace.
test_deleted_under_traffic() {
	move_inside
	on 2 timeout 100 rping -s -a "$peer" -V >"$work/passive" 2>&1 &
	until_ok 30 waits rping
	ip netns exec inside timeout 100 rping -c -a "$peer" -C 1000000 -v -V >"$work/active" 2>&1 &
	until_ok 30 grep -q 'ping data' "$work/active"
	ip netns delete inside
	ip netns pids inside 2>/dev/null | xargs -r kill || true
	pkill -x rping || true
	restore
	[[ $(netdev 1) == eth0 ]]
	traffic
}

# Moving a device to another namespace does not wait for polling programs: they get an event, as at
# a removal.
test_moved_under_traffic() {
	local name
	name=$(device 1)
	separate
	start_watch
	start_soak
	timeout 60 rdma dev set "$name" netns inside
	watch_is_told
	soak_ends
	move_netdev_inside
	RDMA_DEVICE=$name netns=inside start_soak
	timeout 60 ip netns exec inside rdma dev set "$name" netns outside
	soak_ends
	ip -netns inside link set eth0 netns outside
	restore
	traffic
}

# The device fails while it moves, at a moment when no client has it. The clients that have it after
# the move get the event.
test_failure_during_a_move() {
	local name virtio
	name=$(device 1)
	virtio=$(virtio_device 1)
	separate
	insmod "$kverbs" device="$name" moved=1
	rdma dev set "$name" netns inside
	grep -q Y /sys/module/kverbs/parameters/failed_in_between
	told() { grep -q Y /sys/module/kverbs/parameters/told; }
	until_ok 60 told
	rmmod kverbs
	echo "$virtio" >"$driver/unbind"
	echo "$virtio" >"$driver/bind"
	restore
	traffic
}

# A device can't move to a namespace in which another device has its name. The move fails before it
# affects traffic.
test_name_taken_inside() {
	local name
	name=$(device 1)
	modprobe --all dummy rdma_rxe
	separate
	ip link add spare0 type dummy
	rdma link add beside type rxe netdev spare0
	rdma dev set beside netns inside
	ip netns exec inside rdma dev set beside name "$name"
	has_device outside "$name"
	has_device inside "$name"
	start_soak
	if rdma dev set "$name" netns inside; then
		fail "two devices of a name in one namespace"
	fi
	stop_soak
	restore
	traffic
}

# A device that returns from a deleted namespace while another device has its name gets a new name,
# and works.
test_name_taken_outside() {
	local name other
	name=$(device 1)
	modprobe --all dummy rdma_rxe
	move_inside
	ip link add spare0 type dummy
	rdma link add "$name" type rxe netdev spare0
	has_device inside "$name"
	has_device outside "$name"
	ip netns delete inside
	came_back() {
		other=$(device 1)
		[[ -n $other && $other != "$name" ]]
	}
	until_ok 60 came_back
	restore
	traffic
	# The other device disappears a little later than its network device.
	until_ok 60 rdma dev set "$other" name "$name"
	[[ $(device 1) == "$name" ]]
	traffic
}

# The removal of a network device under traffic does not wait for the QPs that use it.
test_netdev_removed_under_traffic() {
	local virtio
	start_soak
	virtio=$(basename "$(readlink -f /sys/class/net/eth0/device)")
	timeout 30 sh -c "echo $virtio >/sys/bus/virtio/drivers/virtio_net/unbind"
	until_ok 10 link_is 1 DOWN
	timeout 30 sh -c "echo $virtio >/sys/bus/virtio/drivers/virtio_net/bind"
	# Without this, the traffic would end only after a long timeout.
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
		"$verbs" -d "$name" client "$peer" queue_one_cq >"$work/limited" 2>&1 || status=$?
	((status != 0)) || fail "more objects than the group may have"
	echo "$name hca_handle=max hca_object=max" >"$group/rdma.max"
	start_server
	sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$verbs" -d "$name" client "$peer" \
		queue_one_cq
	idle() { ! grep -q "$name hca_handle=[1-9]" "$group/rdma.current"; }
	until_ok 10 idle
}

run_tests test_exclusive test_moved_under_traffic test_deleted_under_traffic \
	test_failure_during_a_move test_name_taken_inside test_name_taken_outside \
	test_netdev_removed_under_traffic test_cgroup
