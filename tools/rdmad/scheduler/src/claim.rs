// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The choice of the next flow and of the worker that serves it.
//!
//! A flow becomes ready for its home worker. If that sleeps, it is woken, or the current thread
//! stands in for it. If it is awake, a thread that is not a worker wakes any sleeping worker
//! instead, which takes the flow over, a *steal*. Both flows of a direct connection change their
//! home together, since their turns exclude each other. A worker serves sparse flows first, but
//! leaves at least half of its time to bulk flows.
//!
//! A turn may take longer than it should, for example if the host must provide memory. The excess
//! is a debt of the port: turns of other ports come first until the debt is paid.

use std::time::{Duration, Instant};

use virtio_rdma_abi::number::PortId;

use crate::current::current;
use crate::flow::{Class, Flow, FlowKey, PortFlows};
use crate::sync::Ordering;
use crate::work::{TurnEnd, TurnStart, Work};
use crate::{ReadySet, Scheduler};

/// Number of successive rounds after which a worker that only watches takes over work of another
/// worker. If the other worker is not busy with a turn, it should serve its work itself: it has the
/// flow's state in its cache, and finds the work within fewer rounds.
const ROUNDS_TO_STEAL: u32 = 16;

/// Cost of a whole cycle of bulk flows, in turns. If more bulk flows are ready, their turns are
/// shorter: a flow must have its next turn before peers that wait for its packets lose patience.
const CYCLE: usize = 128;
/// The shortest turn of a bulk flow is this fraction of a turn, since a turn has a cost of its own.
const SHORTEST: usize = 8;
/// Number of turns of bulk flows after which the ready bulk flows are counted again.
const COUNT_AGAIN: u32 = 8;
/// The least cost of a turn is this fraction of a turn: to find the flow and its work costs too.
const LEAST: usize = 64;
/// A port pays this fraction of the time of a turn when another port is served first. A turn that
/// the host does not delay takes about as long.
const PAYMENT: u32 = 16;

/// A flow that a worker has taken from a ready set, to give the flow a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub key: FlowKey,
    class: Class,
}

/// A worker's state for choosing flows.
#[derive(Debug)]
pub(crate) struct Claims {
    worker: usize,
    /// Cost of the turns of sparse flows, less the cost of turns of bulk flows. 0 if no bulk flow
    /// waits.
    sparse: usize,
    /// Whether the worker is awake only to poll its watched QPs.
    is_watching: bool,
    /// Number of successive rounds in which this worker only polled watched QPs while another
    /// worker had ready flows.
    rounds: u32,
    /// Budget of the turns of bulk flows.
    bulk_turn: usize,
    /// Number of turns of bulk flows until `bulk_turn` is computed again.
    count_again: u32,
    /// The last turn, unless its time was charged already.
    last: Option<Given>,
}

/// A turn that was given.
#[derive(Debug)]
struct Given {
    claim: Claim,
    start: Instant,
    cost: usize,
}

impl Scheduler {
    /// Adds `flow`, which has work, to the ready flows of its home, and wakes a worker if needed.
    #[inline]
    pub fn make_ready(&self, flows: &PortFlows, flow: Flow) {
        if let Some(home) = self.add(flows, flow) {
            self.call(home);
        }
    }

    /// Adds `flow` to the ready flows of its home. Returns the home if the flow was not ready
    /// before.
    #[inline]
    pub(crate) fn add(&self, flows: &PortFlows, flow: Flow) -> Option<usize> {
        let home = flows.home(flow);
        self.insert(home, flows, flow).then_some(home)
    }

    /// Wakes `home`, which has a new ready flow, or another worker if `home` is busy.
    #[inline]
    pub(crate) fn call(&self, home: usize) {
        if !self.wake(home) && current().is_none() {
            self.sleep.wake_any();
        }
    }

