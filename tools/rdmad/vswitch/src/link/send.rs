// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending: the backlog of a link, and when a link counts as stalled.

use std::mem;
use std::time::{Duration, Instant};

use roce::{Frame, FramePool};
use rustix::io::Errno;

use crate::backlog::TOGETHER;
use crate::index::SourceIndex;

use super::socket::Socket;
use super::Link;

/// Maximum number of frames of a source that wait for room in a socket. It does not limit frames of
/// engines, unless the link is stalled. The socket of a network interface holds about a hundred
/// frames, less than one window of a connection.
pub(crate) const BACKLOG: usize = 512;

/// Number of waiting frames above which a new frame is marked as congested, if its sender supports
/// ECN. Sources with waiting frames divide this number among themselves.
const CONGESTED: usize = 64;

/// The least share of a source in [`CONGESTED`].
const MIN_SHARE: usize = 4;

/// How long a socket may accept nothing before the link counts as stalled. Frames of an engine wait
/// for a slow receiver, and so does the engine. But a receiver that does not read at all must not
/// delay the engine's frames to other receivers.
pub(super) const STALL: Duration = Duration::from_secs(1);

/// How long a frame may wait before the link counts as stalled. A receiver that reads a single
/// frame from time to time never exceeds [`STALL`], but delays the engine's other frames as well.
const AGE: Duration = Duration::from_secs(3);

/// Retry interval of a full socket for which epoll does not report room.
pub(super) const RETRY: Duration = Duration::from_micros(100);

/// Retry interval of a full socket for which epoll reports room, or that has accepted nothing for
/// long.
pub(super) const STALE: Duration = Duration::from_millis(500);

/// Number of waiting frames of a network interface from which on the switch reads no more of its
/// frames. The rest of [`BACKLOG`] is for copies of frames, which do not wait.
const HOLD: usize = BACKLOG / 2;

/// Number of waiting frames at which the switch reads more frames of the network interface: few
/// reads return that many frames, so the link does not run out of frames.
const RELEASE: usize = HOLD / 2;

/// Number of frames that a source may have in a backlog although few of its buffers are free.
const LEAST: usize = 16;

/// How long a frame may wait before the link counts as slow. Network interfaces do not wait for a
/// slow link, since it would slow their frames to other destinations down. This is the shortest
/// retransmission timeout of Linux: TCP repeats a frame that waits for longer anyway.
pub(crate) const SLOW: Duration = Duration::from_millis(200);

/// The result of an attempt to send a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// The frame was sent, or waits in the backlog.
    Done,
    /// The frame was dropped.
    Dropped,
    /// The frame was dropped, because the link has used up its share of the thread's time.
    OverShare,
}

/// Numbers of frames that were dropped from a backlog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) dropped: usize,
    /// Frames that were dropped because the link has used up its share of the thread's time.
    pub(crate) over_share: usize,
}

/// The sender of a frame.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) source: SourceIndex,
    /// The buffers that the source's frames and copies use. `None` for a patient sender: it has
    /// buffers of its own, and waits for them.
    pub(crate) pool: Option<&'a FramePool>,
}

impl Sender<'_> {
    const fn is_patient(self) -> bool {
        self.pool.is_none()
    }

    /// Whether so many of the sender's buffers are in use that a link with `waiting` frames of it
    /// gets no more of them. So receivers that are slow at the same time leave buffers for others.
    fn is_short_of_buffers(self, waiting: usize) -> bool {
        let is_short = |pool: &FramePool| waiting >= LEAST && waiting / 2 >= pool.unused();
        self.pool.is_some_and(is_short)
    }
}

/// The error of a send if the frame has to wait for room in the backlog.
struct Full;

/// The event for which the frames in a backlog wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// No frame waits for an event.
    No,
    /// epoll reports when the socket has room.
    ForRoom,
    /// No event reports room, so the send is retried after some time.
    ForTime,
}

impl Link {
    /// Whether frames are collected to be sent together.
    fn sends_together(&self) -> bool {
        match &self.socket {
            Socket::Net(_) | Socket::Udp(_) => true,
            Socket::Unix(uplink) => uplink.takes_batches(),
            Socket::Tap(_) => false,
        }
    }

    /// Sends a frame, after those in the backlog. If the socket is full, the frame is added to the
    /// backlog, or dropped if the backlog is full too. A frame of a patient sender is added even to
    /// a full backlog, unless the link is stalled. Links that send several frames in one call
    /// collect frames until [`retry`](Self::retry).
    pub(crate) fn send(&mut self, frame: Frame, sender: Sender<'_>, now: Instant) -> Delivery {
        if !self.socket.is_connected() {
            return Delivery::Dropped;
        }
        if self.sends_together() {
            let sent = self.enqueue(frame, sender, now);
            if self.waits == Waits::No && self.backlog.len() >= TOGETHER {
                self.send_waiting(now);
            }
            return sent;
        }
        match self.send_at_once(&frame) {
            Ok(sent) => sent,
            Err(Full) => self.enqueue(frame, sender, now),
        }
    }

