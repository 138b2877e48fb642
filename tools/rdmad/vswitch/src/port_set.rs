// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A set of ports, to which any thread adds and which the thread of the switch empties.

use std::iter;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::PortIndex;

/// The set, a bit for each port.
#[derive(Debug)]
pub(crate) struct PortSet(Box<[AtomicU64]>);

const BITS: usize = u64::BITS as usize;

impl PortSet {
    /// An empty set of the first `ports` ports.
    pub(crate) fn new(ports: usize) -> Self {
        let words = ports.div_ceil(BITS);
        Self(iter::repeat_with(AtomicU64::default).take(words).collect())
    }

    /// Adds a port. All earlier stores of this thread are visible to the thread that then finds the
    /// port in the set.
    pub(crate) fn insert(&self, PortIndex(port): PortIndex) {
        self.0[port / BITS].fetch_or(1 << (port % BITS), Ordering::Release);
    }

    /// Removes all ports. Returns them in order.
    pub(crate) fn take(&self) -> impl Iterator<Item = PortIndex> + '_ {
        self.0.iter().enumerate().flat_map(|(at, word)| {
            // Most words are empty, and need not be written.
            let mut bits = match word.load(Ordering::Relaxed) {
                0 => 0,
                _ => word.swap(0, Ordering::Acquire),
            };
            iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    PortIndex(at * BITS + bit)
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_returns_each_port_once_and_in_order() {
        let set = PortSet::new(130);
        let take = || Vec::from_iter(set.take().map(|PortIndex(port)| port));
        assert_eq!(take(), []);
        for port in [129, 0, 64, 0, 63] {
            set.insert(PortIndex(port));
        }
        assert_eq!(take(), [0, 63, 64, 129]);
        assert_eq!(take(), []);
    }
}
