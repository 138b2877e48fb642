// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fuzz targets.
//!
//! A target is a function of bytes that panics if the code under test has a defect. libFuzzer calls
//! it with bytes that reach new code (`fuzz run`, see Documentation/testing.md). Inputs worth
//! keeping are in `corpus/TARGET.hex`; `cargo test` runs each target on them without
//! instrumentation.
//!
//! Targets are deterministic and use one thread, so an input that failed fails again.

mod client;
pub mod corpus;
mod function;
mod input;
mod stage;
mod targets;
mod wqe;

use std::cell::RefCell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;

use corpus::Corpus;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target, its module and its corpus.
    pub name: &'static str,
    /// One line about the target's input, the code under test, and the checks.
    pub about: &'static str,
    /// Passes these bytes to the code under test. Panics if that code has a defect, and never
    /// because of the bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target {
        name: "classify",
        about: "frames: the switch, the engine and a model agree on what is RoCE",
        run: targets::classify::run,
    },
    Target {
        name: "guest",
        about: "commands, doorbells, rings and WQEs of a hostile guest: it harms itself alone",
        run: targets::guest::run,
    },
    Target {
        name: "speaker",
        about: "RC, UC and UD by packets while a second speaker interferes: nothing is altered",
        run: targets::speaker::run,
    },
    Target {
        name: "paths",
        about: "the same work by the direct path and by packets ends alike",
        run: targets::paths::run,
    },
    Target {
        name: "memory",
        about: "page lists, rereg, windows: a key opens the bytes that a model expects, no others",
        run: targets::memory::run,
    },
    Target {
        name: "chains",
        about:
            "virtqueue mode: descriptors that change while they are served end their own QP alone",
        run: targets::chains::run,
    },
    Target {
        name: "driver",
        about: "configuration, answers, events, CQEs: the driver takes what can be, once",
        run: targets::driver::run,
    },
    Target {
        name: "provider",
        about: "rings that a device scribbles in: the provider delivers what they say, no more",
        run: targets::provider::run,
    },
    Target {
        name: "registers",
        about: "configuration space, registers, queues: the function shows what a model shows",
        run: targets::registers::run,
    },
    Target {
        name: "saved",
        about:
            "the state of a device for another process: it is refused, or harms its device alone",
        run: targets::saved::run,
    },
    Target {
        name: "state",
        about: "the state file: it is read as it was written, and gives the ports of a model",
        run: targets::state::run,
    },
    Target {
        name: "stream",
        about: "the byte stream of a vfio-user client: each command is answered as a model says",
        run: targets::stream::run,
    },
    Target {
        name: "uplinks",
        about: "frames, and neighbours that are slow or gone: honest ones are not disturbed",
        run: targets::uplinks::run,
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

thread_local! {
    /// Messages of this thread's panics, including contained panics.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

impl Target {
    /// Runs the target once.
    ///
    /// # Errors
    /// The text of the first panic, whether contained or not.
    pub fn check(&self, data: &[u8]) -> Result<(), String> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let print = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
                print(info);
            }));
        });
        PANICS.take();
        // Unwind safe: a target that panics leaves no state behind that its next run uses.
        let ended = panic::catch_unwind(AssertUnwindSafe(|| (self.run)(data)));
        match (PANICS.take().into_iter().next(), ended) {
            (Some(panic), _) => Err(panic),
            (None, ended) => ended.map_err(|_| "unwound without a panic".to_owned()),
        }
    }

    pub fn corpus_file(&self) -> PathBuf {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        directory.join(self.name).with_extension("hex")
    }

    /// The corpus.
    ///
    /// # Errors
    /// The file can't be read, or a line of it is not an input.
    pub fn corpus(&self) -> io::Result<Corpus> {
        Corpus::read(&self.corpus_file())
    }
}
