// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The choice of the flow that has the next turn, and of its worker.
//!
//! A flow becomes ready for its home, which is woken if it sleeps. If it does not, it is at a turn:
//! then any worker that sleeps is woken and takes the flow over, a *steal*. The two ends of a
//! direct connection change their home together, since their turns exclude each other. A worker
//! gives sparse flows their turns first, but bulk flows have at least half of its time.

use virtio_rdma_abi::number::PortId;

use super::current::current;
use super::flow::{Class, Flow, FlowKey, PortFlows};
use super::sync::Ordering;
use super::work::{TurnEnd, Work};
use super::{ReadySet, Scheduler};

/// A flow that a worker has taken, to give it a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub key: FlowKey,
    class: Class,
}

/// The claims of one worker.
#[derive(Debug)]
pub(super) struct Claims {
    worker: usize,
    /// Cost of the turns of sparse flows since the last one of a bulk flow.
    sparse: usize,
}

impl Scheduler {
    /// `flow` has work.
    #[inline]
    pub(crate) fn make_ready(&self, flows: &PortFlows, flow: Flow) {
        let home = flows.home(flow);
        if self.insert(home, flows, flow) && !self.wake(home) && current().is_none() {
            self.sleep.wake_any();
        }
    }

    /// Enters `flow` for `worker`. Returns whether it was not ready.
    fn insert(&self, worker: usize, flows: &PortFlows, flow: Flow) -> bool {
        let class = flows.insert(worker, flow);
        if let Some(class) = class {
            self.workers[worker].ports.get(class).insert(flows.port());
        }
        class.is_some()
    }

    /// A turn of `flow` ended that any thread took.
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
    /// The claims of `worker`.
    pub(super) fn new(worker: usize) -> Self {
        Self { worker, sparse: 0 }
    }

    /// Takes the flow that is to have the next turn, one of another worker if there is none.
    pub(super) fn next<W: Work>(&mut self, work: &W, places: &W::Places) -> Option<Claim> {
        let scheduler = work.scheduler();
        let mut order = Class::ALL;
        if self.sparse >= scheduler.turn {
            order.reverse();
        }
        let own = order
            .into_iter()
            .find_map(|class| take(work, places, self.worker, class));
        let claim = own.or_else(|| self.steal(work, places));
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

    /// The turn of a flow that was claimed has ended.
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

    /// Takes a flow from another worker and makes this one its home. None whose turn would wait for
    /// one that goes on: the other worker is about to serve it.
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
                // Its worker goes on until there is nothing ready for it.
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

    /// Whether a flow is ready for this worker that another one could serve beside `claimed`.
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

/// Takes a flow of `class` that is ready for `worker`: of the next port, the next one.
fn take<W: Work>(work: &W, places: &W::Places, worker: usize, class: Class) -> Option<Claim> {
    let ports: &ReadySet<PortId> = work.scheduler().workers[worker].ports.get(class);
    loop {
        let port = ports.take()?;
        let Some(flows) = W::flows(places, port) else {
            if W::flows(&work.places(), port).is_some() {
                // It has come since the places were looked at: the next round serves it.
                ports.insert(port);
                work.scheduler().wake(worker);
                return None;
            }
            // It has gone.
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
