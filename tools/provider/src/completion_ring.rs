// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! A completion queue: its ring, and the QPs that complete to it.
//!
//! Polling runs under the lock of the CQ. A batch of extended polling keeps this lock between
//! calls, so control verbs do not wait for it:
//!
//! - The arm word has a lock of its own.
//! - QPs are in a [table](Table) that polling reads without a lock.
//! - Work on completions is [deferred](Deferred) to the holder of the CQ's lock. The control verb
//!   takes the lock and does the work itself unless a batch has the lock.
//!
//! Lock order: `control`, the CQ's lock (`state`), the lock of `deferred`, the lock of an SRQ. The
//! lock of `arming` is a leaf.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::mem::replace;
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::cqe::CQ_SLOT_SHIFT;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::ArmKind;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::SLOT_SHIFT_RANGE;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_ring::Arm;
use virtio_rdma_ring::Armed;
use virtio_rdma_ring::CompletionConsumer;
use virtio_rdma_ring::RingError;

use crate::allocation::boxed;
use crate::allocators::Lender;
use crate::arc::Arc;
use crate::completion::is_receive;
use crate::completion::work_completion;
use crate::deferred::Deferred;
use crate::errno;
use crate::ffi;
use crate::lock::Guard;
use crate::lock::Lock;
use crate::memory::PlannedRing;
use crate::memory::RingMap;
use crate::memory::RingSlot;
use crate::memory::Unchecked;
use crate::pd::Domain;
use crate::shared_ring::SharedRing;
use crate::table::Table;
use crate::work_ring::WorkRing;

// The send queue is used most, so it is the first member and has the structure's address.
#[repr(C)]
pub struct QpRings {
    /// Send queue, if the QP has one.
    pub send: Option<WorkRing>,
    /// Receive queue, if the QP has one.
    pub recv: Option<WorkRing>,
    /// The SRQ that replaces the receive queue, if there is one.
    pub shared: Option<Arc<SharedRing>>,
}

impl QpRings {
    /// Completes the work request of `cqe`. Returns the application's id, or `None` if there is no
    /// such work request.
    #[inline]
    fn complete(&self, cqe: &Cqe) -> Option<u64> {
        if is_receive(cqe) {
            return self.complete_receive(cqe.wr_id);
        }
        self.send.as_ref()?.complete(cqe.wr_id)
    }

    #[inline]
    fn complete_receive(&self, id: u64) -> Option<u64> {
        match &self.shared {
            None => self.recv.as_ref()?.complete(id),
            Some(shared) => shared.complete(id),
        }
    }

    /// Completes the work request of the CQE in `slot` and writes its work completion to `place`.
    /// Returns whether there is such a work request.
    #[inline(always)]
    fn deliver(&self, slot: RingSlot<'_>, place: &mut MaybeUninit<ffi::ibv_wc>) -> bool {
        let cqe = Cqe::from_bytes(&slot.read());
        if is_receive(&cqe) {
            return self.deliver_receive(slot, place);
        }
        let Some(wr_id) = self.send.as_ref().and_then(|send| send.complete(cqe.wr_id)) else {
            return false;
        };
        // The slot is read again, since the compiler could not keep all its fields in registers
        // until here.
        place.write(work_completion(&Cqe::from_bytes(&slot.read()), wr_id));
        true
    }

    /// [Delivers](Self::deliver) the CQE of a receive.
    // Not inlined: otherwise each poll of sends would save registers for the lock of an SRQ.
    #[inline(never)]
    fn deliver_receive(&self, slot: RingSlot<'_>, place: &mut MaybeUninit<ffi::ibv_wc>) -> bool {
        let cqe = Cqe::from_bytes(&slot.read());
        let Some(wr_id) = self.complete_receive(cqe.wr_id) else {
            return false;
        };
        place.write(work_completion(&cqe, wr_id));
        true
    }
}

/// A ring of a CQ, to which the device writes completions.
pub struct Ring {
    map: RingMap,
    /// The producer's position that was seen last, by polling or at an event. Races can leave an
    /// older value; its only cost is a spurious event.
    seen: AtomicU32,
}

