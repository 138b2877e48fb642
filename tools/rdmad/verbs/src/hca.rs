// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An HCA: the device of one VM, from its creation to its end.
//!
//! [`objects`](crate::objects) holds the objects of the VM, and [`flows`](crate::flows) those that
//! are ready for a turn. [`port_frames`](crate::port_frames) connects them with the network, and
//! [`serve`](crate::serve) gives them turns. This file puts these parts together, and holds the
//! state of the device as a whole: features, link, failure and reset.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use budget::{Charge, MemoryBudget};
use chaos::PortRules;
use crossbeam_utils::CachePadded;
use dma::DmaSpace;
use recorder::Kind;
use roce::FramePort;
use sandbox::contain;
use scheduler::shared::Mutex;
use scheduler::{QpKey, TurnStart};
use virtio_rdma_abi::config::CONFIG_SIZE;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AsyncEvent, Mtu, PORT};
use virtio_rdma_abi::number::{PortId, Qpn};

use crate::config::{HcaConfig, BOOKKEEPING};
use crate::counters::{HcaCounters, Violations};
use crate::error::Result;
use crate::event::{EventQueues, EventSource};
use crate::flows::Flows;
use crate::heard::Heard;
use crate::link::Link;
use crate::objects::Objects;
use crate::port_frames::PortFrames;
use crate::port_pace::{PortPacer, PortRates};
use crate::runtime::{Runtime, SharedRuntime};
use crate::turn::{TurnBudget, TURN};
use crate::virtqueues::{AssignedVirtqueues, Virtqueues};

