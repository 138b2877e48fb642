// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A look at the workers from outside: the activity of each, and the flows that wait for it.

use std::time::Duration;

use sandbox::Pulse;
use virtio_rdma_abi::number::PortId;

use crate::activity::Doing;
use crate::flow::{Class, PortFlows, Waiting};
use crate::Scheduler;

impl Scheduler {
    /// The rounds of each worker.
    pub fn pulses(&self) -> impl Iterator<Item = &Pulse> {
        self.workers.iter().map(|worker| &worker.activity.pulse)
    }

    /// The present activity of `worker`, and for how long. The time of a worker that sleeps or is
    /// woken counts from its last round.
    pub fn doing(&self, worker: usize) -> (Doing, Duration) {
        let (doing, since) = self.workers[worker].activity.read();
        let doing = match self.sleep.sleeps(worker) {
            true => Doing::Sleeping,
            false => doing,
        };
        let now = self.nanos(self.clock.now());
        (doing, Duration::from_nanos(now.saturating_sub(since)))
    }

    /// The flows that are ready for `worker`, by port. `flows` returns the flows of a port, if the
    /// port exists.
    pub fn waiting<'a>(
        &self,
        worker: usize,
        flows: impl Fn(PortId) -> Option<&'a PortFlows>,
    ) -> Vec<Waiting> {
        let now = self.nanos(self.clock.now());
        let mut all: Vec<Waiting> = Vec::new();
        for class in Class::ALL {
            self.workers[worker].ports.get(class).any(|port| {
                let ready = flows(port).and_then(|flows| flows.waiting(worker, class, now));
                match all.iter_mut().find(|other| other.port == port) {
                    Some(other) => ready.into_iter().for_each(|ready| other.add(ready)),
                    None => all.extend(ready),
                }
                false
            });
        }
        all.sort_by_key(|waiting| waiting.port.get());
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use virtio_rdma_abi::number::Qpn;

    use super::*;
    use crate::flow::{Flow, FlowKey};
    use crate::{
        Clock, Crew, Next, SchedulerConfig, TurnEnd, TurnStart, Work, WorkerKind, MAX_PORTS,
    };

    const PORTS: [PortId; 2] = [PortId::new(1), PortId::new(MAX_PORTS)];
    const LAST: Qpn = Qpn::new(0xff_ffff);
    /// The unit of the times at which flows become ready.
    const UNIT: Duration = Duration::from_nanos(1 << 20);

    /// An activity, for how many units, and the flows that wait.
    type Seen = (Doing, u128, Vec<Waiting>);

    /// Two ports, and a worker that makes flows ready and looks at itself while it gives a turn.
    struct Watched {
        scheduler: Arc<Scheduler>,
        ports: Arc<[PortFlows; 2]>,
        seen: Arc<Mutex<Vec<Seen>>>,
    }

    fn look(scheduler: &Scheduler, ports: &[PortFlows; 2]) -> Seen {
        let (doing, since) = scheduler.doing(0);
        let flows = |port| ports.iter().find(|flows| flows.port() == port);
        let units = since.as_nanos() / UNIT.as_nanos();
        (doing, units, scheduler.waiting(0, flows))
    }

    impl Work for Watched {
        type Places = Arc<[PortFlows; 2]>;

        fn scheduler(&self) -> &Scheduler {
            &self.scheduler
        }

        fn places(&self) -> Self::Places {
            self.ports.clone()
        }

        fn flows(places: &Self::Places, port: PortId) -> Option<&PortFlows> {
            places.iter().find(|flows| flows.port() == port)
        }

        fn peer(&self, _: &Self::Places, _: FlowKey) -> Option<FlowKey> {
            None
        }

        fn is_served(&self, _: &Self::Places, _: FlowKey) -> bool {
            false
        }

        fn expired(&self, _: FlowKey) {}

        fn begin(&mut self, _: Instant) {}

        fn serve(&mut self, ports: &Self::Places, _: FlowKey, _: TurnStart) -> TurnEnd {
            // The turn is held for 3 units, and flows of both ports become ready meanwhile.
            self.scheduler.clock.pass(UNIT);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    self.scheduler.make_ready(&ports[0], Flow::of(Qpn::new(7)));
                    self.scheduler.clock.pass(UNIT);
                    self.scheduler.make_ready(&ports[0], Flow::of(Qpn::new(5)));
                    // It is ready already, so this changes nothing.
                    self.scheduler.make_ready(&ports[0], Flow::of(Qpn::new(7)));
                    self.scheduler.make_ready(&ports[1], Flow::FRAMES);
                });
            });
            self.scheduler.clock.pass(UNIT);
            let seen = look(&self.scheduler, ports);
            self.seen.lock().unwrap().push(seen);
            TurnEnd::default()
        }

        fn end(&mut self) -> Next {
            Next::Sleep
        }
    }

    #[test]
    fn a_worker_in_a_turn_is_told_with_its_flow_and_what_waits() {
        let scheduler = Arc::new(Scheduler::new(SchedulerConfig {
            workers: 1,
            at_once: false,
            clock: Clock::manual(),
            turn: 1000,
            turn_time: UNIT,
        }));
        let qpns = [10, LAST.get() + 1];
        let flows = |n: usize| PortFlows::new(PORTS[n], qpns[n], 1);
        let ports = Arc::new([flows(0), flows(1)]);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut crew = Crew::new(WorkerKind::Stepped);
        let work = Watched {
            scheduler: scheduler.clone(),
            ports: ports.clone(),
            seen: seen.clone(),
        };
        crew.add(work).unwrap();

        assert_eq!(look(&scheduler, &ports).0, Doing::BetweenTurns);
        while crew.step(0) {}
        scheduler.clock.pass(9 * UNIT);
        assert_eq!(look(&scheduler, &ports), (Doing::Sleeping, 9, vec![]));

        scheduler.make_ready(&ports[1], Flow::of(LAST));
        scheduler.clock.pass(4 * UNIT);
        let waiting = |port, flows, oldest, since| Waiting {
            port,
            flows,
            oldest,
            since,
        };
        let one = vec![waiting(PORTS[1], 1, Flow::of(LAST), 4 * UNIT)];
        assert_eq!(look(&scheduler, &ports), (Doing::Waking, 13, one));

        // The round begins; 2 units later it gives the turn.
        assert!(crew.step(0));
        scheduler.clock.pass(2 * UNIT);
        assert_eq!(look(&scheduler, &ports).0, Doing::BetweenTurns);
        assert!(crew.step(0));
        let seen = seen.lock().unwrap().remove(0);
        let turn = Doing::Turn(FlowKey {
            port: PORTS[1],
            flow: Flow::of(LAST),
        });
        let both = vec![
            waiting(PORTS[0], 2, Flow::of(Qpn::new(7)), 2 * UNIT),
            waiting(PORTS[1], 1, Flow::FRAMES, UNIT),
        ];
        assert_eq!(seen, (turn, 3, both));
    }
}
