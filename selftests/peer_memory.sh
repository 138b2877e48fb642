#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Contexts that are attached to an exporter (Documentation/peer-memory.md). The exporter is a sample
# module whose memory has addresses of its own.
# more:
# more: --withhold peers
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

sample=${module%/*}/samples/rdma_peer_sample.ko
program=$(mktemp)
trap 'rm -f "$program"' EXIT

# Prints the number of contexts that the exporter has created, and the number that were released.
contexts() { cat /sys/kernel/debug/rdma_peer_sample/contexts; }
# Whether all contexts were released.
balanced() {
	local gotten put
	read -r gotten put < <(contexts)
	((gotten > 0 && gotten == put))
}

load() { insmod "$sample"; }
# Unloads the sample. A buffer keeps the module loaded until shortly after the buffer's last user
# has ended.
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

# Starts a process with a context that has registered memory of the exporter.
start_holder() {
	"$program" "$(device 1)" hold >"$work/holder" &
	holder=$!
	until_ok 30 grep -q attached "$work/holder"
}

# A program can be built with the header, the pkg-config file and the library.
test_exporter_program() {
	local flags
	flags=$(PKG_CONFIG_PATH=$top/build/provider pkg-config --cflags --libs libvirtio_rdma)
	# shellcheck disable=SC2086
	cc -Wall -Wextra -Wno-unused-parameter -Werror -o "$program" \
		"$top/selftests/peer_memory/exporter_context.c" $flags
}

# No context is attached if the device does not support peer memory, or if the exporter does not
# exist.
test_exporter_unknown() {
	local expected=EINVAL
	has_feature 12 || expected=EOPNOTSUPP
	[[ $("$program" "$(device 1)" errno) == "$expected" ]]
}

test_exporter_refusals() {
	has_feature 12 || skip "withheld"
	load
	"$program" "$(device 1)" refusals
	[[ $(contexts) == "0 0" ]]
}

test_exporter_data() {
	has_feature 12 || skip "withheld"
	load
	"$program" "$(device 1)" data "$(gid_index 1)"
	[[ $(contexts) == "2 2" ]]
}

# Exporters' names are unique: the registry refuses the same sample as a module with another name.
# The module loader itself refuses only a module with the same name.
test_exporter_of_the_same_name() {
	local twin=$work/rdma_peer_sampl2.ko error
	sed 's/rdma_peer_sample/rdma_peer_sampl2/g' "$sample" >"$twin"
	# The twin can be loaded alone.
	insmod "$twin"
	rmmod rdma_peer_sampl2
	load
	error=$(insmod "$twin" 2>&1) && fail "a second exporter of the name was registered"
	echo "$error"
	# The registry returns EEXIST. The module loader turns it into EBUSY, since EEXIST means
	# that a module of this name is loaded.
	[[ $error == *"Device or resource busy"* ]]
	[[ ! -e /sys/module/rdma_peer_sampl2 ]]
}

# A context is released however its process ends, and the exporter's module is in use until then.
test_exporter_process_killed() {
	has_feature 12 || skip "withheld"
	load
	start_holder
	[[ $(contexts) == "1 0" ]]
	is_kept rdma_peer_sample
	# The exporter uses the registry of exporters, which is part of the driver's module.
	is_kept virtio_rdma
	kill -KILL "$holder"
	until_ok 30 balanced
	unload
	[[ ! -e /sys/module/rdma_peer_sample ]]
}

# The device is unbound while a process has a context: the context is released before the process
# ends.
test_exporter_device_unbound() {
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

run_tests test_exporter_program test_exporter_unknown test_exporter_refusals test_exporter_data \
	test_exporter_of_the_same_name test_exporter_process_killed test_exporter_device_unbound
