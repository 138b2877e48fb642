// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Wakes the thread of the switch, and tells that it does rounds.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::Arc;

use rustix::event::{eventfd, EventfdFlags};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use sandbox::{Gate, Pulse};

/// An eventfd that the thread waits for, written only while the thread sleeps.
#[derive(Debug)]
pub(crate) struct Waker {
    event: OwnedFd,
    /// The state of the thread: [`AWAKE`], [`CALLED`] or [`ASLEEP`].
    state: AtomicU8,
    stop: AtomicBool,
    pub(crate) pulse: Pulse,
    /// Holds the thread between two rounds.
    pub(crate) gate: Arc<Gate>,
}

/// The thread has not been woken since its round began.
const AWAKE: u8 = 0;
/// The thread was woken since its round began, or in its sleep: it must do a round.
const CALLED: u8 = 1;
/// The thread sleeps, or is about to.
const ASLEEP: u8 = 2;

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self {
            event,
            state: AtomicU8::new(AWAKE),
            stop: AtomicBool::new(false),
            pulse: Pulse::default(),
            gate: Arc::default(),
        })
    }

    /// Makes the thread do a round, which finds all that the caller has queued before.
    pub(crate) fn wake(&self) {
        if self.state.swap(CALLED, Ordering::SeqCst) == ASLEEP {
            // The write fails only if the counter is full, and then the thread wakes up anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Begins a round of the thread. To be called before the queues are read: what is queued later
    /// causes another round. The swap synchronizes with the threads that woke this one, so what
    /// they queued is visible.
    pub(crate) fn get_up(&self) {
        self.pulse.beat();
        self.state.swap(AWAKE, Ordering::SeqCst);
    }

    /// Lets the thread wait for events. Returns false if it was woken since its round began, and
    /// must do another round at once.
    pub(crate) fn lie_down(&self) -> bool {
        let was = self
            .state
            .compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst);
        was.is_ok()
    }

    /// Clears the event.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.gate.open();
        self.wake();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};

    use super::*;

    /// Whether the event is pending, after at most `seconds`.
    fn is_rung(waker: &Waker, seconds: i64) -> bool {
        let timeout = Timespec {
            tv_sec: seconds,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(waker, PollFlags::IN)], Some(&timeout)).unwrap() > 0
    }

    #[test]
    fn a_thread_that_is_awake_is_woken_without_an_event() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert!(!waker.lie_down(), "another round is due");
        assert!(!is_rung(&waker, 0));
        waker.get_up();
        assert!(waker.lie_down());
        waker.wake();
        assert!(is_rung(&waker, 0));
        waker.get_up();
        waker.clear();
        assert!(waker.lie_down());
        assert!(!is_rung(&waker, 0));
    }

    /// Each item is queued while the thread that has taken the item before is about to sleep.
    #[test]
    fn no_wake_up_is_lost() {
        const ITEMS: u32 = 20_000;
        let waker = Waker::new().unwrap();
        let (queued, taken) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                for item in 1..=ITEMS {
                    queued.store(item, Ordering::Relaxed);
                    waker.wake();
                    while taken.load(Ordering::Relaxed) < item {
                        thread::yield_now();
                    }
                }
            });
            loop {
                waker.get_up();
                let item = queued.load(Ordering::Relaxed);
                taken.store(item, Ordering::Relaxed);
                if item == ITEMS {
                    break;
                }
                if waker.lie_down() {
                    if !is_rung(&waker, 20) {
                        // Lets the other thread end.
                        taken.store(ITEMS, Ordering::Relaxed);
                        panic!("item {} did not wake the thread", item + 1);
                    }
                    waker.clear();
                }
            }
        });
    }
}
