// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Limits on what a process spends on one client: memory and time.
//!
//! A [`Budget`] counts bytes up to a limit. A [`Charge`] is a part of a budget; dropping it returns
//! the bytes. [`ChargedList`] and [`ChargedQueue`] are a `Vec` and a `VecDeque` that hold a charge
//! for their whole capacity. Objects of other types hold a [`Charge`] in a field.
//!
//! Charging takes one atomic operation and no lock. It is meant for set-up, not for each message:
//! no charge is needed to push an item to a list or queue that has unused capacity.
//!
//! A [`TimeShare`] limits the time for which a client keeps a resource from others. [`LongCalls`]
//! limits the time of system calls that a client can make long.

#![forbid(unsafe_code)]

mod list;
mod long_calls;
mod queue;
mod time;

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

pub use list::ChargedList;
pub use long_calls::{CallClock, CallTime, LongCallStats, LongCalls};
pub use queue::ChargedQueue;
pub use time::TimeShare;

/// The budget, or the memory of the host, is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory budget is used up: {needed} bytes are needed, {left} are left")]
pub struct Exhausted {
    pub needed: u64,
    /// Bytes that are left in the budget, or 0 if the host has none.
    pub left: u64,
}

/// A limit in bytes, and the bytes used. Clones share one budget.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit: u64,
    used: AtomicU64,
    /// The charge to the parent budget, if this budget is a [`part`](MemoryBudget::part).
    _whole: Option<Charge>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self::with(limit, None)
    }

    fn with(limit: u64, whole: Option<Charge>) -> Self {
        Self(Arc::new(Account {
            limit,
            used: AtomicU64::new(0),
            _whole: whole,
        }))
    }

    /// Charges `amount` bytes.
    pub fn charge(&self, amount: u64) -> Result<Charge, Exhausted> {
        let fits = |used: u64| {
            used.checked_add(amount)
                .filter(|used| *used <= self.0.limit)
        };
        self.0
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|used| Exhausted {
                needed: amount,
                left: self.0.limit.saturating_sub(used),
            })?;
        let mut charge = self.nothing();
        charge.amount = amount;
        Ok(charge)
    }

    /// A charge of 0 bytes, which may grow later.
    fn nothing(&self) -> Charge {
        Charge {
            account: self.0.clone(),
            amount: 0,
        }
    }

    /// Charges the size of an object of type `T` in an `Arc`, and `more` bytes that the object owns
    /// elsewhere.
    pub fn charge_object<T>(&self, more: usize) -> Result<Charge, Exhausted> {
        /// Size of the reference counts in an `Arc`.
        const COUNTS: usize = 2 * size_of::<usize>();
        self.charge((size_of::<T>() + COUNTS + more) as u64)
    }

    /// Makes a budget that is a part of this one: the whole `limit` of the part is charged to this
    /// budget until the part and all its charges are dropped.
    pub fn part(&self, limit: u64) -> Result<Self, Exhausted> {
        let whole = self.charge(limit)?;
        Ok(Self::with(limit, Some(whole)))
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Number of bytes charged.
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }
}

/// Bytes of a [`MemoryBudget`]. Dropping a charge returns them.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    amount: u64,
}

impl Charge {
    /// Number of bytes charged.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Charges the budget for more, unless the charge is at least `amount` bytes.
    pub fn grow(&mut self, amount: u64) -> Result<(), Exhausted> {
        self.resize(amount.max(self.amount))
    }

    /// Changes the charge to `amount` bytes: charges the budget for more, or returns the excess.
    fn resize(&mut self, amount: u64) -> Result<(), Exhausted> {
        match amount.checked_sub(self.amount) {
            Some(more) => {
                let more = MemoryBudget(self.account.clone()).charge(more)?;
                self.amount += more.take();
            }
            None => {
                let less = self.amount - amount;
                self.account.used.fetch_sub(less, Ordering::Relaxed);
                self.amount = amount;
            }
        }
        Ok(())
    }

    /// Drops this value without returning its bytes to the budget. Returns the number of bytes,
    /// which the caller must return.
    fn take(mut self) -> u64 {
        mem::take(&mut self.amount)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_the_limit() {
        let budget = MemoryBudget::new(100);
        let most = budget.charge(99).unwrap();
        let last = budget.charge(1).unwrap();
        for needed in [1, u64::MAX] {
            let exhausted = Exhausted { needed, left: 0 };
            assert_eq!(budget.charge(needed).err(), Some(exhausted));
        }
        assert_eq!((budget.used(), budget.limit()), (100, 100));
        drop(most);
        assert_eq!(budget.used(), 1);
        let exhausted = Exhausted {
            needed: 100,
            left: 99,
        };
        assert_eq!(budget.charge(100).err(), Some(exhausted));
        drop(last);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn an_object_costs_its_size_its_counts_and_what_belongs_to_it() {
        let budget = MemoryBudget::new(1000);
        let object = budget.charge_object::<[u64; 3]>(100).unwrap();
        assert_eq!(budget.used(), 24 + 16 + 100);
        drop(object);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_part_lasts_as_long_as_its_charges() {
        let budget = MemoryBudget::new(100);
        let part = budget.part(60).unwrap();
        assert_eq!(budget.part(41).err().map(|_| ()), Some(()));
        let charge = part.charge(60).unwrap();
        assert!(part.charge(1).is_err());
        assert_eq!((budget.used(), part.used()), (60, 60));
        drop(part);
        assert_eq!(budget.used(), 60);
        drop(charge);
        assert_eq!(budget.used(), 0);
    }
}
