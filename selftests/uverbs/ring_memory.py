# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Mappings of rings in the kernel's memory: by which processes, with which rights, and for how
long.

    ring_memory.py /dev/infiniband/uverbsN TEST

This program builds the commands byte by byte, like driver_data.py: a provider requests no wrong
mapping.
"""

import ctypes
import errno
import mmap
import os
import signal
import struct
import sys

from driver_data import CREATE_CQ, CREATE_QP, DESTROY_CQ, RC, Uverbs, address, expect

# <rdma/ib_user_verbs.h>
RESIZE_CQ, DESTROY_QP, CREATE_SRQ, MODIFY_SRQ = 19, 27, 32, 33
SRQ_MAX_WR = 1
# <linux/mman.h>
DOFORK, MREMAP_MAYMOVE = 11, 1

PAGE = mmap.PAGESIZE
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
SHARED, PRIVATE = mmap.MAP_SHARED, mmap.MAP_PRIVATE
NO_RING = bytes(16)
MAX_CQE = 32766

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FAILED = ctypes.c_void_p(-1).value


def check(result):
    """The result of a C function. Raises OSError if the function has failed."""
    if result in (-1, FAILED):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Mapping:
    """A mapping of a context's file in this process."""

    def __init__(self, file, offset, length, protection=READ_WRITE, flags=SHARED):
        self.length = length
        self.start = check(libc.mmap(None, length, protection, flags, file, offset))
        self.bytes = (ctypes.c_char * length).from_address(self.start)

    def unmap(self):
        check(libc.munmap(self.start, self.length))


def kernel_ring(slots, slot_shift):
    """The request for a ring in the kernel's memory."""
    return struct.pack("<QIB3x", 0, slots, slot_shift)


class Cq:
    """A CQ, and the offset and length of its ring's mapping."""

    def __init__(self, uverbs, slots=16):
        self.uverbs = uverbs
        core = struct.pack("<QIIiI", 0, min(slots, MAX_CQE), 0, -1, 0)
        core, driver = uverbs.command(CREATE_CQ, core, 8, kernel_ring(slots, 6), driver_out=24)
        self.handle, self.entries = struct.unpack("<II", core)
        self.offset, self.length = struct.unpack("<8xQQ", driver)

    def map(self, **how):
        return Mapping(self.uverbs.file, self.offset, self.length, **how)

    def resize(self, entries, ring):
        """Returns the new entries of the CQ, and the offset and length of the prepared ring."""
        core = struct.pack("<II", self.handle, entries)
        core, driver = self.uverbs.command(RESIZE_CQ, core, 8, ring, driver_out=24)
        return struct.unpack("<I4x", core)[0], *struct.unpack("<8xQQ", driver)

    def destroy(self):
        self.uverbs.command(DESTROY_CQ, struct.pack("<II", self.handle, 0), 8)


def create_qp(uverbs, pd, cq, rings):
    core = struct.pack("<QIIIIIIIIIBBBB", 0, pd, cq, cq, 0, 16, 16, 1, 1, 0, 0, RC, 0, 0)
    core, driver = uverbs.command(CREATE_QP, core, 32, rings, driver_out=32)
    return struct.unpack_from("<I", core)[0], struct.unpack("<QQQQ", driver)


def mapping_rules(uverbs):
    """A ring can only be mapped as a whole, shared, for reading and writing, by its own context."""
    cq = Cq(uverbs)
    assert cq.length >= 16 * 64 and cq.length % PAGE == 0
    mapping = cq.map()
    assert mapping.bytes.raw == bytes(cq.length), "memory that was not zeroed"
    mapping.bytes[0] = b"\x5a"
    again = cq.map()
    assert again.bytes[0] == b"\x5a", "another memory"
    again.unmap()
    for how in (
        {"flags": PRIVATE},
        {"protection": mmap.PROT_READ},
        {"protection": mmap.PROT_WRITE},
    ):
        expect(errno.EINVAL, lambda how=how: cq.map(**how))
    for length in (cq.length + PAGE, cq.length - PAGE):
        if length:
            expect(errno.EINVAL, lambda length=length: Mapping(uverbs.file, cq.offset, length))
    expect(errno.EINVAL, lambda: Mapping(uverbs.file, cq.offset + cq.length, cq.length))
    other = Uverbs(os.readlink(f"/proc/self/fd/{uverbs.file}"))
    expect(errno.EINVAL, lambda: Mapping(other.file, cq.offset, cq.length))
    for action in (
        lambda: cq.map(protection=READ_WRITE | mmap.PROT_EXEC),
        lambda: check(libc.mprotect(mapping.start, mapping.length, READ_WRITE | mmap.PROT_EXEC)),
    ):
        try:
            action()
        except OSError:
            continue
        raise AssertionError("memory to execute")
    grow = lambda: check(libc.mremap(mapping.start, cq.length, 2 * cq.length, MREMAP_MAYMOVE))
    expect(errno.EFAULT, grow)
    assert mapping.bytes[0] == b"\x5a"


def large_rings(uverbs):
    """Rings of the maximum length of the ABI."""
    cq = Cq(uverbs, 32768)
    assert cq.length >= 32768 * 64
    assert cq.map().bytes.raw == bytes(cq.length)
    rings = kernel_ring(32768, 10) + kernel_ring(32768, 6)
    qp, (send, send_length, recv, recv_length) = create_qp(uverbs, uverbs.pd(), cq.handle, rings)
    assert send_length >= 32768 << 10 and recv_length >= 32768 << 6
    for offset, length in ((send, send_length), (recv, recv_length)):
        mapping = Mapping(uverbs.file, offset, length)
        for at in range(0, length, PAGE):
            assert mapping.bytes[at] == b"\0"
            mapping.bytes[at] = b"\1"
    uverbs.command(DESTROY_QP, struct.pack("<II", qp, 0), 4)


