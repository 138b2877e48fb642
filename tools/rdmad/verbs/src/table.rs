// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tables of numbered objects.

use std::collections::{BTreeSet, VecDeque};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};
use scheduler::shared::{note_reference, Mutex, RwLock};
use virtio_rdma_abi::number::Number;

use crate::error::{full, no_such, require, Reason, Result, What};
use crate::shuffle::{Secret, Shuffle};

/// A bounded table of objects, indexed by number.
///
/// A lookup reads only its own slot, so its cost does not depend on other objects, and lookups of
/// different objects do not contend. A lookup [within a turn](Self::hold) writes nothing that
/// another thread reads, so lookups of one object do not contend either.
///
/// Numbers are given out in a secret order, so a number reveals little about others. A number is
/// reused only when no fresh number is left, and the number that was returned first is reused
/// first. So a stale number is unlikely to name a new object.
///
/// Slots are allocated in blocks, when the first object of a block is inserted, and are never
/// freed. Four slots share a cache line, and only a [visit](Self::with) writes to it. The secret
/// order rarely puts two objects on one line unless most numbers are in use. Slots with lines of
/// their own would take two megabytes for the QPs of each port, and a miss of the cache for each
/// look-up that now finds the line of another object.
#[derive(Debug)]
pub(crate) struct Table<N, T> {
    first: u32,
    /// The lowest number that [`reserve`](Self::reserve) may return.
    common: u32,
    blocks: Box<[Block<T>]>,
    free: Mutex<Free>,
    /// Number of objects.
    count: AtomicUsize,
    number: PhantomData<N>,
}

type Block<T> = OnceLock<Box<[TableSlot<T>; BLOCK]>>;

#[derive(Debug)]
struct TableSlot<T> {
    object: ArcSwapOption<T>,
    /// Lock that visitors of the object share. A change of `object` excludes visitors.
    visitors: RwLock<()>,
}

/// Number of slots that are allocated at a time.
const BLOCK: usize = 64;

#[derive(Debug)]
struct Free {
    /// Count of numbers that were given out at least once.
    fresh: u32,
    /// The order in which numbers are first given out. In it, numbers are counted from the lowest
    /// common number.
    order: Shuffle,
    /// Returned numbers, oldest first.
    returned: VecDeque<u32>,
}

impl Free {
    /// A number that was never given out, counted from the lowest common number.
    fn take_fresh(&mut self) -> Option<u32> {
        if self.fresh == self.order.len() {
            return None;
        }
        self.fresh += 1;
        Some(self.order.nth(self.fresh - 1))
    }
}

/// A number of a [`Table`] that is reserved for an object. The drop gives the number back unless
/// the object was inserted.
pub(crate) struct Reserved<'a, N: Number, T> {
    table: &'a Table<N, T>,
    number: N,
    inserted: bool,
}

/// An object of a table that a turn uses.
///
/// After the object's removal and a wait for the turns in progress, no thread holds the object any
/// more. A thread has room to note eight such references in memory of its own. More references
/// change the object's reference count, which is slower, so hold only few at a time.
pub(crate) struct Held<T>(Guard<Option<Arc<T>>>);

impl<T> Held<T> {
    /// The object. Never `None`: [`Table::hold`] has checked that there is one.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_deref()
    }
}

impl<T> TableSlot<T> {
    const fn new() -> Self {
        Self {
            object: ArcSwapOption::const_empty(),
            visitors: RwLock::new(()),
        }
    }

    /// Waits until no thread visits the old object, stores `object` in the slot, and returns the
    /// old object.
    fn set(&self, object: Option<Arc<T>>) -> Option<Arc<T>> {
        let _alone = self.visitors.write();
        self.object.swap(object)
    }

    fn is_taken(&self) -> bool {
        self.object.load().is_some()
    }
}

impl<N: Number, T> Table<N, T> {
    /// An empty table for `numbers`.
    pub(crate) fn new(secret: &Secret, numbers: Range<u32>) -> Self {
        Self::with_special(secret, 0, numbers)
    }

    /// An empty table for `numbers`. The first `special` numbers are given out only by
    /// [`claim`](Self::claim).
    pub(crate) fn with_special(secret: &Secret, special: u32, numbers: Range<u32>) -> Self {
        let common = numbers.start + special;
        Self {
            first: numbers.start,
            common,
            blocks: (0..numbers.len().div_ceil(BLOCK))
                .map(|_| OnceLock::new())
                .collect(),
            free: Mutex::new(Free {
                fresh: 0,
                order: Shuffle::new(secret.another(), numbers.end.saturating_sub(common)),
                returned: VecDeque::new(),
            }),
            count: AtomicUsize::new(0),
            number: PhantomData,
        }
    }

