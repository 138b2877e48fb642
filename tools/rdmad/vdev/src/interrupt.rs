// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MSI-X vectors. Each has an eventfd, which the client turns into an interrupt of the guest. The
//! client also handles masking.
//!
//! A client can make signalling an eventfd take long ([`budget::LongCalls`]). Beyond a small share
//! of the time of the threads that serve all functions, the service thread of the function signals
//! its eventfds, and only the function is slow.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use budget::{CallClock, LongCallStats, LongCalls};
use parking_lot::{Mutex, MutexGuard};

use crate::aio::Aio;
use crate::record::Record;
use crate::service::Inbox;

/// The vectors of a function.
#[derive(Debug)]
pub(crate) struct Interrupts {
    aio: Arc<Aio>,
    /// The vectors. A thread that serves all functions holds a lock at most during one system call
    /// within the share of this function. Other threads make no system call under a lock.
    vectors: Box<[Mutex<Vector>]>,
    /// The system calls that signal eventfds in threads that serve all functions.
    calls: LongCalls,
    /// Number of interrupts that were left to the service thread.
    deferred: AtomicU64,
    inbox: Arc<Inbox>,
    record: Arc<Record>,
}

/// Interrupts of a function whose signals take long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptStats {
    /// Signals that took long, in threads that serve all functions.
    pub long_calls: LongCallStats,
    /// Number of interrupts that were left to the service thread, since the function had used up
    /// its share of the time of other threads.
    pub deferred: u64,
}

/// A file descriptor that was checked to be an eventfd.
#[derive(Debug)]
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    /// Checks `fd`. Fails if it is not an eventfd.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an interrupt's file is not an eventfd",
            ));
        }
        Ok(Self(fd))
    }
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<Arc<Eventfd>>,
    /// Whether the vector was triggered while it had no eventfd. Like a set pending bit of MSI-X,
    /// this raises the interrupt when an eventfd is connected.
    pending: bool,
    /// Whether the service thread is to signal the eventfd.
    deferred: bool,
}

impl Interrupts {
    /// Vectors without eventfds. `clock` measures how long signals take; the service thread of
    /// `inbox` signals in place of other threads.
    pub(crate) fn new(
        count: u16,
        aio: Arc<Aio>,
        inbox: Arc<Inbox>,
        record: Arc<Record>,
        clock: CallClock,
    ) -> Self {
        Self {
            aio,
            vectors: (0..count).map(|_| Mutex::default()).collect(),
            calls: LongCalls::new(clock),
            deferred: AtomicU64::new(0),
            inbox,
            record,
        }
    }

