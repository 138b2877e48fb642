// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Connections that share one link of 10 Gb/s with a queue, on a virtual clock.
// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use roce::net::mark;
use roce::work::{SendOp, WcStatus};

use super::endpoint::{Endpoint, Settings};

/// Number of connections that share the link.
pub const FLOWS: usize = 16;
/// Length of a message in bytes.
const MESSAGE: usize = 64 << 10;
/// Number of posted and unfinished messages of each requester.
const DEPTH: usize = 4;
/// Latency from the link to the receiver of data, and from the receiver back to the sender.
const LATENCY: Duration = Duration::from_micros(10);

/// Time that the link takes to send `bytes` bytes.
fn time_of(bytes: usize) -> Duration {
    Duration::from_nanos(bytes as u64 * 8 / 10)
}

/// Queue lengths in bytes above which the link marks or drops packets.
#[derive(Clone, Copy)]
pub struct Link {
    /// Length above which packets are marked; `None` for a link that does not mark packets.
    pub mark: Option<usize>,
    /// Length above which packets are dropped.
    pub full: usize,
}

/// Frames in flight: time of arrival, index of the connection and content.
type Line = VecDeque<(Instant, usize, Vec<u8>)>;

/// Measurements since the last call of [`Bottleneck::measure`].
#[derive(Debug)]
pub struct Figures {
    /// Utilization of the link, 0 to 1.
    pub used: f64,
    /// Jain's fairness index of the bytes of each connection: 1 if all are equal.
    pub fairness: f64,
    /// Longest time of a packet in the queue.
    pub longest_wait: Duration,
    /// Number of dropped packets.
    pub dropped: usize,
}

/// Connections and the link that they share.
pub struct Bottleneck {
    /// Both ends of each connection: end 0 posts the operations.
    pub pairs: Vec<[Endpoint; 2]>,
    op: SendOp,
    link: Link,
    now: Instant,
    /// Time at which the queue of the link will be empty.
    free: Instant,
    /// Frames from the sender of data that wait in the queue of the link, or are on the way from
    /// the link to the receiver.
    data: Line,
    /// Frames to the sender of data, which do not use the link.
    answers: Line,
    since: Instant,
    bytes: [usize; FLOWS],
    longest_wait: Duration,
    dropped: usize,
}

impl Bottleneck {
    /// Makes connections on which end 0 posts only `op`.
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

    /// Index of the end that sends the data.
    fn source(&self) -> usize {
        match self.op {
            SendOp::Read { .. } => 1,
            _ => 0,
        }
    }

    /// Resets the figures: [`figures`](Self::figures) counts from now on.
    pub fn measure(&mut self) {
        self.since = self.now;
        self.bytes = [0; FLOWS];
        self.longest_wait = Duration::ZERO;
        self.dropped = 0;
    }

    /// The figures since the last call of [`measure`](Self::measure).
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

    /// Runs the simulation for `time`.
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

    /// Posts messages while there is room, and lets both ends of a connection send.
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

    /// Adds a frame to the queue of the link. Marks or drops the frame if the queue is too long.
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
