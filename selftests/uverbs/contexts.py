# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Doorbell pages, events and commands of contexts that are opened without the provider.

    contexts.py /dev/infiniband/uverbsN TEST
"""

import errno
import mmap
import os
import resource
import select
import struct
import sys
import time

from driver_data import CREATE_CQ, CREATE_QP, Uverbs, address, expect
from ring_memory import Mapping, create_qp, kernel_ring

# <rdma/ib_user_verbs.h>
CREATE_COMP_CHANNEL, POLL_CQ, REQ_NOTIFY_CQ, POST_SEND, POST_RECV = 17, 21, 23, 28, 29
GSI = 1
# A doorbell's value has the kind and the number of its queue.
DOORBELL_CQ = 3 << 24
SLOTS = 16


class Context(Uverbs):
    """A context, and the offset of its doorbell page."""

    def __init__(self, path):
        super().__init__(path)
        self.page, self.page_size = struct.unpack_from("<8xQ24xI", self.context)

    def map_page(self):
        return Mapping(self.file, self.page, self.page_size, protection=mmap.PROT_WRITE)


def pages_of_doorbells(path):
    """Each context has a doorbell page, until none is left. A page is in use while it is mapped."""
    # Each of 4,096 contexts needs two descriptors.
    resource.setrlimit(resource.RLIMIT_NOFILE, (16384, 16384))
    contexts = []
    try:
        while True:
            contexts.append(Context(path))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    print(f"{len(contexts)} contexts")
    last = contexts.pop()
    mapping = last.map_page()
    os.close(last.file)
    expect(errno.ENOSPC, lambda: Context(path))
    mapping.unmap()
    contexts.append(Context(path))
    expect(errno.ENOSPC, lambda: Context(path))


class ArmedCq:
    """A CQ with its own completion channel. This program writes its arm word itself."""

    def __init__(self, context, doorbell):
        self.doorbell = doorbell
        core, _ = context.command(CREATE_COMP_CHANNEL, b"", 4)
        (self.channel,) = struct.unpack("<I", core)
        os.set_blocking(self.channel, False)
        core = struct.pack("<QIIiI", 0, SLOTS, 0, self.channel, 0)
        _, told = context.command(CREATE_CQ, core, 8, kernel_ring(SLOTS, 6), driver_out=24)
        self.number, offset, length = struct.unpack("<I4xQQ", told)
        self.ring = Mapping(context.file, offset, length)

    def arm(self, sequence):
        """Arms the CQ at a position more than a ring's length ago, so the event is due at once."""
        word = sequence << 34 | 1 << 32 | (1 << 32) - 2 * SLOTS
        # A 64-bit store to the arm word, and a 32-bit store to the doorbell.
        memoryview(self.ring.bytes).cast("B").cast("Q")[(SLOTS * 64 + 128) // 8] = word
        memoryview(self.doorbell.bytes).cast("B").cast("I")[0] = DOORBELL_CQ | self.number

    def unread(self):
        """Reads all events and returns their number."""
        count = 0
        try:
            while os.read(self.channel, 8):
                count += 1
        except BlockingIOError:
            return count


def one_event_at_a_time(path):
    """A process that has not read an event gets no second event, however often it arms its CQ."""
    context = Context(path)
    doorbell = context.map_page()
    cq, last = ArmedCq(context, doorbell), ArmedCq(context, doorbell)
    with open(f"/sys/class/infiniband_verbs/{os.path.basename(path)}/ibdev") as name:
        device = name.read().strip()

    def events():
        with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/completion_events") as value:
            return int(value.read())

    def arm(which, sequence):
        before, deadline = events(), time.monotonic() + 60
        which.arm(sequence)
        while events() == before:
            assert time.monotonic() < deadline, "the device sends no event"

    for round in range(3):
        for sequence in range(20):
            arm(cq, 1 + 20 * round + sequence)
        # Events of one completion vector are ordered: when the event of `last` arrives, the driver
        # has handled all events of `cq`.
        arm(last, 1 + round)
        assert select.select([last.channel], [], [], 60)[0], "the event is lost"
        assert (last.unread(), cq.unread()) == (1, 1)


def commands_of_other_queues(path):
    """A process with rings of its own can't post and poll by commands."""
    context = Context(path)
    core = struct.pack("<QIIiI", 0, SLOTS, 0, -1, 0)
    core, _ = context.command(CREATE_CQ, core, 8, kernel_ring(SLOTS, 6), driver_out=24)
    (cq,) = struct.unpack_from("<I", core)
    rings = kernel_ring(SLOTS, 7) + kernel_ring(SLOTS, 6)
    qp, _ = create_qp(context, context.pd(), cq, rings)
    room = bytearray(4096)

    def refused(number, core):
        try:
            os.write(context.file, struct.pack("<IHH", number, (8 + len(core)) // 4, 16) + core)
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, error
        else:
            raise AssertionError(f"command {number} succeeded")

    refused(POLL_CQ, struct.pack("<QII", address(room), cq, 1))
    refused(REQ_NOTIFY_CQ, struct.pack("<II", cq, 0))
    send = struct.pack("<QIII", 1, 0, 2, 0).ljust(56, b"\0")
    refused(POST_SEND, struct.pack("<QIIII", address(room), qp, 1, 0, len(send)) + send)
    receive = struct.pack("<QII", 1, 0, 0)
    refused(POST_RECV, struct.pack("<QIIII", address(room), qp, 1, 0, len(receive)) + receive)


def management_is_the_kernels(path):
    """A process can't create the GSI QP, which peers trust for management."""
    context = Context(path)
    core = struct.pack("<QIIiI", 0, SLOTS, 0, -1, 0)
    core, _ = context.command(CREATE_CQ, core, 8, kernel_ring(SLOTS, 6), driver_out=24)
    (cq,) = struct.unpack_from("<I", core)
    pd = context.pd()
    core = struct.pack("<QIIIIIIIIIBBBB", 0, pd, cq, cq, 0, 16, 16, 1, 1, 0, 0, GSI, 0, 0)
    rings = kernel_ring(SLOTS, 7) + kernel_ring(SLOTS, 6)
    try:
        context.command(CREATE_QP, core, 32, rings, driver_out=32)
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.EPERM), error
    else:
        raise AssertionError("a GSI QP")


if __name__ == "__main__":
    path, test = sys.argv[1:]
    globals()[test](path)