impl Ring {
    /// An empty ring in zeroed memory, and its consumer.
    fn new(map: RingMap) -> io::Result<(Arc<Self>, CompletionConsumer)> {
        let queue = CompletionConsumer::new(*map.layout());
        let seen = AtomicU32::new(0);
        Ok((Arc::try_new(Self { map, seen })?, queue))
    }

    /// The mapping of the ring.
    pub fn map(&self) -> &RingMap {
        &self.map
    }

    #[inline(always)]
    fn unchecked(&self) -> &Unchecked {
        // SAFETY: this function is private, and its callers pass the result to the ring's own
        // consumer, or to `Arm` with the ring's layout.
        unsafe { self.map.unchecked() }
    }

    /// The producer's current position.
    fn produced(&self) -> u32 {
        CompletionConsumer::produced(self.map.layout(), self.unchecked())
    }

    #[inline(always)]
    fn slot(&self, position: u32) -> RingSlot<'_> {
        self.map.smallest_slot(position)
    }

    fn cqe(&self, position: u32) -> Cqe {
        Cqe::from_bytes(&self.slot(position).read())
    }
}

/// A ring that the device has moved to. The ring before it may still have unpolled completions.
struct Newer {
    ring: Arc<Ring>,
    queue: CompletionConsumer,
    /// The producer's position at which the previous ring ends.
    end: u32,
    /// The ring that the device has moved to after this ring.
    next: Option<Box<Newer>>,
}

/// The ring of a completion queue.
pub struct CompletionRing {
    state: Lock<State>,
    /// QPs whose completions are delivered. A CQE of any other QP belongs to a destroyed QP.
    ///
    /// A QP is in the table only if the rings hold no completion of an earlier QP with the same
    /// number. `Arc`s that are taken out of the table are dropped by the holder of the lock of
    /// `state` only, so a reference into the table is valid while the lock is held.
    qps: Table<QpRings>,
    deferred: Deferred<Message>,
    arming: Lock<Arming>,
    /// The ring to which the device writes completions. The lock is held during a resize,
    /// including its system call.
    control: Mutex<Arc<Ring>>,
    /// Allocates the rings of later resizes.
    lender: Option<Lender>,
}

/// The state of polling.
struct State {
    ring: Arc<Ring>,
    queue: CompletionConsumer,
    /// The rings to poll once `ring` is empty. `deferred` is busy while there is such a ring.
    newer: Option<Box<Newer>>,
    /// The CQE that extended polling has delivered last.
    current: Cqe,
}

/// The state of arming.
struct Arming {
    ring: Arc<Ring>,
    arm: Arm,
}

/// A request of a control verb to the holder of the lock.
enum Message {
    /// Drop the completions of QP `qpn` before position `end`, and free their slots in its SRQ.
    Clean {
        qpn: Qpn,
        end: u32,
        rings: Arc<QpRings>,
        /// Whether to deliver the completions from `end` on. If so, the QP returns to the table.
        is_alive: bool,
    },
    /// The device has moved to another ring.
    Moved(Box<Newer>),
    /// Values of an applied message that are still to be dropped.
    Done(Option<Arc<QpRings>>, Option<Arc<Ring>>),
}

impl Message {
    /// Whether the message is for QP `other`.
    fn is_of(&self, other: Qpn) -> bool {
        matches!(self, Self::Clean { qpn, .. } if *qpn == other)
    }

    /// The number and the rings of the QP that the message puts into the table, if any.
    fn entrant(&self) -> Option<(Qpn, &Arc<QpRings>)> {
        match self {
            Self::Clean {
                qpn,
                rings,
                is_alive: true,
                ..
            } => Some((*qpn, rings)),
            _ => None,
        }
    }
}

/// Removes the message that would put QP `qpn` into the table, if there is one and `are_right`
/// accepts its rings. Returns the rings. The caller queues a message that replaces it.
fn withdraw(
    messages: &mut VecDeque<Message>,
    qpn: Qpn,
    are_right: impl Fn(&Arc<QpRings>) -> bool,
) -> Option<Arc<QpRings>> {
    let enters = |message: &Message| {
        let entrant = message.entrant();
        entrant.is_some_and(|(entering, rings)| entering == qpn && are_right(rings))
    };
    let index = messages.iter().position(enters)?;
    match messages.remove(index) {
        Some(Message::Clean { rings, .. }) => Some(rings),
        _ => None,
    }
}

