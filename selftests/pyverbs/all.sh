#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# All of rdma-core's own tests that are not for one vendor's devices, on virtio_rdma and, in the
# same kind of machine, on rxe.
# testbed: --vms 1 --path direct --mem 1536
# testbed: --vms 1 --no-device
# shellcheck source-path=SCRIPTDIR source=common.sh
. "$(dirname "$0")/common.sh"
pyverbs_tests "$@"
