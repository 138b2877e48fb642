// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The speed of the machine itself: copying by one thread, a round trip of a word between two
//! threads, and TCP between two threads.
//!
//! The device's direct path is one copy from guest memory to guest memory, after a doorbell. Its
//! latency can't be below a copy and a round trip between threads. The copies here are libc's; long
//! copies of the device may be faster.

use std::hint::spin_loop;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use dma::{DmaSpace, PAGE_SIZE};

use crate::device::rate;
use crate::figure::{Key, Report};
use crate::loopback;
use crate::memory::{copy_pages, OwnMemory};

/// log2 of the copied message sizes: every power of two, as in perftest.
const SIZES: RangeInclusive<u32> = 1..=23;
/// The name of the figure of copying.
pub const MEMCPY: &str = "memcpy, one thread";
/// The name of the figure of copying page by page, for messages whose pages are not contiguous,
/// like the memory of a process that the kernel has allocated page by page.
const PAGEWISE: &str = "memcpy, one thread, pages apart";
/// The names of the figures of TCP between two threads.
pub const LOOPBACK: &str = "bandwidth of loopback TCP";
pub const LOOPBACK_LATENCY: &str = "latency of loopback TCP, 50 %";
/// Message sizes of TCP streams and of TCP round trips, in bytes.
const STREAMED: [usize; 7] = [2, 64, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];
const ANSWERED: [usize; 2] = [2, 64 << 10];
/// Number of round trips of a sample.
const TRIPS: u32 = 20_000;

/// Options of `bench host`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

/// Measures all figures, one after the other in each round.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    for _ in 0..options.rounds {
        for size in SIZES.map(|shift| 1 << shift) {
            report.add(Key::new(MEMCPY, "host", "MB/s").size(size), copy_rate(size));
            if size > PAGE_SIZE {
                let key = Key::new(PAGEWISE, "host", "MB/s").size(size);
                report.add(key, copy_pages(size));
            }
        }
        let tcp = |name, unit, size: usize| Key::new(name, "host", unit).size(size as u64);
        for size in STREAMED {
            let rate = loopback::bandwidth(size).context("no TCP over the loopback")?;
            report.add(tcp(LOOPBACK, "MB/s", size), rate);
        }
        for size in ANSWERED {
            let time = loopback::latency(size).context("no TCP over the loopback")?;
            report.add(tcp(LOOPBACK_LATENCY, "µs", size), time);
        }
        report.add(
            Key::new("round trip of a word between two threads", "host", "µs"),
            round_trip(),
        );
    }
    Ok(report)
}

/// The rate in MB per second of processor time at which one thread copies messages from a guest's
/// memory by libc. All messages use the same buffers, as in perftest.
fn copy_rate(size: u64) -> f64 {
    let source = DmaSpace::anonymous(0, size);
    let source = source.enter();
    let from = source.slice(0, size as usize).expect("memory");
    let mut target = OwnMemory::new(size);
    let to = target.bytes();
    rate(size, || from.read(0, to).expect("inside"))
}

/// The time in µs from a store to the arrival of the answer of a spinning thread.
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
