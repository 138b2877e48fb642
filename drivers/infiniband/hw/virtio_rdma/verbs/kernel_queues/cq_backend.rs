// SPDX-License-Identifier: GPL-2.0

//! Where a CQ of the kernel lies.

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
        Claimable,
        CqVirtqueue,
        Element, //
    },
    virtio::Buffer, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// The slots of a CQ, and how the device gets at them.
pub(in crate::verbs) enum CqBackend {
    /// A ring in DMA memory.
    Ring {
        /// The memory.
        ring: Arc<KernelRing>,
        /// Its slots.
        queue: CompletionQueue,
    },
    /// A virtqueue of the transport.
    Virtqueue {
        /// The virtqueue.
        queue: Arc<CqVirtqueue>,
        /// CQEs that were taken out to look whether they are to be killed. There are none before
        /// `first`.
        held: KVec<Option<Element>>,
        /// Place of the oldest in `held`.
        first: usize,
        /// Whether elements were given back that the device was not told of.
        is_fresh: bool,
    },
}

/// The step that is left after a CQ was armed.
pub(super) enum AfterArm {
    /// Nothing: the device will see it.
    Nothing,
    /// Completions wait to be polled, and the caller wanted to know.
    Missed,
    /// The device has to be told.
    Tell {
        /// As above.
        missed: bool,
    },
    /// The event is due, and the device may not know.
    Fire,
}

/// Bytes of an element: those of a CQE in a cache line of its own.
const ELEMENT_SIZE: usize = 1 << CQ_SLOT_SHIFT;

impl CqBackend {
    /// The CQ in `ring`, which the device does not know yet.
    pub(in crate::verbs) fn ring(ring: Arc<KernelRing>) -> Self {
        let queue = CompletionQueue::new(*ring.layout());
        Self::Ring { ring, queue }
    }

    /// The CQ in a virtqueue, which is filled with `entries` elements.
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

    /// Number of CQEs that there is room for.
    pub(super) fn slots(&self) -> usize {
        match self {
            // LOSSLESS: an address has more bits.
            Self::Ring { ring, .. } => ring.layout().slots() as usize,
            Self::Virtqueue { held, .. } => held.capacity(),
        }
    }

    /// Takes the oldest CQE, if there is one, into `cqe`.
    ///
    /// # Errors
    ///
    /// `EIO` if the device broke the queue's rules.
    // Returned, the CQE would be taken apart and put together again.
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

    /// Lets the device use the slots of what was taken, once a batch.
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

    /// Overwrites the CQEs of QP `qpn` that were not taken with some that name no QP, and passes
    /// those of a ring to `visit` before.
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

    /// Asks the device for an event, which is not needed where `is_armed` says that it was asked
    /// for as much before.
    pub(super) fn arm(&mut self, kind: ArmKind, is_armed: bool, report_missed: bool) -> AfterArm {
        match self {
            Self::Ring { ring, queue } => match queue.arm(&**ring, kind, report_missed) {
                Armed::Waiting => AfterArm::Nothing,
                Armed::Missed => AfterArm::Missed,
                Armed::RingDoorbell => AfterArm::Tell { missed: false },
            },
            Self::Virtqueue { queue, held, .. } => {
                let missed = report_missed && (!held.is_empty() || !queue.elements().enable_cb());
                // The device takes these for unpolled, but its interrupt would find the virtqueue
                // empty.
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

    /// Whether the event that was asked for is due when `cqe` was taken.
    ///
    /// The interrupt of a virtqueue is dropped if it finds no element that was used, so nobody else
    /// may tell the consumer.
    #[inline]
    pub(super) fn is_due(&self, cqe: &Cqe, kind: ArmKind) -> bool {
        match self {
            Self::Ring { .. } => false,
            Self::Virtqueue { .. } => qualifies(cqe, kind),
        }
    }

    /// The event came.
    pub(super) fn event_received(&mut self) {
        match self {
            Self::Ring { ring, queue } => queue.event_received(&**ring),
            Self::Virtqueue { .. } => (),
        }
    }
}

/// Whether a completion is one that is waited for.
#[inline]
fn qualifies(cqe: &Cqe, kind: ArmKind) -> bool {
    match kind {
        ArmKind::None => false,
        ArmKind::Next => true,
        ArmKind::Solicited => cqe.wc_flags.contains(WcFlags::SOLICITED),
    }
}

/// Takes the oldest CQE out of a virtqueue: one of those in `held` from `first` on, or a new one.
// Inlined, it would have polls of rings take their CQEs apart.
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
    give_back(queue, element)?;
    Ok(true)
}

/// Takes an element out that the device used.
#[inline]
fn pop(queue: &CqVirtqueue) -> Result<Option<Element>> {
    match queue.elements().get_buf() {
        Some((element, written)) if written >= Cqe::SIZE => Ok(Some(element)),
        Some(_) => Err(EIO),
        None => Ok(None),
    }
}

/// The CQE in an element.
#[inline]
fn cqe_of(element: &Element) -> Cqe {
    // There is room for one in each.
    Cqe::decode(element.writable()).unwrap_or_default()
}

/// Lets the device use an element again.
#[inline]
fn give_back(queue: &CqVirtqueue, element: Element) -> Result {
    let kept = queue.elements().add_or_keep(element);
    kept.map_err(|(error, _)| error)
}

/// Takes all CQEs out, keeps in `held`, which has room for them, those that are not of QP `qpn`,
/// and gives the others back.
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
    // Completions that were held before close ranks.
    let mut kept = 0;
    for index in *first..held.len() {
        if is_killed(&held[index]) {
            if let Some(element) = held[index].take() {
                give_back(queue, element)?;
            }
        } else {
            held.swap(kept, index);
            kept += 1;
        }
    }
    held.truncate(kept);
    *first = 0;
    // All that there are of the QP are among as many as there are elements, however many follow
    // meanwhile.
    for _ in 0..held.capacity() {
        let element = pop(queue)?;
        if element.is_none() {
            break;
        }
        if is_killed(&element) {
            if let Some(element) = element {
                give_back(queue, element)?;
            }
        } else if held.push_within_capacity(element).is_err() {
            // More CQEs than there are elements.
            return Err(EIO);
        }
    }
    Ok(())
}
