#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
"""Small MPI programs. Each argument is the name of a part, which compares all data that it moves.

mpirun ... python3 -m mpi4py exchange.py PART...   (mpi4py ends all processes when one fails)
"""

import random
import sys
from array import array

from mpi4py import MPI

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
NEXT, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
WORDS = 4096


def data(rank, length):
    """The bytes that a rank sends. Every process knows them."""
    return random.Random(rank * 1000003 + length).randbytes(length)


def numbers(rank, count=WORDS):
    """The numbers that a rank sends, as 64-bit integers."""
    return array("q", (rank * 1000003 + i for i in range(count)))


def same(got, expected, what):
    """Compares buffers."""
    if bytes(got) != bytes(expected):
        raise RuntimeError(f"rank {RANK}: {what}: data differs")


def messages():
    """Messages around a ring: empty, inline, eager and with rendezvous."""
    for length in 0, 1, 8, 100, 4096, 65536, 1 << 20, (3 << 20) + 7:
        got = bytearray(length)
        receive = WORLD.Irecv(got, BEFORE, tag=length)
        WORLD.Send(data(RANK, length), NEXT, tag=length)
        receive.Wait()
        same(got, data(BEFORE, length), f"message of {length} bytes")


def burst():
    """Many messages in flight at once."""
    got = [bytearray(1000 + i) for i in range(500)]
    receives = [WORLD.Irecv(buffer, BEFORE, tag=i) for i, buffer in enumerate(got)]
    sent = [data(RANK, 1000 + i) for i in range(500)]
    sends = [WORLD.Isend(buffer, NEXT, tag=i) for i, buffer in enumerate(sent)]
    MPI.Request.Waitall(receives + sends)
    for i, buffer in enumerate(got):
        same(buffer, data(BEFORE, 1000 + i), f"message {i} of many")


def collectives():
    """Barrier, broadcast, reduce, gather and all-to-all."""
    WORLD.Barrier()
    for length in 8, 300000:
        buffer = bytearray(data(0, length)) if RANK == 0 else bytearray(length)
        WORLD.Bcast(buffer, root=0)
        same(buffer, data(0, length), f"broadcast of {length} bytes")
    for count in 1, WORDS:
        total = array("q", bytes(8 * count))
        WORLD.Allreduce(numbers(RANK, count), total)
        columns = zip(*(numbers(rank, count) for rank in range(SIZE)))
        same(total, array("q", map(sum, columns)), f"sum of {count} numbers")
    whole = bytearray(10000 * SIZE)
    WORLD.Allgather(data(RANK, 10000), whole)
    same(whole, b"".join(data(rank, 10000) for rank in range(SIZE)), "gathering")
    blocks = b"".join(data(RANK * SIZE + rank, 5000) for rank in range(SIZE))
    WORLD.Alltoall(blocks, whole := bytearray(5000 * SIZE))
    same(whole, b"".join(data(rank * SIZE + RANK, 5000) for rank in range(SIZE)), "exchange")


def one_sided(window, memory):
    """Puts, gets and atomics in a window of 2 * WORDS + 1 numbers for each process."""
    half = 8 * WORDS
    # An operation reads its origin buffer until the operation is flushed, but holds no reference to
    # the buffer. The variable keeps the buffer alive.
    mine = numbers(RANK)
    memory[:] = bytes(len(memory))
    window.Fence()
    window.Put(mine, NEXT, target=0)
    window.Fence()
    same(memory[:half], numbers(BEFORE), "put")

    got = array("q", bytes(half))
    window.Lock(NEXT, MPI.LOCK_SHARED)
    window.Get(got, NEXT, target=0)
    window.Unlock(NEXT)
    same(got, mine, "get")
    WORLD.Barrier()

    window.Lock_all()
    for rank in range(SIZE):
        window.Accumulate(mine, rank, target=WORDS, op=MPI.SUM)
    window.Unlock_all()
    WORLD.Barrier()
    window.Lock(RANK, MPI.LOCK_SHARED)
    columns = zip(*(numbers(rank) for rank in range(SIZE)))
    same(memory[half : 2 * half], array("q", map(sum, columns)), "accumulate")
    window.Unlock(RANK)

    # Tickets from one counter: each number is drawn once.
    one, ticket, tickets = array("q", [1]), array("q", [0]), array("q")
    window.Lock_all()
    for _ in range(50):
        window.Fetch_and_op(one, ticket, 0, 2 * WORDS, MPI.SUM)
        window.Flush(0)
        tickets.append(ticket[0])
    window.Unlock_all()
    given = array("q", bytes(8 * 50 * SIZE))
    WORLD.Allgather(tickets, given)
    same(array("q", sorted(given)), array("q", range(50 * SIZE)), "fetch and add")

    new, expected, old = array("q", [-7]), mine[:1], array("q", [0])
    window.Lock(NEXT, MPI.LOCK_EXCLUSIVE)
    window.Compare_and_swap(new, expected, old, NEXT, 0)
    window.Unlock(NEXT)
    same(old, expected, "compare and swap: the old value")
    window.Fence()
    same(memory[:8], new, "compare and swap: the new value")
    window.Free()


def create():
    """One-sided operations on memory of the program."""
    memory = bytearray(8 * (2 * WORDS + 1))
    one_sided(MPI.Win.Create(memory, disp_unit=8, comm=WORLD), memory)


def allocate():
    """One-sided operations on memory of the library."""
    window = MPI.Win.Allocate(8 * (2 * WORDS + 1), disp_unit=8, comm=WORLD)
    one_sided(window, window.tomemory())


for part in sys.argv[1:]:
    globals()[part]()
    WORLD.Barrier()
    if RANK == 0:
        print(f"passed: {part} with {SIZE} processes", flush=True)
