#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# Any CI, or none: unpacks the bundle once, says what the machine lacks, runs a test. Set ARCHIVE (a
# file or a URL), SHA256 and TEST (a shell's command), and OPTIONS of `virtio-rdma run`.
set -eu

bundle=${BUNDLE:-$HOME/.cache/virtio-rdma/$SHA256}
"$(dirname "$0")/unpack" "$ARCHIVE" "$SHA256" "$bundle"
"$bundle/bin/virtio-rdma" check
# shellcheck disable=SC2086 # several words
"$bundle/bin/virtio-rdma" run ${OPTIONS:-} --timeout 900 --artifacts virtio-rdma-logs \
	--junit virtio-rdma.xml -- sh -euc "$TEST"
