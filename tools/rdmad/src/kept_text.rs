// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A text in the memory of all engines, so that it outlives the engine that wrote it.
//!
//! There are two places. A new text is written to the place that is not valid, which then becomes
//! the valid one, so that an engine that dies leaves the old or the new text.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use vm_memory::{Bytes, MmapRegion, VolatileMemory};

/// Maximum length of the text in bytes.
const MAX_TEXT: usize = 256 << 10;
const WORD: usize = size_of::<u64>();
/// Number of bytes of memory for a text.
pub const LEN: usize = WORD + 2 * MAX_TEXT;

/// A text in a part of the memory: a word with the number of the valid place and the length of the
/// text there, and the two places. The word is 0 if there is no text.
#[derive(Clone, Debug)]
pub struct KeptText {
    memory: Arc<MmapRegion>,
    at: usize,
}

impl KeptText {
    /// The text in the [`LEN`] bytes from `at` on, a multiple of 8.
    pub fn new(memory: Arc<MmapRegion>, at: usize) -> Self {
        Self { memory, at }
    }

    /// The text, if there is one. The last engine may have written anything.
    pub fn read(&self) -> Option<Vec<u8>> {
        let (place, len) = self.valid()?;
        let mut text = vec![0; len.min(MAX_TEXT)];
        let slice = self.memory.get_slice(self.place(place), text.len());
        slice.ok()?.read_slice(&mut text, 0).ok()?;
        Some(text)
    }

    /// Replaces the text.
    ///
    /// # Errors
    ///
    /// It is too long.
    pub fn replace(&self, text: &[u8]) -> io::Result<()> {
        if text.len() > MAX_TEXT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let place = self.valid().map_or(0, |(place, _)| 1 - place);
        let slice = self.memory.get_slice(self.place(place), text.len());
        let slice = slice.map_err(io::Error::other)?;
        slice.write_slice(text, 0).map_err(io::Error::other)?;
        let word = ((text.len() as u64) << 2) | ((place as u64) << 1) | 1;
        self.word().store(word, Ordering::Release);
        Ok(())
    }

    /// The number of the valid place, and the length of the text there.
    fn valid(&self) -> Option<(usize, usize)> {
        let word = self.word().load(Ordering::Acquire);
        let len = usize::try_from(word >> 2).ok()?;
        (word & 1 != 0).then_some((((word >> 1) & 1) as usize, len))
    }

    /// Where a place begins.
    fn place(&self, number: usize) -> usize {
        self.at + WORD + number * MAX_TEXT
    }

    fn word(&self) -> &AtomicU64 {
        let word = self.memory.get_atomic_ref(self.at);
        word.expect("the memory has a part for the text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use supervisor::Start;

    #[test]
    fn the_last_text_is_there_for_the_next_engine() {
        let memory = Start::alone(64 + LEN).unwrap().memory;
        let text = || KeptText::new(memory.clone(), 64);
        assert_eq!(text().read(), None);
        for len in [0, 5, MAX_TEXT, 3, 1000] {
            let written = vec![len as u8; len];
            text().replace(&written).unwrap();
            assert_eq!(text().read(), Some(written));
        }
        let error = text().replace(&vec![0; MAX_TEXT + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(text().read().unwrap().len(), 1000, "as before");
        // A word that is not valid.
        text().word().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(text().read().unwrap().len(), MAX_TEXT);
    }
}
