// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Connections whose data goes through one link of 10 Gb/s with a queue, on a virtual clock.
// Local memory in one piece is a vector of one range.
#![allow(clippy::single_range_in_vec_init)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::net::mark;
use roce::work::{SendOp, WcStatus};

use super::endpoint::{Endpoint, Settings};

/// Connections through the link.
pub const FLOWS: usize = 16;
/// Bytes of a message.
const MESSAGE: usize = 64 << 10;
/// Messages that a requester has posted at a time.
const DEPTH: usize = 4;
/// Time from the link to a receiver, and from there to the sender.
const LATENCY: Duration = Duration::from_micros(10);

/// Time of so many bytes on the link.
fn time_of(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 * 8 / 10)
}

/// How the link deals with a queue, in bytes.
#[derive(Clone, Copy)]
pub struct Link {
    /// Packets are marked that find more before them.
    pub mark: Option<usize>,
    /// Packets are dropped that find more before them.
    pub full: usize,
}

/// Frames under way: when they arrive, of which connection they are.
type Line = VecDeque<(Instant, usize, Vec<u8>)>;

/// Figures since [`Bottleneck::measure`].
#[derive(Debug)]
pub struct Figures {
    /// Share of the link's time in which it sent.
    pub used: f64,
    /// Jain's index of the connections' bytes: 1 if they are equal.
    pub fairness: f64,
    /// The longest that a packet was in the queue.
    pub longest_wait: Duration,
    /// Packets dropped.
    pub dropped: usize,
}

/// Requesters, each with its responder, and the link between them.
pub struct Bottleneck {
    /// Requester's end and responder's end of each connection.
    pub pairs: Vec<[Endpoint; 2]>,
    op: SendOp,
    link: Link,
    now: Instant,
    /// When the link will have sent all that is in its queue.
    free: Instant,
    /// Frames with data, in the queue or behind it, and the others.
    data: Line,
    answers: Line,
    since: Instant,
    bytes: [usize; FLOWS],
    longest_wait: Duration,
    dropped: usize,
}

impl Bottleneck {
    /// Connections that do nothing but `op`.
    pub fn new(op: SendOp, link: Link) -> Self {
        let settings = Settings {
            depth: DEPTH,
            ..Settings::default()
        };
        let end = |(qpn, peer)| Endpoint::new(qpn, peer, MESSAGE, settings);
        let now = Instant::now();
        Self {
            pairs: (0..FLOWS).map(|_| [(1, 2), (2, 1)].map(end)).collect(),
            op,
            link,
            now,
            free: now,
            data: Line::new(),
            answers: Line::new(),
            since: now,
            bytes: [0; FLOWS],
            longest_wait: Duration::ZERO,
            dropped: 0,
        }
    }

    /// The end that sends the data.
    fn source(&self) -> usize {
        match self.op {
            SendOp::Read { .. } => 1,
            _ => 0,
        }
    }

    /// Figures count from here on.
    pub fn measure(&mut self) {
        self.since = self.now;
        self.bytes = [0; FLOWS];
        self.longest_wait = Duration::ZERO;
        self.dropped = 0;
    }

    /// The figures up to now.
    pub fn figures(&self) -> Figures {
        let total: usize = self.bytes.iter().sum();
        let squares: f64 = self.bytes.iter().map(|&bytes| (bytes as f64).powi(2)).sum();
        Figures {
            used: time_of(total).as_secs_f64() / (self.now - self.since).as_secs_f64(),
            fairness: (total as f64).powi(2) / (FLOWS as f64 * squares),
            longest_wait: self.longest_wait,
            dropped: self.dropped,
        }
    }

    /// Lets so much time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        (0..FLOWS).for_each(|flow| self.serve(flow));
        while let Some(next) = self.next_event().filter(|&at| at <= end) {
            self.now = self.now.max(next);
            let due = |line: &mut Line, now| match line.front() {
                Some((at, ..)) if *at <= now => line.pop_front(),
                _ => None,
            };
            let (sink, source) = (1 - self.source(), self.source());
            if let Some((_, flow, frame)) = due(&mut self.data, self.now) {
                self.bytes[flow] += frame.len();
                self.pairs[flow][sink].deliver(&frame, self.now);
                self.serve(flow);
            } else if let Some((_, flow, frame)) = due(&mut self.answers, self.now) {
                self.pairs[flow][source].deliver(&frame, self.now);
                self.serve(flow);
            } else {
                self.tick();
            }
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Instant> {
        let lines = [&self.data, &self.answers];
        let arrivals = lines.into_iter().filter_map(|line| line.front());
        let timers = self
            .pairs
            .iter()
            .filter_map(|pair| pair[0].requester.next_deadline());
        arrivals.map(|(at, ..)| *at).chain(timers).min()
    }

    fn tick(&mut self) {
        for flow in 0..FLOWS {
            let requester = &self.pairs[flow][0].requester;
            if requester.next_deadline().is_some_and(|at| at <= self.now) {
                self.pairs[flow][0].tick(self.now);
                self.serve(flow);
            }
        }
    }

    /// Keeps a connection busy and has its ends send what they may.
    fn serve(&mut self, flow: usize) {
        let done = self.pairs[flow][0].world.sent.drain(..);
        done.for_each(|(_, status)| assert_eq!(status, WcStatus::Success));
        while self.pairs[flow][0].requester.has_room() {
            self.pairs[flow][0].post(0, self.op, vec![0..MESSAGE]);
        }
        for end in 0..2 {
            self.pairs[flow][end].transmit(usize::MAX, self.now);
            while let Some(frame) = self.pairs[flow][end].world.out.pop_front() {
                if end == self.source() {
                    self.queue(flow, frame.to_vec());
                } else {
                    let at = self.now + LATENCY;
                    self.answers.push_back((at, flow, frame.to_vec()));
                }
            }
        }
    }

    /// Puts a frame in the queue of the link.
    fn queue(&mut self, flow: usize, mut frame: Vec<u8>) {
        let wait = self.free.saturating_duration_since(self.now);
        if wait > time_of(self.link.full) {
            self.dropped += 1;
            return;
        }
        self.longest_wait = self.longest_wait.max(wait);
        if self.link.mark.is_some_and(|bytes| wait > time_of(bytes)) {
            mark(&mut frame);
        }
        self.free = self.free.max(self.now) + time_of(frame.len());
        self.data.push_back((self.free + LATENCY, flow, frame));
    }
}
