// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An HCA: the objects of one VM, and the entry points of their turns.

use std::result;
use std::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use budget::{Charge, MemoryBudget};
use contain::contain;
use crossbeam_utils::CachePadded;
use dma::DmaSpace;
use roce::frame::{Lane, FRAMES_AT_ONCE};
use roce::FramePort;
use virtio_rdma_abi::config::CONFIG_SIZE;
use virtio_rdma_abi::event::FIRST_EVENT_QUEUE;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AsyncEvent, Mtu, QpState, GSI_QPN, PORT};
use virtio_rdma_abi::number::{Cqn, MrNumber, MwNumber, Pdn, PortId, Qpn, Srqn};
use virtio_rdma_abi::queues::Role;
use virtio_rdma_abi::ring::Doorbell;

use crate::assigned_virtqueues::AssignedVirtqueues;
use crate::blocked::Blocked;
use crate::config::{HcaConfig, BOOKKEEPING};
use crate::counter_sets::CounterSets;
use crate::counters::{Counter, HcaCounters};
use crate::cq::Cq;
use crate::error::Result;
use crate::event::{EventQueue, EventQueues, EventSource};
use crate::gid::GidTable;
use crate::heard::Heard;
use crate::link::Link;
use crate::memory::MrTable;
use crate::moderation::Deadlines;
use crate::multicast::Groups;
use crate::pd::Pd;
use crate::port_load::{Outstanding, PortLoad, QpLoad};
use crate::port_pace::{PortPacer, PortRates};
use crate::qp::Qp;
use crate::runtime::{
    Exclusive, Flow, FlowKey, IdleGap, PortFlows, QpKey, ReadySet, Runtime, SharedRuntime, TurnEnd,
    TurnStart, Watch,
};
use crate::shared::Mutex;
use crate::srq::Srq;
use crate::table::Table;
use crate::turn::{done, TurnBudget, TURN};
use crate::virtqueues::Virtqueues;
use crate::wire::ReceiveBacklog;

/// Proof that the QP is registered for a turn once the frame port has room.
#[derive(Debug)]
#[must_use]
pub(crate) struct ForFrames(());

/// Numbers of packets that were refused because of their P_Key or Q_Key.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    /// Packets with a P_Key of another partition.
    pub pkey: AtomicU32,
    /// Packets with a Q_Key other than the QP's.
    pub qkey: AtomicU32,
}

/// The HCA of one VM.
///
/// # Locks
///
/// A thread takes locks in this order:
///
/// 1. `control`, for the whole of a control command
/// 2. the send side of a QP
/// 3. the receive side of a QP, possibly of another HCA
/// 4. an SRQ; a CQ
/// 5. the users of a CQ or SRQ; an event queue; deadlines of CQs; destroyed counter sets
/// 6. a slot of a table; timers
///
/// No thread holds two locks of one level.
///
/// The padded fields are written in turns. Threads read the other fields in every turn and rarely
/// write them.
pub struct Hca {
    config: HcaConfig,
    /// Memory that the HCA may allocate for its VM.
    budget: MemoryBudget,
    /// The charge for tables and frames, which is made even if it exceeds the limit.
    _fixed: Option<Charge>,
    port: PortId,
    runtime: Arc<SharedRuntime>,
    pub(crate) space: Arc<DmaSpace>,
    pub(crate) frames: Arc<dyn FramePort>,
    events: EventQueues,
    virtqueues: Arc<dyn Virtqueues>,
    assigned_virtqueues: AssignedVirtqueues,
    features: AtomicU64,
    /// Whether the HCA has failed: its objects are not used until the next reset.
    failed: AtomicBool,
    pub(crate) link: Link,
    pub(crate) control: CachePadded<Mutex<()>>,
    pub(crate) pds: Table<Pdn, Pd>,
    pub(crate) mrs: MrTable,
    pub(crate) cqs: Table<Cqn, Cq>,
    pub(crate) qps: Table<Qpn, Qp>,
    pub(crate) srqs: Table<Srqn, Srq>,
    pub(crate) gids: GidTable,
    /// Number of addresses that the driver tried to enter in the GID table and that the port may
    /// not use.
    pub(crate) refused_gids: AtomicU64,
    pub(crate) groups: Groups,
    pub(crate) violations: Violations,
    /// The events of the port, except those that counter sets count.
    pub(crate) counters: HcaCounters,
    pub(crate) counter_sets: CounterSets,
    /// The port's rate limits, which its QPs share.
    pub(crate) pacer: CachePadded<PortPacer>,
    flows: PortFlows,
    /// Deadlines of CQs that delay events.
    pub(crate) deadlines: CachePadded<Deadlines>,
    doorbells: CachePadded<Doorbells>,
    pub(crate) arrivals: CachePadded<Arrivals>,
    /// The packets that are on the way.
    load: CachePadded<PortLoad>,
    /// When packets of other ports arrived.
    pub(crate) heard: CachePadded<Heard>,
    /// QPs that wait for room in the frame port, or for room for responses.
    blocked: CachePadded<Blocked>,
    /// The lane of `blocked` for QPs that wait for room for responses.
    responses: Lane,
}

