// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that wait for room in a link, and the order in which they leave.
//!
//! Each source, a port or an uplink, has a queue of its own. The queues take turns of [`QUANTUM`]
//! bytes (deficit round robin). So sources that send more than the link takes get equal shares of
//! its bytes, and a source that sends less than its share gets all its frames through. A queue that
//! was empty has its first turn before the other queues, as in fq_codel (RFC 8290), so a frame of a
//! quiet source waits for few others.

use std::collections::VecDeque;
use std::time::Instant;

use roce::{frame, Frame};

use crate::ages::{Age, Ages};
use crate::index::SourceIndex;

/// Maximum number of frames that are chosen to be sent next, together.
pub(crate) const TOGETHER: usize = 64;

/// Number of bytes that a source may send in a turn: several frames, so that one system call can
/// send these together.
const QUANTUM: isize = 16 << 10;

/// The frames that wait for room in a link.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// The queue of each source, at the index of the source.
    queues: Vec<Queue>,
    /// Sources in their first turn since their queues were empty.
    fresh: VecDeque<SourceIndex>,
    /// Other sources, in the order of their turns. A source is removed if its queue is empty when
    /// its turn begins.
    others: VecDeque<SourceIndex>,
    /// Frames that are chosen to be sent next.
    chosen: VecDeque<Frame>,
    /// The source and the age of each chosen frame.
    origins: VecDeque<(SourceIndex, Age)>,
    /// The times at which the frames were added.
    ages: Ages,
    len: usize,
}

/// The frames of one source.
#[derive(Debug, Default)]
struct Queue {
    /// Frames that are not chosen yet, each with its age.
    frames: VecDeque<(Frame, Age)>,
    /// Number of the source's frames: those in `frames` and the chosen ones.
    len: usize,
    /// Number of bytes that the source may still send in its turn. The last frame of a turn may be
    /// longer.
    credit: isize,
    /// Whether the source is in `fresh` or `others`.
    is_listed: bool,
    /// Whether the source does not wait for room until its queue is empty.
    is_impatient: bool,
}

impl Backlog {
    /// Number of frames.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of frames of a source.
    pub(crate) fn len_of(&self, source: SourceIndex) -> usize {
        self.queues.get(source.0).map_or(0, |queue| queue.len)
    }

    /// Sets whether a source does not wait for room, at most until its queue is empty.
    pub(crate) fn set_impatient(&mut self, source: SourceIndex, is_impatient: bool) {
        if let Some(queue) = self.queues.get_mut(source.0) {
            queue.is_impatient = is_impatient;
        }
    }

    /// Whether a source does not wait for room.
    pub(crate) fn is_impatient(&self, source: SourceIndex) -> bool {
        let queue = self.queues.get(source.0);
        queue.is_some_and(|queue| queue.is_impatient)
    }

    /// Number of sources that take turns.
    pub(crate) fn sources(&self) -> usize {
        self.fresh.len() + self.others.len()
    }

    /// Adds a frame at `now`.
    pub(crate) fn push(&mut self, source: SourceIndex, frame: Frame, now: Instant) {
        if source.0 >= self.queues.len() {
            self.queues.resize_with(source.0 + 1, Queue::default);
        }
        let queue = &mut self.queues[source.0];
        queue.frames.push_back((frame, self.ages.add(now)));
        queue.len += 1;
        self.len += 1;
        if !queue.is_listed {
            queue.is_listed = true;
            queue.credit = QUANTUM;
            self.fresh.push_back(source);
        }
    }

    /// The frames to send next, in this order. Empty only if the backlog is empty.
    pub(crate) fn choose(&mut self) -> &mut VecDeque<Frame> {
        while self.chosen.len() < TOGETHER {
            let is_fresh = !self.fresh.is_empty();
            let list = match is_fresh {
                true => &mut self.fresh,
                false => &mut self.others,
            };
            let Some(&source) = list.front() else {
                break;
            };
            let queue = &mut self.queues[source.0];
            let next = match queue.credit > 0 {
                true => queue.frames.pop_front(),
                false => None,
            };
            if let Some((frame, age)) = next {
                // A frame has at most `MAX_FRAME` bytes.
                queue.credit -= frame.len() as isize;
                self.chosen.push_back(frame);
                self.origins.push_back((source, age));
                continue;
            }
            // The turn ends. A source without frames stays listed until its next turn: if a frame
            // arrives before, the source does not get a turn before the other sources again.
            list.pop_front();
            if queue.credit <= 0 {
                queue.credit += QUANTUM;
                self.others.push_back(source);
            } else if is_fresh {
                self.others.push_back(source);
            } else {
                queue.is_listed = false;
            }
        }
        &mut self.chosen
    }

    /// Removes the first `count` of the [chosen](Self::choose) frames.
    pub(crate) fn remove(&mut self, count: usize) {
        let (front, back) = self.chosen.as_mut_slices();
        let of_front = count.min(front.len());
        frame::release(&mut front[..of_front]);
        frame::release(&mut back[..count - of_front]);
        self.chosen.drain(..count);
        for (source, age) in self.origins.drain(..count) {
            let queue = &mut self.queues[source.0];
            queue.len -= 1;
            queue.is_impatient &= queue.len > 0;
            self.ages.remove(age);
        }
        self.len -= count;
    }

