// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Variants of runs. A seed makes a run of its own in each variant.

use std::env;
use std::ops::Range;

/// A variant of runs. Further acts of parties belong to [`Wide`](Self::Wide), so that the runs of
/// the other variants stay the same, and with them the seeds that find planted bugs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Devices are kept.
    Plain,
    /// Devices are saved after some steps of workers, destroyed without a trace, and restored.
    Rebuilt,
    /// Parties have further acts, and the switch stands in for workers. In some runs, devices
    /// are rebuilt.
    Wide,
}

impl Variant {
    const ALL: [Self; 3] = [Self::Plain, Self::Rebuilt, Self::Wide];

    /// The variant that the environment variable `SIM_VARIANT` names, or else all.
    pub fn chosen() -> Vec<Self> {
        let Ok(name) = env::var("SIM_VARIANT") else {
            return Self::ALL.to_vec();
        };
        let chosen = Self::ALL.into_iter().find(|variant| variant.name() == name);
        vec![chosen.unwrap_or_else(|| panic!("SIM_VARIANT is plain, rebuilt or wide, not {name}"))]
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Rebuilt => "rebuilt",
            Self::Wide => "wide",
        }
    }

    /// Default seeds. Runs that rebuild take longer, and unit tests should be quick.
    pub fn seeds(self) -> Range<u64> {
        match self {
            Self::Plain => 0..1000,
            Self::Rebuilt => 0..100,
            Self::Wide => 0..200,
        }
    }
}
