// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counter sets: objects that count the events of the QPs that are bound to them.
//!
//! An event is counted once: in the counter set of its QP, or in the counters of the port if the QP
//! has no counter set. So a QP without a counter set costs one predictable branch, and no counter
//! is written by QPs of different counter sets. A reader of the port's counters adds the counter
//! sets up.

mod saved;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use budget::{Charge, MemoryBudget};
use scheduler::shared::Mutex;
use virtio_rdma_abi::ctrl::RspQueryCounters;
use virtio_rdma_abi::number::CounterSetNumber;

pub(crate) use self::saved::CounterSetsState;
use crate::config::BOOKKEEPING;
use crate::counters::{Counter, HcaCounters};
use crate::error::{in_use, no_such, Result, What};
use crate::shuffle::Secret;
use crate::table::Table;

#[derive(Debug)]
struct CounterSet {
    number: CounterSetNumber,
    counters: HcaCounters,
    /// Number of QPs that are bound to the set. Only commands change it.
    users: AtomicU32,
    _charge: Charge,
}

impl CounterSet {
    fn new(budget: &MemoryBudget, workers: usize, number: CounterSetNumber) -> Result<Self> {
        let size = HcaCounters::memory(workers) + BOOKKEEPING;
        Ok(Self {
            number,
            counters: HcaCounters::new(workers),
            users: AtomicU32::new(0),
            _charge: budget.charge_object::<Self>(size)?,
        })
    }
}

/// The counter sets of an HCA.
#[derive(Debug)]
pub(crate) struct CounterSets {
    table: Table<CounterSetNumber, CounterSet>,
    /// Sums of the sets that were destroyed since the last reset. The lock excludes readers of the
    /// port's sums while the counts of a set move here.
    destroyed: Mutex<HcaCounters>,
}

/// The counter set of a QP, [`NONE`](CounterSetNumber::NONE) at first. Turns read it without a
/// lock.
#[derive(Debug, Default)]
pub(crate) struct Binding(AtomicU32);

impl Binding {
    #[inline]
    pub(crate) fn get(&self) -> CounterSetNumber {
        CounterSetNumber::new(self.0.load(Ordering::Relaxed))
    }

    /// Changes the counter set, and returns the former one.
    pub(crate) fn replace(&self, number: CounterSetNumber) -> CounterSetNumber {
        CounterSetNumber::new(self.0.swap(number.get(), Ordering::Relaxed))
    }
}

impl CounterSets {
    /// A table for at most `max` counter sets.
    pub(crate) fn new(secret: &Secret, max: u32) -> Self {
        Self {
            table: Table::new(secret, 1..max + 1),
            destroyed: Mutex::new(HcaCounters::new(0)),
        }
    }

    /// Creates a counter set with a shard for each of `workers` workers, charged to `budget`.
    pub(crate) fn create(&self, budget: &MemoryBudget, workers: usize) -> Result<CounterSetNumber> {
        let reserved = self.table.number(What::Csn)?;
        let set = CounterSet::new(budget, workers, reserved.number())?;
        Ok(reserved.insert(Arc::new(set)))
    }

    /// Destroys a counter set. Refused if it does not exist, and while QPs are bound to it.
    pub(crate) fn destroy(&self, number: CounterSetNumber) -> Result<()> {
        let set = self.table.find(What::Csn, number)?;
        if set.users.load(Ordering::Relaxed) != 0 {
            return Err(in_use(What::Csn, number));
        }
        // No turn counts in the set any more: commands that unbind QPs wait for turns.
        let destroyed = self.destroyed.lock();
        self.table.remove(number);
        self.table.release(number);
        destroyed.absorb(&set.counters);
        Ok(())
    }

    /// The values of a counter set.
    pub(crate) fn query(&self, number: CounterSetNumber) -> Result<RspQueryCounters> {
        let set = self.table.find(What::Csn, number)?;
        Ok(set.counters.sums())
    }

    /// Adds `n` to a counter of a set. Returns false if there is no such set.
    #[inline(never)]
    pub(crate) fn add(&self, number: CounterSetNumber, counter: Counter, n: u64) -> bool {
        let set = self.table.hold(number);
        let Some(set) = set.as_ref().and_then(|held| held.get()) else {
            return false;
        };
        set.counters.add(counter, n);
        true
    }

    /// Registers a QP that is being bound to a set. Refused if the set does not exist.
    pub(crate) fn attach(&self, number: CounterSetNumber) -> Result<()> {
        let attach = |set: &CounterSet| set.users.fetch_add(1, Ordering::Relaxed);
        self.table
            .with(number, attach)
            .ok_or(no_such(What::Csn, number))?;
        Ok(())
    }

    /// Ends the registration of a QP, no turn of which counts in the set any more. There may be no
    /// such set.
    pub(crate) fn detach(&self, number: CounterSetNumber) {
        self.table.with(number, |set| {
            set.users.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Adds the values of all sets since the last reset to `port`, the counters of their port, and
    /// returns the sums.
    pub(crate) fn sums_with(&self, port: &HcaCounters) -> RspQueryCounters {
        let all = HcaCounters::new(0);
        let destroyed = self.destroyed.lock();
        all.absorb(port);
        all.absorb(&destroyed);
        for set in self.table.iter() {
            all.absorb(&set.counters);
        }
        all.sums()
    }

    /// Destroys all sets, to which no QP is bound any more, and moves the values of all sets since
    /// the last reset to `port`.
    pub(crate) fn clear(&self, port: &HcaCounters) {
        let mut destroyed = self.destroyed.lock();
        port.absorb(&destroyed);
        *destroyed = HcaCounters::new(0);
        for set in self.table.iter() {
            self.table.remove(set.number);
            self.table.release(set.number);
            port.absorb(&set.counters);
        }
    }
}
