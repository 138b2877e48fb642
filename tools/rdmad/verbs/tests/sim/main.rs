// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Simulation of complete engines, a network and guests in one thread. A seed determines the steps
//! of a run.
//!
//! The environment variable `SIM_SEEDS=FIRST..END` sets the seeds to run, `SIM_STEPS=N` the number
//! of steps of each run, and `SIM_VARIANT=NAME` the only [variant](variant) to run. A run that
//! fails is repeated, shrunk to fewer steps, and run once more to show the failure.

mod choices;
mod connection;
mod counters;
mod driver;
mod failure;
mod growth;
mod guest;
mod mail;
mod memory;
mod party;
mod run;
mod shared;
mod shrink;
mod traffic;
mod variant;
mod vault;

use std::env;
use std::ops::Range;
use std::panic;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::thread;

use choices::Choices;
use failure::{guarded, note_place, Failure};
use variant::Variant;

/// Default number of steps of a run.
const STEPS: usize = 400;

fn number<T: FromStr>(text: &str) -> T {
    let number = text.trim().parse();
    number.unwrap_or_else(|_| panic!("{text} is no number"))
}

fn seeds(variant: Variant) -> Range<u64> {
    let Ok(text) = env::var("SIM_SEEDS") else {
        return variant.seeds();
    };
    let parts = text.split_once("..");
    let (first, end) = parts.expect("SIM_SEEDS is FIRST..END");
    number(first)..number(end)
}

fn steps() -> usize {
    env::var("SIM_STEPS").map_or(STEPS, |text| number(&text))
}

/// Runs seeds on all CPUs. Returns the first failing seed that was found, and its failure.
fn find_failure(seeds: Range<u64>, steps: usize, variant: Variant) -> Option<(u64, Failure)> {
    let next = AtomicU64::new(seeds.start);
    let found: Mutex<Option<(u64, Failure)>> = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while found.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    if let Err(why) = guarded(&mut Choices::drawn(seed, steps, variant)) {
                        let mut found = found.lock().unwrap();
                        if found.as_ref().is_none_or(|(first, _)| seed < *first) {
                            *found = Some((seed, why));
                        }
                    }
                }
            });
        }
    });
    found.into_inner().unwrap()
}

#[test]
fn every_seed_ends_well() {
    for variant in Variant::chosen() {
        ends_well(variant);
    }
}

fn ends_well(variant: Variant) {
    let steps = steps();
    let print = panic::take_hook();
    panic::set_hook(Box::new(note_place));
    let Some((seed, why)) = find_failure(seeds(variant), steps, variant) else {
        panic::set_hook(print);
        return;
    };
    let Failure { why: text, place } = &why;
    let (name, end) = (variant.name(), seed + 1);
    eprintln!("seed {seed} failed, variant {name}: {text} ({place})");
    eprintln!("again: SIM_VARIANT={name} SIM_STEPS={steps} make sim SEEDS={seed}..{end}");
    let mut choices = Choices::drawn(seed, steps, variant);
    let repeated = guarded(&mut choices);
    assert_eq!(
        repeated,
        Err(why.clone()),
        "it did not fail in the same way again"
    );
    let least = shrink::shrink(&choices, &why.place);
    eprintln!("{} steps are enough: {least:?}", least.len());
    panic::set_hook(print);
    run::run(&mut Choices::given(&least, variant));
    unreachable!("what was made shorter fails");
}
