#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# A provider and a module of different versions on VM 1. They work with the present versions on VM
# 2, or report which side must be updated. tools/dev/versions builds them;
# Documentation/versions.md has the table.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

others=$top/build/versions
# Verbs with all structures of driver data: contexts, CQs and their resizing, QPs, SRQs and their
# resizing, AHs.
verbs_of_all_structures=(data_ queue_resize queue_one_cq shared_ handle_address datagram_messages
	extended_reliable rate_limit_ window_type_2 memory_changed)

# Installs a provider and a module: use PROVIDER MODULE. Each is "present" or a name in
# build/versions.
use() {
	local provider=$others/$1/provider kernel_module=$others/$2/module/virtio_rdma.ko
	local folder=/usr/lib/x86_64-linux-gnu file
	[[ $1 != present ]] || provider=$top/build/provider
	[[ $2 != present ]] || kernel_module=$module
	for file in "$folder"/libibverbs/libvirtio_rdma-rdmav*.so "$folder/libvirtio_rdma.so.1"; do
		ln -sfn "$provider/libvirtio_rdma.so.1" "$file"
	done
	if [[ ! -e /run/module-is-$2 ]]; then
		rm -f /run/module-is-*
		timeout 60 rmmod virtio_rdma
		insmod "$kernel_module"
		: >"/run/module-is-$2"
	fi
	until_ok 20 device_up
}

after_failure() {
	rm -f /run/module-is-*
	use present present
}

works() {
	start_server
	client client vm2 "${verbs_of_all_structures[@]}" >"$work/verbs" 2>&1 || {
		cat "$work/verbs"
		return 1
	}
	tail -n 1 "$work/verbs"
	# There is no message about versions.
	[[ -z $(ibv_devinfo -d "$(device 1)" 2>&1 >/dev/null) ]]
}

# Checks that the device is listed, and that opening it fails with one line, which tells which side
# is old and what to update.
is_refused() {
	local name status=0
	name=$(device 1)
	ibv_devices | grep -qw "$name"
	ibv_devinfo -d "$name" >"$work/out" 2>"$work/words" || status=$?
	cat "$work/words"
	((status != 0))
	[[ $(grep -c '' <(grep '^virtio_rdma' "$work/words")) == 1 ]]
	grep -q "^virtio_rdma: $name: .*$1\$" "$work/words"
	! grep -qi 'abort\|panic\|segmentation' "$work/words"
}
old_provider='this provider is older than the kernel module: .*: update the provider (libvirtio_rdma)'
old_module='the kernel module is older than this provider: .*: update the kernel module (virtio_rdma)'

# abi: R-1126, R-1128
test_provider_of_before() {
	use before present
	works
}

# abi: R-937
test_provider_that_is_older() {
	use older present
	is_refused "$old_provider"
}

# abi: R-1126
test_provider_that_overlaps() {
	use overlapping present
	works
}

# abi: R-937, R-1127
test_provider_that_is_newer() {
	use newer present
	mark_log
	is_refused "$old_module"
	grep -q 'speaks interface versions 8 to 9, .*: the module is older: update the module$' \
		<(log_since 'speaks interface versions')
}

# abi: R-1130
test_module_of_before() {
	use present before
	works
}

test_both_of_before() {
	use before before
	works
}

# abi: R-937
test_module_of_before_is_too_old() {
	local version
	for version in overlapping newer; do
		use $version before
		is_refused "$old_module"
	done
}

# abi: R-937
test_module_of_before_is_too_new() {
	use older before
	is_refused "$old_provider"
}

# The present provider and module again.
test_both_of_now() {
	use present present
	works
}

run_tests test_provider_of_before test_provider_that_is_older test_provider_that_overlaps \
	test_provider_that_is_newer test_module_of_before test_both_of_before \
	test_module_of_before_is_too_old test_module_of_before_is_too_new test_both_of_now