/// Why polling can't continue with the present ring.
enum Stop {
    /// The ring is empty.
    Empty,
    /// The ring has nothing to deliver, and there is deferred work.
    Attend,
    /// The QP of the ring's next completion is not in the table, and there is deferred work.
    Missing,
    /// The ring's producer position is impossible.
    Error(RingError),
}

impl State {
    #[inline]
    fn publish(&mut self) {
        self.queue.publish(self.ring.unchecked());
    }

    /// Drops the completions of a QP: all completions in earlier rings, and the completions before
    /// `end` in the last ring.
    fn clean(&self, qpn: Qpn, end: u32, rings: &QpRings) {
        let (mut ring, mut queue) = (&self.ring, &self.queue);
        let mut newer = &self.newer;
        while let Some(next) = newer {
            clean(ring, queue, next.end, qpn, rings);
            (ring, queue, newer) = (&next.ring, &next.queue, &next.next);
        }
        clean(ring, queue, end, qpn, rings);
    }

    /// Switches to the next ring and returns the present one, which is empty.
    fn go_on(&mut self) -> Option<Arc<Ring>> {
        let next = *self.newer.take()?;
        self.queue = next.queue;
        self.newer = next.next;
        Some(replace(&mut self.ring, next.ring))
    }
}

/// Drops the unpolled completions of a QP before `end`, and frees their slots in its SRQ.
fn clean(ring: &Ring, queue: &CompletionConsumer, end: u32, qpn: Qpn, rings: &QpRings) {
    queue.for_each_before(end, |position| {
        let cqe = ring.cqe(position);
        if cqe.qp_num != qpn {
            return;
        }
        if let (true, Some(shared)) = (is_receive(&cqe), &rings.shared) {
            shared.complete(cqe.wr_id);
        }
        let dead = Cqe {
            qp_num: NO_QP,
            ..cqe
        };
        const { assert!(Cqe::SIZE <= 1 << CQ_SLOT_SHIFT) };
        // SAFETY: the slots of a CQ have room for a CQE.
        unsafe { ring.slot(position).write(0, &dead.to_bytes()) };
    });
}

// CQ slots have the smallest size of all, so the address of a slot is computed with a constant
// shift.
const _: () = assert!(CQ_SLOT_SHIFT == *SLOT_SHIFT_RANGE.start());

/// Marks a CQE that must not be delivered: no QP has this number.
const NO_QP: Qpn = Qpn::NONE;

