// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The driver's handling of CQEs for work queues and an SRQ with outstanding work requests.

use arbitrary::{Arbitrary, Result, Unstructured};
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::{WcFlags, WcStatus};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::DoorbellKind;
use virtio_rdma_decode::completion::{
    split_wr_id, srq_slot, wr_id, CheckedCqe, InvalidCqe, Operation, PostedWr, Service,
};
use virtio_rdma_ring::{SharedSlots, WorkSlots};

/// Number of slots of a queue.
const SLOTS: u32 = 8;
/// Number of entries of the P_Key table.
const PKEYS: u16 = 2;

/// A work queue of the driver, and the test's record of its work requests.
struct Queue {
    qpn: Qpn,
    kind: DoorbellKind,
    service: Service,
    is_process: bool,
    slots: WorkSlots,
    /// Position and length of each outstanding work request.
    outstanding: Vec<(u32, u32)>,
}

/// A step of the kernel client that posts work requests, or of the device.
#[derive(Arbitrary, Debug)]
enum Act {
    /// Posts a work request of this length to a queue, or to the SRQ.
    Post(u8, u16),
    /// Completes a work request, given by its queue and its distance from the oldest one. `Told`
    /// has the other fields of the CQE.
    Complete(u8, u8, Told),
    /// Writes a CQE of random bytes.
    Scribble([u8; 38]),
}

/// Fields of a CQE, mostly with valid values.
#[derive(Arbitrary, Debug)]
struct Told {
    status: u8,
    opcode: u8,
    byte_len: u16,
    flags: u8,
    value: u16,
    pkey_index: u8,
    sl: u8,
    wrong_number: bool,
}

impl Told {
    fn cqe(&self, wr_id: u64, qpn: Qpn) -> Cqe {
        Cqe {
            wr_id,
            // The majority of work requests succeed.
            status: self.status.saturating_sub(200),
            opcode: match self.opcode {
                opcode @ 0..=0x3f => opcode,
                opcode => 0x80 | opcode & 3,
            },
            vendor_err: self.value.into(),
            byte_len: self.byte_len.into(),
            qp_num: Qpn::new(qpn.get() ^ u32::from(self.wrong_number)),
            wc_flags: WcFlags(self.flags.into()),
            pkey_index: (self.pkey_index & 3).into(),
            sl: self.sl & 31,
            ..Cqe::default()
        }
    }
}

/// QPN of the QP that uses the SRQ.
const SRQ_USER: Qpn = Qpn::new(9);

/// Runs the steps of an input.
pub fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let mut queues: Vec<Queue> = Vec::new();
    for (place, service) in [Service::Reliable, Service::Unreliable, Service::Datagram]
        .into_iter()
        .flat_map(|service| [service, service])
        .enumerate()
    {
        queues.push(Queue {
            qpn: Qpn::new(2 + place as u32 / 2),
            kind: [DoorbellKind::Sq, DoorbellKind::Rq][place % 2],
            service,
            is_process: input.arbitrary()?,
            slots: WorkSlots::new(SLOTS),
            outstanding: Vec::new(),
        });
    }
    let mut srq = SharedSlots::new(vec![0; SLOTS as usize]);
    let mut shared: Vec<(u16, u32)> = Vec::new();
    while !input.is_empty() {
        let place = |place: u8| usize::from(place) % 7;
        let cqe = match input.arbitrary()? {
            Act::Post(at, length) => {
                let length = length.into();
                match queues.get_mut(place(at)) {
                    Some(queue) => {
                        let position = queue.slots.reserve();
                        let is_full = queue.outstanding.len() == SLOTS as usize;
                        assert_eq!(position.is_none(), is_full, "a slot for each");
                        queue.outstanding.extend(position.map(|at| (at, length)));
                        queue.slots.publish();
                    }
                    None => {
                        let slot = srq.reserve();
                        assert_eq!(slot.is_none(), shared.len() == SLOTS as usize);
                        shared.extend(slot.map(|slot| (slot, length)));
                    }
                }
                continue;
            }
            Act::Complete(at, ahead, told) => match queues.get(place(at)) {
                Some(queue) => {
                    let oldest = queue.outstanding.first().map_or(0, |work| work.0);
                    let position = oldest.wrapping_add((ahead & 15).into());
                    told.cqe(wr_id(place(at) as u32, position), queue.qpn)
                }
                None => told.cqe((ahead & 15).into(), SRQ_USER),
            },
            Act::Scribble(bytes) => Cqe::from_bytes(&bytes),
        };
        if take(&cqe, &mut queues, &mut srq, &mut shared).is_err() {
            // An invalid CQE breaks the CQ.
            return Ok(());
        }
    }
    Ok(())
}

