// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Flows: the units to which the scheduler gives turns.
//!
//! A flow is a QP, or work of a port that belongs to no QP: its frames or its notifications. Each
//! flow has a *home*, the worker that serves it. A flow that fills a turn becomes *bulk*, until it
//! has no more work at the end of a turn. Other flows are *sparse* and have priority, as in
//! fq_codel (RFC 8290).

use std::sync::atomic::AtomicU32 as Stamp;
use std::time::Duration;

use crossbeam_utils::CachePadded;
use virtio_rdma_abi::number::{Number, PortId, Qpn};

use crate::ready::ReadySet;
use crate::sleep::MAX_WORKERS;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicU8, Ordering};

/// Maximum number of ports of a runtime.
pub const MAX_PORTS: u32 = 4096;

/// A flow within a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow(u32);

impl Flow {
    /// The flow of received frames and of new room in the frame port. While it is bulk, it has half
    /// of the port's turns.
    pub const FRAMES: Self = Self(0);
    /// The flow of doorbells of CQs and of new buffers in event queues. It is always sparse, since
    /// programs wait for these notifications.
    pub const NOTIFICATIONS: Self = Self(1);

    /// The flow of a QP. No QPN is 0.
    #[inline]
    pub const fn of(qpn: Qpn) -> Self {
        Self(qpn.get() + 1)
    }

    /// The QP of this flow; `None` if the flow belongs to no QP.
    #[inline]
    pub fn qpn(self) -> Option<Qpn> {
        (self > Self::NOTIFICATIONS).then(|| Qpn::new(self.0 - 1))
    }
}

impl Number for Flow {
    fn new(value: u32) -> Self {
        Self(value)
    }

    #[inline]
    fn get(self) -> u32 {
        self.0
    }
}

/// A flow within the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    pub port: PortId,
    /// The flow within the port.
    pub flow: Flow,
}

/// A QP within the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpKey {
    pub port: PortId,
    pub qpn: Qpn,
}

impl From<QpKey> for FlowKey {
    #[inline]
    fn from(QpKey { port, qpn }: QpKey) -> Self {
        let flow = Flow::of(qpn);
        Self { port, flow }
    }
}

/// Priority class of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A flow that has not filled a turn, or had no more work at the end of a later turn.
    Sparse,
    /// A flow that filled a turn and has had more work at the end of each turn since.
    Bulk,
}

impl Class {
    /// All classes, in the order of their priority.
    pub(crate) const ALL: [Self; 2] = [Self::Sparse, Self::Bulk];
}

/// One value for each class.
#[derive(Debug)]
pub(crate) struct ByClass<T> {
    pub sparse: T,
    pub bulk: T,
}

impl<T> ByClass<T> {
    /// The value of `class`.
    #[inline]
    pub(crate) fn get(&self, class: Class) -> &T {
        match class {
            Class::Sparse => &self.sparse,
            Class::Bulk => &self.bulk,
        }
    }
}

impl<N: Number> ByClass<ReadySet<N>> {
    /// Two empty sets for numbers below `end`.
    pub(crate) fn empty(end: u32) -> Self {
        Self {
            sparse: ReadySet::new(end),
            bulk: ReadySet::new(end),
        }
    }
}

/// The flows of a port, and the sets of ready flows.
#[derive(Debug)]
pub struct PortFlows {
    port: PortId,
    states: Box<[FlowState]>,
    /// For each flow, the time at which it last became ready, in units of 2²⁰ ns since the start
    /// of the scheduler: 32 bits last for 50 days. They decide nothing, so loom's models need not
    /// see them.
    ready_at: Box<[Stamp]>,
    /// For each worker, the ready flows that it should serve.
    ready: Box<[CachePadded<Ready>]>,
    /// Time in nanoseconds that turns of the port have used beyond the time of a turn.
    debt: AtomicU64,
}

/// The flows of a port that are ready for one worker.
#[derive(Debug)]
struct Ready {
    flows: ByClass<ReadySet<Flow>>,
    /// Number of bulk flows.
    bulk: AtomicU32,
    /// Whether the last turn of a bulk flow was a QP's, so the frames are next.
    frames_next: AtomicBool,
}

