// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tells a program with planted changes which one is on. This crate is added to the copy of the
//! sources that `mutants` compiles.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

/// The most changes of a program.
const MAX: usize = 1 << 14;

struct Switch {
    on: Option<usize>,
    /// The file that collects the changes that the program reaches.
    reached: Option<File>,
}

static SWITCH: OnceLock<Switch> = OnceLock::new();
static SEEN: [AtomicBool; MAX] = [const { AtomicBool::new(false) }; MAX];

/// Whether a change is on: MUTANT has its number. With MUTANT_REACHED, the first call for each
/// change adds its number to that file. Later calls allocate nothing.
#[inline]
pub fn is_on(number: usize) -> bool {
    let switch = SWITCH.get_or_init(|| Switch {
        on: std::env::var("MUTANT").ok().and_then(|n| n.parse().ok()),
        reached: std::env::var_os("MUTANT_REACHED").map(|path| {
            let file = OpenOptions::new().append(true).create(true).open(path);
            file.expect("MUTANT_REACHED names no file")
        }),
    });
    if let Some(mut file) = switch.reached.as_ref() {
        if !SEEN[number].swap(true, Ordering::Relaxed) {
            let mut line = [b'0'; 7];
            line[6] = b'\n';
            let mut rest = number;
            for digit in line[..6].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
            file.write_all(&line).expect("can't write MUTANT_REACHED");
        }
    }
    switch.on == Some(number)
}
