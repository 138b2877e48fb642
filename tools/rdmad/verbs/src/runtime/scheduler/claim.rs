// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The choice of the next flow and of the worker that serves it.
//!
//! A flow becomes ready for its home worker. If that sleeps, it is woken, or the current thread
//! stands in for it. If it is awake, a thread that is no worker wakes any sleeping worker instead,
//! which takes the flow over, a *steal*. Both flows of a direct connection change their home
//! together, since their turns exclude each other. A worker serves sparse flows first, but leaves
//! at least half of its time to bulk flows.

use virtio_rdma_abi::number::PortId;

use super::current::current;
use super::flow::{Class, Flow, FlowKey, PortFlows};
use super::sync::Ordering;
use super::work::{TurnEnd, Work};
use super::{ReadySet, Scheduler};

/// Number of successive rounds after which a worker that only watches takes over work of another
/// worker. If the other worker is not busy with a turn, it should serve its work itself: it has the
/// flow's state in its cache, and finds the work within fewer rounds.
const ROUNDS_TO_STEAL: u32 = 16;

/// A flow that a worker has taken from a ready set, to give the flow a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub key: FlowKey,
    class: Class,
}

/// A worker's state for choosing flows.
#[derive(Debug)]
pub(super) struct Claims {
    worker: usize,
    /// Cost of the turns of sparse flows since the last turn of a bulk flow.
    sparse: usize,
    /// Whether the worker is awake only to poll its watched QPs.
    is_watching: bool,
    /// Number of successive rounds in which this worker only polled watched QPs while another
    /// worker had ready flows.
    rounds: u32,
}

impl Scheduler {
    /// Adds `flow`, which has work, to the ready flows of its home, and wakes a worker if needed.
    #[inline]
    pub(crate) fn make_ready(&self, flows: &PortFlows, flow: Flow) {
        if let Some(home) = self.add(flows, flow) {
            self.call(home);
        }
    }

    /// Adds `flow` to the ready flows of its home. Returns the home if the flow was not ready
    /// before.
    pub(super) fn add(&self, flows: &PortFlows, flow: Flow) -> Option<usize> {
        let home = flows.home(flow);
        self.insert(home, flows, flow).then_some(home)
    }

    /// Wakes `home`, which has a new ready flow, or another worker if `home` is busy.
    pub(super) fn call(&self, home: usize) {
        if !self.wake(home) && current().is_none() {
            self.sleep.wake_any();
        }
    }

    /// Adds `flow` to the ready flows of `worker`. Returns whether it was not ready before.
    fn insert(&self, worker: usize, flows: &PortFlows, flow: Flow) -> bool {
        let class = flows.insert(worker, flow);
        if let Some(class) = class {
            self.workers[worker].ports.get(class).insert(flows.port());
        }
        class.is_some()
    }

    /// Ends a turn of `flow` that a thread gave without claiming the flow.
    pub(crate) fn end_turn(&self, flows: &PortFlows, flow: Flow, end: TurnEnd) {
        self.end_claim(flows, flow, Class::Sparse, end);
    }

    fn end_claim(&self, flows: &PortFlows, flow: Flow, class: Class, end: TurnEnd) {
        flows.classify(flow, class, end.cost >= self.turn, end.again);
        if end.again {
            self.make_ready(flows, flow);
        }
    }

    /// Whether any flow is ready.
    pub(crate) fn is_busy(&self) -> bool {
        (0..self.workers()).any(|worker| self.has_work(worker))
    }

    /// Whether a flow is ready for `worker`.
    pub(super) fn has_work(&self, worker: usize) -> bool {
        let ports = &self.workers[worker].ports;
        !ports.sparse.is_empty() || !ports.bulk.is_empty()
    }
}

impl Claims {
    /// State of `worker`, which has chosen no flow yet.
    pub(super) fn new(worker: usize) -> Self {
        Self {
            worker,
            sparse: 0,
            is_watching: false,
            rounds: 0,
        }
    }

    /// Sets whether the worker begins its next round only to poll its watched QPs.
    pub(super) fn set_watching(&mut self, is_watching: bool) {
        self.is_watching = is_watching;
    }

    /// Takes the next flow: a ready flow of this worker, or else one of another worker.
    pub(super) fn next<W: Work>(&mut self, work: &W, places: &W::Places) -> Option<Claim> {
        let scheduler = work.scheduler();
        let mut order = Class::ALL;
        if self.sparse >= scheduler.turn {
            order.reverse();
        }
        let own = order
            .into_iter()
            .find_map(|class| take(work, places, self.worker, class));
        let claim = match own {
            Some(claim) => Some(claim),
            None if self.is_to_steal(scheduler) => self.steal(work, places),
            None => None,
        };
        if claim.is_some() {
            self.rounds = 0;
        }
        if claim.is_none_or(|claim| claim.class == Class::Bulk) {
            self.sparse = 0;
        }
        if let Some(claim) = claim.filter(|_| scheduler.sleep.has_sleepers()) {
            if self.has_other_work(work, places, claim.key) {
                scheduler.sleep.wake_any();
            }
        }
        claim
    }

    /// Ends the turn of a claimed flow.
    pub(super) fn end(
        &mut self,
        scheduler: &Scheduler,
        flows: &PortFlows,
        claim: Claim,
        end: TurnEnd,
    ) {
        if claim.class == Class::Sparse {
            self.sparse = self.sparse.saturating_add(end.cost);
        }
        scheduler.end_claim(flows, claim.key.flow, claim.class, end);
    }

