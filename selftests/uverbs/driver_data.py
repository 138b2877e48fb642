# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""The driver's part of uverbs commands: the driver refuses requests that it does not know, and
writes every byte of a response.

    driver_data.py /dev/infiniband/uverbsN TEST

A provider sends only requests that the driver knows, so this program builds the commands byte by
byte.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys

# <rdma/ib_user_verbs.h>: commands written to the file.
GET_CONTEXT, ALLOC_PD, CREATE_CQ, DESTROY_CQ, CREATE_QP = 0, 3, 18, 20, 24
# <rdma/ib_user_ioctl_cmds.h>, <rdma/rdma_user_ioctl_cmds.h>: methods called by ioctl().
IOCTL = 3 << 30 | 24 << 16 | 0x1B << 8 | 1
OBJECT_CQ, METHOD_CQ_CREATE = 3, 0
OBJECT_MR, METHOD_REG_MR = 7, 5
UHW_IN, UHW_OUT = 0x1000, 0x1001
MANDATORY = 1
# <linux/udmabuf.h>, <linux/fcntl.h>
UDMABUF_CREATE = 1 << 30 | 24 << 16 | ord("u") << 8 | 0x42
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2

UNWRITTEN = 0xA5
RC = 2
LOCAL_WRITE, MW_BIND = 1, 1 << 4