    /// Long signals so far.
    pub(crate) fn stats(&self) -> InterruptStats {
        InterruptStats {
            long_calls: self.calls.stats(),
            deferred: self.deferred.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self) -> u16 {
        // `new` takes the number of vectors as a u16, so the cast does not truncate.
        self.vectors.len() as u16
    }

    /// Raises a vector. A vector that does not exist, such as `VIRTIO_MSI_NO_VECTOR`, is ignored.
    /// Never blocks, whatever the client does with the eventfd.
    pub(crate) fn trigger(&self, vector: u16) -> io::Result<()> {
        match self.vector(vector) {
            Some(mut vector) => self.signal(&mut vector),
            None => Ok(()),
        }
    }

    fn signal(&self, vector: &mut Vector) -> io::Result<()> {
        let Some(eventfd) = &vector.eventfd else {
            vector.pending = true;
            return Ok(());
        };
        let signal = || self.aio.signal(eventfd.0.as_fd());
        self.calls.run_within_share(signal).unwrap_or_else(|| {
            vector.deferred = true;
            self.deferred.fetch_add(1, Ordering::Relaxed);
            self.inbox.signal();
            Ok(())
        })
    }

    /// Signals the eventfds that other threads have left to the service thread. Fails if an
    /// interrupt is lost.
    pub(crate) fn signal_deferred(&self) -> io::Result<()> {
        let mut result = Ok(());
        for index in 0..self.count() {
            let due = self.vector(index).and_then(|mut vector| {
                let is_due = mem::take(&mut vector.deferred);
                vector.eventfd.clone().filter(|_| is_due)
            });
            if let Some(eventfd) = due {
                // The vector is not locked: another thread would wait for this call. The socket
                // thread may have disconnected the eventfd, which is then closed here.
                result = self.aio.signal(eventfd.0.as_fd()).and(result);
            }
        }
        result
    }

    /// Connects a vector to an eventfd, or disconnects it.
    pub(crate) fn connect(&self, index: u16, eventfd: Option<Eventfd>) -> io::Result<()> {
        let mut vector = self
            .vector(index)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let eventfd = eventfd.map(Arc::new);
        // The former eventfd is closed later.
        let recorded = eventfd.as_ref().map(|eventfd| eventfd.0.as_fd());
        self.record.set_vector(index, recorded);
        let before = mem::replace(&mut vector.eventfd, eventfd);
        vector.pending |= mem::take(&mut vector.deferred);
        let signalled = match vector.eventfd.is_some() && mem::take(&mut vector.pending) {
            true => self.signal(&mut vector),
            false => Ok(()),
        };
        // Closing an eventfd may take long, so the vector is unlocked first.
        drop(vector);
        drop(before);
        signalled
    }

    /// Disconnects all vectors and clears their pending state.
    pub(crate) fn reset(&self) {
        for index in 0..self.count() {
            self.record.set_vector(index, None);
            // Closing an eventfd may take long, so the vector is unlocked before.
            let before = self.vector(index).map(|mut vector| mem::take(&mut *vector));
            drop(before);
        }
    }

    fn vector(&self, index: u16) -> Option<MutexGuard<'_, Vector>> {
        self.vectors.get(usize::from(index)).map(Mutex::lock)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::service::ServiceWork;
    use budget::CallTime;
    use rustix::event::{eventfd, EventfdFlags};

    fn interrupts(count: u16) -> Interrupts {
        let aio = Arc::new(Aio::new().unwrap());
        let (record, clock) = (Arc::new(Record::for_tests()), CallClock::system());
        Interrupts::new(count, aio, Arc::new(Inbox::new(0)), record, clock)
    }

    fn clone(fd: &OwnedFd) -> Eventfd {
        Eventfd::new(fd.try_clone().unwrap()).unwrap()
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut value = [0; 8];
        match rustix::io::read(fd, &mut value) {
            Ok(_) => u64::from_ne_bytes(value),
            Err(_) => 0,
        }
    }

    #[test]
    fn triggers_reach_the_eventfd_even_when_it_comes_late() {
        let interrupts = interrupts(2);
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        for vector in [1, 1, 2, u16::MAX] {
            interrupts.trigger(vector).unwrap();
        }
        interrupts.connect(1, Some(clone(&fd))).unwrap();
        assert_eq!(count(&fd), 1);
        interrupts.trigger(1).unwrap();
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&fd), 1);
        interrupts.reset();
        interrupts.trigger(1).unwrap();
        assert_eq!(count(&fd), 0);
        interrupts.reset();
        interrupts.connect(1, Some(clone(&fd))).unwrap();
        assert_eq!(count(&fd), 0);
        assert!(interrupts.connect(2, None).is_err());
    }

    #[test]
    fn only_eventfds_are_taken() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Eventfd::new(file.into()).is_err());
    }

    #[test]
    fn a_full_eventfd_that_blocks_is_signalled_without_waiting() {
        let interrupts = interrupts(1);
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        interrupts.connect(0, Some(clone(&full))).unwrap();
        interrupts.trigger(0).unwrap();
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&full), u64::MAX, "no more than that");
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&full), 1);
    }

    /// Signals take long, so the service thread makes them.
    #[test]
    fn beyond_a_share_the_service_thread_signals() {
        let ms = Duration::from_millis;
        let start = Instant::now();
        let clock = CallClock::manual(start);
        let call = |time| CallTime {
            wall: time,
            cpu: time,
        };
        clock.set_call_time(call(ms(20)));
        let inbox = Arc::new(Inbox::new(0));
        let aio = Arc::new(Aio::new().unwrap());
        let record = Arc::new(Record::for_tests());
        let interrupts = Interrupts::new(2, aio, inbox.clone(), record, clock.clone());
        let [fd, other] = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        interrupts.connect(0, Some(clone(&fd))).unwrap();
        // The first long signal makes a suspect, and the second uses up the share.
        for _ in 0..10 {
            interrupts.trigger(0).unwrap();
        }
        assert_eq!(count(&fd), 2);
        let stats = interrupts.stats();
        assert_eq!((stats.long_calls.calls, stats.deferred), (1, 8));
        // Like interrupts of a masked vector, those that wait are merged.
        assert_eq!(inbox.wait(), ServiceWork::Signal);
        interrupts.signal_deferred().unwrap();
        interrupts.signal_deferred().unwrap();
        assert_eq!(count(&fd), 1);
        // Deferred interrupts reach an eventfd that takes the place of another, and end with it.
        interrupts.trigger(0).unwrap();
        interrupts.connect(0, Some(clone(&other))).unwrap();
        interrupts.signal_deferred().unwrap();
        assert_eq!((count(&fd), count(&other)), (0, 1));
        interrupts.trigger(0).unwrap();
        interrupts.reset();
        interrupts.signal_deferred().unwrap();
        assert_eq!(count(&other), 0);
        // When the calls are within the share again, other threads signal.
        interrupts.connect(0, Some(clone(&fd))).unwrap();
        clock.set_call_time(call(Duration::ZERO));
        clock.set(start + ms(10_000));
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&fd), 1);
    }

    #[test]
    fn threads_that_trigger_at_a_time_lose_nothing() {
        const EACH: u64 = 5_000;
        let interrupts = interrupts(2);
        let fds = [(); 2].map(|()| eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        for (vector, fd) in (0..).zip(&fds) {
            interrupts.connect(vector, Some(clone(fd))).unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let interrupts = &interrupts;
                scope.spawn(move || {
                    for _ in 0..EACH {
                        interrupts.trigger(thread % 2).unwrap();
                    }
                });
            }
        });
        assert_eq!(fds.map(|fd| count(&fd)), [2 * EACH; 2]);
    }
}