    /// Sends a frame that is also sent to other destinations. If the socket is full, or is a
    /// stream, a copy of the frame in a buffer of `pool` is added to the backlog.
    pub(crate) fn send_copy(
        &mut self,
        frame: &[u8],
        source: SourceIndex,
        pool: &FramePool,
        now: Instant,
    ) -> Delivery {
        if !self.socket.is_connected() {
            return Delivery::Dropped;
        }
        let sender = Sender {
            source,
            pool: Some(pool),
        };
        if let Ok(sent) = self.send_at_once(frame) {
            return sent;
        }
        let Some(mut copy) = pool.take(frame.len()) else {
            return Delivery::Dropped;
        };
        copy.copy_from_slice(frame);
        let sent = self.enqueue(copy, sender, now);
        if self.waits == Waits::No {
            // Sent now, since the copies of many links may use up the buffers.
            self.send_waiting(now);
        }
        sent
    }

    fn send_at_once(&mut self, frame: &[u8]) -> Result<Delivery, Full> {
        if !self.backlog.is_empty() || self.socket.is_stream() {
            return Err(Full);
        }
        match self.socket.send(frame) {
            Ok(()) => Ok(Delivery::Done),
            Err(error) => match Self::waits_after(error) {
                Waits::No => Ok(Delivery::Dropped),
                waits => {
                    self.waits = waits;
                    Err(Full)
                }
            },
        }
    }

    /// The event to wait for after a send has failed with `error`. `No` if waiting does not help.
    const fn waits_after(error: Errno) -> Waits {
        match error {
            Errno::NOBUFS => Waits::ForTime,
            Errno::AGAIN => Waits::ForRoom,
            _ => Waits::No,
        }
    }

    fn enqueue(&mut self, mut frame: Frame, sender: Sender<'_>, now: Instant) -> Delivery {
        let source = sender.source;
        let waiting = self.backlog.len_of(source);
        let is_full = waiting >= BACKLOG && (!sender.is_patient() || self.stalled);
        if self.pause(now) > SLOW {
            return Delivery::OverShare;
        }
        if is_full || sender.is_short_of_buffers(waiting) {
            return Delivery::Dropped;
        }
        if self.backlog.is_empty() {
            self.waiting = now;
        }
        let share = (CONGESTED / self.backlog.sources().max(1)).max(MIN_SHARE);
        if self.waits != Waits::No && waiting > share {
            roce::net::mark(&mut frame);
        }
        self.backlog.push(source, frame, now);
        Delivery::Done
    }

    /// Sends frames of the backlog, as far as there is room. Returns the numbers of frames dropped
    /// since the last call.
    pub(crate) fn retry(&mut self, now: Instant) -> Lost {
        self.send_waiting(now);
        mem::take(&mut self.lost)
    }

    fn send_waiting(&mut self, now: Instant) {
        while !self.backlog.is_empty() && self.pause(now).is_zero() {
            let gone = match self.socket.send_first(self.backlog.choose()) {
                Ok(sent) => {
                    self.waiting = now;
                    sent
                }
                Err(error) => match Self::waits_after(error) {
                    Waits::No => {
                        self.lost.dropped += 1;
                        1
                    }
                    waits => {
                        self.waits = waits;
                        break;
                    }
                },
            };
            self.backlog.remove(gone);
        }
        let pause = self.pause(now);
        if pause > SLOW {
            // Frames that wait for this long are of no use. The first may have been sent in part.
            self.lost.over_share += self.backlog.shorten(0);
        }
        let oldest = self.backlog.oldest();
        let age = oldest.map_or(Duration::ZERO, |oldest| {
            now.saturating_duration_since(oldest)
        });
        let idle = now.saturating_duration_since(self.waiting);
        self.slow = age > SLOW || !pause.is_zero();
        self.stalled = oldest.is_some() && (idle > STALL || age > AGE);
        if oldest.is_none() {
            self.waits = Waits::No;
        } else if !pause.is_zero() {
            self.waits = Waits::ForTime;
        } else if self.stalled {
            self.lost.dropped += self.backlog.shorten(BACKLOG);
        }
    }

    /// Time until the next retry of the link if no event occurs; `None` if no frame waits. The time
    /// grows while the socket accepts nothing: a paused virtual machine may read nothing for hours.
    pub(crate) fn retry_in(&self, now: Instant) -> Option<Duration> {
        let pause = self.pause(now);
        if !pause.is_zero() {
            return Some(pause.clamp(RETRY, STALE));
        }
        match self.waits {
            Waits::No => None,
            Waits::ForRoom => Some(STALE),
            Waits::ForTime => {
                let idle = now.saturating_duration_since(self.waiting);
                Some((idle / 8).clamp(RETRY, STALE))
            }
        }
    }

    /// Whether so many frames of a network interface wait that it has to wait too.
    pub(crate) fn is_crowded_by(&self, source: SourceIndex) -> bool {
        !self.is_slow_for(source) && self.backlog.len_of(source) >= HOLD
    }

    /// Whether a network interface that [has to wait](Self::is_crowded_by) may continue.
    pub(crate) fn has_room_for(&self, source: SourceIndex) -> bool {
        self.is_slow_for(source) || self.backlog.len_of(source) <= RELEASE
    }

    /// Sets whether the link counts as slow for a source, at most until no frame of the source
    /// waits.
    pub(crate) fn set_slow_for(&mut self, source: SourceIndex, is_slow: bool) {
        self.backlog.set_impatient(source, is_slow);
    }

    fn is_slow_for(&self, source: SourceIndex) -> bool {
        self.slow || self.backlog.is_impatient(source)
    }

    /// Number of frames that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.len()
    }
}