    /// Adds `flow` to the ready flows of `worker`. Returns whether it was not ready before.
    #[inline]
    fn insert(&self, worker: usize, flows: &PortFlows, flow: Flow) -> bool {
        let class = flows.insert(worker, flow, || self.ready_at());
        if let Some(class) = class {
            self.workers[worker].ports.get(class).insert(flows.port());
        }
        class.is_some()
    }

    /// Ends a turn of `flow` that a thread gave without claiming the flow.
    #[inline]
    pub fn end_turn(&self, flows: &PortFlows, flow: Flow, end: TurnEnd) {
        self.end_claim(flows, flow, Class::Sparse, end);
    }

    #[inline]
    fn end_claim(&self, flows: &PortFlows, flow: Flow, class: Class, end: TurnEnd) {
        flows.classify(flow, class, end.cost >= self.turn, end.again);
        if end.again {
            self.make_ready(flows, flow);
        }
    }

    /// The least cost of a turn.
    #[inline]
    pub(crate) fn least_turn(&self) -> usize {
        self.turn.div_ceil(LEAST)
    }

    /// Budget of a turn of one of `bulk` ready bulk flows.
    #[inline]
    fn bulk_turn(&self, bulk: usize) -> usize {
        (CYCLE * self.turn / bulk.max(1)).clamp(self.turn.div_ceil(SHORTEST), self.turn)
    }

    /// Whether any flow is ready.
    pub fn is_busy(&self) -> bool {
        (0..self.workers()).any(|worker| self.has_work(worker))
    }

    /// Whether a flow is ready for `worker`.
    #[inline]
    pub(crate) fn has_work(&self, worker: usize) -> bool {
        let ports = &self.workers[worker].ports;
        !ports.sparse.is_empty() || !ports.bulk.is_empty()
    }
}

impl Claims {
    /// State of `worker`, which has chosen no flow yet.
    pub(crate) fn new(worker: usize) -> Self {
        Self {
            worker,
            sparse: 0,
            is_watching: false,
            rounds: 0,
            bulk_turn: 0,
            count_again: 0,
            last: None,
        }
    }

    /// Sets whether the worker begins its next round only to poll its watched QPs.
    #[inline]
    pub(crate) fn set_watching(&mut self, is_watching: bool) {
        self.is_watching = is_watching;
    }

    /// Takes the next flow, a ready flow of this worker or else one of another worker, and starts
    /// its turn.
    pub(crate) fn next<W: Work>(
        &mut self,
        work: &W,
        places: &W::Places,
    ) -> Option<(Claim, TurnStart)> {
        let now = self.charge_last(work, places);
        let claim = self.choose(work, places)?;
        let budget = match claim.class {
            Class::Sparse => work.scheduler().turn,
            Class::Bulk => self.bulk_turn(work, places),
        };
        let now = now.unwrap_or_else(|| work.scheduler().clock.now());
        Some((claim, TurnStart { now, budget }))
    }

    /// Takes a sparse flow of `port` that is ready for this worker, and starts a turn with this
    /// budget.
    pub(crate) fn next_of<W: Work>(
        &mut self,
        work: &W,
        places: &W::Places,
        port: PortId,
        budget: usize,
    ) -> Option<(Claim, TurnStart)> {
        let now = self.charge_last(work, places);
        let class = Class::Sparse;
        let flows = W::flows(places, port)?;
        let flow = flows.take(self.worker, class);
        if !flows.has_ready(self.worker, class) {
            let ports = work.scheduler().workers[self.worker].ports.get(class);
            ports.remove(port);
            // A flow may have become ready before the port was removed.
            if flows.has_ready(self.worker, class) {
                ports.insert(port);
            }
        }
        let key = FlowKey { port, flow: flow? };
        let now = now.unwrap_or_else(|| work.scheduler().clock.now());
        Some((Claim { key, class }, TurnStart { now, budget }))
    }