impl CompletionRing {
    /// A new queue in `map`, whose bytes are all zero.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(map: RingMap, domain: &Domain) -> io::Result<Arc<Self>> {
        let (ring, queue) = Ring::new(map)?;
        let arming = Arming {
            ring: ring.clone(),
            arm: Arm::new(),
        };
        let state = State {
            ring: ring.clone(),
            queue,
            newer: None,
            current: Cqe::default(),
        };
        Arc::try_new(Self {
            state: Lock::new(state, domain.threads),
            qps: Table::new(),
            deferred: Deferred::new(),
            arming: Lock::new(arming, domain.threads),
            control: Mutex::new(ring),
            lender: domain.lender.clone(),
        })
    }

    /// The ring to which the device writes completions. It stays the same until the guard is
    /// dropped.
    fn control(&self) -> MutexGuard<'_, Arc<Ring>> {
        // The pointer is replaced in one step, so a panic leaves it valid.
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring to which the device writes completions.
    pub fn ring(&self) -> Arc<Ring> {
        self.control().clone()
    }

    /// The addresses of the ring in this process.
    pub fn user_ring(&self) -> UserRing {
        self.control().map.user_ring()
    }

    /// Takes the next CQE of `ring` whose QP is in the table. Returns the QP's rings and the CQE's
    /// slot.
    ///
    /// # Errors
    ///
    /// The reason why `ring` has no such CQE.
    ///
    /// # Safety
    ///
    /// This thread has the lock, and `queue` is the consumer of `ring`.
    #[inline(always)]
    unsafe fn take<'a>(
        &'a self,
        ring: &'a Ring,
        queue: &mut CompletionConsumer,
    ) -> Result<(&'a QpRings, RingSlot<'a>), Stop> {
        loop {
            let slot = ring.slot(queue.next());
            let show = |produced| ring.seen.store(produced, Ordering::Relaxed);
            match queue.peek(ring.unchecked(), show) {
                Ok(Some(_)) => (),
                nothing => return Err(self.stop(nothing.err())),
            }
            let cqe = Cqe::from_bytes(&slot.read());
            // SAFETY: this thread has the lock, so no other thread drops an `Arc` of the table.
            let qp = unsafe { self.qps.get(cqe.qp_num) };
            let Some(qp) = qp else {
                // `is_pending` was set before the QP was taken out of the table.
                if cqe.qp_num != NO_QP && self.deferred.is_pending() {
                    return Err(Stop::Missing);
                }
                queue.advance();
                continue;
            };
            queue.advance();
            return Ok((qp, slot));
        }
    }

    /// The next completion of `ring`, with the application's id of its work request.
    ///
    /// # Errors
    ///
    /// The reason why `ring` has no next completion.
    ///
    /// # Safety
    ///
    /// The same as for [`take`](Self::take).
    #[inline(always)]
    unsafe fn next(&self, ring: &Ring, queue: &mut CompletionConsumer) -> Result<(Cqe, u64), Stop> {
        loop {
            // SAFETY: this thread has the lock, and `queue` is the consumer of `ring`.
            let (qp, slot) = unsafe { self.take(ring, queue)? };
            let cqe = Cqe::from_bytes(&slot.read());
            if let Some(wr_id) = qp.complete(&cqe) {
                return Ok((cqe, wr_id));
            }
        }
    }

    /// The reason why the present ring has no completion.
    #[inline]
    fn stop(&self, error: Option<RingError>) -> Stop {
        match error {
            _ if self.deferred.needs_attention() => Stop::Attend,
            Some(error) => Stop::Error(error),
            None => Stop::Empty,
        }
    }

    /// The next completion, from any ring.
    ///
    /// # Errors
    ///
    /// The last ring's producer position is impossible.
    #[inline(always)]
    fn advance(&self, state: &mut State) -> Result<Option<(Cqe, u64)>, RingError> {
        // SAFETY: the state is locked, and has a ring and its consumer.
        match unsafe { self.next(&state.ring, &mut state.queue) } {
            Ok(next) => Ok(Some(next)),
            Err(Stop::Empty) => Ok(None),
            Err(stop) => self.next_after(state, stop),
        }
    }

    /// The next completion, after [`next`](Self::next) has stopped.
    ///
    /// # Errors
    ///
    /// The last ring's producer position is impossible.
    #[cold]
    #[inline(never)]
    fn next_after(
        &self,
        state: &mut State,
        mut stop: Stop,
    ) -> Result<Option<(Cqe, u64)>, RingError> {
        let mut has_attended = false;
        loop {
            match stop {
                Stop::Empty => return Ok(None),
                Stop::Error(error) => return Err(error),
                Stop::Attend => {
                    // A call applies messages once and leaves later messages to the next call. A
                    // thread that keeps sending messages would otherwise keep this thread here for
                    // ever.
                    if !replace(&mut has_attended, true) {
                        self.attend(state);
                    }
                    if !self.switch(state)? {
                        return Ok(None);
                    }
                }
                Stop::Missing => {
                    let qpn = state.ring.cqe(state.queue.next()).qp_num;
                    if self.deferred.has(|message| message.is_of(qpn)) {
                        has_attended = true;
                        self.attend(state);
                    } else {
                        // The CQE belongs to a destroyed QP: a QP is put into the table or into a
                        // message before it has completions.
                        state.queue.advance();
                    }
                }
            }
            // SAFETY: the state is locked, and has a ring and its consumer.
            match unsafe { self.next(&state.ring, &mut state.queue) } {
                Ok(found) => return Ok(Some(found)),
                Err(again) => stop = again,
            }
        }
    }

    /// Does the deferred work that is queued now.
    fn attend(&self, state: &mut State) {
        self.deferred
            .apply(|messages| self.apply_all(state, messages));
        self.deferred.drop_applied();
    }

    /// Switches to the next ring that is not empty, or to the last ring. Returns whether there is a
    /// completion.
    ///
    /// # Errors
    ///
    /// The last ring's producer position is impossible.
    fn switch(&self, state: &mut State) -> Result<bool, RingError> {
        let found = loop {
            // A ring with an impossible position has nothing to deliver.
            let found = state.queue.peek(state.ring.unchecked(), |_| ());
            if matches!(found, Ok(Some(_))) || state.go_on().is_none() {
                break found;
            }
        };
        self.deferred.set_busy(state.newer.is_some());
        Ok(found?.is_some())
    }

    /// Applies messages. Each becomes [`Message::Done`] with the values to drop.
    fn apply_all(&self, state: &mut State, messages: &mut [Message]) {
        for message in messages {
            let (rings, ring) = self.apply(state, replace(message, Message::Done(None, None)));
            *message = Message::Done(rings, ring);
        }
    }

    /// Applies a message. The caller drops the result, if possible after it has released the lock:
    /// the drop unmaps rings.
    fn apply(
        &self,
        state: &mut State,
        message: Message,
    ) -> (Option<Arc<QpRings>>, Option<Arc<Ring>>) {
        match message {
            Message::Clean {
                qpn,
                end,
                rings,
                is_alive,
            } => {
                state.clean(qpn, end, &rings);
                match self.qps.find(qpn).filter(|_| is_alive) {
                    Some(slot) => (slot.replace(Some(rings)), None),
                    None => (Some(rings), None),
                }
            }
            Message::Moved(newer) => {
                let is_empty = state.newer.is_none() && state.queue.next() == newer.end;
                let mut last = &mut state.newer;
                while let Some(ring) = last {
                    last = &mut ring.next;
                }
                *last = Some(newer);
                let old = if is_empty { state.go_on() } else { None };
                self.deferred.set_busy(state.newer.is_some());
                (None, old)
            }
            Message::Done(rings, ring) => (rings, ring),
        }
    }

    /// Does the deferred work, unless a batch has the lock: then the batch does the work.
    fn apply_deferred(&self) {
        self.deferred.drain(
            || self.state.lock_unless_kept(),
            |state, messages| self.apply_all(state, messages),
        );
    }

    /// Delivers up to `out.len()` completions, oldest first, and returns their number. `None` means
    /// that there are none and that the process or the device has overwritten the ring.
    // Private to the crate, so that its callees are local and called directly.
    #[inline(always)]
    pub(crate) fn poll(&self, out: &mut [MaybeUninit<ffi::ibv_wc>]) -> Option<usize> {
        let mut state = self.state.lock();
        let State { ring, queue, .. } = &mut *state;
        let ring = &**ring;
        let room = out.len();
        let mut rest = out;
        while let Some(place) = rest.first_mut() {
            // SAFETY: the state is locked, and has a ring and its consumer.
            match unsafe { self.take(ring, queue) } {
                Ok((qp, slot)) => {
                    if qp.deliver(slot, place) {
                        rest = &mut mem::take(&mut rest)[1..];
                    }
                }
                Err(Stop::Empty) => break,
                Err(stop) => {
                    state.keep();
                    // SAFETY: the lock was kept above.
                    return unsafe { self.poll_after(room - rest.len(), rest, stop) };
                }
            }
        }
        queue.publish(ring.unchecked());
        Some(room - rest.len())
    }

    /// Completes a [`poll`](Self::poll) that has stopped after `delivered` completions; `rest` is
    /// the free part of its output.
    ///
    /// # Safety
    ///
    /// The same as for [`Lock::resume`].
    #[cold]
    #[inline(never)]
    unsafe fn poll_after(
        &self,
        mut delivered: usize,
        rest: &mut [MaybeUninit<ffi::ibv_wc>],
        stop: Stop,
    ) -> Option<usize> {
        // SAFETY: this thread has kept the lock's last guard, and has not resumed the lock since.
        let mut state = unsafe { self.state.resume() };
        let mut stop = Some(stop);
        for place in rest {
            let next = match stop.take() {
                Some(stop) => self.next_after(&mut state, stop),
                None => self.advance(&mut state),
            };
            match next {
                Ok(Some((cqe, wr_id))) => {
                    place.write(work_completion(&cqe, wr_id));
                    delivered += 1;
                }
                Err(_) if delivered == 0 => return None,
                Ok(None) | Err(_) => break,
            }
        }
        state.publish();
        Some(delivered)
    }

    /// Starts to poll completions one by one. Other threads can't poll until the result is dropped.
    #[inline]
    pub fn lock(&self) -> Polling<'_> {
        Polling {
            ring: self,
            state: self.state.lock(),
        }
    }

    /// Continues to poll, under the lock that [`Polling::keep`] has left locked.
    ///
    /// # Safety
    ///
    /// The same as for [`Lock::resume`].
    #[inline]
    pub unsafe fn resume(&self) -> Polling<'_> {
        Polling {
            ring: self,
            // SAFETY: this thread has kept the lock's last guard, and has not resumed the lock
            // since.
            state: unsafe { self.state.resume() },
        }
    }

    /// Requests a completion event. Returns whether the CQ's doorbell must be rung.
    pub fn arm(&self, solicited_only: bool) -> bool {
        let kind = if solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Next
        };
        let mut arming = self.arming.lock();
        let Arming { ring, arm } = &mut *arming;
        let seen = ring.seen.load(Ordering::Relaxed);
        arm.arm(ring.map.layout(), ring.unchecked(), kind, seen, None) == Armed::RingDoorbell
    }

    /// Notes that the application has fetched a completion event of this CQ.
    pub fn event_received(&self) {
        let mut arming = self.arming.lock();
        arming.arm.event_received();
        let ring = &arming.ring;
        let (produced, seen) = (ring.produced(), ring.seen.load(Ordering::Relaxed));
        // An impossible position is ignored here: polling reports it.
        if produced.wrapping_sub(seen) <= ring.map.layout().slots() {
            // If the exchange fails, a poller has just stored a position that is at least as new.
            let _ =
                ring.seen
                    .compare_exchange(seen, produced, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// [Moves](Self::resize_with) the CQ to a ring of a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of [`resize_with`](Self::resize_with) and [`PlannedRing::in_memory`].
    pub fn resize(
        &self,
        layout: RingLayout,
        command: impl FnOnce(UserRing) -> Result<u32, i32>,
    ) -> Result<bool, i32> {
        self.resize_with(layout, PlannedRing::in_memory, |map| {
            command(map.user_ring())
        })
    }

    /// Moves the CQ to a new ring of `layout`, which `map` maps. `command` moves the device to it,
    /// and returns the position at which the present ring ends. Unpolled completions of the present
    /// ring are delivered first. Returns whether the CQ's doorbell must be rung.
    ///
    /// # Errors
    ///
    /// The error numbers of [`PlannedRing::new`], `map`, [`new`](Self::new) and `command`. The CQ
    /// keeps the present ring.
    pub fn resize_with(
        &self,
        layout: RingLayout,
        map: impl FnOnce(PlannedRing) -> io::Result<RingMap>,
        command: impl FnOnce(&RingMap) -> Result<u32, i32>,
    ) -> Result<bool, i32> {
        let mut control = self.control();
        let number = |error| errno::number(&error);
        let map = PlannedRing::new(layout, self.lender.as_ref()).and_then(map);
        let (ring, queue) = map.and_then(Ring::new).map_err(number)?;
        let mut newer = boxed(Newer {
            ring: ring.clone(),
            queue,
            end: 0,
            next: None,
        })
        .map_err(number)?;
        // Messages of earlier calls may still be queued, until the end of a batch.
        self.deferred.reserve(1).map_err(number)?;
        let end = command(&ring.map);
        newer.end = match end {
            Ok(end) => end,
            Err(number) => {
                self.deferred.release(1);
                return Err(number);
            }
        };
        let mut arming = self.arming.lock();
        let missed = arming.ring.seen.load(Ordering::Relaxed) != newer.end;
        let ring_doorbell = arming
            .arm
            .moved(ring.map.layout(), ring.unchecked(), missed);
        arming.ring = ring.clone();
        drop(arming);
        *control = ring;
        self.deferred
            .defer(|messages| messages.push_back(Message::Moved(newer)));
        self.deferred.release(1);
        drop(control);
        self.apply_deferred();
        Ok(ring_doorbell)
    }
}

/// Completions that are polled one by one, with the CQ locked.
pub struct Polling<'a> {
    ring: &'a CompletionRing,
    /// The state of `ring`.
    state: Guard<'a, State>,
}

impl Polling<'_> {
    /// Makes the next completion the current one and returns its status and the id of its work
    /// request.
    ///
    /// # Errors
    ///
    /// There is no completion, and the ring's producer position is impossible.
    #[inline]
    pub fn advance(&mut self) -> Result<Option<(u8, u64)>, RingError> {
        let state = &mut *self.state;
        let next = self.ring.advance(state)?;
        Ok(next.map(|(cqe, wr_id)| {
            state.current = cqe;
            (cqe.status, wr_id)
        }))
    }

    /// The completion that was polled last.
    #[inline]
    pub fn current(&self) -> Cqe {
        self.state.current
    }

    /// Starts a batch: the CQ stays locked until the batch [ends](Self::end).
    #[inline]
    pub fn begin(self) {
        self.state.begin();
    }

    /// Leaves the CQ locked until [`CompletionRing::resume`].
    #[inline]
    pub fn keep(self) {
        self.state.keep();
    }

    /// Gives the slots of polled completions back to the device, and releases the lock.
    #[inline]
    pub fn stop(mut self) {
        self.state.publish();
    }

    /// Ends a batch: [stops](Self::stop), and does the work that was deferred meanwhile.
    #[inline]
    pub fn end(mut self) {
        self.state.publish();
        if self.state.end() {
            self.ring.apply_deferred();
        }
    }
}