    /// The object with this number, if there is one.
    #[inline]
    pub(crate) fn get(&self, number: N) -> Option<Arc<T>> {
        let slot = self.slot(number)?;
        note_reference();
        slot.object.load_full()
    }

    /// The object with this number, if there is one, for use within the turn in progress.
    #[inline]
    pub(crate) fn hold(&self, number: N) -> Option<Held<T>> {
        let object = self.slot(number)?.object.load();
        object.is_some().then(|| Held(object))
    }

    /// Calls `visit` with the object with this number, if there is one, without taking a reference
    /// to it. The object's removal waits for the visit, so a visit may happen outside of turns.
    #[inline]
    pub(crate) fn with<R>(&self, number: N, visit: impl FnOnce(&T) -> R) -> Option<R> {
        let slot = self.slot(number)?;
        let _visit = slot.visitors.read();
        let object = slot.object.load();
        object.as_deref().map(visit)
    }

    /// The object with this number, for a command. `what` names the number in a refusal.
    pub(crate) fn find(&self, what: What, number: N) -> Result<Arc<T>> {
        self.get(number).ok_or(no_such(what, number))
    }

    /// Reserves a free number for a command.
    pub(crate) fn number(&self, what: What) -> Result<Reserved<'_, N, T>> {
        self.reserve().ok_or_else(|| {
            let limit = self.free.lock().order.len();
            full(what, limit)
        })
    }

    /// Reserves a free number. Returns `None` if all are in use.
    pub(crate) fn reserve(&self) -> Option<Reserved<'_, N, T>> {
        let mut free = self.free.lock();
        let number = loop {
            let number = N::new(match free.take_fresh() {
                Some(fresh) => self.common + fresh,
                None => free.returned.pop_front()?,
            });
            if !self.is_taken(number) {
                break number;
            }
        };
        Some(Reserved {
            table: self,
            number,
            inserted: false,
        })
    }

    /// Reserves `number` for an object that had it in another process. Refuses a number that is in
    /// use or not in the table's range. The number may be given out a second time when it is free
    /// again, so [`reserve`](Self::reserve) skips numbers that are in use.
    pub(crate) fn reserve_again(&self, what: What, number: N) -> Result<Reserved<'_, N, T>> {
        let end = self.common + self.free.lock().order.len();
        let is_free = (self.first..end).contains(&number.get()) && !self.is_taken(number);
        require(is_free, Reason::Exists, what, number.get())?;
        Ok(Reserved {
            table: self,
            number,
            inserted: false,
        })
    }

    fn is_taken(&self, number: N) -> bool {
        self.slot(number).is_some_and(TableSlot::is_taken)
    }

    /// Reserves a free number below `end` for which `usable` returns true. If there are several,
    /// the one that was returned first is taken. Returns `None` if there is none.
    pub(crate) fn reserve_below(
        &self,
        end: u32,
        usable: impl Fn(N) -> bool,
    ) -> Option<Reserved<'_, N, T>> {
        let mut free = self.free.lock();
        // Numbers that were never given out are put into the same queue as the returned ones: not
        // in their secret order, which takes long to compute, since the caller knows which number
        // it gets.
        let len = free.order.len();
        if free.fresh < len {
            let given: BTreeSet<u32> = (0..free.fresh).map(|at| free.order.nth(at)).collect();
            let fresh = (0..len).filter(|number| !given.contains(number));
            free.returned
                .extend(fresh.map(|number| self.common + number));
            free.fresh = len;
        }
        let at = free.returned.iter().position(|&number| {
            let is_free = number < end && !self.is_taken(N::new(number));
            is_free && usable(N::new(number))
        })?;
        Some(Reserved {
            table: self,
            number: N::new(free.returned.remove(at)?),
            inserted: false,
        })
    }

    /// Reserves a special number. Returns `None` if the number is in use or not special. Calls must
    /// not be concurrent.
    pub(crate) fn claim(&self, number: N) -> Option<Reserved<'_, N, T>> {
        let special = (self.first..self.common).contains(&number.get());
        (special && !self.is_taken(number)).then(|| Reserved {
            table: self,
            number,
            inserted: false,
        })
    }

    /// Replaces the object with this number by `object`, and returns the old object. Returns `None`
    /// if there is no object with this number. Must not run concurrently with the object's removal.
    pub(crate) fn replace(&self, number: N, object: Arc<T>) -> Option<Arc<T>> {
        let slot = self.slot(number)?;
        slot.is_taken().then(|| slot.set(Some(object))).flatten()
    }

    /// Removes the object with this number and returns it. The number stays reserved until
    /// [`release`](Self::release).
    pub(crate) fn remove(&self, number: N) -> Option<Arc<T>> {
        let removed = self.slot(number)?.set(None)?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(removed)
    }

    /// Number of objects. Unlike a walk over [`iter`](Self::iter), this visits none.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Frees the number of a removed object.
    pub(crate) fn release(&self, number: N) {
        if number.get() >= self.common {
            self.free.lock().returned.push_back(number.get());
        }
    }

    /// All objects, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Arc<T>> + '_ {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        blocks
            .flat_map(|block| block.iter())
            .filter_map(|slot| slot.object.load_full())
            .inspect(|_| note_reference())
    }

    /// The slot of `number`, if its block is allocated.
    #[inline]
    fn slot(&self, number: N) -> Option<&TableSlot<T>> {
        let index = number.get().checked_sub(self.first)? as usize;
        let block = self.blocks.get(index / BLOCK)?.get()?;
        Some(&block[index % BLOCK])
    }

    /// The slot of `number`, which must be in the table's range. Allocates its block if needed.
    fn make_slot(&self, number: N) -> &TableSlot<T> {
        let index = (number.get() - self.first) as usize;
        let block = self.blocks[index / BLOCK]
            .get_or_init(|| Box::new([const { TableSlot::new() }; BLOCK]));
        &block[index % BLOCK]
    }
}

