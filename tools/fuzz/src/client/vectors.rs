// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the interrupt vectors: how often each eventfd is signalled.

use std::ops::{Range, RangeInclusive};

use super::things::{Thing, EVENTFDS};
use super::{EINVAL, EOPNOTSUPP};
use crate::function::{Raised, QUEUES};

/// Number of vectors of the function.
pub const VECTORS: usize = QUEUES.len() + 1;
/// Index of an interrupt type. 0 is INTx, 1 is MSI, 2 is MSI-X.
const MSIX: u32 = 2;

/// An interrupt vector.
#[derive(Clone, Copy, Debug, Default)]
struct Vector {
    eventfd: Option<usize>,
    /// `Some` if the vector may have been raised while it had no eventfd; true if it certainly was.
    pending: Option<bool>,
}

/// All vectors, and the minimum and maximum number of signals of each eventfd.
#[derive(Clone, Debug, Default)]
pub struct Vectors {
    vectors: [Vector; VECTORS],
    least: [u64; EVENTFDS],
    most: [u64; EVENTFDS],
}

impl Vectors {
    /// Raises a vector.
    pub fn raise(&mut self, raised: Raised) {
        let vector = &mut self.vectors[usize::from(raised.vector)];
        match vector.eventfd {
            Some(eventfd) => self.signal(eventfd, raised.certain),
            None => {
                let certain = vector.pending.unwrap_or(false) || raised.certain;
                vector.pending = Some(certain);
            }
        }
    }

    fn signal(&mut self, eventfd: usize, certain: bool) {
        self.least[eventfd] += u64::from(certain);
        self.most[eventfd] += 1;
    }

    fn connect(&mut self, vector: usize, eventfd: Option<usize>) {
        let vector = &mut self.vectors[vector];
        vector.eventfd = eventfd;
        if let Some(eventfd) = eventfd {
            if let Some(certain) = vector.pending.take() {
                self.signal(eventfd, certain);
            }
        }
    }

    /// Executes SET_IRQS. `words` are the four words that follow the length field of its payload.
    pub fn set(&mut self, words: [u32; 4], fds: &[Thing]) -> Result<(), u32> {
        let [flags, index, start, count] = words;
        // Exactly one type of data (none, booleans, eventfds) and one action (mask, unmask,
        // trigger) must be set.
        let (data, action) = (flags & 7, flags & 0x38);
        if flags > 0x3f || data.count_ones() != 1 || action.count_ones() != 1 {
            return Err(EINVAL);
        }
        let (none, eventfds, trigger) = (data == 1, data == 4, action == 0x20);
        let reset = none && trigger && start == 0 && count == 0;
        if (!eventfds && !fds.is_empty()) || (count == 0 && !reset) || index > MSIX {
            return Err(EINVAL);
        }
        if index != MSIX {
            return if reset { Ok(()) } else { Err(EINVAL) };
        }
        if !trigger {
            return Err(EOPNOTSUPP);
        }
        let vectors = range(start, count).ok_or(EINVAL)?;
        if reset {
            self.vectors = Default::default();
        } else if none {
            for vector in vectors {
                self.raise(Raised {
                    vector: vector as u16,
                    certain: true,
                });
            }
        } else if !eventfds {
            return Err(EOPNOTSUPP);
        } else if fds.is_empty() {
            vectors.for_each(|vector| self.connect(vector, None));
        } else {
            let events: Option<Vec<_>> = fds.iter().map(|thing| thing.event()).collect();
            let events = events.filter(|events| events.len() == vectors.len());
            for (vector, event) in vectors.zip(events.ok_or(EINVAL)?) {
                self.connect(vector, Some(event));
            }
        }
        Ok(())
    }

    /// For each eventfd, the possible numbers of signals since the last call.
    pub fn take_signals(&mut self) -> [RangeInclusive<u64>; EVENTFDS] {
        let (least, most) = (
            std::mem::take(&mut self.least),
            std::mem::take(&mut self.most),
        );
        std::array::from_fn(|eventfd| least[eventfd]..=most[eventfd])
    }

    /// Eventfds that are connected to a vector.
    pub fn connected(&self) -> impl Iterator<Item = Thing> + '_ {
        let eventfds = self.vectors.iter().filter_map(|vector| vector.eventfd);
        eventfds.map(Thing::eventfd)
    }
}

fn range(start: u32, count: u32) -> Option<Range<usize>> {
    let end = start.checked_add(count)?;
    (end as usize <= VECTORS).then_some(start as usize..end as usize)
}
