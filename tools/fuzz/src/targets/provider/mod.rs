// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The provider, with rings to which a hostile device writes.
//!
//! The device completes work requests correctly, or forges, repeats and withholds CQEs and writes
//! anywhere in the rings. The provider must deliver the completions that a model reads from the
//! same rings: each has the ID of an outstanding work request, and each work request completes
//! once. In each step, the provider may write only to certain parts of the rings.

mod model;

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Arbitrary, Result, Unstructured};
use provider_testkit::{post_recv, post_send, recv_wr, send_wr, sge, CAP, OTHER_QPN, QPN};
use virtio_rdma_abi::cqe::{Cqe, OPCODE_RECV};
use virtio_rdma_abi::ib::WcFlags;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::RingKind;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_provider::arc::Arc;
use virtio_rdma_provider::completion::work_completion;
use virtio_rdma_provider::context::Shared;
use virtio_rdma_provider::cq::{self, Cq};
use virtio_rdma_provider::qp::Qp;
use virtio_rdma_provider::srq::{self, Srq};
use virtio_rdma_provider::{ffi, work_ring::WorkRing};

use model::{Completions, Memory, Owner, Queue};

/// Initial number of slots of the SRQ.
const SHARED_SLOTS: u32 = 8;
/// Maximum number of rings of a CQ, including old rings that are not polled to their end.
const RINGS: usize = 4;
/// Maximum number of steps of an input.
const ACTS: usize = 300;
/// An ID that no work request has. It marks array elements that polling must not write.
const UNTOUCHED: u64 = u64::MAX;

/// A step of the program or the device.
#[derive(Arbitrary, Debug)]
enum Act {
    Send(u8, u8, u8),
    Receive(u8),
    ReceiveShared,
    Poll(u8),
    Arm(bool),
    Event,
    /// The program resizes the CQ. The device may report a wrong end position of the old ring.
    Resize(u8, Option<i16>),
    GrowShared(bool),
    Reset(u8),
    Replace(u8),
    /// The device completes the oldest work request of a queue.
    Complete(u8, bool),
    /// The device writes a CQE with this QP, opcode, work request and status.
    Forge(u8, u8, u16, u8),
    /// The device writes a CQE of random bytes.
    Garbage([u8; Cqe::SIZE]),
    /// The device changes its producer position.
    Jump(i16),
    /// The device writes 4 bytes anywhere in a ring.
    Scribble(u8, u16, [u8; 4]),
}

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut bench = Bench::new();
    // An error means that the input is used up.
    let _ = bench.acts(&mut Unstructured::new(data));
}

struct Bench {
    shared: Arc<Shared>,
    qps: [Box<Qp>; 2],
    srq: Box<Srq>,
    cq: Box<Cq>,
    owners: Vec<Owner>,
    receives: model::Shared,
    completions: Completions,
    /// Position after the last CQE that the device wrote.
    produced: u32,
    next_id: u64,
    /// Number of receives that were posted to the SRQ's ring so far.
    filled: u32,
    /// Slots of the SRQ that a correct device has yet to complete, in order.
    waiting: Vec<u16>,
    /// IDs of work requests whose completions were delivered.
    delivered: BTreeSet<u64>,
}

fn memory(ring: &Option<WorkRing>) -> Memory {
    Memory::new(RingKind::Work, ring.as_ref().expect("a queue").user_ring())
}

impl Bench {
    fn new() -> Self {
        let shared = provider_testkit::shared();
        let cq = provider_testkit::cq(&shared, 8);
        let srq = provider_testkit::srq(&shared, SHARED_SLOTS);
        let qps = [
            provider_testkit::qp(&shared, &cq, &CAP, QPN),
            provider_testkit::qp_with_srq(&shared, &cq, &srq, OTHER_QPN),
        ];
        let owners = vec![owner(&qps[0], QPN), owner(&qps[1], OTHER_QPN)];
        Self {
            completions: Completions::new(Memory::new(RingKind::Completion, cq.ring().user_ring())),
            shared,
            qps,
            srq,
            cq,
            owners,
            receives: BTreeMap::new(),
            produced: 0,
            next_id: 1,
            filled: 0,
            waiting: Vec::new(),
            delivered: BTreeSet::new(),
        }
    }

    fn acts(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..ACTS {
            if input.is_empty() {
                break;
            }
            let act = input.arbitrary()?;
            let before: Vec<_> = self
                .rings()
                .iter()
                .map(|ring| (*ring, ring.bytes()))
                .collect();
            let changed = self.act(&act);
            self.is_confined(&before, &changed, &act);
        }
        // As many polls as there are rings, and one more, must deliver all completions.
        for _ in 0..=RINGS {
            self.poll(16);
        }
        Ok(())
    }

