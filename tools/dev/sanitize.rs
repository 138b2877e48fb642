// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors that a sanitizer must report: `errors nothing|overflow|race`.

use std::env;
use std::hint::black_box;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Barrier;
use std::thread;

fn main() {
    let what = env::args().nth(1);
    match what.as_deref() {
        Some("nothing") => joined(),
        Some("overflow") => overflow(),
        Some("race") => race(),
        _ => panic!("usage: errors nothing|overflow|race"),
    }
}

/// Two threads access a value one after the other: no error.
fn joined() {
    let mut number = Box::new(0);
    for _ in 0..2 {
        number = thread::spawn(|| {
            *number += 1;
            number
        })
        .join()
        .unwrap();
    }
    black_box(number);
}

/// Reads beyond the end of an allocation.
fn overflow() {
    let bytes = black_box(vec![1_u8; 16]);
    // SAFETY: None: this is the planted error.
    black_box(unsafe { bytes.as_ptr().add(bytes.len()).read_volatile() });
}

/// Two threads write the same word without synchronization. The barrier ensures that both run.
fn race() {
    let mut word = 0_u64;
    let shared = AtomicPtr::new(&raw mut word);
    let start = Barrier::new(2);
    let write = || {
        start.wait();
        for _ in 0..1000 {
            // SAFETY: None: this is the planted error.
            unsafe { *black_box(shared.load(Ordering::Relaxed)) += 1 };
        }
    };
    thread::scope(|scope| {
        scope.spawn(write);
        scope.spawn(write);
    });
    black_box(word);
}