    /// Whether this worker, which has no ready flow of its own, should take over a flow of another
    /// worker.
    fn is_to_steal(&mut self, scheduler: &Scheduler) -> bool {
        if !self.is_watching {
            return true;
        }
        let others = (0..scheduler.workers()).filter(|other| *other != self.worker);
        let has_work = { others }.any(|other| scheduler.has_work(other));
        if !has_work {
            self.rounds = 0;
            return false;
        }
        self.rounds += 1;
        self.rounds > ROUNDS_TO_STEAL
    }

    /// Takes a flow from another worker and makes this worker its home. Skips a flow if it or its
    /// direct peer has a turn now: this worker would have to wait for that turn.
    fn steal<W: Work>(&self, work: &W, places: &W::Places) -> Option<Claim> {
        let scheduler = work.scheduler();
        let workers = scheduler.workers();
        let others = (1..workers).map(|n| (self.worker + n) % workers);
        let from = |other| {
            let classes = Class::ALL.into_iter();
            classes.filter_map(move |class| {
                take(work, places, other, class).map(|claim| (other, claim))
            })
        };
        others.flat_map(from).find_map(|(other, claim)| {
            let flows = W::flows(places, claim.key.port)?;
            let peer = work.peer(places, claim.key);
            if [Some(claim.key), peer]
                .into_iter()
                .flatten()
                .any(|key| work.is_served(places, key))
            {
                // Leaves the flow to the other worker, which serves all its ready flows before it
                // sleeps.
                scheduler.insert(other, flows, claim.key.flow);
                scheduler.wake(other);
                return None;
            }
            flows.set_home(claim.key.flow, self.worker);
            if let Some(peer) = peer {
                if let Some(flows) = W::flows(places, peer.port) {
                    flows.set_home(peer.flow, self.worker);
                }
            }
            let steals = &scheduler.workers[self.worker].steals;
            steals.fetch_add(1, Ordering::Relaxed);
            Some(claim)
        })
    }

    /// Whether this worker has a ready flow that another worker could serve in parallel with
    /// `claimed`.
    fn has_other_work<W: Work>(&self, work: &W, places: &W::Places, claimed: FlowKey) -> bool {
        let peer = work.peer(places, claimed);
        let ports = &work.scheduler().workers[self.worker].ports;
        Class::ALL.into_iter().any(|class| {
            ports
                .get(class)
                .any(|port| match peer.filter(|peer| peer.port == port) {
                    Some(peer) => W::flows(places, port).is_some_and(|flows| {
                        flows
                            .ready(self.worker, class)
                            .any(|flow| flow != peer.flow)
                    }),
                    None => true,
                })
        })
    }
}

/// Takes a flow of `class` that is ready for `worker`, round robin over ports and their flows.
fn take<W: Work>(work: &W, places: &W::Places, worker: usize, class: Class) -> Option<Claim> {
    let ports: &ReadySet<PortId> = work.scheduler().workers[worker].ports.get(class);
    loop {
        let port = ports.take()?;
        let Some(flows) = W::flows(places, port) else {
            if W::flows(&work.places(), port).is_some() {
                // The port was added after `places` was taken: the next round serves it.
                ports.insert(port);
                work.scheduler().wake(worker);
                return None;
            }
            // The port was removed.
            continue;
        };
        let ready = flows.ready(worker, class);
        let flow = ready.take();
        if !ready.is_empty() {
            ports.insert(port);
        }
        if let Some(flow) = flow {
            let key = FlowKey { port, flow };
            return Some(Claim { key, class });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Instant;

    use virtio_rdma_abi::number::Qpn;

    use super::super::{Clock, Next, SchedulerConfig};
    use super::*;

    const PORT: PortId = PortId::new(1);
    const FLOW: Flow = Flow::of(Qpn::new(2));

    /// Work of a single port, number 1.
    struct OnePort(Scheduler);

    impl Work for OnePort {
        type Places = PortFlows;

        fn scheduler(&self) -> &Scheduler {
            &self.0
        }

        fn places(&self) -> PortFlows {
            PortFlows::new(PORT, 3, self.0.workers())
        }

        fn flows(places: &PortFlows, port: PortId) -> Option<&PortFlows> {
            (port == PORT).then_some(places)
        }

        fn peer(&self, _places: &PortFlows, _flow: FlowKey) -> Option<FlowKey> {
            None
        }

        fn is_served(&self, _places: &PortFlows, _flow: FlowKey) -> bool {
            false
        }

        fn expired(&self, _key: FlowKey) {}

        fn begin(&mut self, _now: Instant) {}

        fn serve(&mut self, _places: &PortFlows, _flow: FlowKey) -> TurnEnd {
            TurnEnd::default()
        }

        fn end(&mut self) -> Next {
            Next::Round
        }
    }

    #[test]
    fn a_worker_that_watches_leaves_work_to_others_for_some_rounds() {
        let work = OnePort(Scheduler::new(SchedulerConfig {
            workers: 2,
            at_once: false,
            clock: Clock::default(),
            turn: 1,
        }));
        let flows = work.places();
        let mut claims = Claims::new(1);
        let mut rounds = |is_watching| {
            claims.set_watching(is_watching);
            let claimed = |_| claims.next(&work, &flows).is_some();
            { 0..=ROUNDS_TO_STEAL }.position(claimed)
        };
        flows.set_home(FLOW, 0);
        for expected in [ROUNDS_TO_STEAL as usize; 2] {
            assert_eq!(rounds(true), None, "nobody has work");
            flows.set_home(FLOW, 0);
            work.0.make_ready(&flows, FLOW);
            assert_eq!(rounds(true), Some(expected));
            assert_eq!(flows.home(FLOW), 1);
        }
        flows.set_home(FLOW, 0);
        work.0.make_ready(&flows, FLOW);
        assert_eq!(rounds(false), Some(0), "it would sleep otherwise");
        work.0.make_ready(&flows, FLOW);
        assert_eq!(rounds(true), Some(0), "its own work");
    }
}