/// The HCA of one VM.
///
/// # Locks
///
/// A thread takes locks in this order:
///
/// 1. `control`, for the whole of a control command
/// 2. the requester of a QP
/// 3. the responder of a QP, possibly of another HCA
/// 4. an SRQ; a CQ
/// 5. the users of a CQ or SRQ; an event queue; deadlines; destroyed counter sets
/// 6. a slot of a table; timers; the reason of a failure; the rules of the scenario; the address of
///    a QP's peer
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
    events: EventQueues,
    virtqueues: Arc<dyn Virtqueues>,
    assigned_virtqueues: AssignedVirtqueues,
    features: AtomicU64,
    /// Whether the HCA has failed: its objects are not used until the next reset.
    failed: AtomicBool,
    /// Why the HCA has failed; `None` if it has not.
    failure: Mutex<Option<String>>,
    pub(crate) link: Link,
    pub(crate) control: CachePadded<Mutex<()>>,
    pub(crate) objects: Objects,
    /// Number of addresses that the driver tried to enter in the GID table and that the port may
    /// not use.
    pub(crate) refused_gids: AtomicU64,
    pub(crate) violations: Violations,
    /// Failures on order.
    rules: PortRules,
    /// Number of QPs that the driver has created since the last reset, without the GSI QP.
    pub(crate) created_qps: AtomicU32,
    /// Number of CQs that the driver has created since the last reset.
    pub(crate) created_cqs: AtomicU32,
    /// The events of the port, except those that counter sets count.
    pub(crate) counters: HcaCounters,
    pub(crate) flows: Flows,
    pub(crate) frames: PortFrames,
    /// The port's rate limits, which its QPs share.
    pub(crate) pacer: CachePadded<PortPacer>,
    /// When packets of other ports arrived.
    pub(crate) heard: CachePadded<Heard>,
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
        let fixed = limits.tables() + frames.memory() as u64 + config.recorder.memory();
        let budget = MemoryBudget::new(limits.memory.max(fixed));
        let runtime = runtime.shared();
        let now = runtime.scheduler.clock.now();
        runtime.hcas.attach(&runtime.address_leases, |port| {
            Arc::new(Self {
                port,
                runtime: runtime.clone(),
                space,
                events: EventQueues::new(limits.event_queues, queues.clone()),
                assigned_virtqueues: AssignedVirtqueues::new(
                    queues.clone(),
                    limits.virtqueue_mode().max_cq,
                ),
                virtqueues: queues,
                features: AtomicU64::new(0),
                failed: AtomicBool::new(false),
                failure: Mutex::new(None),
                link: Link::new(),
                control: CachePadded::new(Mutex::new(())),
                objects: Objects::new(&runtime.secret, &budget, &limits),
                refused_gids: AtomicU64::new(0),
                violations: Violations::default(),
                rules: PortRules::new(&config.scenario, config.recorder.port()),
                created_qps: AtomicU32::new(0),
                created_cqs: AtomicU32::new(0),
                counters: HcaCounters::new(runtime.scheduler.workers()),
                flows: Flows::new(runtime.clone(), port, &limits),
                frames: PortFrames::new(frames, limits.max_qp + 1),
                pacer: CachePadded::new(PortPacer::new(config.rates, now)),
                heard: CachePadded::new(Heard::new(now)),
                _fixed: budget.charge(fixed).ok(),
                budget,
                config,
            })
        })
    }

    /// The rules of the port's scenario.
    pub fn rules(&self) -> &PortRules {
        &self.rules
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
        self.flows.notifications_ready();
    }

    /// Sets the negotiated features of a driver that another process has served.
    pub(crate) fn restore_features(&self, features: Features) {
        self.features.store(features.0, Ordering::Release);
    }

    /// Marks the HCA as failed: its driver broke the rules, its memory is lost, or work for it
    /// panicked. `why` is logged. The HCA serves nothing until the next [reset](Self::reset)
    /// completes, and drops the frames that arrive. On return no worker accesses the VM's memory
    /// any more. Not to be called by a worker.
    pub fn fail(&self, why: &str) {
        self.note_failure(why);
        self.runtime.scheduler.quiesce.synchronize();
    }

    /// Why the HCA has failed since its last reset; `None` if it has not.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
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

    /// The HCA fails: its driver is asked for a reset.
    pub(crate) fn note_failure(&self, why: &str) {
        if !self.failed.swap(true, Ordering::AcqRel) {
            *self.failure.lock() = Some(why.to_owned());
            self.note(Kind::PortFailed, 0, 0);
            self.virtqueues.fail(why);
        }
    }

    /// Sets the link up or down. Sends the port event, unless the guest's network device is down.
    pub fn set_link(&self, up: bool) {
        self.note(Kind::Link, up.into(), 0);
        if self.link.set_switch(up) {
            self.tell_link(up);
            self.virtqueues.send_interrupts();
        }
    }

    /// Raises the event that tells whether the link is up.
    pub(crate) fn tell_link(&self, up: bool) {
        let event = if up {
            AsyncEvent::PortActive
        } else {
            AsyncEvent::PortErr
        };
        self.raise(event);
    }

    /// Raises an event of the port.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        self.note_raised(0, event, PORT.into());
        self.events
            .asynchronous(EventSource::Port, event, PORT.into());
    }

    /// Changes the port's rate limits. All QPs get a turn, so a QP that waits because of the old
    /// limits checks the new ones.
    pub fn set_rates(&self, rates: PortRates) {
        self.pacer.change(rates, self.runtime.scheduler.clock.now());
        for qp in self.objects.qps.iter() {
            self.qp_ready(qp.number);
        }
    }

    /// Executes a virtio reset: destroys all objects. On return no worker accesses the VM's memory
    /// any more.
    pub fn reset(&self) {
        let control = self.control.lock();
        self.note(Kind::Reset, 0, 0);
        self.features.store(0, Ordering::Release);
        self.destroy_all();
        self.events.clear();
        self.link.reset();
        self.objects.deadlines.forget_link(self);
        self.created_qps.store(0, Ordering::Relaxed);
        self.created_cqs.store(0, Ordering::Relaxed);
        self.objects.mrs.registered.store(0, Ordering::Relaxed);
        self.assigned_virtqueues.mark_all_reset();
        *self.failure.lock() = None;
        self.failed.store(false, Ordering::Release);
        drop(control);
        // This thread may have completed work of QPs of other HCAs, so it sends their
        // interrupts.
        self.virtqueues.send_interrupts();
    }

    /// Resets the HCA and removes it from its runtime, at the end of its port. On return no worker
    /// serves it any more. A second call has no effect.
    pub fn detach(&self) {
        self.reset();
        let runtime = &self.runtime;
        if runtime.hcas.remove(&runtime.address_leases, self) {
            runtime.scheduler.quiesce.synchronize();
        }
    }

    /// MAC address of the port.
    pub fn mac(&self) -> [u8; 6] {
        self.config.mac
    }

    pub fn port(&self) -> PortId {
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

    /// The budget of a turn that began with `start`.
    pub(crate) fn budget_of(&self, start: TurnStart) -> TurnBudget<'_> {
        TurnBudget::new(&self.runtime.scheduler.clock, start.now, start.budget)
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
    pub fn negotiated(&self) -> Features {
        Features(self.features.load(Ordering::Acquire))
    }

    /// Whether the feature was negotiated and is in force.
    pub(crate) fn has_feature(&self, feature: Feature) -> bool {
        self.negotiated().has(feature)
    }

    /// Requests a turn for QP `qpn`.
    #[inline]
    pub(crate) fn qp_ready(&self, qpn: Qpn) {
        self.flows.qp_ready(qpn);
    }
}
