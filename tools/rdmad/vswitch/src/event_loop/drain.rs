// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that links and engines have for the switch, and where each one goes.

use std::mem;
use std::time::SystemTime;

use roce::frame::MAX_FRAME;
use roce::net::is_roce;
use roce::{packet, Frame};
use rustix::event::epoll;

use crate::forwarder::{Destination, Forwarding, Origin};
use crate::frames::is_valid_length;
use crate::index::{PortIndex, SourceIndex};
use crate::link::{Received, Trouble};

use super::{watch, EventLoop, Subject, BATCH};

impl EventLoop {
    /// Takes a batch of frames from a link. Returns whether there may be more, of which epoll
    /// reports nothing: they were already read from the socket, or the link is not read for now.
    pub(super) fn drain_link(&mut self, source: SourceIndex) -> bool {
        let origin = self.forwarder.origin(source);
        let pool = self.forwarder.pool_of(origin).clone();
        for taken in 0.. {
            if !self.forwarder.may_read(source, self.now) {
                return true;
            }
            let link = match origin {
                Origin::Uplink(at) => Some(&mut self.forwarder.uplinks[at.0].link),
                Origin::Net(port) | Origin::Engine(port) => {
                    self.forwarder.ports[port.0].net.as_mut()
                }
            };
            let Some(link) = link else { return false };
            if taken >= BATCH {
                self.full = true;
                return link.has_arrived();
            }
            match link.receive(&mut self.spares[source.0], &pool) {
                Ok(None) => return false,
                Ok(Some(Received::Here(len))) if is_valid_length(len) => {
                    // The frame is handled if another buffer is free for the next frame. Otherwise
                    // the frame is dropped, and its buffer is used again.
                    match pool.take(MAX_FRAME) {
                        Some(next) => {
                            let mut frame = mem::replace(&mut self.spares[source.0], next);
                            frame.truncate(len);
                            self.take(origin, frame);
                        }
                        None => self.forwarder.counters_of(origin).dropped.add_one(),
                    }
                }
                Ok(Some(Received::Frame(frame))) => self.take(origin, frame),
                Ok(Some(Received::Lost(frames))) => {
                    self.forwarder.counters_of(origin).dropped.add(frames)
                }
                Ok(Some(Received::Here(_) | Received::Refused)) => {
                    self.forwarder.counters_of(origin).refused.add_one()
                }
                Ok(Some(Received::Nothing)) => {}
                Ok(Some(Received::Connected)) => {
                    if let Err(error) = watch(&self.epoll, Subject::Source(source), &*link) {
                        link.disconnect();
                        let name = &self.forwarder.counters_of(origin).name;
                        tracing::error!("{name}: epoll can't watch the network: {error}");
                    }
                }
                Ok(Some(Received::Stranger)) => {
                    let complain = link.may_complain(self.now);
                    let counters = self.forwarder.counters_of(origin);
                    counters.errors.add_one();
                    if complain {
                        tracing::warn!(
                            "{}: a network connection was closed: it is not of the port's user",
                            counters.name
                        );
                    }
                }
                Ok(Some(Received::Closed(malformed))) => {
                    let lost = link.disconnect();
                    let complain = link.may_complain(self.now);
                    let counters = self.forwarder.counters_of(origin);
                    counters.dropped.add(lost);
                    if let Some(length) = malformed {
                        counters.errors.add_one();
                        if complain {
                            tracing::warn!(
                                "{}: the network connection was closed: a frame can't have \
                                 {length} bytes; check that QEMU uses -netdev stream",
                                counters.name
                            );
                        }
                    }
                }
                Err(Trouble::Passes(error)) => {
                    let complain = link.may_complain(self.now);
                    let counters = self.forwarder.counters_of(origin);
                    counters.errors.add_one();
                    if complain {
                        tracing::warn!(
                            "{}: a read failed, and is repeated: {error}",
                            counters.name
                        );
                    }
                }
                Err(Trouble::Gone(error)) => {
                    let ignored = epoll::delete(&self.epoll, &*link);
                    let lost = link.lose();
                    let counters = self.forwarder.counters_of(origin);
                    let name = &counters.name;
                    tracing::error!("{name}: the interface has gone ({error}); waiting for it");
                    if let Err(error) = ignored {
                        tracing::error!("{name}: epoll can't forget the interface: {error}");
                    }
                    counters.dropped.add(lost);
                    return false;
                }
            }
        }
        false
    }

    /// Takes a batch of frames from an engine. Returns whether the engine has more.
    pub(super) fn drain_engine(&mut self, port: PortIndex) -> bool {
        let sent = self.forwarder.ports[port.0].engine.sent();
        let mut frames = mem::take(&mut self.sent);
        sent.take(BATCH, &mut frames);
        for frame in frames.drain(..) {
            if is_valid_length(frame.len()) {
                self.take(Origin::Engine(port), frame);
            } else {
                self.forwarder.ports[port.0].counters.refused.add_one();
            }
        }
        self.sent = frames;
        sent.has_more()
    }

    /// Handles a frame: filter, learning, capture, faults, delivery.
    fn take(&mut self, origin: Origin, mut frame: Frame) {
        let now = self.now;
        if !self.forwarder.admit(origin, &frame, now) {
            self.forwarder.counters_of(origin).refused.add_one();
            return;
        }
        self.forwarder.counters_of(origin).received.add_one();
        if self.forwarder.is_routed(origin) {
            frame.set_routed();
        }
        if !self.offloads_icrc || self.forwarder.captures() {
            packet::complete(&mut frame);
        }
        if let Some(pcap) = &mut self.pcap {
            pcap.write(&frame, SystemTime::now());
        }
        let roce = is_roce(&frame);
        let destination = self.forwarder.destination(origin, &frame, roce, now);
        let forwarding = Forwarding {
            origin,
            destination,
        };
        if self.forwarder.captures() {
            self.forwarder.capture(forwarding, &frame);
        }
        if destination == Destination::Nowhere {
            self.forwarder.counters_of(origin).no_route.add_one();
            return;
        }
        if !self.forwarder.offloads_icrc(destination) {
            packet::complete(&mut frame);
        }
        let engines = matches!(origin, Origin::Engine(_))
            || matches!(
                destination,
                Destination::Engine(_) | Destination::Multicast { engines: true }
            );
        match &mut self.injector {
            Some(injector) if roce && engines => {
                injector.pass(forwarding, frame, now, &mut |forwarding, frame| {
                    self.forwarder.deliver(forwarding, frame, now)
                });
            }
            _ => self.forwarder.deliver(forwarding, frame, now),
        }
    }
}
