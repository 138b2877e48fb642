// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! What the machine allows: copying by one thread, and a round trip of a word between two threads.
//!
//! The device's direct path is one copy from guest memory to guest memory, after a doorbell: nothing it does can be
//! faster than these two.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::figure::{Key, Report};

/// What is copied in, in turn: more than caches hold, as messages of a stream are.
const AREA: usize = 64 << 20;
/// The message sizes that are copied.
const SIZES: [u64; 5] = [4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
/// How long each sample copies.
const SPAN: Duration = Duration::from_millis(200);
/// Round trips of a sample.
const TRIPS: u32 = 20_000;

/// Options of `bench host`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

/// Measures all of it, one after the other in each round.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let source = vec![1; AREA];
    let mut target = vec![0; AREA];
    for _ in 0..options.rounds {
        for size in SIZES {
            let rate = copy_rate(&source, &mut target, usize::try_from(size)?);
            report.add(
                Key::new("memcpy, one thread", "host", "MB/s").size(size),
                rate,
            );
        }
        report.add(
            Key::new("round trip of a word between two threads", "host", "µs"),
            round_trip(),
        );
    }
    Ok(report)
}

/// MB/s of copies of a size, each of other memory than the one before.
fn copy_rate(source: &[u8], target: &mut [u8], size: usize) -> f64 {
    let began = Instant::now();
    let mut copied = 0_u64;
    while began.elapsed() < SPAN {
        for (from, to) in source.chunks_exact(size).zip(target.chunks_exact_mut(size)) {
            to.copy_from_slice(black_box(from));
            copied += size as u64;
            if began.elapsed() >= SPAN {
                break;
            }
        }
    }
    black_box(target);
    copied as f64 / began.elapsed().as_secs_f64() / 1e6
}

/// µs until a store is seen by a spinning thread and its answer is seen here.
fn round_trip() -> f64 {
    let (bell, answer) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=TRIPS {
                await_value(&bell, number);
                answer.store(number, Ordering::Release);
            }
        });
        let began = Instant::now();
        for number in 1..=TRIPS {
            bell.store(number, Ordering::Release);
            await_value(&answer, number);
        }
        began.elapsed().as_secs_f64() * 1e6 / f64::from(TRIPS)
    })
}

fn await_value(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) != value {
        spin_loop();
    }
}