def children_have_none(uverbs):
    """A child does not inherit a ring, even with MADV_DOFORK."""
    mapping = Cq(uverbs).map()
    mapping.bytes[0] = b"\1"
    expect(errno.EINVAL, lambda: check(libc.madvise(mapping.start, mapping.length, DOFORK)))
    child = os.fork()
    if child == 0:
        mapping.bytes[0] = b"\2"
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV, status
    assert mapping.bytes[0] == b"\1"


def mappings_outlive_objects(uverbs):
    """A mapping outlives its object, but the offset can't be mapped again."""
    cq = Cq(uverbs)
    mapping = cq.map()
    mapping.bytes[0] = b"\x5a"
    cq.destroy()
    expect(errno.EINVAL, cq.map)
    assert mapping.bytes[0] == b"\x5a"
    # Later objects get other memory.
    others = [Cq(uverbs).map() for _ in range(64)]
    mapping.bytes[:] = b"\xff" * mapping.length
    assert all(not any(other.bytes.raw) for other in others)
    os.close(uverbs.file)
    assert mapping.bytes[0] == b"\xff"
    mapping.unmap()


def resize_in_two_steps(uverbs):
    """A CQ keeps its ring until it is moved to a prepared ring."""
    cq = Cq(uverbs)
    old = cq.map()
    expect(errno.EINVAL, lambda: cq.resize(16, NO_RING))
    entries, first, length = cq.resize(32, kernel_ring(32, 6))
    assert entries == 16 and length >= 32 * 64
    entries, second, length = cq.resize(64, kernel_ring(64, 6))
    assert entries == 16 and second != cq.offset
    if first != second:
        expect(errno.EINVAL, lambda: Mapping(uverbs.file, first, length))
    new = Mapping(uverbs.file, second, length)
    # The prepared ring is too short for 128 entries.
    expect(errno.EINVAL, lambda: cq.resize(128, NO_RING))
    # The provider's order: first map the new ring, then move the CQ to it.
    cq.map().unmap()
    entries, offset, length = cq.resize(64, NO_RING)
    assert (entries, offset, length) == (64, 0, 0)
    expect(errno.EINVAL, cq.map)
    expect(errno.EINVAL, lambda: cq.resize(64, NO_RING))
    for mapping in (old, new):
        mapping.bytes[0] = b"\1"
    cq.destroy()


def srq_in_two_steps(uverbs):
    """MODIFY_SRQ writes the mapping of the prepared ring to a pointer in the request."""
    core = struct.pack("<QIIII", 0, uverbs.pd(), 16, 1, 0)
    core, driver = uverbs.command(CREATE_SRQ, core, 16, kernel_ring(16, 6), driver_out=24)
    (srq,) = struct.unpack_from("<I", core)
    offset, length = struct.unpack("<8xQQ", driver)
    Mapping(uverbs.file, offset, length)

    def modify(max_wr, ring, pointer):
        core = struct.pack("<IIII", srq, SRQ_MAX_WR, max_wr, 0)
        uverbs.order(MODIFY_SRQ, core + ring + struct.pack("<Q", pointer))

    expect(errno.EINVAL, lambda: modify(32, NO_RING, 0))
    expect(errno.EFAULT, lambda: modify(32, kernel_ring(32, 6), 8))
    told = bytearray(16)
    modify(32, kernel_ring(32, 6), address(told))
    offset, length = struct.unpack("<QQ", told)
    assert length >= 32 * 64
    Mapping(uverbs.file, offset, length)
    modify(32, NO_RING, 0)
    expect(errno.EINVAL, lambda: modify(64, NO_RING, 0))


def own_memory(uverbs):
    """A ring in the process's memory must be writable. A CQ moves to it in one step."""
    cq = Cq(uverbs)
    cq.map()
    entries, offset, length = cq.resize(64, uverbs.ring(6))
    assert (entries, offset, length) == (64, 0, 0)
    expect(errno.EINVAL, cq.map)
    start = check(libc.mmap(None, 64 << 10, mmap.PROT_READ, PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    ring = struct.pack("<QIB3x", start, 64, 6)
    core = struct.pack("<QIIiI", 0, 64, 0, -1, 0)
    create = lambda: uverbs.command(CREATE_CQ, core, 8, ring, driver_out=24)
    expect(errno.EFAULT, create)
    expect(errno.EFAULT, lambda: cq.resize(64, ring))
    check(libc.mprotect(start, 64 << 10, READ_WRITE))
    create()
    cq.destroy()


def all_that_there_is(uverbs):
    """Creates CQs until memory is exhausted, destroys one, creates one again. Prints the MiB."""
    cqs = []
    # A reserve: without it, this program could not continue at the limit of a memory cgroup.
    reserve = bytearray(4 << 20)
    try:
        while True:
            cqs.append(Cq(uverbs, 32768))
    except OSError as error:
        del reserve
        assert error.errno == errno.ENOMEM, error
    cqs.pop().destroy()
    cqs.append(Cq(uverbs, 32768))
    print(f"{sum(cq.length for cq in cqs) >> 20} MiB")


if __name__ == "__main__":
    path, test = sys.argv[1:]
    globals()[test](Uverbs(path))
