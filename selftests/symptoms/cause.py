#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Causes one symptom with two queue pairs of one process, and prints what a program sees.

Arguments: the device, the index of its GID, and the symptom:

  rnr       the peer posts no receive, and the sender retries once
  hang      the same, and the sender retries without limit: posts, prints its QPN, and waits for the
            end of its standard input
  retry     the peer's queue pair is gone
  local     a work request names an L_Key of no MR
  remote    a WRITE names an R_Key of no MR
  create    a queue pair has more work requests than the device allows
  memory    a process without privileges registers more memory than its limit on locked memory
  locked    the same, and the process may lock no memory at all
"""

import os
import resource
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

LENGTH = 4096
NO_KEY = 0xDEAD00
NOBODY = 65534
STATUSES = {
    value: name.removeprefix("IBV_WC_")
    for name, value in vars(e).items()
    if name.startswith("IBV_WC_") and name.endswith(("_ERR", "_SUCCESS"))
}


def create(pd, cq, work_requests):
    """A queue pair for this number of send work requests."""
    cap = QPCap(
        max_send_wr=work_requests, max_recv_wr=1, max_send_sge=1, max_recv_sge=1, max_inline_data=0
    )
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))


def connect(qp, context, index, peer, rnr_retry):
    """Moves a queue pair to RTS, with a queue pair of the same device as its peer."""
    route = GlobalRoute(dgid=context.query_gid(1, index), sgid_index=index)
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
    attr.path_mtu = e.IBV_MTU_1024
    attr.dest_qp_num = peer
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer = 1
    attr.timeout = 10
    attr.retry_cnt = 1
    attr.rnr_retry = rnr_retry
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
    qp.to_rts(attr)


def register(limit):
    """Registers memory as a user without privileges, who may lock memory up to a limit."""
    context = Context(name=sys.argv[1])
    pd = PD(context)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    os.setresuid(NOBODY, NOBODY, NOBODY)
    MR(pd, 1 << 20, e.IBV_ACCESS_LOCAL_WRITE)


def transfer(symptom):
    """Posts one work request. Prints the status of its completion."""
    context = Context(name=sys.argv[1])
    index = int(sys.argv[2])
    pd = PD(context)
    cq = CQ(context, 16, None, None, 0)
    mr = MR(pd, LENGTH, e.IBV_ACCESS_LOCAL_WRITE)
    if symptom == "create":
        create(pd, cq, context.query_device().max_qp_wr + 1)
    qp, peer = create(pd, cq, 1), create(pd, cq, 1)
    rnr_retry = 7 if symptom == "hang" else 1
    connect(qp, context, index, peer.qp_num, rnr_retry)
    if symptom == "retry":
        peer.close()
    else:
        connect(peer, context, index, qp.qp_num, rnr_retry)
    opcode = e.IBV_WR_RDMA_WRITE if symptom == "remote" else e.IBV_WR_SEND
    key = NO_KEY if symptom == "local" else mr.lkey
    wr = SendWR(num_sge=1, sg=[SGE(mr.buf, LENGTH, key)], opcode=opcode)
    if symptom == "remote":
        wr.set_wr_rdma(NO_KEY, mr.buf)
    qp.post_send(wr)
    print("QPN", qp.qp_num, flush=True)
    if symptom == "hang":
        sys.stdin.read()
        return
    count = 0
    while count == 0:
        time.sleep(0.01)
        count, completions = cq.poll(1)
    print("status", STATUSES[completions[0].status], flush=True)


try:
    if sys.argv[3] == "memory":
        register(65536)
    elif sys.argv[3] == "locked":
        register(0)
    else:
        transfer(sys.argv[3])
except PyverbsRDMAError as error:
    print("error", error, flush=True)
# pyverbs crashes if the interpreter closes its objects in another order than that of their use.
os._exit(0)
