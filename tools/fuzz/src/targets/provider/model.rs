// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the provider: the completions that it reads from rings with any contents.

use std::collections::{BTreeMap, VecDeque};
use std::slice;

use virtio_rdma_abi::cqe::{Cqe, OPCODE_RECV};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::{RingKind, RingLayout};
use virtio_rdma_abi::uverbs::UserRing;

const PAGE: usize = 4096;

/// The device's access to a ring, by the ring's address. The ring must stay mapped.
#[derive(Clone, Copy)]
pub struct Memory {
    base: *mut u8,
    pub layout: RingLayout,
}

impl Memory {
    pub fn new(kind: RingKind, ring: UserRing) -> Self {
        Self {
            base: std::ptr::with_exposed_provenance_mut(ring.addr as usize),
            layout: RingLayout::new(kind, ring.slots, ring.slot_shift).expect("a ring"),
        }
    }

    /// The contents of all pages of the ring.
    pub fn bytes(&self) -> Vec<u8> {
        let len = (self.layout.size() as usize).next_multiple_of(PAGE);
        // SAFETY: rings are mapped in whole pages, and only this thread accesses them.
        unsafe { slice::from_raw_parts(self.base, len) }.to_vec()
    }

    /// Reads `N` bytes at offset `at`.
    pub fn read<const N: usize>(&self, at: u32) -> [u8; N] {
        assert!(at as usize + N <= self.layout.size() as usize);
        // SAFETY: the bytes lie within the ring, which only this thread accesses.
        unsafe {
            self.base
                .add(at as usize)
                .cast::<[u8; N]>()
                .read_unaligned()
        }
    }

    pub fn u16(&self, at: u32) -> u16 {
        u16::from_le_bytes(self.read(at))
    }

    pub fn u32(&self, at: u32) -> u32 {
        u32::from_le_bytes(self.read(at))
    }

    /// Writes `bytes` at offset `at`, as the device.
    pub fn write(&self, at: u32, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.layout.size() as usize);
        // SAFETY: the bytes lie within the ring, which only this thread accesses.
        let to = unsafe { slice::from_raw_parts_mut(self.base.add(at as usize), bytes.len()) };
        to.copy_from_slice(bytes);
    }

    pub fn cqe(&self, position: u32) -> Cqe {
        Cqe::from_bytes(&self.read(self.layout.slot(position)))
    }

    /// Address and length of the `len` bytes at offset `at`.
    pub fn part(&self, at: u32, len: usize) -> (usize, usize) {
        (self.base.addr() + at as usize, len)
    }

    pub fn address(&self) -> usize {
        self.base.addr()
    }
}

/// A send or receive queue.
pub struct Queue {
    /// The application's IDs of work requests, by slot.
    ids: Vec<u64>,
    /// Position after the last posted work request. `oldest` is the position of the oldest slot
    /// that is not free.
    pub posted: u32,
    oldest: u32,
    /// Position after the last polled work request.
    tail: u32,
    /// Position after the last work request that a correct device has completed.
    pub done: u32,
}

impl Queue {
    pub fn new(memory: &Memory) -> Self {
        Self {
            ids: vec![0; memory.layout.slots() as usize],
            posted: 0,
            oldest: 0,
            tail: 0,
            done: 0,
        }
    }

    /// Posts a work request. Returns its position, or `None` if the queue is full.
    pub fn post(&mut self, id: u64) -> Option<u32> {
        if self.posted.wrapping_sub(self.oldest) as usize == self.ids.len() {
            self.oldest = self.tail;
        }
        if self.posted.wrapping_sub(self.oldest) as usize == self.ids.len() {
            return None;
        }
        let position = self.posted;
        self.posted = position.wrapping_add(1);
        let slot = position as usize % self.ids.len();
        self.ids[slot] = id;
        Some(position)
    }

    fn complete(&mut self, position: u64) -> Option<u64> {
        let position = u32::try_from(position).ok()?;
        let is_outstanding = position.wrapping_sub(self.tail) < self.posted.wrapping_sub(self.tail);
        if !is_outstanding {
            return None;
        }
        self.tail = position.wrapping_add(1);
        Some(self.ids[position as usize % self.ids.len()])
    }

    pub fn reset(&mut self) {
        (self.oldest, self.tail, self.done) = (self.posted, self.posted, self.posted);
    }
}

