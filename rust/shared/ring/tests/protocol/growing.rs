// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Model of an SRQ that grows while its owner posts and the device fetches. Work requests complete
//! in any order.

use crate::memory::Memory;
use crate::search::{breaks, holds, Broken, Model};
use crate::{ahead, position, WRAP};

/// Position of the first receive. Positions wrap after two receives.
const START: u8 = WRAP - 2;
/// Number of slots of the old and of the new ring.
const SLOTS: [u8; 2] = [2, 4];
const POSTS: u8 = 6;

// Indices of the words of the old ring. The words of the new ring follow.
const PRODUCER: usize = 0;
const ORDER: usize = 1;
const SLOT: usize = 5;
const RING: usize = 9;
const WORDS: usize = 2 * RING;

// Actors.
const OWNER: usize = 0;
const DEVICE: usize = 1;

const JUMP: Broken = "a right owner's position makes no sense to the device";
const WRONG_WQE: Broken = "a WQE was overwritten, lost, or fetched out of order";
const LEFT: Broken = "a receive was never fetched";

/// A deliberate mistake in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flaw {
    None,
    /// The owner publishes in the old ring before the new ring.
    OldFirst,
    /// The owner posts only to the old ring until the device has answered.
    OldOnly,
    /// The copy omits `order`.
    NoOrder,
    /// The copy starts at position 0.
    PositionLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Grow {
    None,
    /// The next slot to copy. After the slots, `order` and the producer are copied.
    Copying(u8),
    Commanded,
    Answered,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    flaw: Flaw,
    memory: Memory<WORDS, 2>,
    grow: Grow,
    // The owner's state. Each bit of `free` is a free slot.
    free: u8,
    head: u8,
    /// A filled slot, and the number of rings in which it is published.
    filling: Option<(u8, u8)>,
    /// Slots whose completions have not arrived yet, as bits.
    completed: u8,
    // The device's state.
    has_moved: bool,
    next: u8,
    seen: u8,
    done: u8,
    /// Slots that were fetched and are not complete, as bits.
    fetched: u8,
    broken: Option<Broken>,
}

fn bits(set: u8) -> impl Iterator<Item = u8> {
    (0..8).filter(move |bit| set & (1 << bit) != 0)
}

impl State {
    fn new(flaw: Flaw) -> Self {
        let mut words = [0; WORDS];
        words[PRODUCER] = position(START);
        Self {
            flaw,
            memory: Memory::new(words),
            grow: Grow::None,
            free: (1 << SLOTS[0]) - 1,
            head: START,
            filling: None,
            completed: 0,
            has_moved: false,
            next: START,
            seen: START,
            done: START,
            fetched: 0,
            broken: None,
        }
    }

