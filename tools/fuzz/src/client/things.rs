// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and invalid descriptors that a client passes to the server. This module counts how many
//! descriptors of each file the process holds open.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};

use crate::function::eventfds;

/// Number of files of guest memory.
pub const MEMORIES: usize = 2;
/// Number of pages of each file of guest memory.
pub const PAGES: usize = 16;
pub const PAGE: usize = 4096;
/// Number of eventfds.
pub const EVENTFDS: usize = 3;
/// Number of descriptors to choose from.
pub const THINGS: usize = 9;

/// Index of a descriptor. The order is: the files of guest memory, the first of these files opened
/// read-only, the eventfds, and other kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thing(pub usize);

impl Thing {
    /// The eventfd of this number.
    pub fn eventfd(number: usize) -> Self {
        Self(MEMORIES + 1 + number)
    }

    /// The number of the file of guest memory, if the descriptor is one, and whether it is open for
    /// writing.
    pub fn memory(self) -> Option<(usize, bool)> {
        match self.0 {
            file @ 0..MEMORIES => Some((file, true)),
            MEMORIES => Some((0, false)),
            _ => None,
        }
    }

    /// The number of the eventfd, if the descriptor is one.
    pub fn event(self) -> Option<usize> {
        let number = self.0.checked_sub(MEMORIES + 1)?;
        (number < EVENTFDS).then_some(number)
    }
}

/// The descriptors of a client.
pub struct Things {
    fds: [OwnedFd; THINGS],
    identities: [Identity; THINGS],
    /// For each file, the number of descriptors that the process itself holds, without those that
    /// the server has received.
    own: [usize; THINGS],
}

/// Identity of a file, which all its descriptors share.
type Identity = (u64, u64);

impl Things {
    pub fn new() -> Self {
        let memory = || dma::testing::guest_memory((PAGES * PAGE) as u64).expect("memfd");
        let (first, second) = (memory(), memory());
        let read_only = File::open(link(&first.as_raw_fd().to_string())).expect("memfd");
        let [a, b, c] = eventfds();
        let (pipe, _) = rustix::pipe::pipe().expect("pipe");
        let (socket, _) = UnixStream::pair().expect("socket");
        // A socket, because the descriptors of a file that other code may also open, such as
        // /dev/null, could not be counted.
        let other = UnixDatagram::unbound().expect("socket");
        let fds = [
            first,
            second,
            read_only.into(),
            a,
            b,
            c,
            pipe,
            socket.into(),
            other.into(),
        ];
        let identify = |fd: &OwnedFd| identity(&fd.as_raw_fd().to_string()).expect("it is open");
        let mut things = Self {
            identities: fds.each_ref().map(identify),
            fds,
            own: [0; THINGS],
        };
        things.own = things.held();
        things
    }

    pub fn get(&self, thing: Thing) -> BorrowedFd<'_> {
        self.fds[thing.0].as_fd()
    }

    /// Panics unless the server holds exactly the descriptors `expected` of the client.
    pub fn check(&self, expected: &[Thing]) {
        let held = self.held();
        for (number, identity) in self.identities.iter().enumerate() {
            let same = |thing: &&Thing| self.identities[thing.0] == *identity;
            let expected = self.own[number] + expected.iter().filter(same).count();
            assert_eq!(held[number], expected, "open descriptors of {number}");
        }
    }

    fn held(&self) -> [usize; THINGS] {
        let mut held = [0; THINGS];
        // `flatten` skips errors, because other threads may open and close files meanwhile.
        for entry in fs::read_dir("/proc/self/fd").expect("/proc").flatten() {
            let identity = entry.file_name().to_str().and_then(identity);
            for (count, other) in held.iter_mut().zip(&self.identities) {
                *count += usize::from(identity == Some(*other));
            }
        }
        held
    }
}

fn link(fd: &str) -> String {
    format!("/proc/self/fd/{fd}")
}

/// The identity of the file behind descriptor `fd`.
fn identity(fd: &str) -> Option<Identity> {
    let target = fs::read_link(link(fd)).ok()?;
    if target.as_os_str() != "anon_inode:[eventfd]" {
        let file = fs::metadata(link(fd)).ok()?;
        return Some((file.dev(), file.ino()));
    }
    // All eventfds share one inode, so their IDs distinguish them.
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let (_, id) = about.split_once("eventfd-id:")?;
    Some((u64::MAX, id.split_whitespace().next()?.parse().ok()?))
}
