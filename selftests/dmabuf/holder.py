#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Registers memory of the test exporter with a device, in a child process.

Commands on standard input, each answered with "done": "end" ends the child, "die" makes the
exporter take its memory back, for which this process has kept the buffer's file.
"""

import os
import signal
import sys

from pyverbs.device import Context
from pyverbs.enums import IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE
from pyverbs.mr import DmaBufMR
from pyverbs.pd import PD

LENGTH = 65536


def hold(device, buffer):
    """Registers the buffer and reports it; does not return."""
    context = Context(name=device)
    pd = PD(context)
    mr = DmaBufMR(pd, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, dmabuf=buffer)
    print("registered", hex(mr.lkey), flush=True)
    while True:
        signal.pause()


def main():
    exporter = os.open("/dev/test_exporter", os.O_RDWR)
    os.write(exporter, b"export %d" % LENGTH)
    buffer = int(os.read(exporter, 64).split()[0])
    child = os.fork()
    if child == 0:
        hold(sys.argv[1], buffer)
    os.close(buffer)
    for line in sys.stdin:
        if line.strip() == "end":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        else:
            os.write(exporter, line.strip().encode())
        print("done", flush=True)


main()
