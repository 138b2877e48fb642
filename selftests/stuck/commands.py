#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Runs verbs that wait for the device.

Arguments: the device, and a FIFO. Commands on standard input: "rereg" changes the access flags of
an MR, "dereg" deregisters an MR over the memory of the test exporter, "register" registers this
memory. Each begins in a thread of its own, and prints its name and "done" at its end. For each line
in the FIFO, another process waits for the reservation of this memory, as other users of the buffer
do, and prints "use done". It is a process, since pyverbs lets no other thread run during a verb.
"""

import fcntl
import os
import struct
import sys
import threading

from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_REREG_MR_CHANGE_ACCESS,
)
from pyverbs.mr import MR, DmaBufMR
from pyverbs.pd import PD

LENGTH = 65536
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE
# From linux/dma-buf.h.
EXPORT_SYNC_FILE = 0xC0086202
IMPORT_SYNC_FILE = 0x40086203
SYNC_RW = 3


def use(buffer):
    """Adds a fence to the buffer, with the reservation locked."""
    exported = fcntl.ioctl(buffer, EXPORT_SYNC_FILE, struct.pack("Ii", SYNC_RW, -1))
    _, fence = struct.unpack("Ii", exported)
    fcntl.ioctl(buffer, IMPORT_SYNC_FILE, struct.pack("Ii", SYNC_RW, fence))
    os.close(fence)


def use_often(buffer, fifo):
    """The other process."""
    with open(fifo, encoding="ascii") as lines:
        for _ in lines:
            use(buffer)
            print("use done", flush=True)


def main():
    exporter = os.open("/dev/test_exporter", os.O_RDWR)
    os.write(exporter, b"export %d" % LENGTH)
    buffer = int(os.read(exporter, 64).split()[0])
    user = os.fork()
    if user == 0:
        use_often(buffer, sys.argv[2])
        os._exit(0)
    context = Context(name=sys.argv[1])
    pd = PD(context)
    plain = MR(pd, LENGTH, ACCESS)
    over_buffer = DmaBufMR(pd, LENGTH, ACCESS, dmabuf=buffer)
    late = []
    verbs = {
        "rereg": lambda: plain.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=IBV_ACCESS_LOCAL_WRITE),
        "dereg": over_buffer.close,
        "register": lambda: late.append(DmaBufMR(pd, LENGTH, ACCESS, dmabuf=buffer)),
    }

    def run(name):
        verbs[name]()
        print(name, "done", flush=True)

    print("ready", flush=True)
    threads = []
    for line in sys.stdin:
        threads.append(threading.Thread(target=run, args=(line.strip(),)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    # In this order: pyverbs crashes if the interpreter closes an MR after its PD.
    for mr in late:
        mr.close()
    os.waitpid(user, 0)


main()
