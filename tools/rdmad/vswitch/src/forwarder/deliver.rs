// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Delivery of frames to their destinations, and of frames that wait.

use std::iter;
use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use roce::{Frame, FramePool};

use crate::engine_queues::{Caller, RECEIVE_QUEUE, UPLINK_SHARE};
use crate::index::{PortIndex, SourceIndex, UplinkIndex};
use crate::link::{Delivery, Link, Sender, SLOW};
use crate::stats::FrameCounters;

use super::port::{Destination, Forwarding, Origin, SwitchPort, UplinkPort};
use super::rules::address;
use super::Forwarder;

impl Forwarder {
    /// Delivers a frame to its destination.
    pub(crate) fn deliver(&mut self, forwarding: Forwarding, frame: Frame, now: Instant) {
        let Forwarding {
            origin,
            destination,
        } = forwarding;
        let source = self.source(origin);
        let is_mixed = match origin {
            Origin::Net(from) => self.ports[from.0].patience.note(destination, now),
            Origin::Engine(_) | Origin::Uplink(_) => false,
        };
        match destination {
            Destination::Nowhere => {}
            Destination::Engine(port) => self.deliver_to_engine(origin, port, Some(frame)),
            Destination::Net(port) => {
                self.busy.add(port.0);
                let SwitchPort { net, counters, .. } = &mut self.ports[port.0];
                if let Some(link) = net {
                    let sender = sender(&self.pools, origin, source);
                    count(link.send(frame, sender, now), counters);
                    if !is_mixed {
                        link.set_slow_for(source, false);
                    }
                    if link.is_crowded_by(source) {
                        self.hold(origin, port, now);
                    }
                }
            }
            Destination::Uplink(at) => {
                self.busy.add(self.source(Origin::Uplink(at)).0);
                let UplinkPort { link, counters, .. } = &mut self.uplinks[at.0];
                let sender = sender(&self.pools, origin, source);
                count(link.send(frame, sender, now), counters);
            }
            Destination::Uplinks => self.copy_to_uplinks(origin, &frame, now),
            Destination::Multicast { engines } => {
                if engines {
                    self.copy_to_engines(origin, &frame);
                }
                self.copy_to_nets(origin, &frame, now);
                self.copy_to_uplinks(origin, &frame, now);
            }
        }
    }

    /// Lets a network interface wait until frames of it were sent to the port `to`. Other sources
    /// do not wait.
    fn hold(&mut self, origin: Origin, to: PortIndex, now: Instant) {
        if let Origin::Net(from) = origin {
            self.busy.add(from.0);
            let SwitchPort { net, patience, .. } = &mut self.ports[from.0];
            if let Some(link) = net {
                link.held_for = Some(to);
                patience.begin(now);
            }
        }
    }

    /// Ends the wait of those of `busy` whose frames were sent, or that have waited for long.
    /// Returns whether there are any.
    pub(crate) fn release(&mut self, busy: &[usize], now: Instant) -> bool {
        let mut any = false;
        for source in busy.iter().copied().map(SourceIndex) {
            let Some(to) = self.held_for(source) else {
                continue;
            };
            // Only network interfaces wait. The index of such a source is that of its port.
            let has_patience = self.ports[source.0].patience.wait(now);
            let link = self.ports[to.0].net.as_mut();
            let goes_on = link.is_none_or(|link| {
                if !has_patience {
                    link.set_slow_for(source, true);
                }
                link.has_room_for(source)
            });
            if let Some((link, _)) = self.link(source).filter(|_| goes_on) {
                link.held_for = None;
                any = true;
            }
        }
        any
    }

    /// The port for whose network interface `source` waits, if it does.
    pub(crate) fn held_for(&self, source: SourceIndex) -> Option<PortIndex> {
        self.link_at(source)?.held_for
    }

    /// Whether frames of `source` are to be read. If they are not, because the link has used up its
    /// share of the thread's time, it is looked after in the next rounds.
    pub(crate) fn may_read(&mut self, source: SourceIndex, now: Instant) -> bool {
        let Some(link) = self.link_at(source) else {
            return true;
        };
        let may_read = link.may_read(now);
        if !link.pause(now).is_zero() {
            self.busy.add(source.0);
        }
        may_read
    }

    /// Delivers a frame to an engine. `None` if there was no buffer for the frame.
    fn deliver_to_engine(&mut self, from: Origin, port: PortIndex, frame: Option<Frame>) {
        let target = &self.ports[port.0];
        let limit = match from {
            Origin::Engine(_) => usize::MAX,
            Origin::Net(_) => RECEIVE_QUEUE,
            Origin::Uplink(_) => UPLINK_SHARE,
        };
        match frame {
            Some(frame) => {
                if target.engine.deliver(limit, iter::once(frame)) {
                    self.touched.add(port.0);
                }
            }
            None => target.counters.dropped.add_one(),
        }
    }

    /// Copies a multicast frame to the engines that have joined its address. A frame from an engine
    /// is also copied to this engine, which decides which of its QPs receive the datagram. A frame
    /// from a network interface is not copied to the engine of the same port.
    fn copy_to_engines(&mut self, from: Origin, frame: &Frame) {
        let Some(group) = address(frame, 0) else {
            return;
        };
        let mut members = mem::take(&mut self.members);
        self.groups.members(&group, &mut members);
        for at in members.iter().copied() {
            if from != Origin::Net(at) && self.reaches(from, at) {
                let copy = self.pool_of(from).copy_of(frame);
                self.deliver_to_engine(from, at, copy);
            }
        }
        self.members = members;
    }