/// A QP's attachment to a CQ that it completes to.
pub struct Attachment {
    ring: Arc<CompletionRing>,
}

impl Attachment {
    /// Reserves room for the deferred message of a QP.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(ring: &Arc<CompletionRing>) -> io::Result<Self> {
        // A QP has at most one message in the queue.
        ring.deferred.reserve(1)?;
        Ok(Self { ring: ring.clone() })
    }

    /// Delivers the completions of a new QP, but not the completions of an earlier QP with the same
    /// number.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn attach(&self, qpn: Qpn, rings: &Arc<QpRings>) -> io::Result<()> {
        let slot = self.ring.qps.slot(qpn)?;
        let control = self.ring.control();
        let end = control.produced();
        let message = |rings, is_alive| Message::Clean {
            qpn,
            end,
            rings,
            is_alive,
        };
        self.ring.deferred.defer(|messages| {
            // The kernel may reuse a QP number before the destroying thread has called `detach` for
            // the earlier QP. `detach` must not find the earlier QP any more, neither in the table
            // nor in a message: it would drop completions of the new QP.
            let former = slot
                .replace(None)
                .or_else(|| withdraw(messages, qpn, |_| true));
            messages.extend(former.map(|former| message(former, false)));
            if messages.is_empty() {
                slot.replace(Some(rings.clone()));
            } else {
                // One of the messages may be for an earlier QP with this number.
                messages.push_back(message(rings.clone(), true));
            }
        });
        drop(control);
        self.ring.apply_deferred();
        Ok(())
    }

    /// Stops delivering the completions of a destroyed QP, unless a new QP has its number by now.
    pub fn detach(&self, qpn: Qpn, rings: &Arc<QpRings>) {
        self.clean(qpn, rings, false);
    }

    /// Drops the completions of a QP that has entered RESET.
    pub fn reset(&self, qpn: Qpn, rings: &Arc<QpRings>) {
        self.clean(qpn, rings, true);
    }

    /// Drops the completions that the device has written so far for a QP, if the QP is still
    /// attached with these rings.
    fn clean(&self, qpn: Qpn, rings: &Arc<QpRings>, is_alive: bool) {
        let Some(slot) = self.ring.qps.find(qpn) else {
            return;
        };
        let control = self.ring.control();
        let end = control.produced();
        self.ring.deferred.defer(|messages| {
            let taken = if slot.holds(rings) {
                slot.replace(None)
            } else {
                withdraw(messages, qpn, |entrant| Arc::ptr_eq(entrant, rings))
            };
            messages.extend(taken.map(|rings| Message::Clean {
                qpn,
                end,
                rings,
                is_alive,
            }));
        });
        drop(control);
        self.ring.apply_deferred();
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.ring.deferred.release(1);
    }
}

#[cfg(test)]
mod tests;
