// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The model of a guest's memory.

use std::ops::Range;

use crate::guest::Guest;

/// Memory, and a model of it.
pub struct Model<'w> {
    pub guest: &'w Guest,
    pub iova: u64,
    bytes: Vec<u8>,
    /// Writes that a device may make now: each byte may be there already or not.
    pending: Vec<Pending>,
}

struct Pending {
    id: u64,
    at: usize,
    data: Vec<u8>,
}

impl Pending {
    fn range(&self) -> Range<usize> {
        self.at..self.at + self.data.len()
    }
}

impl<'w> Model<'w> {
    /// Fresh memory with `bytes` in it.
    pub fn new(guest: &'w Guest, bytes: Vec<u8>) -> Self {
        let iova = guest.vm.alloc(bytes.len() as u64);
        guest.vm.write(iova, &bytes);
        Self {
            guest,
            iova,
            bytes,
            pending: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of `range` as far as nothing is pending there.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// The guest writes.
    pub fn set(&mut self, at: usize, data: &[u8]) {
        self.guest.vm.write(self.iova + at as u64, data);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// A device may write `data` for work request `id` from now on.
    pub fn begin(&mut self, id: u64, at: usize, data: Vec<u8>) {
        self.pending.push(Pending { id, at, data });
    }

    /// Whether work request `id` may write.
    pub fn is_pending(&self, id: u64) -> bool {
        self.pending.iter().any(|pending| pending.id == id)
    }

    /// Work request `id` has written all of its data.
    pub fn done(&mut self, id: u64) {
        if let Some(pending) = self.take(id) {
            self.bytes[pending.range()].copy_from_slice(&pending.data);
        }
        self.check();
    }

    /// Work request `id` writes nothing any more. Returns whether all of its data is there.
    pub fn refuse(&mut self, id: u64) -> bool {
        self.check();
        let Some(pending) = self.take(id) else {
            return false;
        };
        let now = self.read();
        self.bytes[pending.range()].copy_from_slice(&now[pending.range()]);
        now[pending.range()] == pending.data
    }

    /// Work request `id` writes nothing any more and has not written either.
    pub fn untouched(&mut self, id: u64) {
        self.take(id);
        self.check();
    }

    /// Nobody wrote what nobody may write.
    pub fn check(&self) {
        let now = self.read();
        if now == self.bytes {
            return;
        }
        let mut expected = self.bytes.clone();
        for pending in &self.pending {
            for (at, byte) in pending.range().zip(&pending.data) {
                if now[at] == *byte {
                    expected[at] = *byte;
                }
            }
        }
        let differs = |at: &usize| now[*at] != expected[*at];
        let first = (0..now.len()).find(differs);
        assert!(first.is_none(), "written without right at {first:?}");
    }

    fn read(&self) -> Vec<u8> {
        self.guest.vm.read(self.iova, self.bytes.len())
    }

    fn take(&mut self, id: u64) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        Some(self.pending.swap_remove(at))
    }
}