    /// Charges the time of the last turn, which has just ended. Must be called before the worker
    /// does anything else for long. Returns the current time, or `None` if there is no turn to
    /// charge.
    pub(crate) fn charge_last<W: Work>(&mut self, work: &W, places: &W::Places) -> Option<Instant> {
        let Given { claim, start, cost } = self.last.take()?;
        let scheduler = work.scheduler();
        let now = scheduler.clock.now();
        let time = now.saturating_duration_since(start);
        let Some(excess) = time.checked_sub(scheduler.turn_time) else {
            return Some(now);
        };
        if let Some(flows) = W::flows(places, claim.key.port) {
            flows.owe(excess);
        }
        // At least a turn, since it took as long as one.
        self.charge(claim.class, scheduler.turn.saturating_sub(cost));
        Some(now)
    }

    /// Counts the cost of a turn of a flow of this class.
    #[inline]
    fn charge(&mut self, class: Class, cost: usize) {
        self.sparse = match class {
            Class::Sparse => self.sparse.saturating_add(cost),
            Class::Bulk => self.sparse.saturating_sub(cost),
        };
    }

    /// Cost of turns of sparse flows after which bulk flows come first: that of a turn of a bulk
    /// flow.
    #[inline]
    fn most_sparse(&self, scheduler: &Scheduler) -> usize {
        match self.bulk_turn {
            0 => scheduler.turn,
            budget => budget,
        }
    }

    /// Budget of a turn of a bulk flow that was taken.
    #[inline]
    fn bulk_turn<W: Work>(&mut self, work: &W, places: &W::Places) -> usize {
        if self.count_again == 0 {
            self.count_again = COUNT_AGAIN;
            let mut bulk = 1;
            work.scheduler().workers[self.worker]
                .ports
                .bulk
                .any(|port| {
                    bulk += W::flows(places, port).map_or(0, |flows| flows.bulk(self.worker));
                    false
                });
            self.bulk_turn = work.scheduler().bulk_turn(bulk);
        }
        self.count_again -= 1;
        self.bulk_turn
    }

    fn choose<W: Work>(&mut self, work: &W, places: &W::Places) -> Option<Claim> {
        let scheduler = work.scheduler();
        let mut order = Class::ALL;
        let is_bulk_first = self.sparse >= self.most_sparse(scheduler);
        if is_bulk_first {
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
        if claim.is_none_or(|claim| claim.class == Class::Sparse && is_bulk_first) {
            // No bulk flow waits.
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
    #[inline]
    pub(crate) fn end(
        &mut self,
        scheduler: &Scheduler,
        flows: &PortFlows,
        claim: Claim,
        start: Instant,
        end: TurnEnd,
    ) {
        let cost = end.cost.max(scheduler.least_turn());
        self.charge(claim.class, cost);
        self.last = Some(Given { claim, start, cost });
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
                    Some(peer) => W::flows(places, port)
                        .is_some_and(|flows| flows.has_other(self.worker, class, peer.flow)),
                    None => true,
                })
        })
    }
}

