#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# For any CI system, or without CI: unpacks the bundle once, reports what the machine lacks, and
# runs a test. Set ARCHIVE (a file or a URL), SHA256 (its checksum) and TEST (a shell command), and
# optionally OPTIONS (options for `virtio-rdma run`).
set -eu

bundle=${BUNDLE:-$HOME/.cache/virtio-rdma/$SHA256}
"$(dirname "$0")/unpack" "$ARCHIVE" "$SHA256" "$bundle"
"$bundle/bin/virtio-rdma" check
# shellcheck disable=SC2086 # several words
"$bundle/bin/virtio-rdma" run ${OPTIONS:-} --timeout 900 --artifacts virtio-rdma-logs \
	--junit virtio-rdma.xml -- sh -euc "$TEST"
