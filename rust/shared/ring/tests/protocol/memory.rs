// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Shared words, with a store buffer for each actor.
//!
//! A store waits in its actor's buffer, in order, until it reaches memory at any later time. Its
//! actor's loads see it at once. So a load may overtake earlier stores of other words, unless a
//! full barrier first waits until the buffer is empty. The loom models cover the other reorderings.

/// Capacity of an actor's buffer in stores. A full buffer drains its oldest store, as a processor's
/// does.
const DEPTH: usize = 4;

/// Waiting stores: word and value, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Buffer {
    len: u8,
    stores: [(u8, u8); DEPTH],
}

impl Buffer {
    fn stores(&self) -> &[(u8, u8)] {
        &self.stores[..usize::from(self.len)]
    }

    fn push(&mut self, word: usize, value: u8) {
        self.stores[usize::from(self.len)] = (word as u8, value);
        self.len += 1;
    }

    fn pop(&mut self) -> (u8, u8) {
        let oldest = self.stores[0];
        self.stores.copy_within(1.., 0);
        self.stores[DEPTH - 1] = (0, 0);
        self.len -= 1;
        oldest
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory<const WORDS: usize, const ACTORS: usize> {
    words: [u8; WORDS],
    buffers: [Buffer; ACTORS],
}

impl<const WORDS: usize, const ACTORS: usize> Memory<WORDS, ACTORS> {
    pub fn new(words: [u8; WORDS]) -> Self {
        Self {
            words,
            buffers: [Buffer::default(); ACTORS],
        }
    }

    pub fn load(&self, actor: usize, word: usize) -> u8 {
        let stores = self.buffers[actor].stores();
        let own = stores
            .iter()
            .rev()
            .find(|store| usize::from(store.0) == word);
        own.map_or(self.words[word], |store| store.1)
    }

    pub fn store(&mut self, actor: usize, word: usize, value: u8) {
        if self.buffers[actor].stores().len() == DEPTH {
            self.drain(actor);
        }
        self.buffers[actor].push(word, value);
    }

    fn drain(&mut self, actor: usize) {
        let (word, value) = self.buffers[actor].pop();
        self.words[usize::from(word)] = value;
    }

    /// Whether the actor's buffer is empty, so that a full barrier completes.
    pub fn is_drained(&self, actor: usize) -> bool {
        self.buffers[actor].stores().is_empty()
    }

    /// The steps of a model in which the oldest store of an actor reaches memory. `with` makes the
    /// model's state from the memory after the step.
    pub fn steps<S>(&self, with: impl Fn(Self) -> S) -> Vec<(&'static str, S)> {
        let filled = (0..ACTORS).filter(|&actor| !self.is_drained(actor));
        let step = |actor| {
            let mut next = self.clone();
            next.drain(actor);
            ("a store reaches memory", with(next))
        };
        filled.map(step).collect()
    }
}
