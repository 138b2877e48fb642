// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Freeing of the buffers that all pools had for a burst of frames.

use roce::frame::Surplus;
use roce::FramePool;

/// Maximum number of buffers that are freed in one round of the event loop. Frames wait meanwhile.
const BATCH: usize = 64;

/// Position in the pools while their surplus is freed, in as many rounds as it takes.
#[derive(Debug, Default)]
pub(crate) struct Shedding {
    /// Number of pools that are done.
    done: usize,
    /// Whether one of these may have a surplus later.
    again: bool,
}

impl Shedding {
    /// Frees up to [`BATCH`] buffers that were not used since the last call that did not return
    /// [`Surplus::Rest`]. `pools` are the same pools in each call.
    pub(crate) fn shed<'a>(&mut self, pools: impl Iterator<Item = &'a FramePool>) -> Surplus {
        let mut room = BATCH;
        for pool in pools.skip(self.done) {
            match pool.shed(&mut room) {
                Surplus::Rest => return Surplus::Rest,
                Surplus::Candidates => self.again = true,
                Surplus::None => {}
            }
            self.done += 1;
        }
        match std::mem::take(self).again {
            true => Surplus::Candidates,
            false => Surplus::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use roce::frame::MAX_FRAME;

    use super::*;

    #[test]
    fn a_round_frees_few_buffers_of_all_pools() {
        const BUFFERS: usize = 1000;
        /// Number of free buffers that a pool keeps.
        const KEPT: usize = 256;
        let pools = [(); 3].map(|()| FramePool::new(BUFFERS));
        let burst = |pool: &FramePool| {
            let frames = (0..BUFFERS).map(|_| pool.take(MAX_FRAME).unwrap());
            drop(Vec::from_iter(frames));
        };
        let mut shedding = Shedding::default();
        pools.iter().for_each(burst);
        assert_eq!(shedding.shed(pools.iter()), Surplus::Candidates);
        let mut rounds = 1;
        let left = loop {
            let left = shedding.shed(pools.iter());
            if left != Surplus::Rest {
                break left;
            }
            rounds += 1;
            // The last pool is used after the first round.
            if rounds == 2 {
                burst(&pools[2]);
            }
        };
        assert_eq!(left, Surplus::Candidates);
        assert_eq!(rounds, (2 * (BUFFERS - KEPT)).div_ceil(BATCH));
        rounds = 1;
        while shedding.shed(pools.iter()) == Surplus::Rest {
            rounds += 1;
        }
        assert_eq!(rounds, (BUFFERS - KEPT).div_ceil(BATCH));
        assert_eq!(shedding.shed(pools.iter()), Surplus::None);
    }
}
