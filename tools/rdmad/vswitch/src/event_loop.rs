// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The event loop of the switch's thread.

mod drain;

use std::io;
use std::mem;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::frame::{Surplus, MAX_FRAME};
use roce::Frame;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::Timespec;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use crate::changes::{Change, ChangeRequests, ChangeResult};
use crate::engine_queues::{self, Caller};
use crate::fault::{FaultPlan, Injector};
use crate::forwarder::{Forwarder, Forwarding, Origin, SwitchPort};
use crate::index::{PortIndex, SourceIndex};
use crate::link::Link;
use crate::listed::Listed;
use crate::pcap::PcapWriter;
use crate::waker::Waker;

/// Maximum number of frames that a round of the event loop takes from one link or engine.
const BATCH: usize = 64;
/// Number of successive rounds with a full batch from which on the thread leaves the work of
/// engines to their workers: frames arrive faster than the thread alone handles them. One full
/// batch may be all that has arrived.
const FLOOD: u32 = 8;
/// Interval of the search for restarted remote ends and interfaces that were created again.
const RECONNECT: Duration = Duration::from_secs(1);
/// Interval at which buffers are freed that were not used in it.
const SHED: Duration = Duration::from_secs(1);
/// Time without an event after which captured frames are written to their file.
const FLUSH: Duration = Duration::from_millis(100);

/// The event loop. It moves frames between the links and engines of `forwarder`.
pub(crate) struct EventLoop {
    pub(crate) epoll: OwnedFd,
    waker: Arc<Waker>,
    changes: Arc<ChangeRequests>,
    pcap: Option<PcapWriter>,
    injector: Option<Injector<Forwarding>>,
    pub(crate) forwarder: Forwarder,
    /// One buffer for each link, from the pool of the link, into which the next frame is read.
    spares: Vec<Frame>,
    /// Frames of an engine that are being handled. A round uses its memory again.
    sent: Vec<Frame>,
    /// Sources whose links may have frames for this round.
    readable: Listed,
    /// Indices of sources or ports that are being handled. A round uses its memory again.
    handled: Vec<usize>,
    /// Time of this round.
    now: Instant,
    /// Time of the next search for remote ends and interfaces. `None` if no link needs it.
    reconnect_at: Option<Instant>,
    /// Time at which buffers that were not used lately are freed. `None` if no pool has many.
    shedding: Option<Instant>,
    /// Whether engines or links have frames left after this round.
    more: bool,
    /// Whether a link had a full batch of frames in this round.
    full: bool,
    /// Number of successive rounds in which a link had a full batch of frames.
    floods: u32,
    /// Whether captured frames are in memory and not yet written.
    captured: bool,
    /// Whether frames may lack an ICRC: faults and the capture of the whole switch are off.
    offloads_icrc: bool,
}

/// Maximum number of events in a round. More events are returned in the next round.
pub(crate) const EVENTS: usize = 64;

/// The subject of an event of epoll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    Waker,
    Source(SourceIndex),
}

impl Subject {
    /// The value of an event of the waker; those of sources are their indices.
    const WAKER: u64 = u64::MAX;

    fn of(event: &epoll::Event) -> Self {
        match event.data.u64() {
            Self::WAKER => Self::Waker,
            // LOSSLESS: `data` got the value from an index.
            source => Self::Source(SourceIndex(source as usize)),
        }
    }

    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Self::Waker => Self::WAKER,
            Self::Source(SourceIndex(index)) => index as u64,
        })
    }
}

