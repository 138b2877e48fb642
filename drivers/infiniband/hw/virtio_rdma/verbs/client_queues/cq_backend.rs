// SPDX-License-Identifier: GPL-2.0

//! The memory of a CQ of the kernel: a ring, or in virtqueue mode a virtqueue.

use super::ring::KernelRing;
use crate::{
    abi::{
        cqe::{
            Cqe,
            CQ_SLOT_SHIFT, //
        },
        ib::WcFlags,
        number::Qpn,
        ring::ArmKind, //
    },
    ring::{
        Armed,
        CompletionQueue, //
    },
    transport::{
        CqVirtqueue,
        Element,
        Leasable, //
    },
    virtio::Buffer, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The memory of a CQ and its positions.
pub(in crate::verbs) enum CqBackend {
    /// A ring in DMA memory.
    Ring {
        /// The memory.
        ring: Arc<KernelRing>,
        /// Positions of the consumer.
        queue: CompletionQueue,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        queue: Arc<CqVirtqueue>,
        /// CQEs of other QPs that were taken out of the virtqueue during the search for the CQEs of
        /// a destroyed QP. Entries before `first` are empty.
        held: KVec<Option<Element>>,
        /// Index of the oldest CQE in `held`.
        first: usize,
        /// Whether elements were given back to the device since it was notified last.
        is_fresh: bool,
    },
}

/// The step that remains after a CQ was armed.
pub(super) enum AfterArm {
    /// No step is left: the device will see the request.
    Nothing,
    /// The caller requested a report of missed completions, and some completions wait to be polled.
    Missed,
    /// The device has to be notified of the request.
    Tell {
        /// Whether completions wait to be polled.
        missed: bool,
    },
    /// The consumer has to be woken: the event is due, but the device may not report it.
    Fire,
}

/// Bytes of a virtqueue element: one CQE, alone in a cache line.
const ELEMENT_SIZE: usize = 1 << CQ_SLOT_SHIFT;

impl CqBackend {
    /// A CQ in `ring`, before it is created on the device.
    pub(in crate::verbs) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = CompletionQueue::new(*ring.layout());
        Self::Ring { ring, queue }
    }

    /// A CQ in a virtqueue, to which `entries` elements are added.
    pub(in crate::verbs) fn virtqueue(queue: Arc<CqVirtqueue>, entries: usize) -> Result<Self> {
        let held = KVec::with_capacity(entries, GFP_KERNEL)?;
        for _ in 0..entries {
            let element = Buffer::new(0, ELEMENT_SIZE, (), GFP_KERNEL)?;
            let added = queue.elements().add(element);
            added.map_err(|(error, _)| error)?;
        }
        queue.elements().kick();
        Ok(Self::Virtqueue {
            queue,
            held,
            first: 0,
            is_fresh: false,
        })
    }

    /// Number of CQEs that the memory can hold.
    pub(super) fn slots(&self) -> usize {
        match self {
            // LOSSLESS: `usize` has at least 32 bits.
            Self::Ring { ring, .. } => ring.layout().slots() as usize,
            Self::Virtqueue { held, .. } => held.capacity(),
        }
    }

    /// Moves the oldest CQE into `cqe`. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// `EIO` if the device broke the queue's rules.
    // `cqe` is an out parameter, since the compiler would split a returned CQE into its fields and
    // join them again.
    #[inline]
    pub(super) fn take(&mut self, cqe: &mut Cqe) -> Result<bool> {
        match self {
            Self::Ring { ring, queue } => {
                let position = queue.take(&**ring).map_err(|_| EIO)?;
                let Some(position) = position else {
                    return Ok(false);
                };
                *cqe = Cqe::from_bytes(&ring.read_slot(position));
                Ok(true)
            }
            Self::Virtqueue {
                queue,
                held,
                first,
                is_fresh,
            } => {
                let is_taken = take_element(queue, held, first, cqe)?;
                *is_fresh |= is_taken;
                Ok(is_taken)
            }
        }
    }

    /// Gives the slots of all taken CQEs back to the device. Called once for each batch.
    #[inline]
    pub(super) fn publish(&mut self) {
        match self {
            Self::Ring { ring, queue } => queue.publish(&**ring),
            Self::Virtqueue {
                queue, is_fresh, ..
            } => {
                if take(is_fresh) {
                    queue.elements().kick();
                }
            }
        }
    }

    /// Invalidates the CQEs of QP `qpn` that were not taken. In a ring, passes each CQE to `visit`
    /// and then overwrites its QP number; in a virtqueue, removes the CQEs.
    ///
    /// # Errors
    ///
    /// `EIO` if the device broke the queue's rules.
    pub(super) fn kill(&mut self, qpn: Qpn, mut visit: impl FnMut(&Cqe)) -> Result {
        match self {
            Self::Ring { ring, queue } => {
                let ring = &**ring;
                let visited = queue.for_each_unpolled(ring, |position| {
                    let mut cqe = Cqe::from_bytes(&ring.read_slot(position));
                    if cqe.qp_num == qpn {
                        visit(&cqe);
                        cqe.qp_num = Qpn::NONE;
                        ring.slot(position).put(0, &cqe.to_bytes());
                    }
                });
                visited.map_err(|_| EIO)
            }
            Self::Virtqueue {
                queue,
                held,
                first,
                is_fresh,
            } => {
                *is_fresh = true;
                kill(queue, held, first, qpn)
            }
        }
    }

    /// Requests an event of the device. If `is_armed`, an earlier request is still pending and
    /// includes this request.
    pub(super) fn arm(&mut self, kind: ArmKind, is_armed: bool, report_missed: bool) -> AfterArm {
        match self {
            Self::Ring { ring, queue } => match queue.arm(&**ring, kind, report_missed) {
                Armed::Waiting => AfterArm::Nothing,
                Armed::Missed => AfterArm::Missed,
                Armed::RingDoorbell => AfterArm::Tell { missed: false },
            },
            Self::Virtqueue { queue, held, .. } => {
                let missed = report_missed && (!held.is_empty() || !queue.elements().enable_cb());
                // The device would report an event for the CQEs in `held`, since they are not
                // polled yet. But the driver would then ignore the interrupt, since the virtqueue
                // is empty.
                if held
                    .iter()
                    .flatten()
                    .any(|element| qualifies(&cqe_of(element), kind))
                {
                    AfterArm::Fire
                } else if !is_armed {
                    AfterArm::Tell { missed }
                } else if missed {
                    AfterArm::Missed
                } else {
                    AfterArm::Nothing
                }
            }
        }
    }

    /// Whether taking `cqe` makes the requested event due.
    ///
    /// The virtio core drops an interrupt that finds no used element in the virtqueue. If a poll
    /// takes the element first, the poll has to wake the consumer.
    #[inline]
    pub(super) fn is_due(&self, cqe: &Cqe, kind: ArmKind) -> bool {
        match self {
            Self::Ring { .. } => false,
            Self::Virtqueue { .. } => qualifies(cqe, kind),
        }
    }

    /// Positions of the producer and of the consumer. A virtqueue has no positions.
    pub(super) fn positions(&self) -> Option<(u32, u32)> {
        match self {
            Self::Ring { ring, queue } => Some(queue.positions(&**ring)),
            Self::Virtqueue { .. } => None,
        }
    }

    /// Records that the device reported the event.
    pub(super) fn event_received(&mut self) {
        match self {
            Self::Ring { ring, queue } => queue.event_received(&**ring),
            Self::Virtqueue { .. } => (),
        }
    }
}

