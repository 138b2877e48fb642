#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Contexts that are attached to a peer: the sample one, whose memory has addresses of its own.
# more:
# more: --withhold peers
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

sample=${module%/*}/samples/rdma_peer_sample.ko
program=$(mktemp)
trap 'rm -f "$program"' EXIT

# Contexts that the peer has given out, and those that it has got back.
contexts() { cat /sys/kernel/debug/rdma_peer_sample/contexts; }
# Whether it has got all of them back.
balanced() {
	local gotten put
	read -r gotten put < <(contexts)
	((gotten > 0 && gotten == put))
}

load() { insmod "$sample"; }
# The end of a buffer comes a little after that of its last user, and keeps the module until then.
unload() { [[ ! -e /sys/module/rdma_peer_sample ]] || until_ok 30 rmmod rdma_peer_sample; }
# Whether a module can't be removed.
is_kept() {
	if rmmod "$1" 2>/dev/null; then fail "$1 was removed"; fi
}
cleanup() {
	end_children
	unload
	[[ ! -e /sys/module/rdma_peer_sampl2 ]] || rmmod rdma_peer_sampl2
}

# Starts a process that has a context, with memory of the peer.
start_holder() {
	"$program" "$(device 1)" hold >"$work/holder" &
	holder=$!
	until_ok 30 grep -q attached "$work/holder"
}

# The header, the file of pkg-config and the library are what programs are built with.
test_peer_program() {
	local flags
	flags=$(PKG_CONFIG_PATH=$top/build/provider pkg-config --cflags --libs libvirtio_rdma)
	# shellcheck disable=SC2086
	cc -Wall -Wextra -Wno-unused-parameter -Werror -o "$program" \
		"$top/selftests/peers/peer_context.c" $flags
}

# Without the device's consent no context is attached, and without peers none either.
test_peer_unknown() {
	local expected=EINVAL
	has_feature 12 || expected=EOPNOTSUPP
	[[ $("$program" "$(device 1)" errno) == "$expected" ]]
}

test_peer_refusals() {
	has_feature 12 || skip "withheld"
	load
	"$program" "$(device 1)" refusals
	[[ $(contexts) == "0 0" ]]
}

test_peer_data() {
	has_feature 12 || skip "withheld"
	load
	"$program" "$(device 1)" data "$(gid_index 1)"
	[[ $(contexts) == "2 2" ]]
}

# Two peers of one name would not be told apart: the same sample, as a module of another name, is
# refused by the registry. The module loader itself refuses only a module of the same name.
test_peer_of_the_same_name() {
	local twin=$work/rdma_peer_sampl2.ko error
	sed 's/rdma_peer_sample/rdma_peer_sampl2/g' "$sample" >"$twin"
	# The twin alone is a good module.
	insmod "$twin"
	rmmod rdma_peer_sampl2
	load
	error=$(insmod "$twin" 2>&1) && fail "a second peer of the name was registered"
	echo "$error"
	# The registry says EEXIST, of which the module loader makes EBUSY: its own meaning of
	# EEXIST is a module of the name.
	[[ $error == *"Device or resource busy"* ]]
	[[ ! -e /sys/module/rdma_peer_sampl2 ]]
}

# The data of contexts is given back however they end, and the peer stays until then.
test_peer_process_killed() {
	has_feature 12 || skip "withheld"
	load
	start_holder
	[[ $(contexts) == "1 0" ]]
	is_kept rdma_peer_sample
	# It has the registry, which is in the driver.
	is_kept virtio_rdma
	kill -KILL "$holder"
	until_ok 30 balanced
	unload
	[[ ! -e /sys/module/rdma_peer_sample ]]
}

# The device goes while a process has the context: the peer has its data back before the process is
# gone.
test_peer_device_unbound() {
	has_feature 12 || skip "withheld"
	local name
	load
	start_holder
	name=$(virtio_device 1)
	echo "$name" >"$driver/unbind"
	until_ok 30 balanced
	kill -0 "$holder"
	echo "$name" >"$driver/bind"
	until_ok 60 device_up
	unload
	kill -0 "$holder"
}

run_tests test_peer_program test_peer_unknown test_peer_refusals test_peer_data \
	test_peer_of_the_same_name test_peer_process_killed test_peer_device_unbound