/// State that doorbells write. It has cache lines of its own: every turn reads the other words of a
/// HCA.
struct Doorbells {
    /// CQs whose doorbell was rung, or whose deadline has passed.
    ready_cqs: ReadySet<Cqn>,
    /// Event queues in which the driver placed buffers since their last turn.
    ready_events: ReadySet<EventQueue>,
    /// Detects idle gaps between doorbells.
    idle_gap: IdleGap,
}

/// State that deliveries of frames write, also on cache lines of its own.
pub(crate) struct Arrivals {
    /// Whether frames have arrived, or the frame port has room again.
    has_frames: AtomicBool,
    /// Only one worker at a time receives frames, so frames stay in order.
    receiving: Exclusive,
    /// Received frames that are left for the next turn.
    pub(crate) backlog: ReceiveBacklog,
}

/// A worker's use of a QP of another port. If the worker panics, its work on the QP is half done,
/// so the QP fails.
pub(crate) struct Borrowed<'a> {
    hca: &'a Hca,
    qpn: Qpn,
}

impl<'a> Borrowed<'a> {
    /// Lends QP `qpn` of `hca`.
    pub(crate) fn new(hca: &'a Hca, qpn: Qpn) -> Self {
        Self { hca, qpn }
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.hca.fail_qp(self.qpn);
        }
    }
}

/// The lane after these lanes of the frame port.
fn responses_after(lanes: usize) -> Lane {
    Lane::new(u16::try_from(lanes).unwrap_or(u16::MAX))
}

impl Hca {
    /// Creates an HCA. The runtime's workers serve it until it is [detached](Self::detach).
    ///
    /// `space` is the memory of the VM. `queues` are the device's virtqueues, and `frames` is its
    /// port of the switch. That port must call [`frames_ready`](Self::frames_ready) when frames
    /// have arrived or buffers are free.
    pub fn new(
        config: HcaConfig,
        space: Arc<DmaSpace>,
        runtime: &Runtime,
        queues: Arc<dyn Virtqueues>,
        frames: Arc<dyn FramePort>,
    ) -> Arc<Self> {
        let limits = config.limits.clone();
        let fixed = limits.tables() + frames.memory() as u64;
        let budget = MemoryBudget::new(limits.memory.max(fixed));
        let secret = &runtime.shared().secret;
        runtime.shared().attach(|port| {
            Arc::new(Self {
                port,
                runtime: runtime.shared().clone(),
                space,
                events: EventQueues::new(limits.event_queues, queues.clone()),
                assigned_virtqueues: AssignedVirtqueues::new(
                    queues.clone(),
                    limits.virtqueue_mode().max_cq,
                ),
                virtqueues: queues,
                features: AtomicU64::new(0),
                failed: AtomicBool::new(false),
                link: Link::new(),
                control: CachePadded::new(Mutex::new(())),
                pds: Table::new(secret, 1..limits.max_pd + 1),
                mrs: MrTable::new(
                    secret,
                    &budget,
                    limits.max_mr,
                    limits.max_mw,
                    limits.max_mr_pages,
                ),
                cqs: Table::new(secret, 0..limits.max_cq),
                // QPN 0 does not exist. The GSI QP counts in `max_qp`.
                qps: Table::with_special(secret, 1, GSI_QPN.get()..limits.max_qp + 1),
                srqs: Table::new(secret, 1..limits.max_srq + 1),
                gids: GidTable::new(limits.max_gids),
                refused_gids: AtomicU64::new(0),
                groups: Groups::default(),
                violations: Violations::default(),
                counters: HcaCounters::new(runtime.shared().scheduler.workers()),
                counter_sets: CounterSets::new(secret, limits.max_counter_sets),
                pacer: CachePadded::new(PortPacer::new(
                    config.rates,
                    runtime.shared().scheduler.clock.now(),
                )),
                flows: PortFlows::new(
                    port,
                    limits.max_qp + 1,
                    runtime.shared().scheduler.workers(),
                ),
                deadlines: CachePadded::default(),
                doorbells: CachePadded::new(Doorbells {
                    ready_cqs: ReadySet::new(limits.max_cq),
                    ready_events: ReadySet::new(u32::from(FIRST_EVENT_QUEUE) + limits.event_queues),
                    idle_gap: IdleGap::new(runtime.shared().scheduler.clock.now()),
                }),
                arrivals: CachePadded::new(Arrivals {
                    has_frames: AtomicBool::new(false),
                    receiving: Exclusive::default(),
                    backlog: ReceiveBacklog::default(),
                }),
                load: CachePadded::new(PortLoad::default()),
                heard: CachePadded::new(Heard::new(runtime.shared().scheduler.clock.now())),
                blocked: CachePadded::new(Blocked::new(frames.lanes() + 1, limits.max_qp + 1)),
                responses: responses_after(frames.lanes()),
                frames,
                _fixed: budget.charge(fixed).ok(),
                budget,
                config,
            })
        })
    }

