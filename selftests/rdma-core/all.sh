#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# The provider in the user space of other Debian releases, with their rdma-core and their glibc.
# tools/dev/rdma-core has unpacked the releases. As in a container, only the provider and its
# configuration are added; nothing else of the sysroot is visible inside.
# testbed: --path direct
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$(dirname "$0")/../lib.sh"

releases=$top/build/rdma-core
provider=$top/build/provider

# Runs a command in the user space of a release.
inside() {
	local suite=$1
	shift
	chroot "/run/$suite" "$@"
}

# Mounts an overlay with the provider over the tree of a release.
prepare() {
	local suite=$1 root=/run/$1 over=/run/over.$1
	local folder=/usr/lib/x86_64-linux-gnu/libibverbs
	[[ ! -e $root/proc/self ]] || return 0
	mkdir -p "$root" "$over"
	mount -t tmpfs tmpfs "$over"
	mkdir "$over/upper" "$over/work"
	mount -t overlay overlay "$root" \
		-o "lowerdir=$releases/$suite/root,upperdir=$over/upper,workdir=$over/work"
	mount --rbind /dev "$root/dev"
	mount --rbind /sys "$root/sys"
	mount -t proc proc "$root/proc"
	cp /etc/hosts "$root/etc/"
	cp -P "$provider"/libvirtio_rdma*.so* "$root$folder/"
	cp "$provider/virtio_rdma.driver" "$root/etc/libibverbs.d/"
}

# Checks that the device is listed and opened without complaints.
opens() {
	prepare "$1"
	inside "$1" ibv_devinfo -v -d "$(device 1)" >"$work/out" 2>"$work/words" ||
		fail "$(cat "$work/words")"
	cat "$work/words"
	grep -q 'PORT_ACTIVE' "$work/out"
	[[ ! -s $work/words ]]
}

# Runs ibv_rc_pingpong of a release against the sysroot's.
pingpong() {
	prepare "$1"
	printf '#!/bin/sh\nexec chroot /run/%s ibv_rc_pingpong "$@"\n' "$1" \
		>"$work/ibv_rc_pingpong"
	chmod +x "$work/ibv_rc_pingpong"
	PATH=$work:$PATH pair -g ibv_rc_pingpong -n 100 -c
	PATH=$work:$PATH pair -g ibv_rc_pingpong -n 100 -c -e
}

test_bookworm_opens() { opens bookworm; }
test_bookworm_pingpong() { pingpong bookworm; }
test_testing_opens() { opens testing; }
test_testing_pingpong() { pingpong testing; }

run_tests test_bookworm_opens test_bookworm_pingpong test_testing_opens test_testing_pingpong
