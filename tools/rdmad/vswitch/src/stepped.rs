// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch without a thread, for tests: the caller starts each round and sets its time. A round
//! runs the code of the switch's thread.

use std::time::{Duration, Instant};

use budget::{CallClock, CallTime};
use rustix::event::epoll::Event;
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::engine_queues::EnginePort;
use crate::event_loop::{EventLoop, EVENTS};
use crate::stats::Stats;
use crate::switch::{Config, Error, SharedTable, SwitchParts};

/// A switch whose thread is replaced by method calls.
pub struct SteppedSwitch {
    event_loop: EventLoop,
    events: Vec<Event>,
    shared: SharedTable,
    /// Time at which the switch wakes up without an event.
    alarm: Option<Instant>,
}

impl SteppedSwitch {
    /// Opens all sockets and files at `now`; the switch then sleeps. The engine ports are in the
    /// order of the configured ports.
    ///
    /// # Errors
    /// The errors of [`Switch::start`](crate::Switch::start).
    pub fn new(config: Config, now: Instant) -> Result<(Self, Vec<EnginePort>), Error> {
        let SwitchParts {
            event_loop,
            waker: _,
            calls: _,
            groups: _,
            shared,
            changes: _,
            engines,
        } = SwitchParts::open(config, now, || CallClock::manual(now))?;
        let mut switch = Self {
            event_loop,
            events: Vec::with_capacity(EVENTS),
            shared,
            alarm: None,
        };
        switch.sleep(now);
        Ok((switch, engines))
    }

    fn sleep(&mut self, now: Instant) {
        self.alarm = self.event_loop.lie_down(now).map(|idle| now + idle);
    }

    /// Time at which the switch wakes up without an event, if any.
    pub const fn alarm(&self) -> Option<Instant> {
        self.alarm
    }

    /// Whether the switch's thread would be awake at `now`.
    pub fn is_awake(&self, now: Instant) -> bool {
        self.alarm.is_some_and(|alarm| alarm <= now) || self.has_events()
    }

    /// Whether an event is pending that ends the sleep. Does not consume the event.
    fn has_events(&self) -> bool {
        const NO_TIME: Timespec = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut polled = [PollFd::new(&self.event_loop.epoll, PollFlags::IN)];
        // On an error of `poll` the switch counts as awake: its round will report the error.
        poll(&mut polled, Some(&NO_TIME)).map_or(true, |ready| ready > 0)
    }

    /// Does a round at `now`; the switch then sleeps again. `now` must not decrease.
    pub fn round(&mut self, now: Instant) {
        for (_, link, _) in self.event_loop.forwarder.links() {
            if let Some(calls) = link.calls() {
                calls.clock().set(now);
            }
        }
        self.event_loop.wait(Some(Duration::ZERO), &mut self.events);
        self.event_loop.round(now, &self.events);
        self.sleep(now);
    }

    /// Lets each system call for the network interface of a port take this time from now on. Until
    /// then, calls take no time.
    pub fn set_call_time(&mut self, port: usize, time: CallTime) {
        let ports = &self.event_loop.forwarder.ports;
        if let Some(calls) = ports[port].net.as_ref().and_then(|net| net.calls()) {
            calls.clock().set_call_time(time);
        }
    }

    /// Counters of all ports, then of all uplinks.
    pub fn stats(&self) -> Vec<Stats> {
        self.shared.stats()
    }

    /// Number of buffers in use: of each engine, then of each network interface, then of each
    /// uplink. A network interface or uplink always has one buffer ready for the next read.
    pub fn frames(&self) -> Vec<usize> {
        self.event_loop.forwarder.frames().collect()
    }

    /// Number of learned addresses behind uplinks.
    pub fn addresses(&self) -> usize {
        self.event_loop.forwarder.addresses()
    }
}