/// Handles a CQE in the same way as the driver does.
fn take(
    cqe: &Cqe,
    queues: &mut [Queue],
    srq: &mut SharedSlots<Vec<u16>>,
    shared: &mut Vec<(u16, u32)>,
) -> std::result::Result<(), InvalidCqe> {
    if cqe.is_receive() && cqe.qp_num == SRQ_USER {
        let slot = srq_slot(cqe.wr_id)?;
        let posted = shared.iter().position(|work| work.0 == slot);
        assert_eq!(srq.complete(slot).is_ok(), posted.is_some(), "once each");
        let (_, length) = shared.swap_remove(posted.ok_or(InvalidCqe)?);
        let wr = PostedWr {
            kind: DoorbellKind::Rq,
            service: Service::Reliable,
            is_process: false,
            length,
            pkeys: PKEYS,
        };
        is_true(cqe, &wr, wr.check(cqe)?);
        return Ok(());
    }
    let (place, position) = split_wr_id(cqe.wr_id);
    let queue = queues.get_mut(place).ok_or(InvalidCqe)?;
    if queue.qpn != cqe.qp_num {
        return Err(InvalidCqe);
    }
    let posted = queue.outstanding.iter().position(|work| work.0 == position);
    assert_eq!(
        queue.slots.complete(position).is_ok(),
        posted.is_some(),
        "once each"
    );
    let posted = posted.ok_or(InvalidCqe)?;
    let wr = PostedWr {
        kind: queue.kind,
        service: queue.service,
        is_process: queue.is_process,
        length: queue.outstanding[posted].1,
        pkeys: PKEYS,
    };
    // The CQE completes earlier work requests too.
    queue.outstanding.drain(..=posted);
    is_true(cqe, &wr, wr.check(cqe)?);
    assert_eq!(cqe.is_receive(), wr.kind == DoorbellKind::Rq);
    Ok(())
}

/// Asserts that a completion stays within the length that its client has posted, and refers to no
/// entry beyond the end of a table.
fn is_true(cqe: &Cqe, wr: &PostedWr, checked: CheckedCqe<'_>) {
    let operation = checked.operation();
    let (immediate, invalidated) = (checked.immediate(), checked.invalidated());
    let is_write = operation == Operation::RecvRdmaWithImm;
    let is_bounded = !is_write || !wr.is_process;
    assert!(
        !is_bounded || checked.byte_len() <= wr.length,
        "{cqe:?} {wr:?}"
    );
    assert_eq!(checked.status(), cqe.status);
    if checked.status() != WcStatus::Success.value() {
        assert_eq!(checked.byte_len(), 0);
        assert_eq!((immediate, invalidated), (None, None));
        assert!(checked.datagram().is_none());
        return;
    }
    let is_received = operation == Operation::Recv || is_write;
    let has_extra = immediate.is_some() || invalidated.is_some();
    assert!(is_received || !has_extra, "{cqe:?}");
    assert!(!is_write || immediate.is_some(), "{cqe:?}");
    let is_datagram = is_received && wr.service == Service::Datagram;
    assert_eq!(checked.datagram().is_some(), is_datagram);
    if invalidated.is_some() {
        assert_eq!((wr.service, immediate), (Service::Reliable, None));
    }
    if let Some(source) = checked.datagram() {
        assert!(
            checked.byte_len() >= 40 && source.pkey_index < wr.pkeys,
            "{cqe:?}"
        );
        assert!(
            source.priority() < 16 && source.vlan().is_none_or(|vlan| vlan < 4095),
            "{cqe:?}"
        );
    }
}
