// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs that wait for room in the frame port.

use std::iter;
use std::sync::atomic::{fence, AtomicUsize, Ordering};
use std::sync::OnceLock;

use roce::frame::Lane;
use scheduler::ReadySet;
use virtio_rdma_abi::number::Qpn;

/// The QPs that wait for room, by the lane on which they send. QPs of a lane are woken in turn. The
/// work does not depend on the number of lanes for which no QP waits.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// A set for each lane. It is allocated when a QP waits for the lane for the first time.
    lanes: Box<[OnceLock<ReadySet<Qpn>>]>,
    /// The lanes for which QPs may wait.
    waiting: ReadySet<Lane>,
    /// QPNs are below this number.
    qpns: u32,
    /// The index of the lane that is the next to get room.
    first: AtomicUsize,
}

/// Maximum number of QPs that are woken together. They cost a quarter of a turn, which leaves the
/// rest for frames.
const TOGETHER: usize = 16;

impl Blocked {
    /// No QPs, with numbers below `qpns`, for this number of lanes.
    pub(crate) fn new(lanes: usize, qpns: u32) -> Self {
        Self {
            lanes: iter::repeat_with(OnceLock::new).take(lanes).collect(),
            waiting: ReadySet::new(lanes as u32),
            qpns,
            first: AtomicUsize::new(0),
        }
    }

    /// Adds a QP that waits for room on `lane`. A lane that does not exist has no QPs. The end of
    /// the turn checks once more whether there is room: it may have come before the QP was added.
    /// The fence orders this check after the addition.
    pub(crate) fn insert(&self, lane: Lane, qpn: Qpn) {
        let Some(set) = self.lanes.get(lane.index()) else {
            return;
        };
        set.get_or_init(|| ReadySet::new(self.qpns)).insert(qpn);
        self.waiting.insert(lane);
        fence(Ordering::SeqCst);
    }

    /// Whether QPs wait for room on `lane`.
    pub(crate) fn has(&self, lane: Lane) -> bool {
        let set = self.lanes.get(lane.index()).and_then(OnceLock::get);
        set.is_some_and(|set| !set.is_empty())
    }

    /// Whether QPs wait for a lane that has room.
    pub(crate) fn any(&self, room: impl Fn(Lane) -> usize) -> bool {
        self.waiting.any(|lane| self.has(lane) && room(lane) > 0)
    }

    /// Takes QPs that wait, as many as `room` says that there is room for on their lane, but at
    /// most [`TOGETHER`]. The lane after the last one that got room is the first one next time.
    pub(crate) fn wake(&self, room: impl Fn(Lane) -> usize, mut ready: impl FnMut(Lane, Qpn)) {
        let mut left = TOGETHER;
        let mut wake_lane = |lane: Lane| {
            let set = self.lanes[lane.index()].get();
            let mut here = if self.has(lane) {
                room(lane).min(left)
            } else {
                0
            };
            while let Some(qpn) = set.filter(|_| here > 0).and_then(ReadySet::take) {
                ready(lane, qpn);
                here -= 1;
                left -= 1;
            }
            self.forget(lane);
            if left == 0 {
                self.first.store(lane.index() + 1, Ordering::Relaxed);
            }
            left == 0
        };
        let first = self.first.load(Ordering::Relaxed);
        let is_later = |lane: Lane| lane.index() >= first;
        let is_full = self.waiting.any(|lane| is_later(lane) && wake_lane(lane));
        if !is_full {
            self.waiting.any(|lane| !is_later(lane) && wake_lane(lane));
        }
    }

    /// Removes a lane for which no QP waits any more.
    fn forget(&self, lane: Lane) {
        let has_qps = || self.has(lane);
        // A thread that adds a QP adds the lane after the QP. Either this function sees the QP
        // after the removal, or the lane is added after the removal.
        if !has_qps() && self.waiting.remove(lane) && has_qps() {
            self.waiting.insert(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QPs that are woken if lanes have this room.
    fn woken(blocked: &Blocked, room: impl Fn(usize) -> usize) -> Vec<(usize, u32)> {
        let mut woken = Vec::new();
        let room = |lane: Lane| room(lane.index());
        blocked.wake(room, |lane, qpn| woken.push((lane.index(), qpn.get())));
        woken
    }

    #[test]
    fn as_many_qps_are_woken_as_have_room() {
        let blocked = Blocked::new(3, 100);
        assert!(woken(&blocked, |_| unreachable!("no QP waits")).is_empty());
        for (lane, qpn) in [(0, 7), (2, 9), (2, 9), (2, 10), (2, 11), (5, 1)] {
            blocked.insert(Lane::new(lane), Qpn::new(qpn));
        }
        assert!(!blocked.any(|_| 0));
        assert!(woken(&blocked, |lane| usize::from(lane == 1)).is_empty());
        assert_eq!(woken(&blocked, |_| 1), [(0, 7), (2, 9)]);
        assert!(blocked.has(Lane::new(2)) && !blocked.has(Lane::new(0)));
        assert!(blocked.any(|lane| usize::from(lane == Lane::new(2))));
        assert_eq!(woken(&blocked, |_| 5), [(2, 10), (2, 11)]);
        assert!(!blocked.any(|_| unreachable!("no QP waits any more")));
    }

    /// Lanes for which no QP waits any more are not looked at.
    #[test]
    fn only_lanes_with_waiting_qps_cost() {
        let blocked = Blocked::new(3, 100);
        for lane in 0..3 {
            blocked.insert(Lane::new(lane), Qpn::new(7));
        }
        assert_eq!(woken(&blocked, |lane| usize::from(lane != 1)).len(), 2);
        // A set knows that it is empty when a QP is looked for in vain.
        assert!(woken(&blocked, |lane| usize::from(lane != 1)).is_empty());
        let looked_at = |blocked: &Blocked| {
            let mut lanes = Vec::new();
            blocked.waiting.any(|lane| {
                lanes.push(lane.index());
                false
            });
            lanes
        };
        assert_eq!(looked_at(&blocked), [1]);
        blocked.insert(Lane::new(2), Qpn::new(8));
        assert_eq!(looked_at(&blocked), [1, 2]);
    }

    /// However many QPs wait for one lane, those that wait for another one are woken too.
    #[test]
    fn lanes_come_first_in_turn() {
        let blocked = Blocked::new(3, 1000);
        let qpns = (0..TOGETHER as u32 * 2).map(Qpn::new);
        for qpn in qpns {
            blocked.insert(Lane::new(0), qpn);
            blocked.insert(Lane::new(2), qpn);
        }
        let lanes = [(); 4].map(|()| {
            let woken = woken(&blocked, |_| 1000);
            assert_eq!(woken.len(), TOGETHER);
            woken[0].0
        });
        assert_eq!(lanes, [0, 2, 0, 2]);
    }
}
