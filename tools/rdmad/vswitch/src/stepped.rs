// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch without a thread: its caller has it do its rounds, at times that the caller says. A
//! round is the code that the thread runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll::Event;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::engine_queues::EnginePort;
use crate::event_loop::{EventLoop, EVENTS};
use crate::stats::{Counters, Stats};
use crate::switch::{snapshots, Config, Error, SwitchParts};

/// A switch whose thread is calls.
pub struct SteppedSwitch {
    event_loop: EventLoop,
    events: Vec<Event>,
    counters: Vec<Arc<Counters>>,
    /// When its sleep ends though nothing happens.
    alarm: Option<Instant>,
}

impl SteppedSwitch {
    /// Opens all sockets and files at `now`, and falls asleep. The engine ports are in the order of
    /// the configured ports.
    ///
    /// # Errors
    /// As those of [`Switch::start`](crate::Switch::start).
    pub fn new(config: Config, now: Instant) -> Result<(Self, Vec<EnginePort>), Error> {
        let SwitchParts {
            event_loop,
            waker: _,
            counters,
            engines,
        } = SwitchParts::open(config, now)?;
        let mut switch = Self {
            event_loop,
            events: Vec::with_capacity(EVENTS),
            counters,
            alarm: None,
        };
        switch.sleep(now);
        Ok((switch, engines))
    }

    fn sleep(&mut self, now: Instant) {
        self.alarm = self.event_loop.idle(now).map(|idle| now + idle);
    }

    /// When its sleep ends though nothing happens.
    pub const fn alarm(&self) -> Option<Instant> {
        self.alarm
    }

    /// Whether its thread would be awake at `now`.
    pub fn is_awake(&self, now: Instant) -> bool {
        self.alarm.is_some_and(|alarm| alarm <= now) || self.has_events()
    }

    /// Whether something has happened that ends a sleep. Takes no event away.
    fn has_events(&self) -> bool {
        const NO_TIME: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::new(&self.event_loop.epoll, PollFlags::IN)];
        // It fails as the sleep would, which then says so.
        poll(&mut polled, Some(&NO_TIME)).map_or(true, |ready| ready > 0)
    }

    /// Wakes up at `now`, does a round and falls asleep. `now` does not go back.
    pub fn round(&mut self, now: Instant) {
        self.event_loop.wait(Some(Duration::ZERO), &mut self.events);
        self.event_loop.round(now, &self.events);
        self.sleep(now);
    }

    /// Counters of all ports, then of all uplinks.
    pub fn stats(&self) -> Vec<Stats> {
        snapshots(&self.counters)
    }

    /// Frames that are in use, of the buffers of each engine, then of each network interface and
    /// each uplink. One of the latter two is always ready for the next frame.
    pub fn frames(&self) -> Vec<usize> {
        self.event_loop.forwarder.frames().collect()
    }

    /// Addresses behind uplinks that are remembered.
    pub fn addresses(&self) -> usize {
        self.event_loop.forwarder.addresses()
    }
}