    /// All rings that are in use.
    fn rings(&self) -> Vec<Memory> {
        let sends = self.qps.iter().map(|qp| memory(&qp.rings().send));
        let completing = self.completions.0.iter().map(|ring| ring.memory);
        sends
            .chain([memory(&self.qps[0].rings().recv)])
            .chain([Memory::new(RingKind::Shared, self.srq.ring().user_ring())])
            .chain(completing)
            .collect()
    }

    /// Asserts that the rings have changed only in `parts`. `before` has their old contents.
    fn is_confined(&self, before: &[(Memory, Vec<u8>)], parts: &[(usize, usize)], act: &Act) {
        let rings = self.rings();
        for (ring, old) in before {
            // The step may have freed the ring.
            let Some(ring) = rings.iter().find(|other| other.address() == ring.address()) else {
                continue;
            };
            let new = ring.bytes();
            if *old == new {
                continue;
            }
            for (at, (old, new)) in old.iter().zip(new).enumerate() {
                let place = ring.address() + at;
                let is_part = |(from, len): &(usize, usize)| (*from..from + len).contains(&place);
                let may_change = *old == new || parts.iter().any(is_part);
                assert!(may_change, "{act:?} wrote at {at:#x} of a ring");
            }
        }
    }

    /// Does a step. Returns the parts of rings that may change, as address and length.
    fn act(&mut self, act: &Act) -> Vec<(usize, usize)> {
        match *act {
            Act::Send(qp, opcode, data) => self.send(usize::from(qp) % 2, opcode, data),
            Act::Receive(data) => self.receive(data),
            Act::ReceiveShared => self.receive_shared(),
            Act::Poll(max) => self.poll((max % 10).into()),
            Act::Arm(solicited) => {
                // SAFETY: the CQ is this provider's.
                let armed = unsafe { cq::req_notify_cq(self.cq.as_ibv(), solicited.into()) };
                assert_eq!(armed, 0);
                let ring = &self.completions.last().memory;
                vec![ring.part(ring.layout.arm(), 8)]
            }
            Act::Event => {
                // SAFETY: the CQ is this provider's.
                unsafe { cq::cq_event(self.cq.as_ibv()) };
                Vec::new()
            }
            Act::Resize(slots, wrong) => self.resize(slots, wrong),
            Act::GrowShared(moves) => self.grow_shared(moves),
            Act::Reset(qp) => self.reset((qp % 2).into()),
            Act::Replace(qp) => self.replace((qp % 2).into()),
            Act::Complete(queue, fails) => self.complete(queue, fails),
            Act::Forge(qp, opcode, wr_id, status) => {
                let numbers = [
                    QPN,
                    OTHER_QPN,
                    Qpn::new(OTHER_QPN.get() + 1),
                    Qpn::NONE,
                    Qpn::new(u32::MAX),
                ];
                self.push(&Cqe {
                    wr_id: u64::from(wr_id % 64) << [0, 0, 16, 30][usize::from(wr_id >> 14)],
                    status,
                    opcode: opcode & (OPCODE_RECV | 15),
                    qp_num: numbers[usize::from(qp) % numbers.len()],
                    ..Cqe::default()
                })
            }
            Act::Garbage(bytes) => self.push(&Cqe::from_bytes(&bytes)),
            Act::Jump(by) => {
                self.produced = self.produced.wrapping_add_signed(by.into());
                self.publish()
            }
            Act::Scribble(ring, at, bytes) => {
                let rings = self.rings();
                let ring = rings[usize::from(ring) % rings.len()];
                let at = u32::from(at) % (ring.layout.size() - 3);
                ring.write(at, &bytes);
                vec![ring.part(at, 4)]
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn send(&mut self, at: usize, opcode: u8, data: u8) -> Vec<(usize, usize)> {
        let id = self.id();
        let position = self.owners[at].send.post(id);
        let opcodes = [
            ffi::IBV_WR_SEND,
            ffi::IBV_WR_RDMA_WRITE,
            ffi::IBV_WR_RDMA_READ,
        ];
        let opcode = opcodes[usize::from(opcode) % 3];
        let payload = [data; 60];
        let mut sges = [sge(payload.as_ptr().addr() as u64, 60, 7); 3];
        let is_inline = opcode != ffi::IBV_WR_RDMA_READ && data % 4 == 3;
        let (flags, pieces) = match is_inline {
            true => (ffi::IBV_SEND_SIGNALED | ffi::IBV_SEND_INLINE, 1),
            false => (ffi::IBV_SEND_SIGNALED, usize::from(data) % 4),
        };
        let mut wr = send_wr(id, opcode, flags, &mut sges[..pieces]);
        let (status, _) = post_send(&self.qps[at], &mut wr);
        let ring = memory(&self.qps[at].rings().send);
        let expected = if position.is_some() { 0 } else { libc::ENOMEM };
        assert_eq!(status, expected, "position {position:?}");
        let Some(position) = position else {
            return Vec::new();
        };
        let slot = ring.layout.slot(position);
        let header = SqHeader::from_bytes(&ring.read(slot));
        assert_eq!((header.wr_id, header.opcode), (position.into(), opcode));
        let size = ring.layout.slot_size() as usize;
        vec![ring.part(slot, size), ring.part(ring.layout.owner(), 4)]
    }

    fn receive(&mut self, data: u8) -> Vec<(usize, usize)> {
        let id = self.id();
        let recv = self.owners[0].recv.as_mut().expect("a receive queue");
        let position = recv.post(id);
        let mut sges = [sge(0x1000, 64, 7); 2];
        let mut wr = recv_wr(id, &mut sges[..usize::from(data) % 3]);
        let (status, _) = post_recv(&self.qps[0], &mut wr);
        let expected = if position.is_some() { 0 } else { libc::ENOMEM };
        assert_eq!(status, expected, "position {position:?}");
        let ring = memory(&self.qps[0].rings().recv);
        let size = ring.layout.slot_size() as usize;
        let slot = position.map(|position| ring.part(ring.layout.slot(position), size));
        slot.into_iter()
            .chain([ring.part(ring.layout.owner(), 4)])
            .collect()
    }

    fn receive_shared(&mut self) -> Vec<(usize, usize)> {
        let id = self.id();
        let ring = Memory::new(RingKind::Shared, self.srq.ring().user_ring());
        let mut bad = std::ptr::null_mut();
        let mut wr = recv_wr(id, &mut []);
        // SAFETY: the SRQ is this provider's, and the list contains one valid work request.
        let status = unsafe { srq::post_srq_recv(self.srq.as_ibv(), &mut wr, &mut bad) };
        let is_full = self.receives.len() == ring.layout.slots() as usize;
        assert_eq!(status, if is_full { libc::ENOMEM } else { 0 });
        if is_full {
            return Vec::new();
        }
        let entry = ring.layout.order(self.filled);
        let slot = ring.u16(entry);
        assert!(u32::from(slot) < ring.layout.slots(), "no slot {slot}");
        assert_eq!(
            self.receives.insert(slot, id),
            None,
            "slot {slot} is in use"
        );
        self.waiting.push(slot);
        self.filled = self.filled.wrapping_add(1);
        vec![
            ring.part(
                ring.layout.slot(slot.into()),
                ring.layout.slot_size() as usize,
            ),
            ring.part(entry, 2),
            ring.part(ring.layout.owner(), 4),
        ]
    }

    fn poll(&mut self, max: usize) -> Vec<(usize, usize)> {
        let positions = self.completions.0.iter().map(|ring| {
            let memory = &ring.memory;
            memory.part(memory.layout.owner(), 4)
        });
        let positions = positions.collect();
        let expected = self
            .completions
            .poll(max, &mut self.owners, &mut self.receives);
        let mut places = [(); 32].map(|()| work_completion(&Cqe::default(), UNTOUCHED));
        // SAFETY: the CQ is this provider's, and `places` has more than `max` elements.
        let count = unsafe { cq::poll_cq(self.cq.as_ibv(), max as i32, places.as_mut_ptr()) };
        let Some(expected) = expected else {
            assert_eq!(count, -libc::EIO);
            return positions;
        };
        assert_eq!(count, expected.len() as i32);
        let (polled, rest) = places.split_at(expected.len());
        assert!(rest.iter().all(|wc| wc.wr_id == UNTOUCHED));
        for (wc, (cqe, id)) in polled.iter().zip(expected) {
            let is_receive = cqe.opcode & OPCODE_RECV != 0;
            assert_eq!(
                (wc.wr_id, wc.qp_num, wc.byte_len),
                (id, cqe.qp_num.get(), cqe.byte_len)
            );
            assert_eq!(wc.status == ffi::IBV_WC_SUCCESS, cqe.status == 0);
            assert!(wc.status <= ffi::IBV_WC_GENERAL_ERR);
            assert_eq!(wc.opcode & ffi::IBV_WC_RECV != 0, is_receive, "{cqe:?}");
            assert!(self.delivered.insert(id), "{id} was delivered before");
        }
        positions
    }

    fn resize(&mut self, slots: u8, wrong: Option<i16>) -> Vec<(usize, usize)> {
        if self.completions.0.len() == RINGS {
            return Vec::new();
        }
        let layout = cq::ring_layout(2 << (slots % 5), 64).expect("a ring");
        let mut moved = None;
        let end = self.produced.wrapping_add_signed(wrong.unwrap_or(0).into());
        let resized = self.cq.ring().resize(layout, |ring| {
            moved = Some(ring);
            Ok(end)
        });
        resized.expect("memory for a ring");
        let ring = Memory::new(RingKind::Completion, moved.expect("a command"));
        self.completions.moved(ring, end);
        self.produced = 0;
        Vec::new()
    }

    fn grow_shared(&mut self, moves: bool) -> Vec<(usize, usize)> {
        let ring = self.srq.ring();
        let slots = 2 * ring.slots();
        if slots > 4 * SHARED_SLOTS {
            return Vec::new();
        }
        ring.prepare(slots).expect("memory for a ring");
        ring.moved(moves);
        Vec::new()
    }

    fn reset(&mut self, at: usize) -> Vec<(usize, usize)> {
        let owner = &mut self.owners[at];
        let marked = self.completions.clean(owner, &mut self.receives);
        owner.send.reset();
        owner.recv.iter_mut().for_each(Queue::reset);
        self.qps[at].changed(ffi::IBV_QPS_RESET);
        self.qps[at].changed(ffi::IBV_QPS_RTS);
        marked
    }

    /// Destroys a QP and creates another one with the same number.
    fn replace(&mut self, at: usize) -> Vec<(usize, usize)> {
        let marked = self.completions.clean(&self.owners[at], &mut self.receives);
        let qpn = self.owners[at].qpn;
        self.qps[at].destroyed();
        self.qps[at] = match at {
            0 => provider_testkit::qp(&self.shared, &self.cq, &CAP, qpn),
            _ => provider_testkit::qp_with_srq(&self.shared, &self.cq, &self.srq, qpn),
        };
        self.owners[at] = owner(&self.qps[at], qpn);
        marked
    }

    /// The device completes the oldest work request of a queue, if the CQ has room.
    fn complete(&mut self, queue: u8, fails: bool) -> Vec<(usize, usize)> {
        let last = self.completions.last();
        let unpolled = self.produced.wrapping_sub(last.next);
        if unpolled >= last.memory.layout.slots() {
            return Vec::new();
        }
        let at = usize::from(queue) % 4;
        let (qp, is_receive) = (at % 2, at >= 2);
        let owner = &mut self.owners[qp];
        let queue = match is_receive {
            false => Some(&mut owner.send),
            true => owner.recv.as_mut(),
        };
        let wr_id = match queue {
            Some(queue) if queue.done == queue.posted => return Vec::new(),
            Some(queue) => {
                queue.done = queue.done.wrapping_add(1);
                queue.done.wrapping_sub(1).into()
            }
            None if self.waiting.is_empty() => return Vec::new(),
            None => self.waiting.remove(0).into(),
        };
        self.push(&Cqe {
            wr_id,
            status: 5 * u8::from(fails),
            opcode: if is_receive { OPCODE_RECV } else { 2 },
            qp_num: [QPN, OTHER_QPN][qp],
            byte_len: 8,
            wc_flags: WcFlags::NONE,
            ..Cqe::default()
        })
    }

    /// Writes a CQE. Overwrites an unpolled CQE if the ring is full.
    fn push(&mut self, cqe: &Cqe) -> Vec<(usize, usize)> {
        let ring = self.completions.last().memory;
        let slot = ring.layout.slot(self.produced);
        ring.write(slot, &cqe.to_bytes());
        self.produced = self.produced.wrapping_add(1);
        let mut parts = self.publish();
        parts.push(ring.part(slot, Cqe::SIZE));
        parts
    }

    fn publish(&mut self) -> Vec<(usize, usize)> {
        let ring = self.completions.last().memory;
        ring.write(ring.layout.device(), &self.produced.to_le_bytes());
        vec![ring.part(ring.layout.device(), 4)]
    }
}

/// The model's state of a new QP.
fn owner(qp: &Qp, qpn: Qpn) -> Owner {
    let rings = qp.rings();
    Owner {
        qpn,
        send: Queue::new(&memory(&rings.send)),
        recv: rings
            .recv
            .as_ref()
            .map(|_| Queue::new(&memory(&rings.recv))),
    }
}
