// SPDX-License-Identifier: GPL-2.0

//! Tests of completions and of periodic work.

use super::{
    deferred::{
        Call,
        Deferred, //
    },
    periodic::{
        Periodic,
        Tick, //
    },
    reclaim_queue::ReclaimQueue,
    timed_completion::TimedCompletion, //
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
}

struct Ticker(Arc<Thrice>);

impl Thrice {
    /// Starts the ticks.
    fn every(self: &Arc<Self>, pause: Msecs) -> Result<Pin<KBox<Periodic<Ticker>>>> {
        let queue = ReclaimQueue::new(c"test")?;
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
        let queue = ReclaimQueue::new(c"test")?;
        let call = Deferred::new(&queue, Ticker(thrice.clone()))?;
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

    fn periodic_work_ends_with_its_owner() {
        let thrice = Thrice::new()?;
        drop(thrice.every(10 * LONG)?);
        check!(thrice.ticks.load(Relaxed) == 0);
    }
} }
