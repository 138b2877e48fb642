// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Runs that fail: the panic of a run is caught, with its message and source location.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe, Location, PanicHookInfo};

use crate::choices::Choices;
use crate::run::run;

thread_local! {
    /// Source location of the last panic of this thread.
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Message and source location of the panic of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub why: String,
    pub place: String,
}

/// A panic hook that records the location of the panic and prints nothing.
pub fn note_place(panic: &PanicHookInfo<'_>) {
    let place = panic.location().map(Location::to_string);
    PLACE.set(place.unwrap_or_default());
}

/// Executes a run and catches its panic, if any. [`note_place`] must be the panic hook.
pub fn guarded(choices: &mut Choices) -> Result<(), Failure> {
    let done = panic::catch_unwind(AssertUnwindSafe(|| run(choices)));
    done.map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Failure {
            why: text.unwrap_or_default(),
            place: PLACE.take(),
        }
    })
}