impl EventLoop {
    pub(crate) fn new(
        mut forwarder: Forwarder,
        pcap: Option<PcapWriter>,
        faults: Option<FaultPlan>,
        waker: Arc<Waker>,
        changes: Arc<ChangeRequests>,
        now: Instant,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, Subject::Waker, &waker)?;
        for (source, link, _) in forwarder.links() {
            watch_link(&epoll, source, link)?;
        }
        let pools = forwarder.pools.iter();
        let spares = pools
            .map(|pool| pool.take(MAX_FRAME).ok_or(Errno::NOMEM))
            .collect::<Result<_, _>>()?;
        let offloads_icrc = pcap.is_none() && faults.is_none();
        let reconnect_at = forwarder.any_comes_and_goes().then(|| now + RECONNECT);
        Ok(Self {
            epoll,
            waker,
            changes,
            pcap,
            injector: faults.map(Injector::new),
            readable: Listed::new(forwarder.pools.len()),
            sent: Vec::new(),
            handled: Vec::new(),
            forwarder,
            spares,
            now,
            reconnect_at,
            shedding: None,
            more: false,
            full: false,
            floods: 0,
            captured: false,
            offloads_icrc,
        })
    }

    /// Runs rounds until the switch is stopped.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        self.waker.pulse.begin_thread();
        let passer = self.waker.gate.enter();
        while !self.waker.is_stopping() {
            if self.waker.gate.is_closed() {
                // The process may end now.
                self.flush();
                passer.pass();
            }
            let idle = self.lie_down(Instant::now());
            self.wait(idle, &mut events);
            self.round(Instant::now(), &events);
        }
        self.flush();
        for counters in self.forwarder.counters() {
            tracing::debug!("{:?}", counters.snapshot(0));
        }
    }

    /// Sleeps until an event occurs, but at most for `most`. Replaces the contents of `events`.
    pub(crate) fn wait(&self, most: Option<Duration>, events: &mut Vec<epoll::Event>) {
        let timeout = most.and_then(|most| Timespec::try_from(most).ok());
        events.clear();
        let events = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, events, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // A defect. The panic ends the process: without this thread no port has a network.
            Err(error) => panic!("the switch can't wait for frames: {error}"),
        }
    }

    /// Does a round at `now`, after a [sleep](Self::wait) that returned `events`. Handles a bounded
    /// number of frames of each link and engine.
    pub(crate) fn round(&mut self, now: Instant, events: &[epoll::Event]) {
        engine_queues::in_round(|| self.forward(now, events));
        // A thread that stands in for a worker leaves its own work undone for a while.
        let caller = match self.more || self.floods >= FLOOD {
            true => Caller::Busy,
            false => Caller::Idle,
        };
        self.forwarder.notify_last(caller);
    }

    /// Moves frames, as a round does. Leaves at most one engine with new frames unnotified.
    fn forward(&mut self, now: Instant, events: &[epoll::Event]) {
        self.now = now;
        self.waker.get_up();
        let is_waker = |event| Subject::of(event) == Subject::Waker;
        if events.iter().any(is_waker) {
            self.waker.clear();
        }
        for request in self.changes.take() {
            request.carry_out(|change| self.make(change));
        }
        if events.is_empty() && self.captured && !self.more {
            self.flush();
            self.captured = false;
        }
        for event in events {
            match Subject::of(event) {
                Subject::Waker => {}
                // The link has room again, which `retry` below uses. There is nothing to read.
                Subject::Source(_) if { event.flags } == EventFlags::OUT => {}
                Subject::Source(source) => self.readable.add(source.0),
            }
        }
        self.more = false;
        self.full = false;
        let mut handled = mem::take(&mut self.handled);
        self.readable.take(&mut handled);
        for source in handled.iter().copied().map(SourceIndex) {
            if self.drain_link(source) {
                self.readable.add(source.0);
                self.more |= self.forwarder.may_read(source, now);
            }
        }
        handled.clear();
        handled.extend(self.forwarder.calls.take_senders().map(|port| port.0));
        for port in handled.iter().copied().map(PortIndex) {
            if self.drain_engine(port) {
                self.forwarder.calls.left(port);
                self.more = true;
            }
        }
        if let Some(injector) = &mut self.injector {
            injector.release(now, &mut |forwarding, frame| {
                self.forwarder.deliver(forwarding, frame, now)
            });
        }
        self.forwarder.notify();
        self.forwarder.busy.take(&mut handled);
        self.forwarder.retry(&handled, now);
        self.more |= self.forwarder.release(&handled, now);
        self.watch_links(&handled);
        self.forwarder.keep(&handled, now);
        self.handled = handled;
        if let Some(at) = self.reconnect_at.filter(|at| *at <= now) {
            self.forwarder.reconnect();
            self.find_again();
            self.reconnect_at = Some(at.max(now) + RECONNECT);
        }
        if self.forwarder.calls.take_surplus() {
            self.shedding.get_or_insert(now + SHED);
        }
        if self.shedding.is_some_and(|at| at <= now) {
            self.shedding = match self.forwarder.shed() {
                // In the next round.
                Surplus::Rest => Some(now),
                Surplus::Candidates => Some(now + SHED),
                Surplus::None => None,
            };
        }
        if self.offloads_icrc {
            self.forwarder.tell_offload();
        }
        let captures = self.pcap.is_some() || self.forwarder.captures();
        self.captured |= captures && (self.more || !events.is_empty());
        self.floods = match self.full {
            true => self.floods.saturating_add(1),
            false => 0,
        };
    }

    fn make(&mut self, change: Change) -> io::Result<ChangeResult> {
        Ok(match change {
            Change::Occupy(index, port, addresses) => {
                self.occupy(index, *port, &addresses)?;
                ChangeResult::Nothing
            }
            Change::Vacate(index) => ChangeResult::Port(Box::new(self.vacate(index))),
            Change::Capture(index, capture) => {
                let before = self.forwarder.set_capture(index, capture);
                before.map_or(ChangeResult::Nothing, ChangeResult::Capture)
            }
        })
    }

    /// Assigns a free index to a port.
    fn occupy(&mut self, index: PortIndex, port: SwitchPort, given: &[IpAddr]) -> io::Result<()> {
        if let Some(link) = &port.net {
            let source = self.forwarder.source(Origin::Net(index));
            watch_link(&self.epoll, source, link)?;
        }
        self.forwarder.occupy(index, port, given);
        Ok(())
    }

    /// Removes a port, and drops its frames that fault injection holds back.
    fn vacate(&mut self, index: PortIndex) -> SwitchPort {
        let port = self.forwarder.vacate(index);
        if let Some(link) = &port.net {
            // An error is ignored: epoll drops a socket when its descriptor is closed. Without a
            // connection the first descriptor is the second one.
            let _ = epoll::delete(&self.epoll, link);
            if let Some(listener) = link.listener() {
                let _ = epoll::delete(&self.epoll, listener);
            }
        }
        if let Some(injector) = &mut self.injector {
            injector.forget(|forwarding| forwarding.is_of(index));
        }
        port
    }

    /// Prepares the sleep of the thread. Returns how long after `now` it may last without an event;
    /// `None` for no limit.
    pub(crate) fn lie_down(&self, now: Instant) -> Option<Duration> {
        if self.more || !self.waker.lie_down() {
            return Some(Duration::ZERO);
        }
        let retry = self.forwarder.retry_in(self.now);
        let flush = self.captured.then_some(FLUSH);
        let held = self.injector.as_ref().and_then(Injector::deadline);
        let at = [held, self.reconnect_at, self.shedding]
            .into_iter()
            .flatten()
            .min();
        let at = at.map(|at| at.saturating_duration_since(now));
        retry.into_iter().chain(flush).chain(at).min()
    }

    /// Watches those of `busy` whose frames wait for room in the socket, and does not watch those
    /// that are not read for now.
    fn watch_links(&mut self, busy: &[usize]) {
        let Self {
            epoll,
            forwarder,
            now,
            ..
        } = self;
        for source in busy.iter().copied().map(SourceIndex) {
            let Some((link, _)) = forwarder.link(source) else {
                continue;
            };
            let events = link.events(*now);
            if link.watched != events {
                link.watched = events;
                // This fails for a deleted interface, which is no longer in epoll. The deletion was
                // logged.
                let data = Subject::Source(source).data();
                let _ = epoll::modify(&*epoll, &*link, data, events);
            }
        }
    }

    /// Attaches to interfaces that were created again.
    fn find_again(&mut self) {
        let Self {
            epoll, forwarder, ..
        } = self;
        for (source, link, counters) in forwarder.links() {
            if link.find_again() {
                let name = &counters.name;
                match watch(epoll, Subject::Source(source), &*link) {
                    Ok(()) => tracing::info!("{name}: the interface is back"),
                    Err(error) => tracing::error!(
                        "{name}: the interface is back, but epoll can't watch it: {error}"
                    ),
                }
            }
        }
    }

    fn flush(&mut self) {
        if let Some(pcap) = &mut self.pcap {
            pcap.flush();
        }
        // The writer has logged the failure.
        self.pcap.take_if(|pcap| pcap.has_failed());
        self.forwarder.flush_captures();
    }
}

