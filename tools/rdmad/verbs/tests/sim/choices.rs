// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The choices that determine a run: drawn at random from a seed, or given as a list.

use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;

use crate::variant::Variant;

/// The choices of one step.
pub type Step = Vec<u32>;

/// The source of choices. Records all choices, so that a run can be repeated with fewer steps.
pub struct Choices {
    variant: Variant,
    source: ChoiceSource,
    taken: Vec<Step>,
}

enum ChoiceSource {
    Drawn {
        random: XorShiftRng,
        steps: usize,
    },
    /// A list of choices for each step. A missing choice is 0.
    Given {
        steps: std::vec::IntoIter<Step>,
        step: std::vec::IntoIter<u32>,
    },
}

impl Choices {
    /// Random choices from `seed` for `steps` steps.
    pub fn drawn(seed: u64, steps: usize, variant: Variant) -> Self {
        Self {
            variant,
            source: ChoiceSource::Drawn {
                random: XorShiftRng::seed_from_u64(seed),
                steps,
            },
            taken: vec![Vec::new()],
        }
    }

    /// Given choices. The first of `steps` has the choices that set up the run.
    pub fn given(steps: &[Step], variant: Variant) -> Self {
        let mut steps = Vec::from(steps).into_iter();
        let step = steps.next().unwrap_or_default().into_iter();
        Self {
            variant,
            source: ChoiceSource::Given { steps, step },
            taken: vec![Vec::new()],
        }
    }

    /// Begins the next step, if there is one.
    pub fn next_step(&mut self) -> bool {
        let more = match &mut self.source {
            ChoiceSource::Drawn { steps, .. } if *steps > 0 => {
                *steps -= 1;
                true
            }
            ChoiceSource::Drawn { .. } => false,
            ChoiceSource::Given { steps, step } => match steps.next() {
                Some(next) => {
                    *step = next.into_iter();
                    true
                }
                None => false,
            },
        };
        if more {
            self.taken.push(Vec::new());
        }
        more
    }

    /// A number in `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u32::try_from(end)
            .expect("few things to choose from")
            .max(1);
        let choice = match &mut self.source {
            ChoiceSource::Drawn { random, .. } => random.random_range(0..end),
            ChoiceSource::Given { step, .. } => step.next().unwrap_or(0).min(end - 1),
        };
        if let Some(step) = self.taken.last_mut() {
            step.push(choice);
        }
        choice as usize
    }

    /// True with a probability of 1 in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        // Choice 0 must mean false, because shrinking replaces choices by 0.
        self.below(times) == times - 1
    }

    /// In the variant [`Wide`](Variant::Wide) true with a probability of 1 in `times`. In the other
    /// variants false, without a choice.
    pub fn widely_once_in(&mut self, times: usize) -> bool {
        self.variant == Variant::Wide && self.once_in(times)
    }

    /// One element of `things`.
    pub fn of<T: Copy>(&mut self, things: &[T]) -> T {
        things[self.below(things.len())]
    }

    /// The variant of the run.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// All choices so far.
    pub fn taken(&self) -> &[Step] {
        &self.taken
    }
}
