// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The recorded events of ports, in the memory of all engines: what led to the end of an engine can
//! be asked of the next one.
//!
//! A table has the name of each port, and there is a ring for each place of the table. Places that
//! were never used stay untouched, so that they take no memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;
use recorder::{Ring, Words};
use vdev::{name_words, MAX_NAME};
use verbs::{EVENTS, MAX_PORTS};
use vm_memory::{MmapRegion, VolatileMemory};

const WORD: usize = size_of::<u64>();
const NAME_WORDS: usize = MAX_NAME / WORD;
const PLACES: usize = MAX_PORTS as usize;
const RING_WORDS: usize = Ring::words(EVENTS);

// Words of the part: how many places were ever used, the names, the rings.
const USED: usize = 0;
const NAMES: usize = 1;
const RINGS: usize = NAMES + PLACES * NAME_WORDS;
/// Number of bytes of memory for the events of all ports.
pub const LEN: usize = (RINGS + PLACES * RING_WORDS) * WORD;

/// A name in the table. All zero: the place is free.
type Name = [u64; NAME_WORDS];

/// The events of all ports, in a part of the memory.
#[derive(Clone)]
pub struct KeptEvents {
    memory: Arc<MmapRegion>,
    at: usize,
    /// The names of the ports of this engine. Locked while a place is taken or freed.
    ports: Arc<Mutex<BTreeSet<Name>>>,
}

/// The words of one ring.
struct Place {
    events: KeptEvents,
    /// The first word.
    first: usize,
}

impl KeptEvents {
    /// The events in the [`LEN`] bytes from `at` on, a multiple of 8. The last engine may have
    /// written anything.
    pub fn new(memory: Arc<MmapRegion>, at: usize) -> Self {
        Self {
            memory,
            at,
            ports: Arc::default(),
        }
    }

    /// The ring of the port with this name, with the events that earlier engines have recorded.
    /// `None` if there is no place left.
    pub fn ring(&self, port: &str) -> Option<Ring> {
        let mut ports = self.ports.lock();
        let wanted = name_words(port);
        let used = self.used();
        let place = (0..used).find(|place| self.name(*place) == wanted);
        let place = place.or_else(|| {
            let free =
                (0..PLACES).find(|place| *place >= used || self.name(*place) == Name::default());
            let free = free?;
            // A thread of a port that was removed may have written since.
            self.clear(free);
            self.set_name(free, wanted);
            self.word(USED)
                .store(used.max(free + 1) as u64, Ordering::Release);
            Some(free)
        })?;
        ports.insert(wanted);
        let ring = Place {
            events: self.clone(),
            first: RINGS + place * RING_WORDS,
        };
        Some(Ring::new(Box::new(ring), EVENTS))
    }

    /// Forgets the events of a port that is removed.
    pub fn forget(&self, port: &str) {
        let mut ports = self.ports.lock();
        ports.remove(&name_words(port));
        self.keep(&ports);
    }

    /// Forgets the events of ports of earlier engines that this engine does not have.
    pub fn forget_others(&self) {
        self.keep(&self.ports.lock());
    }

    fn keep(&self, ports: &BTreeSet<Name>) {
        let is_gone = |place: &usize| {
            let name = self.name(*place);
            name != Name::default() && !ports.contains(&name)
        };
        for place in (0..self.used()).filter(is_gone) {
            self.clear(place);
            self.set_name(place, Name::default());
        }
    }

    fn clear(&self, place: usize) {
        let first = RINGS + place * RING_WORDS;
        for word in first..first + RING_WORDS {
            self.word(word).store(0, Ordering::Relaxed);
        }
    }

    fn used(&self) -> usize {
        let used = self.word(USED).load(Ordering::Acquire);
        usize::try_from(used).map_or(PLACES, |used| used.min(PLACES))
    }

    fn name(&self, place: usize) -> Name {
        std::array::from_fn(|word| {
            let at = NAMES + place * NAME_WORDS + word;
            self.word(at).load(Ordering::Relaxed)
        })
    }

    fn set_name(&self, place: usize, name: Name) {
        for (word, value) in name.into_iter().enumerate() {
            let at = NAMES + place * NAME_WORDS + word;
            self.word(at).store(value, Ordering::Relaxed);
        }
    }

    fn word(&self, word: usize) -> &AtomicU64 {
        let word = self.memory.get_atomic_ref(self.at + word * WORD);
        word.expect("the memory has a part for the events")
    }
}

impl Words for Place {
    fn word(&self, at: usize) -> &AtomicU64 {
        self.events.word(self.first + at)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use recorder::{Event, Kind, Recorder};

    use super::*;

    fn memory() -> Arc<MmapRegion> {
        Arc::new(MmapRegion::new(8 + LEN).unwrap())
    }

    fn note(events: &KeptEvents, port: &str, number: u64) {
        let recorder = Recorder::new(port, events.ring(port).unwrap(), Instant::now());
        recorder.note(Instant::now(), Event::port(Kind::Link, 0, number));
    }

    fn noted(events: &KeptEvents, port: &str) -> Vec<u64> {
        let recorder = Recorder::new(port, events.ring(port).unwrap(), Instant::now());
        let (events, _) = recorder.read(0);
        events.iter().map(|recorded| recorded.event.b).collect()
    }

    #[test]
    fn events_outlive_an_engine_and_end_with_their_port() {
        let memory = memory();
        let none = Vec::<u64>::new();
        let first = KeptEvents::new(memory.clone(), 8);
        note(&first, "a", 1);
        note(&first, "b", 2);
        let second = KeptEvents::new(memory, 8);
        note(&second, "b", 3);
        assert_eq!(noted(&second, "a"), [1]);
        assert_eq!(noted(&second, "b"), [2, 3]);
        note(&first, "other", 4);
        second.forget_others();
        assert_eq!(noted(&second, "other"), none);
        second.forget("other");
        second.forget("a");
        assert_eq!(noted(&second, "b"), [2, 3]);
        assert_eq!(noted(&second, "c"), none);
        assert_eq!(second.used(), 3, "the free place is used again");
        assert_eq!(noted(&second, "a"), none);
    }

    #[test]
    fn damaged_memory_is_used_all_the_same() {
        let memory = memory();
        let events = KeptEvents::new(memory, 8);
        for word in (0..NAMES + 2 * NAME_WORDS).chain(RINGS..RINGS + RING_WORDS) {
            events.word(word).store(u64::MAX, Ordering::Relaxed);
        }
        note(&events, "a", 1);
        assert_eq!(noted(&events, "a"), [1]);
    }

    #[test]
    fn there_is_a_place_for_each_port() {
        let events = KeptEvents::new(memory(), 8);
        for port in 0..PLACES {
            assert!(events.ring(&port.to_string()).is_some());
        }
        assert!(events.ring("more").is_none());
    }
}
