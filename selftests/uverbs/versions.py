# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Providers of other versions: the versions that they state, and structures that are shorter or
longer than the driver's.

    versions.py /dev/infiniband/uverbsN GID_INDEX TEST

This program builds the commands byte by byte, like driver_data.py, for versions that do not exist.
"""

import errno
import os
import struct
import sys

from driver_data import ALLOC_PD, CREATE_CQ, CREATE_QP, RC, Uverbs, address, expect
from ring_memory import CREATE_SRQ, MODIFY_SRQ, RESIZE_CQ, SRQ_MAX_WR, kernel_ring

# <rdma/ib_user_verbs.h>
CREATE_AH, MODIFY_QP = 5, 26
STATE, ACCESS_FLAGS, PKEY_INDEX, PORT = 1, 8, 16, 32
INIT = 1

# Lengths of the request for a context in bytes: version 6, and the present driver's.
REQUEST_6, REQUEST = 72, 80
OLDEST, NEWEST = 6, 7
# Bytes of the response with the version of the context.
VERSION = slice(44, 48)


def stating(oldest, newest, more=b""):
    return bytes(REQUEST_6) + struct.pack("<II", oldest, newest) + more


def version_of(uverbs):
    return int.from_bytes(uverbs.context[VERSION], "little")


def agreed(path, _):
    """The driver chooses the newest version that both sides support."""
    for oldest, newest, expected in (
        (6, 6, 6),
        (6, 7, 7),
        (7, 7, 7),
        (7, 9, 7),
        (1, 6, 6),
        (1, 2**32 - 1, 7),
    ):
        version = version_of(Uverbs(path, stating(oldest, newest)))
        assert version == expected, f"{oldest} to {newest}: {version}"


def unstated(path, _):
    """A provider of version 6 gets a response of version 6, whatever it requests."""
    for length in (0, 4, 8, REQUEST_6, REQUEST, REQUEST + 8, 256):
        uverbs = Uverbs(path, bytes(length))
        assert version_of(uverbs) == 0, f"{length} bytes"
        # The response contains the maximum numbers of a ring's slots, which are not 0.
        assert all(struct.unpack_from("<II", uverbs.context, 16))


def refused(path, _):
    """The error if both sides share no version. The log has a line for each, in this order."""
    for oldest, newest in ((8, 9), (8, 2**32 - 1), (1, 5), (5, 5)):
        expect(errno.ENOPROTOOPT, lambda: Uverbs(path, stating(oldest, newest)))
    for oldest, newest in ((0, 7), (7, 6), (2**32 - 1, 0)):
        expect(errno.EINVAL, lambda: Uverbs(path, stating(oldest, newest)))
    # The device can still be opened.
    assert version_of(Uverbs(path, stating(OLDEST, NEWEST))) == NEWEST


def refused_often(path, _):
    """A process with many refused requests does not fill the log."""
    for _ in range(1000):
        expect(errno.ENOPROTOOPT, lambda: Uverbs(path, stating(8, 9)))


class Verb:
    """A verb: a function that calls it with driver data, and the lengths of the driver's request
    and response."""

    def __init__(self, call, request=b"", least=0, response=0):
        self.call, self.request, self.least, self.response = call, request, least, response


def verbs(path, gid_index):
    """All verbs with driver data, on objects of a new context."""
    uverbs = Uverbs(path, stating(OLDEST, NEWEST))
    pd, cq = uverbs.pd(), uverbs.cq()

    def create_cq(driver, room):
        core = struct.pack("<QIIiI", 0, 16, 0, -1, 0)
        return uverbs.command(CREATE_CQ, core, 8, driver, room)

    def resize_cq(driver, room):
        return uverbs.command(RESIZE_CQ, struct.pack("<II", cq, 16), 8, driver, room)

    def create_qp(driver, room):
        core = struct.pack("<QIIIIIIIIIBBBB", 0, pd, cq, cq, 0, 16, 16, 1, 1, 0, 0, RC, 0, 0)
        return uverbs.command(CREATE_QP, core, 32, driver, room)

    def create_srq(driver, room):
        core = struct.pack("<QIIII", 0, pd, 16, 1, 0)
        return uverbs.command(CREATE_SRQ, core, 16, driver, room)

    def modify_srq(driver, _):
        core = struct.pack("<IIII", srq, SRQ_MAX_WR, 32, 0)
        uverbs.order(MODIFY_SRQ, core + driver)
        return b"", b""

    def modify_qp(driver, _):
        attributes = struct.pack("<IIIIIII", qp, mask, 0, 0, 0, 0, 0)
        core = bytes(64) + attributes + bytes(4) + bytes([INIT, 0, 0, 0, 0, 0, 0, 0, 1]) + bytes(7)
        uverbs.order(MODIFY_QP, core + driver)
        return b"", b""

    def create_ah(driver, room):
        gid = bytes(10) + b"\xff\xff" + bytes([10, 9, 0, 2])
        route = gid + struct.pack("<IBBBx", 0, gid_index, 64, 0)
        core = struct.pack("<QII", 0, pd, 0) + route + struct.pack("<HBBBBBx", 0, 0, 0, 0, 1, 1)
        return uverbs.command(CREATE_AH, core, 4, driver, room)

    def alloc_pd(driver, room):
        return uverbs.command(ALLOC_PD, b"", 4, driver, room)

    def alloc_context(driver, room):
        other = Uverbs(path, driver, room)
        os.close(other.file)
        return b"", other.context

    mask = STATE | ACCESS_FLAGS | PKEY_INDEX | PORT
    queues = kernel_ring(16, 7) + kernel_ring(16, 6)
    core, _ = create_qp(queues, 32)
    (qp,) = struct.unpack_from("<I", core)
    core, _ = create_srq(kernel_ring(16, 6), 24)
    (srq,) = struct.unpack_from("<I", core)
    told = bytearray(16)
    uverbs.kept.append(told)
    yield Verb(alloc_context, stating(OLDEST, NEWEST), response=48)
    yield Verb(alloc_pd)
    yield Verb(create_cq, kernel_ring(16, 6), 16, 24)
    yield Verb(resize_cq, kernel_ring(16, 6), 16, 24)
    yield Verb(create_qp, queues, 32, 32)
    yield Verb(create_srq, kernel_ring(16, 6), 16, 24)
    yield Verb(modify_srq, kernel_ring(32, 6) + struct.pack("<Q", address(told)), 24)
    yield Verb(modify_qp, bytes(8))
    yield Verb(create_ah, response=48)


def requests(path, gid_index):
    """A shorter request is padded with zeroes, if the verb allows it. A longer request is accepted
    if the additional bytes are zero, else refused."""
    for verb in verbs(path, gid_index):
        name, whole = verb.call.__name__, verb.request
        for more in (4, 8, 64):
            verb.call(whole + bytes(more), verb.response)
            for at in (0, more - 1):
                unknown = bytearray(more)
                unknown[at] = 1
                expect(
                    errno.EOPNOTSUPP, lambda: verb.call(whole + bytes(unknown), verb.response)
                )
        for length in range(0, verb.least, 4):
            expect(errno.EINVAL, lambda: verb.call(whole[:length], verb.response))
        for length in range(verb.least, len(whole), 4):
            # A shorter request of zeroes is valid.
            verb.call(bytes(length), verb.response)
        print(f"{name}: {verb.least} to {len(whole)} bytes")


def responses(path, gid_index):
    """A response is truncated, or padded with zeroes, to the caller's length."""
    for verb in verbs(path, gid_index):
        name = verb.call.__name__
        if not verb.response and name.startswith("modify"):
            continue
        for room in range(0, verb.response + 72, 4):
            _, told = verb.call(verb.request, room)
            assert len(told) == room
            beyond = told[verb.response :]
            assert not any(beyond), f"{name}: {beyond.hex()} after the response"
            known = told[: verb.response]
            assert b"\xa5\xa5\xa5\xa5" not in known, f"{name}: not written: {known.hex()}"
        print(f"{name}: {verb.response} bytes")


if __name__ == "__main__":
    path, gid_index, test = sys.argv[1:]
    globals()[test](path, int(gid_index))