/// A QP. Without a receive queue of its own, it uses the SRQ.
pub struct Owner {
    pub qpn: Qpn,
    pub send: Queue,
    pub recv: Option<Queue>,
}

/// Outstanding receives of the SRQ: the application's IDs by slot.
pub type Shared = BTreeMap<u16, u64>;

/// Completes the work request of a CQE. Returns the application's ID, or `None` if no such work
/// request is outstanding.
fn complete(cqe: &Cqe, owner: &mut Owner, shared: &mut Shared) -> Option<u64> {
    match (cqe.opcode & OPCODE_RECV != 0, &mut owner.recv) {
        (false, _) => owner.send.complete(cqe.wr_id),
        (true, Some(recv)) => recv.complete(cqe.wr_id),
        (true, None) => shared.remove(&u16::try_from(cqe.wr_id).ok()?),
    }
}

/// A completion ring: the present one of the CQ, or an old one.
pub struct Completing {
    pub memory: Memory,
    /// Position of the next completion. `seen` is the last producer position that was read.
    pub next: u32,
    seen: u32,
    /// The end position that the device reported for an old ring.
    end: Option<u32>,
}

/// Rings of a CQ, the oldest first.
pub struct Completions(pub VecDeque<Completing>);

impl Completions {
    pub fn new(memory: Memory) -> Self {
        let mut this = Self(VecDeque::new());
        this.push(memory);
        this
    }

    fn push(&mut self, memory: Memory) {
        self.0.push_back(Completing {
            memory,
            next: 0,
            seen: 0,
            end: None,
        });
    }

    /// The present ring, to which the device writes completions.
    pub fn last(&self) -> &Completing {
        self.0.back().expect("a ring")
    }

    /// Moves the CQ to another ring. `end` is the end position of the old one.
    pub fn moved(&mut self, memory: Memory, end: u32) {
        let last = self.0.back_mut().expect("a ring");
        last.end = Some(end);
        let is_empty = last.next == end;
        self.push(memory);
        if self.0.len() == 2 && is_empty {
            self.0.pop_front();
        }
    }

    /// The completions that a poll for at most `max` delivers. `None` if there are none and the
    /// ring has invalid contents.
    pub fn poll(
        &mut self,
        max: usize,
        owners: &mut [Owner],
        shared: &mut Shared,
    ) -> Option<Vec<(Cqe, u64)>> {
        let mut found = Vec::new();
        while found.len() < max {
            let has_newer = self.0.len() > 1;
            let ring = self.0.front_mut().expect("a ring");
            if ring.next == ring.seen {
                let produced = ring.memory.u32(ring.memory.layout.device());
                let ahead = produced.wrapping_sub(ring.next);
                let is_sound = ahead <= ring.memory.layout.slots();
                match (ahead, is_sound, has_newer) {
                    (1.., true, _) => ring.seen = produced,
                    (_, _, true) => {
                        self.0.pop_front();
                        continue;
                    }
                    (_, false, _) if found.is_empty() => return None,
                    _ => break,
                }
            }
            let cqe = ring.memory.cqe(ring.next);
            ring.next = ring.next.wrapping_add(1);
            let owner = owners.iter_mut().find(|owner| owner.qpn == cqe.qp_num);
            let id = owner.and_then(|owner| complete(&cqe, owner, shared));
            found.extend(id.map(|id| (cqe, id)));
        }
        Some(found)
    }

    /// Drops the unpolled completions of a QP. Returns the parts of rings where the provider may
    /// mark CQEs as dropped.
    pub fn clean(&mut self, owner: &Owner, shared: &mut Shared) -> Vec<(usize, usize)> {
        let mut marked = Vec::new();
        for ring in &self.0 {
            let layout = &ring.memory.layout;
            let end = ring.end.unwrap_or_else(|| ring.memory.u32(layout.device()));
            let ahead = end.wrapping_sub(ring.next);
            if ahead > layout.slots() {
                continue;
            }
            for position in (0..ahead).map(|ahead| ring.next.wrapping_add(ahead)) {
                let cqe = ring.memory.cqe(position);
                if cqe.qp_num != owner.qpn {
                    continue;
                }
                marked.push(ring.memory.part(layout.slot(position), Cqe::SIZE));
                if let (true, None, Ok(slot)) = (
                    cqe.opcode & OPCODE_RECV != 0,
                    &owner.recv,
                    u16::try_from(cqe.wr_id),
                ) {
                    shared.remove(&slot);
                }
            }
        }
        marked
    }
}
