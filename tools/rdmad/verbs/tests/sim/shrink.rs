// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Shrinks a failing run to fewer steps.

use crate::choices::{Choices, Step};
use crate::run::{self, Engine, Failure};

/// Maximum number of runs that shrinking tries.
const TRIES: usize = 2000;

/// Shrinks `steps`, a run that fails at `place`, to fewer steps that fail at the same place. Always
/// keeps the first step, which sets up the run.
pub fn shrink(steps: &[Step], place: &str, engine: Engine) -> Vec<Step> {
    let mut best = steps.to_vec();
    let mut tries = 0;
    let mut fails = |steps: &[Step]| {
        tries += 1;
        let fails_there = |why: Failure| why.place == place;
        tries < TRIES && run::guarded(&mut Choices::given(steps), engine).is_err_and(fails_there)
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
