// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A monitor with many waiters at its end of a descriptor: each call of the daemon that wakes this
//! end visits them all.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;

/// The waiters: some epoll instances watch some copies of a descriptor. With a limit of 1,024 open
/// files there can be a quarter of a million waiters.
pub struct Waiters {
    _epolls: Vec<OwnedFd>,
    _copies: Vec<OwnedFd>,
}

impl Waiters {
    /// Adds `epolls` × `copies` waiters to `fd`.
    pub fn new(fd: impl AsFd, epolls: usize, copies: usize) -> Self {
        let copy = |_| fd.as_fd().try_clone_to_owned().unwrap();
        let copies = Vec::from_iter((0..copies).map(copy));
        let watch = |_| {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            for copy in &copies {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&epoll, copy, data, epoll::EventFlags::IN).unwrap();
            }
            epoll
        };
        Self {
            _epolls: (0..epolls).map(watch).collect(),
            _copies: copies,
        }
    }
}