/// Whether `cqe` satisfies a request for an event of this kind.
#[inline]
fn qualifies(cqe: &Cqe, kind: ArmKind) -> bool {
    match kind {
        ArmKind::None => false,
        ArmKind::Next => true,
        ArmKind::Solicited => cqe.wc_flags.contains(WcFlags::SOLICITED),
    }
}

/// Takes the oldest CQE of a virtqueue: from `held`, beginning at `first`, else from the virtqueue.
// Not inlined: otherwise the compiler would split CQEs into their fields in polls of rings too.
#[inline(never)]
fn take_element(
    queue: &CqVirtqueue,
    held: &mut KVec<Option<Element>>,
    first: &mut usize,
    cqe: &mut Cqe,
) -> Result<bool> {
    let mut next = held.get_mut(*first).and_then(Option::take);
    if next.is_none() {
        next = pop(queue)?;
    } else {
        *first += 1;
        if *first == held.len() {
            held.clear();
            *first = 0;
        }
    }
    let Some(element) = next else {
        return Ok(false);
    };
    *cqe = cqe_of(&element);
    give_back(queue, element);
    Ok(true)
}

/// Takes a used element out of the virtqueue.
#[inline]
fn pop(queue: &CqVirtqueue) -> Result<Option<Element>> {
    match queue.elements().get_buf() {
        Some((element, written)) if written >= Cqe::SIZE => Ok(Some(element)),
        Some(_) => Err(EIO),
        None => Ok(None),
    }
}

#[inline]
fn cqe_of(element: &Element) -> Cqe {
    // Never fails: each element has room for a CQE.
    Cqe::decode(element.writable()).unwrap_or_default()
}

/// Gives an element back to the device.
#[inline]
fn give_back(queue: &CqVirtqueue, element: Element) {
    // Fails only for a virtqueue that is broken, for example since the device is gone. No element
    // is of use to such a device, but the CQE that was in this one is valid.
    let _ = queue.elements().add_or_keep(element);
}

/// Takes out all CQEs. Gives the CQEs of QP `qpn` back to the device, and keeps the other CQEs in
/// `held`, which has room for all CQEs.
fn kill(
    queue: &CqVirtqueue,
    held: &mut KVec<Option<Element>>,
    first: &mut usize,
    qpn: Qpn,
) -> Result {
    let is_killed = |element: &Option<Element>| {
        element
            .as_ref()
            .is_some_and(|element| cqe_of(element).qp_num == qpn)
    };
    // The CQEs that stay in `held` move to its start.
    let mut kept = 0;
    for index in *first..held.len() {
        if is_killed(&held[index]) {
            if let Some(element) = held[index].take() {
                give_back(queue, element);
            }
        } else {
            held.swap(kept, index);
            kept += 1;
        }
    }
    held.truncate(kept);
    *first = 0;
    // The CQEs of the destroyed QP are among the next `capacity` used elements, since the virtqueue
    // has no more elements. The device may add other CQEs meanwhile.
    for _ in 0..held.capacity() {
        let element = pop(queue)?;
        if element.is_none() {
            break;
        }
        if is_killed(&element) {
            if let Some(element) = element {
                give_back(queue, element);
            }
        } else if held.push_within_capacity(element).is_err() {
            // The device wrote more CQEs than there are elements.
            return Err(EIO);
        }
    }
    Ok(())
}
