#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
#
# rdma-core's own tests: the modules that are quick under emulation. pyverbs/all.sh runs all. The
# VM has 1.5 GiB: the largest CQ takes 256 MiB, and rings may use a quarter of the memory.
# more: --vms 1 --path direct --mem 1536
# shellcheck source-path=SCRIPTDIR source=pyverbs/common.sh
. "$(dirname "$0")/pyverbs/common.sh"
pyverbs_tests addr atomic cq cq_events cqex device fork mr parent_domain pd qp qpex srq
