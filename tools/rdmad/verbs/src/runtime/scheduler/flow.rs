// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Flows: the units to which the scheduler gives turns.
//!
//! A flow is a QP, or the work of a port that belongs to no QP. Each flow has a *home*, the worker
//! that serves it. A flow that fills a turn becomes *bulk*, until it has no more work at the end of
//! a turn. Other flows are *sparse* and have priority, as in fq_codel (RFC 8290).

use crossbeam_utils::CachePadded;
use virtio_rdma_abi::number::{Number, PortId, Qpn};

use super::limits::MAX_WORKERS;
use super::ready::ReadySet;
use super::sync::{AtomicU8, Ordering};

/// A flow within a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Flow(u32);

impl Flow {
    /// The flow of the port's own work: received frames, new room in the frame port, doorbells of
    /// CQs, and new buffers in event queues.
    pub(crate) const PORT: Self = Self(0);

    /// The flow of a QP. No QPN is 0, the number of [`PORT`](Self::PORT).
    pub(crate) const fn of(qpn: Qpn) -> Self {
        Self(qpn.get())
    }

    /// The QP of this flow; `None` for [`PORT`](Self::PORT).
    pub(crate) fn qpn(self) -> Option<Qpn> {
        (self != Self::PORT).then_some(Qpn::new(self.0))
    }
}

impl Number for Flow {
    fn new(value: u32) -> Self {
        Self(value)
    }

    fn get(self) -> u32 {
        self.0
    }
}

/// A flow within the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    /// The flow's port.
    pub port: PortId,
    /// The flow within the port.
    pub flow: Flow,
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
    pub(super) const ALL: [Self; 2] = [Self::Sparse, Self::Bulk];
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
    pub(super) fn get(&self, class: Class) -> &T {
        match class {
            Class::Sparse => &self.sparse,
            Class::Bulk => &self.bulk,
        }
    }
}

impl<N: Number> ByClass<ReadySet<N>> {
    /// Two empty sets for numbers below `end`.
    pub(super) fn empty(end: u32) -> Self {
        Self {
            sparse: ReadySet::new(end),
            bulk: ReadySet::new(end),
        }
    }
}

/// The flows of a port, and the sets of ready flows.
#[derive(Debug)]
pub(crate) struct PortFlows {
    port: PortId,
    states: Box<[FlowState]>,
    /// For each worker, the ready flows that it should serve.
    ready: Box<[CachePadded<ByClass<ReadySet<Flow>>>]>,
}

/// Home and class of a flow. Both are only hints: whichever worker takes a ready flow serves it.
#[derive(Debug)]
struct FlowState(AtomicU8);

/// Bit of a [`FlowState`] that is set while the flow is bulk. The lower bits hold the number of the
/// home worker.
const BULK: u8 = 1 << 7;
const _: () = assert!(MAX_WORKERS <= BULK as usize);

impl PortFlows {
    /// Flows with numbers below `end`, none of them ready. Their homes are spread over `workers`
    /// workers, which may be at most [`MAX_WORKERS`].
    pub(crate) fn new(port: PortId, end: u32, workers: usize) -> Self {
        let home = |number: u32| ((port.get() as usize + number as usize) % workers) as u8;
        let none = || CachePadded::new(ByClass::empty(end));
        Self {
            port,
            states: (0..end)
                .map(|n| FlowState(AtomicU8::new(home(n))))
                .collect(),
            ready: (0..workers).map(|_| none()).collect(),
        }
    }

    /// Bytes of memory for each flow, with the maximum number of workers.
    pub(crate) const FLOW_SIZE: usize = size_of::<FlowState>() + 2 * MAX_WORKERS.div_ceil(8);

    /// The port of these flows.
    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// The home worker of `flow`, or 0 if there is no such flow.
    #[inline]
    pub(crate) fn home(&self, flow: Flow) -> usize {
        let state = self.states.get(flow.get() as usize);
        state.map_or(0, |state| {
            usize::from(state.0.load(Ordering::Relaxed) & !BULK)
        })
    }

    /// Makes `worker` the home of `flow`. If the flow is ready now, its old home may still give it
    /// one turn.
    pub(crate) fn set_home(&self, flow: Flow, worker: usize) {
        if let Some(FlowState(state)) = self.states.get(flow.get() as usize) {
            // `worker` is below MAX_WORKERS, so the cast cannot truncate.
            let home = |old| Some(old & BULK | worker as u8);
            let _ = state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, home);
        }
    }

    /// The class of `flow`.
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
    pub(super) fn classify(&self, flow: Flow, class: Class, filled: bool, again: bool) {
        let Some(FlowState(state)) = self.states.get(flow.get() as usize) else {
            return;
        };
        match class {
            Class::Sparse if filled => {
                state.fetch_or(BULK, Ordering::Relaxed);
            }
            Class::Bulk if !again => {
                state.fetch_and(!BULK, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Makes `flow` ready for `worker`. Returns the flow's class, or `None` if it was ready
    /// already.
    #[inline]
    pub(super) fn insert(&self, worker: usize, flow: Flow) -> Option<Class> {
        let class = self.class(flow);
        self.ready[worker].get(class).insert(flow).then_some(class)
    }

    /// The set of flows of `class` that are ready for `worker`.
    #[inline]
    pub(super) fn ready(&self, worker: usize, class: Class) -> &ReadySet<Flow> {
        self.ready[worker].get(class)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FLOW: Flow = Flow(5);

    #[test]
    fn homes_are_spread_and_change() {
        let flows = PortFlows::new(PortId::new(1), 100, 3);
        let homes = [0, 1, 2].map(|n| flows.home(Flow(n)));
        assert_eq!(homes, [1, 2, 0]);
        flows.classify(FLOW, Class::Sparse, true, true);
        flows.set_home(FLOW, 2);
        assert_eq!(flows.home(FLOW), 2);
        assert_eq!(flows.class(FLOW), Class::Bulk, "it stays what it is");
        let beyond = Flow(1000);
        flows.set_home(beyond, 1);
        assert_eq!(flows.home(beyond), 0);
        assert_eq!(flows.insert(0, beyond), None);
    }

    #[test]
    fn a_flow_is_bulk_from_a_full_turn_to_one_that_ends_its_work() {
        let flows = PortFlows::new(PortId::new(1), 100, 1);
        let step = |class, filled, again, expected| {
            flows.classify(FLOW, class, filled, again);
            assert_eq!(flows.insert(0, FLOW), Some(expected));
            assert_eq!(flows.insert(0, FLOW), None, "once");
            assert_eq!(flows.ready(0, expected).take(), Some(FLOW));
        };
        step(Class::Sparse, false, true, Class::Sparse);
        step(Class::Sparse, true, true, Class::Bulk);
        step(Class::Bulk, false, true, Class::Bulk);
        step(Class::Bulk, true, false, Class::Sparse);
        step(Class::Sparse, true, false, Class::Bulk);
    }
}
