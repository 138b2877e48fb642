// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs that wait for room in the frame port.

use std::iter;
use std::sync::atomic::{fence, AtomicUsize, Ordering};
use std::sync::OnceLock;

use roce::frame::Lane;
use virtio_rdma_abi::number::Qpn;

use crate::runtime::ReadySet;

/// The QPs that wait for room, by the lane on which they send. QPs of a lane are woken in turn.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// A set for each lane. It is allocated when a QP waits for the lane for the first time.
    lanes: Box<[OnceLock<ReadySet<Qpn>>]>,
    /// QPNs are below this number.
    qpns: u32,
    /// At least the number of QPs that wait.
    waiting: AtomicUsize,
}

impl Blocked {
    /// No QPs, with numbers below `qpns`, for this number of lanes.
    pub(crate) fn new(lanes: usize, qpns: u32) -> Self {
        Self {
            lanes: iter::repeat_with(OnceLock::new).take(lanes).collect(),
            qpns,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Adds a QP that waits for room on `lane`. A lane that does not exist has no QPs. The caller
    /// then checks once more whether there is room: it may have come before the QP was added. The
    /// fence orders this check after the addition.
    pub(crate) fn insert(&self, lane: Lane, qpn: Qpn) {
        let Some(set) = self.lanes.get(lane.index()) else {
            return;
        };
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if !set.get_or_init(|| ReadySet::new(self.qpns)).insert(qpn) {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether QPs wait for room on `lane`.
    pub(crate) fn has(&self, lane: Lane) -> bool {
        let set = self.lanes.get(lane.index()).and_then(OnceLock::get);
        set.is_some_and(|set| !set.is_empty())
    }

    /// Whether QPs wait for a lane that has room.
    pub(crate) fn any(&self, has_room: impl Fn(Lane) -> bool) -> bool {
        self.with_room(&has_room).next().is_some()
    }

    /// Takes the next QP of each lane that has room.
    pub(crate) fn wake(&self, has_room: impl Fn(Lane) -> bool, mut ready: impl FnMut(Lane, Qpn)) {
        for (lane, set) in self.with_room(&has_room) {
            if let Some(qpn) = set.take() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                ready(lane, qpn);
            }
        }
    }

    /// The sets of the lanes that have room, unless they are empty.
    fn with_room<'a>(
        &'a self,
        has_room: &'a impl Fn(Lane) -> bool,
    ) -> impl Iterator<Item = (Lane, &'a ReadySet<Qpn>)> {
        let lanes = match self.waiting.load(Ordering::Acquire) {
            0 => &[],
            _ => &*self.lanes,
        };
        (0..).map(Lane::new).zip(lanes).filter_map(|(lane, set)| {
            let set = set.get()?;
            (!set.is_empty() && has_room(lane)).then_some((lane, set))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_qp_of_each_lane_with_room_is_woken() {
        let blocked = Blocked::new(3, 100);
        let woken = |has_room: &dyn Fn(Lane) -> bool| {
            let mut woken = Vec::new();
            blocked.wake(has_room, |lane, qpn| woken.push((lane.index(), qpn.get())));
            woken
        };
        assert!(woken(&|_| unreachable!("no QP waits")).is_empty());
        for (lane, qpn) in [(0, 7), (2, 9), (2, 9), (2, 10), (5, 1)] {
            blocked.insert(Lane::new(lane), Qpn::new(qpn));
        }
        assert!(!blocked.any(|_| false));
        assert!(woken(&|lane| lane == Lane::new(1)).is_empty());
        assert_eq!(woken(&|_| true), [(0, 7), (2, 9)]);
        assert!(blocked.has(Lane::new(2)) && !blocked.has(Lane::new(0)));
        assert!(blocked.any(|lane| lane == Lane::new(2)));
        assert_eq!(woken(&|_| true), [(2, 10)]);
        assert!(!blocked.any(|_| unreachable!("no QP waits any more")));
    }
}