impl<N: Number, T> Reserved<'_, N, T> {
    pub(crate) fn number(&self) -> N {
        self.number
    }

    /// Inserts `object` under the number, and returns the number.
    pub(crate) fn insert(mut self, object: Arc<T>) -> N {
        self.inserted = true;
        self.table.make_slot(self.number).set(Some(object));
        self.table.count.fetch_add(1, Ordering::Relaxed);
        self.number
    }
}

impl<N: Number, T> Drop for Reserved<'_, N, T> {
    fn drop(&mut self) {
        if !self.inserted {
            self.table.release(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use virtio_rdma_abi::number::Qpn;

    use super::*;

    /// A number that an object has brought along is not given out meanwhile, however often it comes
    /// back.
    #[test]
    fn numbers_that_come_twice_are_given_once() {
        let table = Table::<Qpn, _>::new(&Secret::new(None), 1..4);
        let again = |number| table.reserve_again(What::Qpn, Qpn::new(number));
        for _ in 0..3 {
            let two = again(2).unwrap().insert(Arc::new(()));
            assert!([0, 2, 4].into_iter().all(|number| again(number).is_err()));
            let others: Vec<_> = std::iter::from_fn(|| table.reserve())
                .map(|reserved| reserved.insert(Arc::new(())))
                .collect();
            assert_eq!(others.len(), 2, "1 and 3");
            for number in others.into_iter().chain([two]) {
                table.remove(number).unwrap();
                table.release(number);
            }
        }
    }

    // abi: R-514
    #[test]
    fn numbers_come_back_oldest_first() {
        let table = Table::<Qpn, _>::new(&Secret::new(None), 1..4);
        let mut all = [(); 3].map(|()| {
            let reserved = table.reserve().unwrap();
            let number = reserved.number();
            reserved.insert(Arc::new(number))
        });
        all.sort();
        assert_eq!(all, [1, 2, 3].map(Qpn::new));
        assert!(table.reserve().is_none());
        assert_eq!(table.len(), 3);
        for number in [3, 1].map(Qpn::new) {
            assert_eq!(table.remove(number).as_deref(), Some(&number));
            assert!(table.remove(number).is_none());
            table.release(number);
        }
        assert_eq!(table.len(), 1);
        assert_eq!(
            table.reserve().unwrap().insert(Arc::new(Qpn::new(3))).get(),
            3
        );
        assert_eq!(table.reserve().unwrap().number().get(), 1);
        assert_eq!(table.reserve().unwrap().number().get(), 1, "dropped unused");
        assert_eq!(table.iter().map(|n| n.get()).collect::<Vec<_>>(), [2, 3]);
    }

    // abi: R-882
    #[test]
    fn usable_numbers_come_back_oldest_first() {
        let table = Table::<Qpn, _>::new(&Secret::new(None), 2..1000);
        let take = |usable: fn(u32) -> bool| {
            let reserved = table.reserve_below(6, |number| usable(number.get()))?;
            Some(reserved.insert(Arc::new(())).get())
        };
        assert_eq!(take(|number| number == 3), Some(3));
        table.remove(Qpn::new(3));
        table.release(Qpn::new(3));
        // Number 3 was returned last, so it is after the other three numbers in the queue.
        let mut others = [(); 3].map(|()| take(|_| true).unwrap());
        others.sort();
        assert_eq!(others, [2, 4, 5]);
        assert_eq!(take(|number| number != 3), None);
        assert_eq!(take(|_| true), Some(3));
        assert_eq!(take(|_| true), None);
        assert!(table.reserve().unwrap().number().get() >= 6);
    }

    #[test]
    fn numbers_in_use_are_not_usable() {
        let table = Table::<Qpn, _>::new(&Secret::new(None), 1..6);
        let insert = |reserved: Option<Reserved<'_, Qpn, ()>>| {
            reserved.map(|reserved| reserved.insert(Arc::new(())).get())
        };
        let used = [(); 2].map(|()| insert(table.reserve()));
        let rest = [(); 3].map(|()| insert(table.reserve_below(6, |_| true)));
        let mut all = [&used[..], &rest[..]].concat();
        all.sort();
        assert_eq!(all, [1, 2, 3, 4, 5].map(Some));
        assert_eq!(insert(table.reserve_below(6, |_| true)), None);
    }

    // abi
    #[test]
    fn numbers_have_a_secret_order() {
        let numbers = |table: &Table<Qpn, ()>| {
            let next = |_| table.reserve().unwrap().insert(Arc::new(())).get();
            (0..100).map(next).collect::<Vec<_>>()
        };
        let [one, two] = [(); 2].map(|()| numbers(&Table::new(&Secret::new(None), 1..65_537)));
        assert!(one.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() < 10);
        assert_ne!(one, two);
    }

    #[test]
    fn special_numbers_are_claimed() {
        let table = Table::with_special(&Secret::new(None), 1, 1..3);
        let [none, special, common] = [0, 1, 2].map(Qpn::new);
        assert!(table.claim(none).is_none() && table.claim(common).is_none());
        drop(table.claim(special).unwrap());
        table.claim(special).unwrap().insert(Arc::new(1));
        assert!(table.claim(special).is_none());
        assert_eq!(table.reserve().unwrap().insert(Arc::new(2)), common);
        table.remove(special);
        table.release(special);
        assert!(table.reserve().is_none());
        assert!(table.claim(special).is_some());
    }

    #[test]
    fn a_removed_object_lives_while_it_is_held() {
        let table = Table::<Qpn, u32>::new(&Secret::new(None), 1..2);
        let number = table.reserve().unwrap().insert(Arc::new(5));
        let held = table.hold(number).unwrap();
        let mut removed = table.remove(number).unwrap();
        assert!(table.hold(number).is_none());
        assert_eq!(held.get(), Some(&5));
        assert!(Arc::get_mut(&mut removed).is_none());
        drop(held);
        assert_eq!(Arc::get_mut(&mut removed), Some(&mut 5));
    }

    #[test]
    fn a_removal_waits_for_visitors() {
        let table = Table::<Qpn, ()>::new(&Secret::new(None), 1..2);
        let number = table.reserve().unwrap().insert(Arc::new(()));
        let [began, left] = [(); 2].map(|()| AtomicBool::new(false));
        thread::scope(|scope| {
            let visit = |()| {
                scope.spawn(|| {
                    began.store(true, Ordering::Release);
                    table.remove(number);
                    assert!(left.load(Ordering::Acquire));
                });
                while !began.load(Ordering::Acquire) {
                    thread::yield_now();
                }
                for _ in 0..100 {
                    thread::yield_now();
                    assert!(table.hold(number).is_some());
                }
                left.store(true, Ordering::Release);
            };
            table.with(number, |&()| visit(()));
        });
        assert!(table.hold(number).is_none());
    }

    #[test]
    fn numbers_outside_are_not_there() {
        let table = Table::<Qpn, u32>::new(&Secret::new(None), 2..4);
        for number in [0, 1, 4, u32::MAX].map(Qpn::new) {
            assert!(table.get(number).is_none());
            assert!(table.hold(number).is_none());
            assert!(table.with(number, |_| ()).is_none());
            assert!(table.remove(number).is_none());
        }
    }
}
