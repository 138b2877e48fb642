# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Creates 1,000 QPs and a few CQs of 131,072 entries with rdma-core, and resizes a CQ:
many_queues.py DEVICE.

The caller has dropped privileges and the limit of locked memory before.
"""

import resource
import sys

from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import IBV_QPT_RC
from pyverbs.pd import PD
from pyverbs.qp import QP, QPCap, QPInitAttr

QPS = 1000
CQS = 4

soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
assert soft == hard and soft <= 64 << 10, f"locked memory of {hard} bytes"
with open("/proc/self/status", encoding="ascii") as status:
    capabilities = next(line for line in status if line.startswith("CapEff:"))
assert int(capabilities.split()[1], 16) == 0, capabilities

with Context(name=sys.argv[1]) as context:
    # A CQ of the device's maximum length would take more memory than the machine has.
    limit = min(context.query_device().max_cqe, 131072)
    cqs = [CQ(context, limit) for _ in range(CQS)]
    small = CQ(context, 16)
    small.resize(limit)
    pd = PD(context)
    cap = QPCap(max_send_wr=128, max_recv_wr=128, max_send_sge=1, max_recv_sge=1)
    init = QPInitAttr(qp_type=IBV_QPT_RC, scq=cqs[0], rcq=cqs[1], cap=cap)
    qps = [QP(pd, init) for _ in range(QPS)]
    assert len({qp.qp_num for qp in qps}) == QPS
    print(f"{CQS + 1} CQs of {limit}, {QPS} QPs")
