// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Models of the ring: all orders in which threads may write and read it.

#![cfg(loom)]

use std::sync::Arc;

use loom::model::Builder;
use loom::thread;
use recorder::{Entry, Ring};

fn entry(value: u64) -> Entry {
    Entry([value, value + 1, value + 2, value + 3])
}

fn assert_whole(ring: &Ring) {
    for (_, Entry(words)) in ring.read(0).0 {
        assert_eq!(Entry(words), entry(words[0]));
    }
}

/// Two writers meet in the only slot, and a third thread reads it.
#[test]
fn no_entry_is_mixed() {
    let mut model = Builder::new();
    // Without a bound, the orders in which three threads store and load an entry take many minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let ring = Arc::new(Ring::own(1));
        let writer = |value| {
            let ring = ring.clone();
            thread::spawn(move || ring.push(entry(value)))
        };
        let writers = [writer(10), writer(20)];
        assert_whole(&ring);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_whole(&ring);
    });
}

/// An entry is there when the ring had room for all.
#[test]
fn no_entry_is_lost_while_there_is_room() {
    loom::model(|| {
        let ring = Arc::new(Ring::own(2));
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.push(entry(10)))
        };
        ring.push(entry(20));
        other.join().unwrap();
        let mut found: Vec<_> = ring.read(0).0.iter().map(|(_, each)| each.0[0]).collect();
        found.sort_unstable();
        assert_eq!(found, [10, 20]);
    });
}
