// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MSI-X vectors. Each has an eventfd, which the client turns into an interrupt of the guest. The
//! client also handles masking.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::aio::Aio;

/// The vectors of a function.
#[derive(Debug)]
pub(crate) struct Interrupts {
    aio: Arc<Aio>,
    /// The vectors. Each lock is held at most during one system call, which never blocks.
    vectors: Box<[Mutex<Vector>]>,
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
                "an interrupt's file is no eventfd",
            ));
        }
        Ok(Self(fd))
    }
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<Eventfd>,
    /// Whether the vector was triggered while it had no eventfd. Like a set pending bit of MSI-X,
    /// this raises the interrupt when an eventfd is connected.
    pending: bool,
}

impl Vector {
    fn signal(&mut self, aio: &Aio) -> io::Result<()> {
        match &self.eventfd {
            Some(Eventfd(fd)) => aio.signal(fd.as_fd()),
            None => {
                self.pending = true;
                Ok(())
            }
        }
    }
}

impl Interrupts {
    pub(crate) fn new(count: u16, aio: Arc<Aio>) -> Self {
        Self {
            aio,
            vectors: (0..count).map(|_| Mutex::default()).collect(),
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
            Some(mut vector) => vector.signal(&self.aio),
            None => Ok(()),
        }
    }

    /// Connects a vector to an eventfd, or disconnects it.
    pub(crate) fn connect(&self, vector: u16, eventfd: Option<Eventfd>) -> io::Result<()> {
        let mut vector = self
            .vector(vector)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        vector.eventfd = eventfd;
        if vector.eventfd.is_some() && std::mem::take(&mut vector.pending) {
            vector.signal(&self.aio)?;
        }
        Ok(())
    }

    /// Disconnects all vectors and clears their pending state.
    pub(crate) fn reset(&self) {
        for index in 0..self.count() {
            if let Some(mut vector) = self.vector(index) {
                *vector = Vector::default();
            }
        }
    }

    fn vector(&self, index: u16) -> Option<MutexGuard<'_, Vector>> {
        self.vectors.get(usize::from(index)).map(Mutex::lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{eventfd, EventfdFlags};

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
        let interrupts = Interrupts::new(2, Arc::new(Aio::new().unwrap()));
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
        let interrupts = Interrupts::new(1, Arc::new(Aio::new().unwrap()));
        let full = eventfd(0, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        interrupts.connect(0, Some(clone(&full))).unwrap();
        interrupts.trigger(0).unwrap();
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&full), u64::MAX, "no more than that");
        interrupts.trigger(0).unwrap();
        assert_eq!(count(&full), 1);
    }

    #[test]
    fn threads_that_trigger_at_a_time_lose_nothing() {
        const EACH: u64 = 5_000;
        let interrupts = Interrupts::new(2, Arc::new(Aio::new().unwrap()));
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
