// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shrinks a failing run to fewer steps.

use crate::choices::{Choices, Step};
use crate::failure::{guarded, Failure};

/// Maximum number of runs that shrinking tries.
const TRIES: usize = 2000;

/// Shrinks the run of `choices`, which fails at `place`, to fewer steps that fail at the same
/// place. Always keeps the first step, which sets up the run.
pub fn shrink(choices: &Choices, place: &str) -> Vec<Step> {
    let variant = choices.variant();
    let mut best = choices.taken().to_vec();
    let mut tries = 0;
    let mut fails = |steps: &[Step]| {
        tries += 1;
        let fails_there = |why: Failure| why.place == place;
        let mut steps = Choices::given(steps, variant);
        tries < TRIES && guarded(&mut steps).is_err_and(fails_there)
    };
    let mut size = best.len() / 2;
    while size > 0 {
        let mut at = 1;
        while at < best.len() {
            let end = (at + size).min(best.len());
            let less = [&best[..at], &best[end..]].concat();
            if fails(&less) {
                best = less;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    // Replaces choices by 0.
    for at in 0..best.len() {
        for choice in 0..best[at].len() {
            if best[at][choice] != 0 {
                let mut simpler = best.clone();
                simpler[at][choice] = 0;
                if fails(&simpler) {
                    best = simpler;
                }
            }
        }
    }
    best
}