    fn copy_to_nets(&mut self, from: Origin, frame: &[u8], now: Instant) {
        let (source, pool) = (self.source(from), self.pool_of(from).clone());
        let reached = match from.port() {
            Some(from) => {
                let group = self.ports[from.0].group;
                self.nets.range(group..=group)
            }
            None => self.nets.range::<u32, _>(..),
        };
        for PortIndex(at) in reached.flat_map(|(_, ports)| ports.iter().copied()) {
            let SwitchPort { net, counters, .. } = &mut self.ports[at];
            if let Some(link) = net.as_mut().filter(|_| from.port() != Some(PortIndex(at))) {
                self.busy.add(at);
                count(link.send_copy(frame, source, &pool, now), counters);
            }
        }
    }

    fn copy_to_uplinks(&mut self, from: Origin, frame: &[u8], now: Instant) {
        let (source, pool) = (self.source(from), self.pool_of(from).clone());
        let ports = self.ports.len();
        for (at, uplink) in self.uplinks.iter_mut().enumerate() {
            if from != Origin::Uplink(UplinkIndex(at)) {
                self.busy.add(ports + at);
                let sent = uplink.link.send_copy(frame, source, &pool, now);
                count(sent, &uplink.counters);
            }
        }
    }

    fn link_at(&self, source: SourceIndex) -> Option<&Link> {
        match self.origin(source) {
            Origin::Uplink(at) => Some(&self.uplinks[at.0].link),
            Origin::Net(port) | Origin::Engine(port) => self.ports[port.0].net.as_ref(),
        }
    }

    /// Time until the next retry of full sockets; `None` if no socket is full.
    pub(crate) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let links = self
            .busy
            .iter()
            .filter_map(|at| self.link_at(SourceIndex(at)));
        let waits = self.busy.iter().filter_map(|at| {
            self.held_for(SourceIndex(at))?;
            // A link for which others wait counts as slow after this time.
            Some(self.ports[at].patience.left(now).min(SLOW))
        });
        links
            .filter_map(|link| link.retry_in(now))
            .chain(waits)
            .min()
    }

    /// Sends waiting frames of `busy`, as far as the sockets have room again.
    pub(crate) fn retry(&mut self, busy: &[usize], now: Instant) {
        for source in busy.iter().copied().map(SourceIndex) {
            let Some((link, counters)) = self.link(source) else {
                continue;
            };
            let lost = link.retry(now);
            counters.dropped.add(lost.dropped);
            counters.over_share.add(lost.over_share);
            let waiting = link.waiting();
            counters.socket_longest.note(waiting);
            counters
                .socket_frames
                .store(waiting as u64, Ordering::Relaxed);
            complain_of_calls(link, &counters.name, now);
        }
    }

    /// Keeps those of `busy` whose frames wait, or that wait for another link or for their share of
    /// the thread's time, for the next round.
    pub(crate) fn keep(&mut self, busy: &[usize], now: Instant) {
        for &at in busy {
            let waits = |link: &Link| {
                link.waiting() > 0 || link.held_for.is_some() || !link.pause(now).is_zero()
            };
            if self.link_at(SourceIndex(at)).is_some_and(waits) {
                self.busy.add(at);
            }
        }
    }

    /// Notifies the engines to which frames were delivered in this round, except the last of them,
    /// which [`notify_last`](Self::notify_last) notifies.
    pub(crate) fn notify(&mut self) {
        self.touched.take(&mut self.notified);
        for port in self.notified.iter().copied().map(PortIndex) {
            let before = self.last.replace(port).filter(|before| *before != port);
            if let Some(before) = before {
                self.ports[before.0].engine.notify(Caller::Busy);
            }
        }
    }

    /// Notifies the engines that have got room in this round, and the last one with frames. The
    /// last of these engines is notified as by `caller`: if this thread is idle, the engine may do
    /// its work now.
    pub(crate) fn notify_last(&mut self, caller: Caller) {
        for port in self.calls.take_with_room() {
            self.touched.add(port.0);
        }
        self.notify();
        if let Some(port) = self.last.take() {
            self.ports[port.0].engine.notify(caller);
        }
    }
}

fn sender(pools: &[FramePool], origin: Origin, source: SourceIndex) -> Sender<'_> {
    let is_patient = matches!(origin, Origin::Engine(_));
    Sender {
        source,
        pool: (!is_patient).then_some(&pools[source.0]),
    }
}

fn count(sent: Delivery, counters: &FrameCounters) {
    match sent {
        Delivery::Done => counters.sent.add_one(),
        Delivery::Dropped => counters.dropped.add_one(),
        Delivery::OverShare => counters.over_share.add_one(),
    }
}

/// Logs that a link has used up its share of the thread's time.
fn complain_of_calls(link: &mut Link, name: &str, now: Instant) {
    if link.pause(now).is_zero() || !link.may_complain(now) {
        return;
    }
    let stats = link.calls().map(|calls| calls.stats());
    let longest = stats.unwrap_or_default().longest;
    tracing::warn!(
        "{name}: QEMU makes system calls for the network interface take up to {longest:?}; its \
         frames wait or are dropped, so that other ports do not wait"
    );
}