    /// The configuration space.
    pub fn config_space(&self) -> [u8; CONFIG_SIZE] {
        self.config.space()
    }

    /// Sets the negotiated features, including those of the virtio transport.
    pub fn set_features(&self, features: Features) {
        self.features
            .store(features.in_force().0, Ordering::Release);
        if self.failed.load(Ordering::Acquire) {
            self.virtqueues.fail("its last reset panicked");
        }
        // If the HCA had failed, workers have skipped its ready queues.
        self.notifications_ready();
    }

    /// Marks the HCA as failed: its driver broke the rules, its memory is lost, or work for it
    /// panicked. `why` is logged. The HCA serves nothing until the next [reset](Self::reset)
    /// completes, and drops the frames that arrive. On return no worker accesses the VM's memory
    /// any more. Not to be called by a worker.
    pub fn fail(&self, why: &str) {
        self.note_failure(why);
        self.runtime.scheduler.quiesce.synchronize();
    }

    /// Whether the HCA has failed since its last reset, or has lost memory and is about to fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) || self.space.has_lost()
    }

    /// Runs `work` unless the HCA has failed. If `work` panics, the HCA fails. Returns `None`
    /// if the HCA had failed or `work` panicked.
    #[inline]
    pub(crate) fn contained<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        if self.has_failed() {
            return None;
        }
        contain(work)
            .map_err(|panicked| self.note_failure(&panicked.to_string()))
            .ok()
    }

    fn note_failure(&self, why: &str) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.virtqueues.fail(why);
        }
    }

    /// Handles a 32-bit store of `value` to doorbell page `page`. If the queue that `value` names
    /// belongs to that page, it is marked as ready; other values are ignored. Waits at most as long
    /// as one turn of a QP takes, whatever the guest writes, and however often.
    pub fn doorbell(&self, page: u32, value: u32) {
        self.counters.add(Counter::Doorbells, 1);
        let Some(doorbell) = Doorbell::from_u32(value) else {
            return;
        };
        match doorbell {
            Doorbell::Sq(qpn) => {
                let rung =
                    |qp: &Qp| (qp.init.doorbell_page == page).then(|| qp.is_request_response());
                if let Some(is_request_response) = self.qps.with(qpn, rung).flatten() {
                    self.posted(qpn, is_request_response);
                }
            }
            Doorbell::Rq(qpn) => {
                if self.qps.with(qpn, |qp| qp.init.doorbell_page == page) == Some(true) {
                    self.qp_ready(qpn);
                }
            }
            Doorbell::Cq(cqn) => {
                if self.cqs.with(cqn, |cq| cq.doorbell_page == page) == Some(true)
                    && self.doorbells.ready_cqs.insert(cqn)
                {
                    self.notifications_ready();
                }
            }
            // Receives are fetched when messages arrive.
            Doorbell::Srq(_) => {}
        }
    }

    /// Handles the driver's notification of virtqueue `queue`: an event queue has buffers again, or
    /// a queue of virtqueue mode has work. Waits at most as long as one turn of a QP takes, however
    /// often the driver notifies.
    pub fn notified(&self, queue: u16) {
        self.counters.add(Counter::Doorbells, 1);
        if self.has_own_rings() {
            if queue >= FIRST_EVENT_QUEUE && self.doorbells.ready_events.insert(EventQueue(queue)) {
                self.notifications_ready();
            }
            return;
        }
        match self.assigned_virtqueues.numbers().role(queue) {
            Role::Sq(qpn) => {
                if let Some(is_request_response) = self.qps.with(qpn, Qp::is_request_response) {
                    self.posted(qpn, is_request_response);
                }
            }
            Role::Rq(qpn) => {
                // Receives are fetched when messages arrive, but in ERR they are flushed now.
                let flushes = |qp: &Qp| qp.state() == Some(QpState::Err);
                if self.qps.with(qpn, flushes) == Some(true) {
                    self.qp_ready(qpn);
                }
            }
            Role::Control | Role::Cq(_) => {}
        }
    }

    /// Handles the driver's reset of virtqueue `queue` alone. On return the virtqueue's memory is
    /// not accessed any more. If the virtqueue still belongs to an object, that object has failed.
    pub fn virtqueue_reset(&self, queue: u16) {
        if !self.has_own_rings() {
            self.release_virtqueue(queue);
            self.virtqueues.send_interrupts();
        }
    }

    fn release_virtqueue(&self, queue: u16) {
        let _control = self.control.lock();
        match self.assigned_virtqueues.numbers().role(queue) {
            Role::Cq(cqn) => {
                if let Some(cq) = self.cqs.get(cqn) {
                    cq.virtqueue_reset(self);
                }
            }
            Role::Sq(qpn) | Role::Rq(qpn) => {
                if let Some(qp) = self.qps.get(qpn) {
                    qp.virtqueue_reset(queue);
                    self.runtime.scheduler.quiesce.synchronize();
                    self.fail_qp(qpn);
                }
            }
            Role::Control => {}
        }
        self.assigned_virtqueues.mark_reset(queue);
    }

    /// Called when the frame port has received frames, or has room again.
    pub fn frames_ready(&self) {
        if !self.arrivals.has_frames.swap(true, Ordering::AcqRel) {
            self.runtime.scheduler.make_ready(&self.flows, Flow::FRAMES);
        }
    }

    /// Like [`frames_ready`](Self::frames_ready), for a thread that has nothing else to do: if the
    /// worker of the port sleeps, the thread handles the frames itself. The thread must not be a
    /// worker or hold a lock that a turn or an interrupt needs.
    pub fn serve_frames_here(&self) {
        if !self.arrivals.has_frames.swap(true, Ordering::AcqRel) {
            self.runtime.serve_here(&self.flows, Flow::FRAMES);
        }
    }

    /// Sets the link up or down. Sends the port event, unless the guest's network device is down.
    pub fn set_link(&self, up: bool) {
        if self.link.set_switch(up) {
            let event = if up {
                AsyncEvent::PortActive
            } else {
                AsyncEvent::PortErr
            };
            self.events
                .asynchronous(EventSource::Port, event, PORT.into());
            self.virtqueues.send_interrupts();
        }
    }

    /// Changes the port's rate limits. All QPs get a turn, so a QP that waits because of the old
    /// limits checks the new ones.
    pub fn set_rates(&self, rates: PortRates) {
        self.pacer.change(rates, self.runtime.scheduler.clock.now());
        for qp in self.qps.iter() {
            self.qp_ready(qp.number);
        }
    }

    /// Executes a virtio reset: destroys all objects. On return no worker accesses the VM's memory
    /// any more.
    pub fn reset(&self) {
        let control = self.control.lock();
        self.features.store(0, Ordering::Release);
        self.destroy_all();
        self.events.clear();
        self.link.reset();
        self.assigned_virtqueues.mark_all_reset();
        self.failed.store(false, Ordering::Release);
        drop(control);
        // This thread may have completed work of QPs of other HCAs, so it sends their
        // interrupts.
        self.virtqueues.send_interrupts();
    }

    /// Resets the HCA and removes it from its runtime, at the end of its port. A second call has
    /// no effect.
    pub fn detach(&self) {
        self.reset();
        self.runtime.detach(self);
    }

    /// MAC address of the port.
    pub fn mac(&self) -> [u8; 6] {
        self.config.mac
    }

    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// The key that identifies QP `qpn` of this device among all QPs of the runtime.
    pub(crate) fn key(&self, qpn: Qpn) -> QpKey {
        QpKey {
            port: self.port,
            qpn,
        }
    }

    pub(crate) fn config(&self) -> &HcaConfig {
        &self.config
    }

    /// Memory that the HCA may allocate for its VM.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Charges an object of type `T` to the VM's budget.
    pub(crate) fn charge<T>(&self) -> Result<Charge> {
        Ok(self.budget.charge_object::<T>(BOOKKEEPING)?)
    }

    pub(crate) fn runtime(&self) -> &SharedRuntime {
        &self.runtime
    }

    /// The budget of a turn that starts now.
    pub(crate) fn turn_budget(&self) -> TurnBudget<'_> {
        let clock = &self.runtime.scheduler.clock;
        TurnBudget::new(clock, clock.now(), TURN)
    }

    pub(crate) fn events(&self) -> &EventQueues {
        &self.events
    }

    pub(crate) fn assigned_virtqueues(&self) -> &AssignedVirtqueues {
        &self.assigned_virtqueues
    }

    /// The device's virtqueues. A thread that may have completed work of any device, or raised an
    /// event, must afterwards call `send_interrupts`, when it holds no lock.
    pub(crate) fn virtqueues(&self) -> &dyn Virtqueues {
        &*self.virtqueues
    }

    /// Whether the port sends and receives.
    #[inline]
    pub(crate) fn link_is_up(&self) -> bool {
        self.link.is_up()
    }

    /// The present path MTU of the port.
    #[inline]
    pub(crate) fn path_mtu(&self) -> Mtu {
        self.link.path_mtu(self.config.mtu)
    }

    /// Whether the driver provides the memory of queues.
    pub(crate) fn has_own_rings(&self) -> bool {
        self.has_feature(Feature::RingAddr)
    }

    /// The negotiated features that are in force.
    pub(crate) fn negotiated(&self) -> Features {
        Features(self.features.load(Ordering::Acquire))
    }

    /// Whether the feature was negotiated and is in force.
    pub(crate) fn has_feature(&self, feature: Feature) -> bool {
        self.negotiated().has(feature)
    }

    /// Gives QP `qpn` a turn after a thread that is not a worker received its doorbell or
    /// notification. If `is_request_response` is true and all workers sleep, that thread itself may
    /// serve the QP.
    fn posted(&self, qpn: Qpn, is_request_response: bool) {
        let serve = |now| {
            let start = TurnStart { now, budget: TURN };
            self.contained(|| {
                done::begin();
                let end = self.serve_qp(qpn, start, &Watch::nothing());
                self.runtime
                    .scheduler
                    .end_turn(&self.flows, Flow::of(qpn), end);
            });
        };
        if is_request_response
            && self
                .runtime
                .scheduler
                .serve_at_once(&self.doorbells.idle_gap, serve)
        {
            self.virtqueues.send_interrupts();
        } else {
            self.qp_ready(qpn);
        }
    }

    /// Requests a turn for QP `qpn`.
    #[inline]
    pub(crate) fn qp_ready(&self, qpn: Qpn) {
        self.runtime
            .scheduler
            .make_ready(&self.flows, Flow::of(qpn));
    }

    /// Requests a turn for event queues and CQs.
    fn notifications_ready(&self) {
        self.runtime
            .scheduler
            .make_ready(&self.flows, Flow::NOTIFICATIONS);
    }

    /// The scheduler's flows of the port.
    pub(crate) fn flows(&self) -> &PortFlows {
        &self.flows
    }

    /// The flow of the peer QP, if `flow` is a QP with a direct route.
    pub(crate) fn direct_peer_of(&self, flow: Flow) -> Option<FlowKey> {
        let QpKey { port, qpn } = self
            .qps
            .with(flow.qpn()?, |qp| qp.summary.direct_peer())??;
        let flow = Flow::of(qpn);
        Some(FlowKey { port, flow })
    }

    /// Whether a thread is serving the flow now.
    pub(crate) fn is_served(&self, flow: Flow) -> bool {
        match flow.qpn() {
            Some(qpn) => self.qps.with(qpn, Qp::is_served) == Some(true),
            None => flow == Flow::FRAMES && self.arrivals.receiving.is_busy(),
        }
    }

    /// Requests that QP `qpn` go to ERR because a CQ or SRQ that it uses failed.
    pub(crate) fn fail_qp(&self, qpn: Qpn) {
        if self.qps.with(qpn, Qp::request_failure).is_some() {
            self.qp_ready(qpn);
        }
    }

    /// Registers QP `qpn`, which has a turn, for another turn once there is room on `lane`. At the
    /// end of the turn [`pass_room_on`](Self::pass_room_on) finds room that has come before.
    pub(crate) fn await_frames(&self, qpn: Qpn, lane: Lane) -> ForFrames {
        self.blocked.insert(lane, qpn);
        ForFrames(())
    }

    /// Number of QPs that may find room on `lane`.
    fn room(&self, lane: Lane) -> usize {
        if lane == self.responses {
            // If several QPs were woken and too few responses fit, they would lose their turn.
            usize::from(self.load.has_room())
        } else {
            self.frames.room(lane).div_ceil(FRAMES_AT_ONCE)
        }
    }

    /// Books responses of `packets` packets in all for a QP, whose send side the caller has locked.
    /// If there is no room, or other QPs wait for room, returns the lane on which to
    /// [wait](Self::await_frames).
    pub(crate) fn book_responses(
        &self,
        qp: &Qp,
        load: &mut QpLoad,
        packets: u32,
    ) -> result::Result<(), Lane> {
        // Taken even if no other QP waits: the QP may book before others only once.
        let is_next = qp.preferred.swap(false, Ordering::AcqRel);
        let may_book = is_next || !self.blocked.has(self.responses);
        // A retransmission does not wait: it would no longer count as outstanding meanwhile.
        let booked = load.covers(packets) || may_book && self.load.book(load, packets);
        booked.then_some(()).ok_or(self.responses)
    }

    /// Records the packets of a QP that its peer has yet to answer at `now`.
    pub(crate) fn update_load(&self, load: &mut QpLoad, now: Instant, outstanding: Outstanding) {
        if self.load.update(load, now, outstanding) {
            self.load_has_fallen();
        }
    }

    /// Removes the load of a QP that stops.
    pub(crate) fn release_load(&self, load: &mut QpLoad) {
        if self.load.release(load) {
            self.load_has_fallen();
        }
    }

    /// Wakes the next QP that waits for room for responses, if there is room.
    fn load_has_fallen(&self) {
        // A QP that is added to the set after this fence finds the room itself.
        fence(Ordering::SeqCst);
        if self.blocked.has(self.responses) && self.load.has_room() {
            self.frames_ready();
        }
    }

    /// The number of packets with which a QP starts.
    pub(crate) fn share(&self) -> u64 {
        self.load.share()
    }

    /// Requests a turn for the next QPs that wait for room in the frame port, if there is room.
    fn pass_room_on(&self) {
        if self.blocked.any(|lane| self.room(lane)) {
            self.frames_ready();
        }
    }

    /// Requests a turn for `flow`, whose deadline has passed.
    pub(crate) fn timer_expired(&self, flow: Flow) {
        match flow.qpn() {
            Some(qpn) => {
                if self.qps.with(qpn, Qp::timer_expired).is_some() {
                    self.qp_ready(qpn);
                }
            }
            None => {
                self.deadlines.expired(self, |cqn| {
                    self.doorbells.ready_cqs.insert(cqn);
                });
                self.notifications_ready();
            }
        }
    }

    /// Whether work is posted to QP `qpn` that the HCA has not fetched yet. Also true if the QP
    /// or the HCA can't be used. Must be called within a turn.
    pub(crate) fn has_posted(&self, qpn: Qpn) -> bool {
        let posted = || {
            let qp = self.qps.hold(qpn);
            qp.is_none_or(|qp| qp.get().is_none_or(|qp| qp.has_posted(self)))
        };
        self.contained(posted).unwrap_or(true)
    }

    /// Gives a flow a turn. `watch` holds the queues that the calling worker watches.
    pub(crate) fn serve(self: &Arc<Self>, flow: Flow, start: TurnStart, watch: &Watch) -> TurnEnd {
        done::begin();
        let turn = || match flow.qpn() {
            Some(qpn) => self.serve_qp(qpn, start, watch),
            None if flow == Flow::FRAMES => self.serve_frames(start),
            None => self.serve_notifications(start),
        };
        self.contained(turn).unwrap_or_else(|| {
            self.drop_frames();
            TurnEnd::default()
        })
    }

    /// The budget of a turn that began with `start`.
    pub(crate) fn budget_of(&self, start: TurnStart) -> TurnBudget<'_> {
        TurnBudget::new(&self.runtime.scheduler.clock, start.now, start.budget)
    }

    /// Gives QP `qpn` a turn, if it exists.
    fn serve_qp(&self, qpn: Qpn, start: TurnStart, watch: &Watch) -> TurnEnd {
        let end = match self.qps.get(qpn) {
            Some(qp) => qp.serve(self, start, watch),
            None => TurnEnd::default(),
        };
        self.pass_room_on();
        end
    }

    /// Gives notifications a turn: sends events that wait for buffers, and handles doorbells and
    /// deadlines of CQs.
    fn serve_notifications(&self, start: TurnStart) -> TurnEnd {
        let budget = self.budget_of(start);
        while let Some(queue) = self.doorbells.ready_events.take() {
            if self.events.resume(queue.0, &budget) {
                self.doorbells.ready_events.insert(queue);
            }
            if budget.is_spent() {
                break;
            }
        }
        while !budget.is_spent() {
            let Some(cqn) = self.doorbells.ready_cqs.take() else {
                break;
            };
            budget.charge_notification();
            if let Some(cq) = self.cqs.get(cqn) {
                cq.doorbell(self, &self.space.enter());
            }
        }
        self.runtime.note_turn(budget.spent());
        TurnEnd {
            again: !self.doorbells.ready_events.is_empty() || !self.doorbells.ready_cqs.is_empty(),
            cost: budget.cost(),
        }
    }

    /// Returns and clears `has_frames`. Later frames set it again.
    #[inline]
    fn take_frames(&self) -> bool {
        self.arrivals.has_frames.load(Ordering::Relaxed)
            && self.arrivals.has_frames.swap(false, Ordering::AcqRel)
    }

    fn serve_frames(self: &Arc<Self>, start: TurnStart) -> TurnEnd {
        if !self.take_frames() {
            return TurnEnd::default();
        }
        let taken = self.arrivals.receiving.run(|| {
            let budget = self.budget_of(start);
            self.wake_blocked(&budget);
            crate::wire::receive(self, &budget)
        });
        let Some(taken) = taken else {
            return TurnEnd::default();
        };
        let mut end = taken.result;
        end.again |= taken.again;
        if end.again {
            // The caller makes the flow ready when its turn ends.
            self.arrivals.has_frames.store(true, Ordering::Release);
        }
        end
    }

    /// Requests turns for QPs that wait for room. If there is still room after their turns, the
    /// next QPs get turns.
    fn wake_blocked(&self, budget: &TurnBudget<'_>) {
        let room = |lane| self.room(lane);
        self.blocked.wake(room, |lane, qpn| {
            budget.charge_notification();
            done::notified(1);
            if lane == self.responses {
                self.qps.with(qpn, Qp::comes_next);
            }
            self.qp_ready(qpn);
        });
    }

    /// Drops the frames that arrived for the failed HCA, so the frames' buffers return to the
    /// ports that sent them. The HCA may have failed while it handled these frames.
    #[cold]
    fn drop_frames(&self) {
        self.take_frames();
        // The panic hook reports a panic. Frames that remain are dropped when the next one arrives.
        if contain(|| crate::wire::drop_frames(self)) == Ok(true) {
            self.frames_ready();
        }
    }

    fn destroy_all(&self) {
        let qps = Vec::from_iter(self.qps.iter());
        for qp in &qps {
            self.remove_qp(qp);
        }
        let windows = self.mrs.windows();
        let numbers = windows.numbers().into_iter();
        let removed = Vec::from_iter(numbers.filter_map(|number| windows.remove(number)));
        // Only QPs use MRs and windows, and no QP has a turn after this.
        self.runtime.scheduler.quiesce.synchronize();
        for qp in &qps {
            self.release_qp(qp);
        }
        for window in &removed {
            windows.release(window);
        }
        for srq in self.srqs.iter() {
            self.destroy_srq(&srq);
        }
        for cq in self.cqs.iter() {
            self.destroy_cq(&cq);
        }
        for number in self.mrs.numbers() {
            // No window is bound to the MR any more.
            if let Ok(mr) = self.mrs.remove(number) {
                self.mrs.release(number, mr);
            }
        }
        self.counter_sets.clear(&self.counters);
        for pd in self.pds.iter() {
            self.pds.remove(pd.number());
            self.pds.release(pd.number());
        }
        let addresses = Vec::from_iter(self.gids.clear());
        let now = self.runtime.scheduler.clock.now();
        let leases = &self.runtime.address_leases;
        leases.cleared(self.port, &addresses, now);
    }

    /// Destroys a QP. On return no worker uses it any more.
    pub(crate) fn destroy_qp(&self, qp: &Qp) {
        self.remove_qp(qp);
        // Workers that looked the QP up before its removal may still use it and its PD.
        self.runtime.scheduler.quiesce.synchronize();
        self.release_qp(qp);
    }

    fn remove_qp(&self, qp: &Qp) {
        self.qps.remove(qp.number);
        self.leave_groups(qp.number);
        qp.destroy(self);
    }

    /// Releases a removed QP, which no worker uses any more.
    fn release_qp(&self, qp: &Qp) {
        qp.unbind_windows(self);
        qp.leave_counter_set(self);
        self.qps.release(qp.number);
    }

    /// Destroys a CQ that no QP uses. On return no worker uses it any more.
    pub(crate) fn destroy_cq(&self, cq: &Cq) {
        self.cqs.remove(cq.number());
        cq.destroy(self);
        self.cqs.release(cq.number());
    }

    /// Destroys an SRQ that no QP uses. On return no worker uses it any more.
    pub(crate) fn destroy_srq(&self, srq: &Srq) {
        self.srqs.remove(srq.number());
        srq.destroy(self);
        self.srqs.release(srq.number());
    }

    /// Destroys an MR. On return its memory is not used any more. Fails with `EINVAL` if the MR
    /// does not exist, and with `EBUSY` while windows are bound to it.
    pub(crate) fn destroy_mr(&self, number: MrNumber) -> Result<()> {
        let mr = self.mrs.remove(number)?;
        self.runtime.scheduler.quiesce.synchronize();
        self.mrs.release(number, mr);
        Ok(())
    }

    /// Unbinds and destroys a memory window. On return memory is not accessed through it any more.
    /// Returns whether the window existed.
    pub(crate) fn destroy_mw(&self, number: MwNumber) -> bool {
        let Some(window) = self.mrs.windows().remove(number) else {
            return false;
        };
        // After this no worker can bind the window.
        self.runtime.scheduler.quiesce.synchronize();
        if let Some(qpn) = self.mrs.windows().release(&window) {
            self.qps.with(qpn, |qp| qp.forget_window(number));
        }
        true
    }

    /// Revokes the memory of an MR. On return that memory is not used any more. Returns false if
    /// there is no such MR, or if it can't be revoked.
    pub(crate) fn revoke_mr(&self, number: MrNumber) -> bool {
        let found = self.mrs.revoke(number);
        self.runtime.scheduler.quiesce.synchronize();
        found
    }
}
