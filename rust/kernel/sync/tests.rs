// SPDX-License-Identifier: GPL-2.0

//! Tests of completions, of periodic work and of slots.

use super::{
    call_slot::CallSlot,
    deferred::{
        Call,
        Deferred, //
    },
    periodic::{
        Periodic,
        Tick, //
    },
    timed_completion::TimedCompletion,
    workqueue::Workqueue, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    },
    time::Msecs, //
};

/// Time in ms that a busy machine may take.
const LONG: Msecs = 30_000;

/// Ticks three times.
#[pin_data]
struct Thrice {
    ticks: Atomic<u32>,
    #[pin]
    done: TimedCompletion,
}

impl Thrice {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ticks: Atomic::new(0),
                done <- TimedCompletion::new(),
            }),
            GFP_KERNEL,
        )
    }

    /// A call that ticks.
    fn deferred(self: &Arc<Self>, queue: &Arc<Workqueue>) -> Result<Deferred<Ticker>> {
        let ticker = Ticker(self.clone());
        Deferred::new(queue, ticker, c"test", kernel::static_lock_class!())
    }
}

struct Ticker(Arc<Thrice>);

impl Thrice {
    /// Starts the ticks.
    fn every(self: &Arc<Self>, pause: Msecs) -> Result<Pin<KBox<Periodic<Ticker>>>> {
        let queue = Workqueue::new(c"test")?;
        KBox::pin_init(
            Periodic::new(queue, pause, Ticker(self.clone())),
            GFP_KERNEL,
        )
    }
}

impl Call for Ticker {
    fn call(&self) {
        self.tick();
    }
}

impl Tick for Ticker {
    fn tick(&self) -> bool {
        let is_last = self.0.ticks.fetch_add(1, Relaxed) == 2;
        if is_last {
            self.0.done.complete();
        }
        !is_last
    }
}

/// A value that is called while it is removed.
#[pin_data]
struct Called {
    #[pin]
    value: CallSlot<Atomic<u32>>,
    #[pin]
    entered: TimedCompletion,
    #[pin]
    may_end: TimedCompletion,
}

impl Called {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                value <- CallSlot::new(),
                entered <- TimedCompletion::new(),
                may_end <- TimedCompletion::new(),
            }),
            GFP_KERNEL,
        )
    }
}

/// A long call of the value with key 1.
struct LongCall(Arc<Called>);

impl Tick for LongCall {
    fn tick(&self) -> bool {
        self.0.value.call(1, |ended| {
            self.0.entered.complete();
            self.0.may_end.wait_timeout(LONG);
            ended.store(1, Relaxed);
        });
        false
    }
}

/// Ends the long call once the removal has begun.
struct EndOfCall(Arc<Called>);

impl Tick for EndOfCall {
    fn tick(&self) -> bool {
        let mut is_there = false;
        self.0.value.call_any(|_| is_there = true);
        if !is_there {
            self.0.may_end.complete();
        }
        is_there
    }
}

suite! { rust_sync {
    fn a_completion_ends_one_wait() {
        let done = KBox::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
        check!(!done.wait_timeout(0));
        done.complete();
        check!(done.wait_timeout(0));
        check!(!done.wait_timeout(0));
    }

    fn a_completion_is_taken_back() {
        let done = KBox::pin_init(TimedCompletion::new(), GFP_KERNEL)?;
        done.complete();
        done.complete();
        done.reinit();
        check!(!done.wait_timeout(0));
    }

    fn periodic_work_ends_itself() {
        let thrice = Thrice::new()?;
        let work = thrice.every(1)?;
        check!(thrice.done.wait_timeout(LONG));
        drop(work);
        check!(thrice.ticks.load(Relaxed) == 3);
    }

    /// The pause is longer than the test waits, so the calls come only because of `hasten`.
    fn periodic_work_is_hastened() {
        let thrice = Thrice::new()?;
        let work = thrice.every(10 * LONG)?;
        for tick in 1..=3 {
            work.hasten();
            while thrice.ticks.load(Relaxed) < tick {
                kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
            }
        }
        check!(thrice.done.wait_timeout(LONG));
    }

    fn a_deferred_call_runs_until_it_is_disabled() {
        let thrice = Thrice::new()?;
        let queue = Workqueue::new(c"test")?;
        let call = thrice.deferred(&queue)?;
        for tick in 1..=3 {
            call.queue();
            while thrice.ticks.load(Relaxed) < tick {
                kernel::time::delay::fsleep(kernel::time::Delta::from_millis(1));
            }
        }
        call.disable();
        call.queue();
        drop((call, queue));
        check!(thrice.ticks.load(Relaxed) == 3);
    }

    fn a_deferred_call_ends_with_its_owner() {
        let thrice = Thrice::new()?;
        let queue = Workqueue::new(c"test")?;
        let call = thrice.deferred(&queue)?;
        let handle = call.handle();
        drop(call);
        handle.queue();
        drop(handle);
        // A call that waits or runs has a reference.
        let thrice = Arc::into_unique_or_drop(thrice);
        check!(thrice.is_some_and(|thrice| thrice.ticks.load(Relaxed) == 0));
    }

    fn a_slot_knows_its_key() {
        let slot = KBox::pin_init(CallSlot::new(), GFP_KERNEL)?;
        let calls = |key| {
            let mut calls = 0;
            slot.call(key, |_| calls += 1);
            calls
        };
        for key in [0, 1, u32::MAX] {
            check!(calls(key) == 0);
            check!(slot.remove(key).is_none());
            check!(slot.insert(key, key).is_ok());
            check!(slot.insert(key, 5) == Err(5));
            check!(calls(key) == 1);
            check!(calls(key.wrapping_add(1)) == 0);
            check!(slot.remove(key.wrapping_add(1)).is_none());
            let mut seen = None;
            slot.call_any(|value| seen = Some(*value));
            check!(seen == Some(key));
            check!(slot.remove(key) == Some(key));
        }
        check!(calls(u32::MAX) == 0);
    }

    fn a_removal_waits_for_a_call() {
        let called = Called::new()?;
        check!(called.value.insert(1, Atomic::new(0)).is_ok());
        // One queue each, since the calls run at the same time.
        let [first, second] = [Workqueue::new(c"test")?, Workqueue::new(c"test")?];
        let call = KBox::pin_init(Periodic::new(first, 1, LongCall(called.clone())), GFP_KERNEL)?;
        check!(called.entered.wait_timeout(LONG));
        let end = KBox::pin_init(Periodic::new(second, 1, EndOfCall(called.clone())), GFP_KERNEL)?;
        let ended = called.value.remove(1).map(|ended| ended.load(Relaxed));
        check!(ended == Some(1));
        drop((call, end));
    }

    fn periodic_work_ends_with_its_owner() {
        let thrice = Thrice::new()?;
        drop(thrice.every(10 * LONG)?);
        check!(thrice.ticks.load(Relaxed) == 0);
    }
} }