def address(buffer):
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Uverbs:
    """A context, opened without the provider, with a given request and room for the response."""

    def __init__(self, path, request=b"", room=48):
        self.file = os.open(path, os.O_RDWR)
        self.kept = []
        try:
            _, self.context = self.command(GET_CONTEXT, b"", 8, request, driver_out=room)
        except OSError:
            os.close(self.file)
            raise

    def command(self, number, core, response, driver=b"", driver_out=0):
        """Writes a command. Returns the core's and the driver's part of the response."""
        out = bytearray([UNWRITTEN]) * (response + driver_out)
        self.kept.append(out)
        body = struct.pack("<Q", address(out)) + core + driver
        words = (8 + len(body)) // 4
        header = struct.pack("<IHH", number, words, len(out) // 4)
        os.write(self.file, header + body)
        return bytes(out[:response]), bytes(out[response:])

    def order(self, number, body):
        """Writes a command that has no response."""
        header = struct.pack("<IHH", number, (8 + len(body)) // 4, 0)
        os.write(self.file, header + body)

    def call(self, object_id, method, attributes):
        """Calls a method. An attribute has a number, and a value: bytes, an integer, or room for
        output."""
        encoded = b""
        for number, value in attributes:
            length, data = 0, 0
            if isinstance(value, bytearray):
                length, data = len(value), address(value)
            elif isinstance(value, bytes):
                length = len(value)
                if length <= 8:
                    (data,) = struct.unpack("<Q", value.ljust(8, b"\0"))
                else:
                    value = bytearray(value)
                    data = address(value)
            else:
                data = value
            self.kept.append(value)
            encoded += struct.pack("<HHHHQ", number, length, MANDATORY, 0, data)
        length = 24 + len(encoded)
        header = struct.pack("<4HQII", length, object_id, method, len(attributes), 0, 0, 0)
        fcntl.ioctl(self.file, IOCTL, bytearray(header + encoded))

    def ring(self, slot_shift):
        """The description of a ring of 64 slots in memory of this process, for the driver."""
        memory = mmap.mmap(-1, 64 << 10)
        self.kept.append(memory)
        return struct.pack("<QIB3x", address(memory), 64, slot_shift)

    def pd(self):
        core, _ = self.command(ALLOC_PD, b"", 4)
        return struct.unpack("<I", core)[0]

    def cq(self):
        core, _ = self.command(
            CREATE_CQ, struct.pack("<QIIiI", 0, 16, 0, -1, 0), 8, self.ring(6), driver_out=8
        )
        return struct.unpack("<II", core)[0]


def expect(error, action):
    try:
        action()
    except OSError as raised:
        assert raised.errno == error, f"{raised}, expected {errno.errorcode[error]}"
    else:
        raise AssertionError(f"succeeded, expected {errno.errorcode[error]}")


def response_is_written(uverbs):
    """The response for rings in the process's memory is zeroes, and so is the room after it."""
    pd, cq = uverbs.pd(), uverbs.cq()
    core = struct.pack("<QIIIIIIIIIBBBB", 0, pd, cq, cq, 0, 16, 16, 1, 1, 0, 0, RC, 0, 0)
    rings = uverbs.ring(7) + uverbs.ring(6)
    _, driver = uverbs.command(CREATE_QP, core, 32, rings, driver_out=64)
    assert driver == bytes(64), f"the driver left {driver.hex()}"


def short_response_is_cut_off(uverbs):
    """Nothing is written beyond the caller's length."""
    out = bytearray([UNWRITTEN]) * (8 + 24)
    uverbs.kept.append(out)
    body = struct.pack("<QQIIiI", address(out), 0, 16, 0, -1, 0) + uverbs.ring(6)
    # Room for the core's response, and a third of the driver's.
    header = struct.pack("<IHH", CREATE_CQ, (8 + len(body)) // 4, (8 + 8) // 4)
    os.write(uverbs.file, header + body)
    assert out[8 + 4 : 8 + 8] == bytes(4), f"the driver left {out[8:].hex()}"
    assert out[8 + 8 :] == bytes([UNWRITTEN]) * 16, f"the driver wrote {out[16:].hex()}"


class Buffer:
    """A DMA buffer of a page."""

    def __init__(self, uverbs):
        memory = os.memfd_create("buffer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 4096)
        fcntl.fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK)
        with open("/dev/udmabuf", "wb") as device:
            create = bytearray(struct.pack("<IIQQ", memory, 0, 0, 4096))
            self.file = fcntl.ioctl(device, UDMABUF_CREATE, create)
        self.uverbs, self.pd = uverbs, uverbs.pd()

    def register(self, request, room, access=LOCAL_WRITE):
        attributes = [
            (0, 0),
            (1, self.pd),
            (3, struct.pack("<Q", 0)),
            (5, struct.pack("<Q", 4096)),
            (6, struct.pack("<I", access)),
            (7, self.file),
            (8, struct.pack("<Q", 0)),
            (9, bytearray(4)),
            (10, bytearray(4)),
            (UHW_IN, request),
            (UHW_OUT, room),
        ]
        self.uverbs.call(OBJECT_MR, METHOD_REG_MR, attributes)


def unknown_request_is_refused(uverbs):
    """REG_MR of a DMA buffer has no driver's part: nonzero bytes are refused."""
    buffer = Buffer(uverbs)
    expect(errno.EOPNOTSUPP, lambda: buffer.register(b"\1" * 16, bytearray(16)))
    room = bytearray([UNWRITTEN]) * 16
    buffer.register(bytes(16), room)
    assert room == bytes(16), f"the driver left {room.hex()}"


def buffers_have_no_windows(uverbs):
    """MRs of DMA buffers have no windows, which would outlive memory that the exporter reclaims."""
    buffer = Buffer(uverbs)
    bind = lambda: buffer.register(bytes(16), bytearray(16), LOCAL_WRITE | MW_BIND)
    expect(errno.EINVAL, bind)
    buffer.register(bytes(16), bytearray(16))


def cq_buffer_is_refused(uverbs):
    """A CQ with memory from the verb's attributes is refused instead of ignoring the memory."""

    def create(*more):
        room = bytearray(4)
        attributes = [
            (0, 0),
            (1, struct.pack("<I", 16)),
            (2, struct.pack("<Q", 0)),
            (4, struct.pack("<I", 0)),
            (6, room),
            *more,
            (UHW_IN, uverbs.ring(6)),
            (UHW_OUT, bytearray(8)),
        ]
        uverbs.call(OBJECT_CQ, METHOD_CQ_CREATE, attributes)

    create()
    memory = mmap.mmap(-1, 64 << 10)
    start, length = struct.pack("<Q", address(memory)), struct.pack("<Q", 64 << 10)
    expect(errno.EOPNOTSUPP, lambda: create((8, start), (9, length)))
    create()


if __name__ == "__main__":
    path, test = sys.argv[1:]
    globals()[test](Uverbs(path))