    /// The rings to which the owner posts, in the order of publication.
    fn rings(&self) -> &'static [usize] {
        match self.grow {
            Grow::None | Grow::Copying(_) => &[0],
            Grow::Commanded | Grow::Answered if self.flaw == Flaw::OldOnly => &[0],
            Grow::Commanded | Grow::Answered if self.flaw == Flaw::OldFirst => &[0, 1],
            Grow::Commanded | Grow::Answered => &[1, 0],
            Grow::Done => &[1],
        }
    }

    fn owner_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let mut next = self.clone();
        if let Some((slot, published)) = self.filling {
            let ring = self.rings()[usize::from(published)];
            let order = ORDER + usize::from(self.head % SLOTS[ring]);
            next.memory.store(OWNER, ring * RING + order, slot);
            let producer = position(self.head + 1);
            next.memory.store(OWNER, ring * RING + PRODUCER, producer);
            next.filling = Some((slot, published + 1));
            if usize::from(published) + 1 == self.rings().len() {
                next.filling = None;
                next.head += 1;
            }
            steps.push(("owner publishes a receive", next));
            return;
        }
        for slot in bits(self.completed) {
            let mut next = self.clone();
            next.completed &= !(1 << slot);
            next.free |= 1 << slot;
            steps.push(("owner polls a completion", next));
        }
        match self.grow {
            Grow::None => {
                next.grow = Grow::Copying(0);
                steps.push(("owner begins to copy", next));
            }
            Grow::Copying(slot) => {
                next.copy(slot);
                steps.push(("owner copies", next));
                return;
            }
            Grow::Answered => {
                next.grow = Grow::Done;
                next.free |= ((1 << SLOTS[1]) - 1) & !((1 << SLOTS[0]) - 1);
                steps.push(("owner moves", next));
            }
            Grow::Commanded | Grow::Done => {}
        }
        if self.head < START + POSTS {
            if let Some(slot) = bits(self.free).next() {
                let mut next = self.clone();
                next.free &= !(1 << slot);
                for ring in self.rings() {
                    let word = ring * RING + SLOT + usize::from(slot);
                    next.memory.store(OWNER, word, self.head);
                }
                next.filling = Some((slot, 0));
                steps.push(("owner fills a slot", next));
            }
        }
    }

    fn copy(&mut self, slot: u8) {
        if slot < SLOTS[0] {
            let word = SLOT + usize::from(slot);
            let value = self.memory.load(OWNER, word);
            self.memory.store(OWNER, RING + word, value);
            self.grow = Grow::Copying(slot + 1);
            return;
        }
        for back in (1..=SLOTS[0]).rev() {
            let count = self.head - back;
            let [old, new] = SLOTS.map(|slots| ORDER + usize::from(count % slots));
            let value = self.memory.load(OWNER, old);
            if self.flaw != Flaw::NoOrder {
                self.memory.store(OWNER, RING + new, value);
            }
        }
        let producer = match self.flaw {
            Flaw::PositionLost => 0,
            _ => position(self.head),
        };
        self.memory.store(OWNER, RING + PRODUCER, producer);
        self.grow = Grow::Commanded;
    }

    fn device_steps(&self, steps: &mut Vec<(&'static str, Self)>) {
        let ring = usize::from(self.has_moved);
        let mut next = self.clone();
        // The command arrives through a separate queue, after the stores of the copy.
        if self.grow == Grow::Commanded && self.memory.is_drained(OWNER) {
            next.has_moved = true;
            next.grow = Grow::Answered;
            steps.push(("device moves", next));
        }
        for slot in bits(self.fetched) {
            let mut next = self.clone();
            next.fetched &= !(1 << slot);
            next.completed |= 1 << slot;
            next.done += 1;
            steps.push(("device completes", next));
        }
        let mut next = self.clone();
        if self.next == self.seen {
            let producer = self.memory.load(DEVICE, ring * RING + PRODUCER);
            let fresh = ahead(producer, position(self.next));
            if fresh > SLOTS[ring] - (self.next - self.done) {
                next.broken = Some(JUMP);
            }
            next.seen += fresh;
            if fresh != 0 {
                steps.push(("device loads the producer", next));
            }
            return;
        }
        let order = ring * RING + ORDER + usize::from(self.next % SLOTS[ring]);
        let slot = self.memory.load(DEVICE, order);
        let word = ring * RING + SLOT + usize::from(slot);
        if self.memory.load(DEVICE, word) != self.next {
            next.broken = Some(WRONG_WQE);
        }
        next.fetched |= 1 << slot;
        next.next += 1;
        steps.push(("device fetches", next));
    }
}

impl Model for State {
    fn steps(&self) -> Vec<(&'static str, Self)> {
        let mut steps = self.memory.steps(|memory| Self {
            memory,
            ..self.clone()
        });
        self.owner_steps(&mut steps);
        self.device_steps(&mut steps);
        steps
    }

    fn check(&self) -> Result<(), Broken> {
        self.broken.map_or(Ok(()), Err)
    }

    fn check_end(&self) -> Result<(), Broken> {
        match self.next == START + POSTS {
            true => Ok(()),
            false => Err(LEFT),
        }
    }
}

// abi
#[test]
fn a_growing_srq_loses_nothing() {
    holds("growing", [State::new(Flaw::None)]);
}

// abi: R-576
#[test]
fn broken_variants_are_found() {
    for (flaw, rule) in [
        (Flaw::OldFirst, JUMP),
        (Flaw::OldOnly, WRONG_WQE),
        (Flaw::NoOrder, WRONG_WQE),
        (Flaw::PositionLost, WRONG_WQE),
    ] {
        println!("{flaw:?}");
        breaks(rule, [State::new(flaw)]);
    }
}
