// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues.

use std::collections::BTreeMap;

use dma::DmaView;
use parking_lot::Mutex;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::NotifyFlags;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::ib::{AsyncEvent, WcFlags};
use virtio_rdma_abi::ring::{ArmKind, ArmWord};
use virtio_rdma_ring::DeviceCq;

use crate::event::Source;
use crate::memory::{RingMem, RingView};
use crate::Device;

/// A completion queue.
///
/// Its lock comes after the locks of QPs and before that of an event queue.
#[derive(Debug)]
pub(crate) struct Cq {
    number: u32,
    /// Doorbell page that rings it.
    pub doorbell_page: u32,
    event_queue: u16,
    cookie: u64,
    cqe: u32,
    ring: RingMem,
    inner: Mutex<Inner>,
    /// QPs that use it, with how many of their queues.
    users: Mutex<BTreeMap<u32, u32>>,
}

#[derive(Debug)]
struct Inner {
    ring: DeviceCq,
    state: State,
    /// What a virtqueue is armed for, and how often an interrupt was sent: the arm word is made of them.
    armed: ArmKind,
    sequence: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    /// It overflowed or its ring made no sense: completions vanish.
    Dead,
    /// Its memory is not ours any more.
    Destroyed,
}

/// What a CQ is created with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqAttr {
    /// Doorbell page that rings it.
    pub doorbell_page: u32,
    /// Event queue of its completion events.
    pub event_queue: u16,
    /// Cookie of its events.
    pub cookie: u64,
    /// Buffers that the driver of a virtqueue makes available.
    pub cqe: u32,
}

impl Cq {
    /// A new CQ.
    pub(crate) fn new(number: u32, ring: RingMem, attr: CqAttr) -> Self {
        Self {
            number,
            doorbell_page: attr.doorbell_page,
            event_queue: attr.event_queue,
            cookie: attr.cookie,
            cqe: attr.cqe,
            inner: Mutex::new(Inner {
                ring: DeviceCq::new(ring.layout()),
                state: State::Live,
                armed: ArmKind::None,
                // 0 counts as answered.
                sequence: 1,
            }),
            ring,
            users: Mutex::default(),
        }
    }

    /// Its handle.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// A queue of QP `qpn` uses this CQ from now on.
    pub(crate) fn attach(&self, qpn: u32) {
        *self.users.lock().entry(qpn).or_default() += 1;
    }

    /// A queue of QP `qpn` does not use this CQ any more.
    pub(crate) fn detach(&self, qpn: u32) {
        let mut users = self.users.lock();
        if let Some(queues) = users.get_mut(&qpn) {
            *queues -= 1;
            if *queues == 0 {
                users.remove(&qpn);
            }
        }
    }

    /// Whether a QP uses this CQ.
    pub(crate) fn in_use(&self) -> bool {
        !self.users.lock().is_empty()
    }

    /// Delivers a completion. `solicited` is true for those that the sender marked so and for every error.
    pub(crate) fn complete(&self, device: &Device, view: &DmaView, cqe: &Cqe, solicited: bool) {
        let mut cqe = *cqe;
        if solicited && self.ring.as_virtqueue().is_some() {
            cqe.wc_flags = cqe.wc_flags | WcFlags::SOLICITED;
        }
        self.update(device, view, |inner, memory| {
            inner.ring.push(memory, &cqe.to_bytes(), solicited).is_ok()
        });
    }

    /// Arms a CQ that is a virtqueue: an interrupt for the next completion that the driver has not polled yet and that
    /// is of this kind.
    pub(crate) fn request_notify(&self, device: &Device, flags: NotifyFlags) {
        let Some(queue) = self.ring.as_virtqueue() else {
            return;
        };
        self.update(device, &device.space.enter(), |inner, memory| {
            // Another thread may sleep for any completion: its wish is not narrowed.
            if inner.armed != ArmKind::Next {
                inner.armed = match flags.contains(NotifyFlags::NEXT_COMPLETION) {
                    true => ArmKind::Next,
                    false => ArmKind::Solicited,
                };
            }
            let with_driver = self.cqe - u32::from(inner.ring.available(memory)).min(self.cqe);
            queue.arm(ArmWord {
                sequence: inner.sequence,
                kind: inner.armed,
                // No CQ has more entries than a u16 counts.
                index: inner.ring.used_index().wrapping_sub(with_driver as u16),
            });
            true
        });
    }

    /// The driver has reset the virtqueue that this CQ is: it is dead, and its memory is not ours any more.
    pub(crate) fn virtqueue_reset(&self, device: &Device) {
        if let Some(queue) = self.ring.as_virtqueue() {
            queue.retire();
        }
        self.update(device, &device.space.enter(), |_, _| false);
    }

    /// Answers the doorbell: the arm word may ask for an event that is due.
    pub(crate) fn doorbell(&self, device: &Device, view: &DmaView) {
        self.update(device, view, |_, _| true);
    }

    /// Makes `change`, publishes it and fires the event if it is due. Kills the CQ if `change` returns false.
    fn update(
        &self,
        device: &Device,
        view: &DmaView,
        change: impl FnOnce(&mut Inner, &RingView<'_>) -> bool,
    ) {
        let mut inner = self.inner.lock();
        if inner.state != State::Live {
            return;
        }
        let memory = RingView::new(&self.ring, view);
        let sound = change(&mut inner, &memory);
        // What was lost is not to be seen.
        if !memory.lost() && inner.ring.publish(&memory) {
            match self.ring.as_virtqueue() {
                None => {
                    device
                        .events()
                        .completion(self.event_queue, self.number, self.cookie);
                }
                Some(queue) => {
                    inner.armed = ArmKind::None;
                    inner.sequence = inner.sequence.wrapping_add(1) & ArmWord::SEQUENCE_MASK;
                    device.transport().interrupt(queue.number());
                }
            }
        }
        if !sound || memory.lost() {
            inner.state = State::Dead;
            device
                .events()
                .asynchronous(Source::Cq(self.number), AsyncEvent::CqErr, self.cookie);
            drop(inner);
            for qpn in self.users.lock().keys() {
                device.fail_qp(*qpn);
            }
        }
    }

    /// Ends the use of the ring's memory and forgets events that wait.
    pub(crate) fn destroy(&self, device: &Device) {
        self.inner.lock().state = State::Destroyed;
        device
            .events()
            .forget(self.event_queue, Source::Completions(self.number));
        device
            .events()
            .forget(FIRST_EVENT_QUEUE, Source::Cq(self.number));
    }
}