    /// The time at which the oldest frame was added, or up to [`ages::PRECISION`] before.
    ///
    /// [`ages::PRECISION`]: crate::ages::PRECISION
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.ages.oldest()
    }

    /// Drops the newest frames of each source with more than `limit` frames, except chosen ones.
    /// Returns the number of dropped frames.
    pub(crate) fn shorten(&mut self, limit: usize) -> usize {
        let before = self.len;
        if before <= limit {
            return 0;
        }
        for queue in &mut self.queues {
            let excess = queue.len.saturating_sub(limit).min(queue.frames.len());
            for (_, age) in queue.frames.drain(queue.frames.len() - excess..).rev() {
                self.ages.remove(age);
            }
            queue.len -= excess;
            self.len -= excess;
        }
        before - self.len
    }

    /// Drops all frames. Returns their number.
    pub(crate) fn clear(&mut self) -> usize {
        let len = self.len;
        *self = Self::default();
        len
    }
}

#[cfg(test)]
mod tests {
    use roce::FramePool;

    use super::*;

    const A: SourceIndex = SourceIndex(0);
    const B: SourceIndex = SourceIndex(5);

    /// A backlog, and a function that adds a number of frames of the same length to it.
    fn backlog() -> (Backlog, impl Fn(&mut Backlog, SourceIndex, usize, usize)) {
        let pool = FramePool::new(1000);
        let now = Instant::now();
        let push = move |backlog: &mut Backlog, source, count, len| {
            for _ in 0..count {
                backlog.push(source, pool.take(len).unwrap(), now);
            }
        };
        (Backlog::default(), push)
    }

    /// Lengths of the next frames, which are removed.
    fn next(backlog: &mut Backlog, count: usize) -> Vec<usize> {
        let lengths = backlog.choose().iter().take(count).map(|frame| frame.len());
        let lengths: Vec<_> = lengths.collect();
        backlog.remove(lengths.len());
        lengths
    }

    #[test]
    fn frames_of_a_source_stay_in_order() {
        let (mut backlog, push) = backlog();
        for len in 100..300 {
            push(&mut backlog, A, 1, len);
        }
        assert_eq!((backlog.len(), backlog.len_of(A)), (200, 200));
        let mut lengths = Vec::new();
        while !backlog.is_empty() {
            lengths.extend(next(&mut backlog, 7));
        }
        assert!(lengths.into_iter().eq(100..300));
        assert_eq!(backlog.len_of(A), 0);
        assert_eq!(next(&mut backlog, 1), [0; 0]);
    }

    #[test]
    fn sources_get_equal_shares_of_bytes() {
        let (mut backlog, push) = backlog();
        push(&mut backlog, A, 600, 200);
        push(&mut backlog, B, 60, 4000);
        let mut sent = [0; 2];
        while sent[0] < 100_000 {
            for len in next(&mut backlog, 10) {
                sent[usize::from(len == 4000)] += len as isize;
            }
        }
        let excess = sent[1] - sent[0];
        // One source may be ahead by a turn and by frames that were chosen together.
        assert!(excess.abs() <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn a_source_that_was_quiet_is_next_once() {
        let (mut backlog, push) = backlog();
        push(&mut backlog, A, 500, 1000);
        assert_eq!(next(&mut backlog, TOGETHER), [1000; TOGETHER]);
        push(&mut backlog, B, 1, 60);
        assert_eq!(next(&mut backlog, 1), [60]);
        // The next frame of B waits for a turn of A.
        push(&mut backlog, B, 1, 60);
        let turn = QUANTUM as usize / 1000;
        assert!(next(&mut backlog, turn).iter().all(|len| *len == 1000));
        assert!(next(&mut backlog, 2 * TOGETHER).contains(&60));
    }

    #[test]
    fn a_source_with_single_frames_waits_for_its_turns() {
        const FRAMES: usize = 400;
        let (mut backlog, push) = backlog();
        push(&mut backlog, A, FRAMES + 2 * TOGETHER, 1000);
        let mut sent = [0; 2];
        while sent[0] < FRAMES {
            let waits = backlog.queues.get(B.0);
            if waits.is_none_or(|queue| queue.frames.is_empty()) {
                push(&mut backlog, B, 1, 60);
            }
            // After the first frame, this source has no frame.
            for len in next(&mut backlog, 1)
                .into_iter()
                .chain(next(&mut backlog, 1))
            {
                sent[usize::from(len == 60)] += 1;
            }
        }
        let turns = (FRAMES + TOGETHER) * 1000 / QUANTUM as usize;
        // One frame when it was quiet, and one in its next turn.
        assert!(sent[1] <= 2 * turns + 2, "{sent:?} in {turns} turns");
    }

    #[test]
    fn the_newest_frames_of_long_queues_are_dropped() {
        let (mut backlog, push) = backlog();
        push(&mut backlog, A, 200, 100);
        push(&mut backlog, B, 20, 100);
        backlog.choose();
        assert_eq!(backlog.shorten(100), 100);
        assert_eq!((backlog.len_of(A), backlog.len_of(B)), (100, 20));
        assert_eq!(backlog.len(), 120);
        assert!(backlog.oldest().is_some());
        // Chosen frames are not dropped.
        assert_eq!(backlog.shorten(0), 120 - TOGETHER);
        assert_eq!(backlog.clear(), TOGETHER);
        assert_eq!(backlog.oldest(), None);
    }
}