/// The flows of a port that wait for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub port: PortId,
    /// Number of the flows.
    pub flows: usize,
    /// The flow that has waited longest.
    pub oldest: Flow,
    /// How long it has waited. The error is a ms, or the length of a round.
    pub since: Duration,
}

impl Waiting {
    /// Adds flows of the same port.
    pub(crate) fn add(&mut self, other: Self) {
        self.flows += other.flows;
        if other.since > self.since {
            (self.oldest, self.since) = (other.oldest, other.since);
        }
    }
}

/// Binary logarithm of the unit of the times at which flows became ready, in ns.
const READY_SHIFT: u32 = 20;
/// Larger differences of times of 32 bits are negative.
const MAX_AGE: u32 = 1 << 31;

/// Largest debt of a port in nanoseconds. The pages of a turn may each take the host some
/// milliseconds, and several QPs may have such turns in a row.
const MAX_DEBT: u64 = 1_000_000_000;

/// Home and class of a flow. Both are only hints: whichever worker takes a ready flow serves it.
#[derive(Debug)]
struct FlowState(AtomicU8);

/// Bit of a [`FlowState`] that is set while the flow is bulk. The lower bits hold the number of the
/// home worker.
const BULK: u8 = 1 << 7;
const _: () = assert!(MAX_WORKERS <= BULK as usize);

impl PortFlows {
    /// Flows of the port and of QPs with numbers below `qpns`, none of them ready. Their homes are
    /// spread over `workers` workers, which may be at most [`MAX_WORKERS`]. The flows of the port
    /// have the same home.
    pub fn new(port: PortId, qpns: u32, workers: usize) -> Self {
        let end = Flow::of(Qpn::new(qpns)).get();
        let home = |flow: u32| {
            let number = flow.saturating_sub(1);
            ((port.get() as usize + number as usize) % workers) as u8
        };
        let none = || {
            CachePadded::new(Ready {
                flows: ByClass::empty(end),
                bulk: AtomicU32::new(0),
                frames_next: AtomicBool::new(false),
            })
        };
        Self {
            port,
            states: (0..end)
                .map(|n| FlowState(AtomicU8::new(home(n))))
                .collect(),
            ready_at: (0..end).map(|_| Stamp::new(0)).collect(),
            ready: (0..workers).map(|_| none()).collect(),
            debt: AtomicU64::new(0),
        }
    }

    /// Bytes of memory for each flow, with the maximum number of workers.
    pub const FLOW_SIZE: usize =
        size_of::<FlowState>() + size_of::<Stamp>() + 2 * MAX_WORKERS.div_ceil(8);

    #[inline]
    pub fn port(&self) -> PortId {
        self.port
    }

    /// The home worker of `flow`, or 0 if there is no such flow.
    #[inline]
    pub fn home(&self, flow: Flow) -> usize {
        let state = self.states.get(flow.get() as usize);
        state.map_or(0, |state| {
            usize::from(state.0.load(Ordering::Relaxed) & !BULK)
        })
    }