/// Adds a subject of events: epoll reports when `fd` is readable.
fn watch(epoll: &OwnedFd, subject: Subject, fd: impl AsFd) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, subject.data(), EventFlags::IN)
}

/// Adds a link as a source of events. A listening socket reports each connection once: while one
/// connection is open, others wait.
fn watch_link(epoll: &OwnedFd, source: SourceIndex, link: &Link) -> rustix::io::Result<()> {
    match link.listener() {
        Some(listener) => {
            let data = Subject::Source(source).data();
            epoll::add(epoll, listener, data, EventFlags::IN | EventFlags::ET)
        }
        None => watch(epoll, Subject::Source(source), link),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{eventfd, EventfdFlags};

    use super::*;
    use crate::calls::Calls;

    /// If the switch's thread can't wait for events, it panics: without this thread no frames are
    /// forwarded.
    #[test]
    #[should_panic = "the switch can't wait for frames: Invalid argument"]
    fn without_events_it_does_not_end_in_silence() {
        let waker = Arc::new(Waker::new().unwrap());
        let calls = Arc::new(Calls::new(waker.clone(), 0));
        let forwarder = Forwarder::new(vec![], vec![], calls, Arc::default(), 0);
        let changes = Arc::default();
        let now = Instant::now();
        let mut event_loop = EventLoop::new(forwarder, None, None, waker, changes, now).unwrap();
        // The descriptor is not an epoll instance, so the wait fails.
        event_loop.epoll = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        event_loop.run();
    }
}
