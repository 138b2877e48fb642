// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counter sets of a guest, and a model of the packets that each of them counts.

use testkit::engine::Qp;
use virtio_rdma_abi::ctrl::{
    CmdBindCounterSet, CmdCreateCounterSet, CmdDestroyCounterSet, CmdQueryCounterSet,
    RspQueryCounters,
};
use virtio_rdma_abi::ib::PORT;
use virtio_rdma_abi::number::{CounterSetNumber, Qpn};

use crate::choices::Choices;
use crate::guest::Guest;
use crate::traffic::{Route, Traffic};

/// Maximum number of counter sets of a guest.
const SETS: usize = 4;
/// Error code of the destruction of a set to which a QP is bound.
const EBUSY: u8 = 16;

type Values = [u64; RspQueryCounters::NAMES.len()];

/// A QP that is bound to a set.
struct User {
    qpn: Qpn,
    route: Route,
    /// Packets that the QP had sent when it was bound.
    before: Traffic,
}

/// A counter set.
struct Set {
    csn: CounterSetNumber,
    /// Whether the set counts one QP alone.
    is_alone: bool,
    users: Vec<User>,
    /// Packets that former users have sent.
    former: Traffic,
}

/// The counter sets of a guest since the last reset.
#[derive(Default)]
pub struct CounterSets {
    present: Vec<Set>,
    /// Sums of the destroyed sets.
    destroyed: Values,
}

/// Adds `more` to `values`.
fn add(values: &mut Values, more: Values) {
    for (value, more) in values.iter_mut().zip(more) {
        *value += more;
    }
}

impl Guest {
    /// Creates or destroys a counter set, or binds the QP `qp`, which is connected to `peer`.
    pub fn change_counter_set(&self, qp: &Qp<'_>, peer: &Qp<'_>, choices: &mut Choices) {
        let sets = &self.counter_sets;
        let is_shared = |at: &usize| !sets.borrow().present[*at].is_alone;
        let count = sets.borrow().present.len();
        let shared: Vec<_> = (0..count).filter(is_shared).collect();
        let at = choices.below(shared.len().max(1));
        let at = shared.get(at).copied();
        match choices.below(8) {
            0..=1 if shared.len() < SETS => {
                let at = self.create_counter_set(false);
                self.bind(qp, peer, Some(at));
            }
            0..=4 if at.is_some() => self.bind(qp, peer, at),
            5 => self.bind(qp, peer, None),
            6 => {
                if let Some(at) = at {
                    self.destroy_counter_set(at);
                }
            }
            _ => {}
        }
        self.check_counters();
    }

    /// Binds a new QP to a counter set of its own, until the QP is destroyed.
    pub fn count_alone(&self, qp: &Qp<'_>, peer: &Qp<'_>) -> CounterSetNumber {
        let at = self.create_counter_set(true);
        self.bind(qp, peer, Some(at));
        self.counter_sets.borrow().present[at].csn
    }

    /// Creates a counter set and returns its index.
    fn create_counter_set(&self, is_alone: bool) -> usize {
        let csn = self
            .vm
            .call(CmdCreateCounterSet { port: PORT })
            .unwrap()
            .csn;
        let sets = &mut self.counter_sets.borrow_mut().present;
        sets.push(Set {
            csn,
            is_alone,
            users: Vec::new(),
            former: Traffic::default(),
        });
        sets.len() - 1
    }

    /// Binds a QP to the counter set with index `at`, or unbinds it.
    fn bind(&self, qp: &Qp<'_>, peer: &Qp<'_>, at: Option<usize>) {
        let qpn = qp.qpn;
        let number = |at: usize| self.counter_sets.borrow().present[at].csn;
        let csn = at.map_or(CounterSetNumber::NONE, number);
        self.vm.call(CmdBindCounterSet { qpn, csn }).unwrap();
        self.leave_counter_set(qpn);
        if let Some(at) = at {
            let route = Route::new(peer.vm.mac, peer.qpn);
            self.counter_sets.borrow_mut().present[at].users.push(User {
                qpn,
                route,
                before: self.sent_along(route),
            });
        }
    }

    /// Notes that a QP is no longer bound to a counter set.
    pub fn leave_counter_set(&self, qpn: Qpn) {
        for set in &mut self.counter_sets.borrow_mut().present {
            if let Some(at) = set.users.iter().position(|user| user.qpn == qpn) {
                let user = set.users.swap_remove(at);
                set.is_alone = false;
                set.former += self.sent_along(user.route) - user.before;
            }
        }
    }

    /// Destroys the counter set with index `at`. Checks that this fails while a QP is bound to it.
    fn destroy_counter_set(&self, at: usize) {
        let sets = &mut *self.counter_sets.borrow_mut();
        let set = &sets.present[at];
        let csn = set.csn;
        let values = self.query_counter_set(csn).values();
        let destroyed = self.vm.call(CmdDestroyCounterSet { csn });
        let has_users = !set.users.is_empty();
        assert_eq!(destroyed.err(), has_users.then_some(EBUSY));
        if !has_users {
            add(&mut sets.destroyed, values);
            sets.present.swap_remove(at);
        }
    }

    /// Destroys all counter sets, to which no QP is bound.
    pub fn destroy_counter_sets(&self) {
        self.check_counters();
        while !self.counter_sets.borrow().present.is_empty() {
            self.destroy_counter_set(0);
        }
        self.check_counters();
    }

    pub fn query_counter_set(&self, csn: CounterSetNumber) -> RspQueryCounters {
        self.vm.call(CmdQueryCounterSet { csn }).unwrap()
    }

    /// Checks that each event is counted once, and each packet that was sent in the set of its QP.
    pub fn check_counters(&self) {
        if !self.has_counter_sets() {
            return;
        }
        let sets = &*self.counter_sets.borrow();
        let mut sums = self.query_counter_set(CounterSetNumber::NONE).values();
        add(&mut sums, sets.destroyed);
        for set in &sets.present {
            let counted = self.query_counter_set(set.csn);
            let sent = set.users.iter().fold(set.former, |sum, user| {
                sum + (self.sent_along(user.route) - user.before)
            });
            assert_eq!(Traffic::sent(&counted), sent, "packets of a counter set");
            let of_port = [
                counted.bad_packets,
                counted.pkey_violations,
                counted.qkey_violations,
                counted.doorbells,
                counted.completion_events,
            ];
            assert_eq!(of_port, [0; 5], "counters of the port");
            add(&mut sums, counted.values());
        }
        let port = self.vm.counters();
        assert_eq!(port.values(), sums, "counters of the port and its sets");
        assert_eq!(Traffic::sent(&port), self.sent(), "packets of the port");
    }
}