    /// Makes `worker` the home of `flow`. If the flow is ready now, its old home may still give it
    /// one turn.
    pub fn set_home(&self, flow: Flow, worker: usize) {
        if let Some(FlowState(state)) = self.states.get(flow.get() as usize) {
            // `worker` is below MAX_WORKERS, so the cast can't truncate.
            let home = |old| Some(old & BULK | worker as u8);
            let _ = state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, home);
        }
    }

    #[inline]
    fn class(&self, flow: Flow) -> Class {
        match self.states.get(flow.get() as usize) {
            Some(FlowState(state)) if state.load(Ordering::Relaxed) & BULK != 0 => Class::Bulk,
            _ => Class::Sparse,
        }
    }

    /// Updates the class of a flow after a turn. `class` is its class at the start of the turn,
    /// `filled` is true if it filled the turn, and `again` if it has more work.
    #[inline]
    pub(crate) fn classify(&self, flow: Flow, class: Class, filled: bool, again: bool) {
        let Some(FlowState(state)) = self.states.get(flow.get() as usize) else {
            return;
        };
        match class {
            Class::Sparse if filled && flow != Flow::NOTIFICATIONS => {
                state.fetch_or(BULK, Ordering::Relaxed);
            }
            Class::Bulk if !again => {
                state.fetch_and(!BULK, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Makes `flow` ready for `worker`. Returns the flow's class, or `None` if it was ready
    /// already. `now` returns the time in ns since the start of the scheduler.
    #[inline]
    pub(crate) fn insert(
        &self,
        worker: usize,
        flow: Flow,
        now: impl FnOnce() -> u64,
    ) -> Option<Class> {
        let class = self.class(flow);
        let ready = &self.ready[worker];
        // Before the flow is seen in the set, so nobody takes an old time for that of this wait.
        if !ready.flows.get(class).contains(flow) {
            if let Some(ready_at) = self.ready_at.get(flow.get() as usize) {
                ready_at.store((now() >> READY_SHIFT) as u32, Ordering::Relaxed);
            }
        }
        let is_new = ready.flows.get(class).insert(flow);
        if is_new && class == Class::Bulk {
            ready.bulk.fetch_add(1, Ordering::Relaxed);
        }
        is_new.then_some(class)
    }

    /// Takes the next flow of `class` that is ready for `worker`: round robin, but if frames and
    /// QPs are bulk, every other flow is that of the frames.
    #[inline]
    pub(crate) fn take(&self, worker: usize, class: Class) -> Option<Flow> {
        let ready = &self.ready[worker];
        match class {
            Class::Sparse => ready.flows.sparse.take(),
            Class::Bulk => ready.take_bulk(),
        }
    }

    /// Whether a flow of `class` is ready for `worker`. May return true after the last flow was
    /// taken.
    #[inline]
    pub(crate) fn has_ready(&self, worker: usize, class: Class) -> bool {
        !self.ready[worker].flows.get(class).is_empty()
    }

    /// The flows of `class` that wait for `worker` at `now`, in ns since the start of the
    /// scheduler.
    pub(crate) fn waiting(&self, worker: usize, class: Class, now: u64) -> Option<Waiting> {
        let now = (now >> READY_SHIFT) as u32;
        let mut all: Option<Waiting> = None;
        self.ready[worker].flows.get(class).any(|flow| {
            let at = self.ready_at[flow.get() as usize].load(Ordering::Relaxed);
            let age = match now.wrapping_sub(at) {
                age @ 0..MAX_AGE => age,
                // The flow became ready after `now`.
                _ => 0,
            };
            let one = Waiting {
                port: self.port,
                flows: 1,
                oldest: flow,
                since: Duration::from_nanos(u64::from(age) << READY_SHIFT),
            };
            match &mut all {
                Some(all) => all.add(one),
                None => all = Some(one),
            }
            false
        });
        all
    }

    /// Whether a flow of `class` other than `flow` is ready for `worker`.
    pub(crate) fn has_other(&self, worker: usize, class: Class, flow: Flow) -> bool {
        let ready = self.ready[worker].flows.get(class);
        ready.any(|other| other != flow)
    }

    /// Number of bulk flows that are ready for `worker`.
    #[inline]
    pub(crate) fn bulk(&self, worker: usize) -> usize {
        self.ready[worker].bulk.load(Ordering::Relaxed) as usize
    }

    /// Charges the port for a turn that took `excess` longer than a turn may take.
    #[inline]
    pub(crate) fn owe(&self, excess: Duration) {
        let excess = u64::try_from(excess.as_nanos()).unwrap_or(MAX_DEBT);
        // A debt that two workers change at the same time is charged once.
        let debt = self.debt.load(Ordering::Relaxed).saturating_add(excess);
        self.debt.store(debt.min(MAX_DEBT), Ordering::Relaxed);
    }

    /// Whether the port has a debt. If so, pays `time` of it.
    #[inline]
    pub(crate) fn pays(&self, time: Duration) -> bool {
        let debt = self.debt.load(Ordering::Relaxed);
        if debt > 0 {
            // A debt that another worker changes at the same time is paid once.
            let left = debt.saturating_sub(time.as_nanos() as u64);
            self.debt.store(left, Ordering::Relaxed);
        }
        debt > 0
    }
}

impl Ready {
    fn take_bulk(&self) -> Option<Flow> {
        let flows = &self.flows.bulk;
        let flow = if self.frames_next.load(Ordering::Relaxed) && flows.remove(Flow::FRAMES) {
            Flow::FRAMES
        } else {
            match flows.take()? {
                Flow::FRAMES => match flows.take() {
                    Some(other) => {
                        flows.insert(Flow::FRAMES);
                        other
                    }
                    None => Flow::FRAMES,
                },
                flow => flow,
            }
        };
        self.frames_next
            .store(flow != Flow::FRAMES, Ordering::Relaxed);
        self.bulk.fetch_sub(1, Ordering::Relaxed);
        Some(flow)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLOW: Flow = Flow(5);

    #[test]
    fn homes_are_spread_and_change() {
        let flows = PortFlows::new(PortId::new(1), 100, 3);
        let homes = [0, 1, 2, 3].map(|n| flows.home(Flow(n)));
        assert_eq!(homes, [1, 1, 2, 0]);
        flows.classify(FLOW, Class::Sparse, true, true);
        flows.set_home(FLOW, 2);
        assert_eq!(flows.home(FLOW), 2);
        assert_eq!(flows.class(FLOW), Class::Bulk, "it stays what it is");
        let beyond = Flow(1000);
        flows.set_home(beyond, 1);
        assert_eq!(flows.home(beyond), 0);
        assert_eq!(flows.insert(0, beyond, || 0), None);
    }

    #[test]
    fn a_flow_is_bulk_from_a_full_turn_to_one_that_ends_its_work() {
        let flows = PortFlows::new(PortId::new(1), 100, 1);
        let step = |class, filled, again, expected| {
            flows.classify(FLOW, class, filled, again);
            assert_eq!(flows.insert(0, FLOW, || 0), Some(expected));
            assert_eq!(flows.insert(0, FLOW, || 0), None, "once");
            assert_eq!(flows.take(0, expected), Some(FLOW));
        };
        step(Class::Sparse, false, true, Class::Sparse);
        step(Class::Sparse, true, true, Class::Bulk);
        step(Class::Bulk, false, true, Class::Bulk);
        step(Class::Bulk, true, false, Class::Sparse);
        step(Class::Sparse, true, false, Class::Bulk);
    }

    fn fill(flows: &PortFlows, flow: Flow) {
        flows.classify(flow, Class::Sparse, true, true);
        assert!(flows.insert(0, flow, || 0).is_some());
    }

    #[test]
    fn bulk_frames_have_every_other_turn() {
        let flows = PortFlows::new(PortId::new(1), 100, 1);
        let qps = [5, 6, 7].map(Flow);
        qps.into_iter().for_each(|flow| fill(&flows, flow));
        fill(&flows, Flow::FRAMES);
        assert_eq!(flows.bulk(0), 4);
        let next = || {
            let flow = flows.take(0, Class::Bulk).unwrap();
            assert_eq!(flows.bulk(0), 3);
            flows.insert(0, flow, || 0);
            flow.get()
        };
        let turns: [u32; 8] = std::array::from_fn(|_| next());
        assert_eq!(turns, [5, 0, 6, 0, 7, 0, 5, 0]);
        for flow in qps {
            flows.ready[0].flows.bulk.remove(flow);
        }
        assert_eq!(flows.take(0, Class::Bulk), Some(Flow::FRAMES), "alone");
        assert_eq!(flows.take(0, Class::Bulk), None);
    }

    #[test]
    fn notifications_stay_sparse() {
        let flows = PortFlows::new(PortId::new(1), 100, 1);
        flows.classify(Flow::NOTIFICATIONS, Class::Sparse, true, true);
        let class = flows.insert(0, Flow::NOTIFICATIONS, || 0);
        assert_eq!(class, Some(Class::Sparse));
    }

    #[test]
    fn debts_are_paid_and_bounded() {
        let flows = PortFlows::new(PortId::new(1), 100, 1);
        let step = Duration::from_micros(10);
        assert!(!flows.pays(step));
        flows.owe(2 * step);
        assert_eq!([(); 3].map(|()| flows.pays(step)), [true, true, false]);
        flows.owe(Duration::MAX);
        flows.owe(Duration::MAX);
        let step = Duration::from_millis(1);
        let paid = (0..10_000).take_while(|_| flows.pays(step)).count();
        assert_eq!(paid, 1000);
    }
}