/// Takes a flow of `class` that is ready for `worker`, round robin over ports and their flows.
/// Ports with a debt pay when they are passed over.
fn take<W: Work>(work: &W, places: &W::Places, worker: usize, class: Class) -> Option<Claim> {
    let scheduler = work.scheduler();
    let ports: &ReadySet<PortId> = scheduler.workers[worker].ports.get(class);
    let payment: Duration = scheduler.turn_time / PAYMENT;
    // The first port that was passed over. If it comes again, all ready ports have debts.
    let mut first = None;
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
        if first != Some(port) && flows.pays(payment) {
            first = first.or(Some(port));
            ports.insert(port);
            continue;
        }
        let flow = flows.take(worker, class);
        if flows.has_ready(worker, class) {
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
    use virtio_rdma_abi::number::Qpn;

    use super::*;
    use crate::{Clock, Next, SchedulerConfig};

    const PORTS: [PortId; 2] = [PortId::new(1), PortId::new(2)];
    const FLOW: Flow = Flow::of(Qpn::new(2));
    const TURN: usize = 1000;
    const TURN_TIME: Duration = Duration::from_micros(160);

    /// Work of two ports.
    struct TwoPorts(Scheduler);

    impl TwoPorts {
        fn new(workers: usize) -> Self {
            Self(Scheduler::new(SchedulerConfig {
                workers,
                at_once: false,
                clock: Clock::manual(),
                turn: TURN,
                turn_time: TURN_TIME,
            }))
        }

        /// The next flow of worker `claims`.
        fn next(&self, claims: &mut Claims, ports: &[PortFlows; 2]) -> Option<(Claim, TurnStart)> {
            claims.next(self, ports)
        }

        /// Gives the next flow a turn, which takes `time`. It costs `cost` for a sparse flow, and
        /// its budget for a bulk flow. Returns its class and cost.
        fn give_turn(
            &self,
            claims: &mut Claims,
            ports: &[PortFlows; 2],
            cost: usize,
            time: Duration,
        ) -> (Class, usize) {
            let (claim, start) = self.next(claims, ports).unwrap();
            let flows = Self::flows(ports, claim.key.port).unwrap();
            let (class, again) = (claim.class, true);
            let cost = match class {
                Class::Sparse => cost,
                Class::Bulk => start.budget,
            };
            self.0.clock.pass(time);
            claims.end(&self.0, flows, claim, start.now, TurnEnd { again, cost });
            (class, cost)
        }
    }

    impl Work for TwoPorts {
        type Places = [PortFlows; 2];

        fn scheduler(&self) -> &Scheduler {
            &self.0
        }

        fn places(&self) -> Self::Places {
            PORTS.map(|port| PortFlows::new(port, 600, self.0.workers()))
        }

        fn flows(places: &Self::Places, port: PortId) -> Option<&PortFlows> {
            places.iter().find(|flows| flows.port() == port)
        }

        fn peer(&self, _places: &Self::Places, _flow: FlowKey) -> Option<FlowKey> {
            None
        }

        fn is_served(&self, _places: &Self::Places, _flow: FlowKey) -> bool {
            false
        }

        fn expired(&self, _key: FlowKey) {}

        fn begin(&mut self, _now: Instant) {}

        fn serve(&mut self, _: &Self::Places, _: FlowKey, _: TurnStart) -> TurnEnd {
            TurnEnd::default()
        }

        fn end(&mut self) -> Next {
            Next::Round
        }
    }

    #[test]
    fn a_worker_that_watches_leaves_work_to_others_for_some_rounds() {
        let work = TwoPorts::new(2);
        let ports = work.places();
        let flows = &ports[0];
        let mut claims = Claims::new(1);
        let mut rounds = |is_watching| {
            claims.set_watching(is_watching);
            let claimed = |_| work.next(&mut claims, &ports).is_some();
            { 0..=ROUNDS_TO_STEAL }.position(claimed)
        };
        flows.set_home(FLOW, 0);
        for expected in [ROUNDS_TO_STEAL as usize; 2] {
            assert_eq!(rounds(true), None, "nobody has work");
            flows.set_home(FLOW, 0);
            work.0.make_ready(flows, FLOW);
            assert_eq!(rounds(true), Some(expected));
            assert_eq!(flows.home(FLOW), 1);
        }
        flows.set_home(FLOW, 0);
        work.0.make_ready(flows, FLOW);
        assert_eq!(rounds(false), Some(0), "it would sleep otherwise");
        work.0.make_ready(flows, FLOW);
        assert_eq!(rounds(true), Some(0), "its own work");
    }

    #[test]
    fn a_port_with_a_debt_is_passed_over() {
        let work = TwoPorts::new(1);
        let ports = work.places();
        let mut claims = Claims::new(0);
        ports
            .iter()
            .for_each(|flows| work.0.make_ready(flows, FLOW));
        // Gives a turn that takes `time`. Returns the port that has it.
        let mut turn = |time| {
            let (claim, start) = work.next(&mut claims, &ports).unwrap();
            let flows = TwoPorts::flows(&ports, claim.key.port).unwrap();
            work.0.clock.pass(time);
            let end = TurnEnd {
                again: true,
                cost: 1,
            };
            claims.end(&work.0, flows, claim, start.now, end);
            claim.key.port.get()
        };
        let short = TURN_TIME / 10;
        // A turn that takes the time of two: the other port has the time of one before the next.
        assert_eq!(turn(2 * TURN_TIME), 1);
        let others = (0..100).take_while(|_| turn(short) == 2).count();
        assert_eq!(others, PAYMENT as usize + 1);
        assert_eq!([(); 4].map(|()| turn(short)), [2, 1, 2, 1]);
    }

    #[test]
    fn long_sparse_turns_leave_bulk_flows_their_turns() {
        let work = TwoPorts::new(1);
        let ports = work.places();
        let mut claims = Claims::new(0);
        let [_, bulk] = &ports;
        bulk.classify(FLOW, Class::Sparse, true, true);
        ports
            .iter()
            .for_each(|flows| work.0.make_ready(flows, FLOW));
        // Gives turns of this cost and time to the sparse flow until the bulk flow has one.
        let mut turns = |cost, time| {
            let mut next = || work.give_turn(&mut claims, &ports, cost, time).0;
            { 0..1000 }.take_while(|_| next() == Class::Sparse).count()
        };
        assert_eq!(turns(0, Duration::ZERO), LEAST - 1, "turns without work");
        assert_eq!(turns(0, TURN_TIME), 1, "turns that take long");
        assert_eq!(turns(TURN / 2, Duration::ZERO), 2, "turns with work");
    }

    #[test]
    fn bulk_flows_get_half_of_the_time_however_many_they_are() {
        const SPARSE: Flow = Flow::of(Qpn::new(599));
        for (count, cost) in [1, 32, 520]
            .map(|count| [(count, 1), (count, TURN - 1)])
            .concat()
        {
            let work = TwoPorts::new(1);
            let ports = work.places();
            let mut claims = Claims::new(0);
            for flows in &ports {
                for number in 1..=count {
                    let flow = Flow::of(Qpn::new(number));
                    flows.classify(flow, Class::Sparse, true, true);
                    work.0.make_ready(flows, flow);
                }
            }
            work.0.make_ready(&ports[0], SPARSE);
            let mut costs = [0; 2];
            for _ in 0..2000 {
                let (class, cost) = work.give_turn(&mut claims, &ports, cost, Duration::ZERO);
                costs[usize::from(class == Class::Sparse)] += cost.max(work.0.least_turn());
            }
            let [bulk, sparse] = costs;
            assert!(
                bulk.abs_diff(sparse) <= 2 * TURN,
                "{count} flows: {costs:?}"
            );
        }
    }

    #[test]
    fn turns_are_shorter_if_many_flows_are_bulk() {
        let work = TwoPorts::new(1);
        let ports = work.places();
        let budget = |count: u32| {
            let ready = |flows: &PortFlows| {
                for number in 1..=count {
                    let flow = Flow::of(Qpn::new(number));
                    flows.classify(flow, Class::Sparse, true, true);
                    work.0.make_ready(flows, flow);
                }
            };
            ports.iter().for_each(ready);
            let first = work.next(&mut Claims::new(0), &ports);
            first.map(|(_, start)| start.budget)
        };
        assert_eq!(budget(1), Some(TURN));
        assert_eq!(budget(CYCLE as u32 / 2), Some(TURN));
        assert_eq!(budget(CYCLE as u32), Some(TURN / 2));
        assert_eq!(work.0.bulk_turn(1 << 20), TURN / SHORTEST);
    }
}
