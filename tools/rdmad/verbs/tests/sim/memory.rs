// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Model of a guest's memory.

use std::ops::Range;

use crate::guest::Guest;

/// Memory of a guest, and the content that it must have.
pub struct Model<'w> {
    pub guest: &'w Guest,
    pub iova: u64,
    bytes: Vec<u8>,
    /// Writes that the device may be executing. Each of their bytes may be written already or not.
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
    /// Allocates memory with the content `bytes`.
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

    /// The expected bytes of `range`, without the effect of pending writes.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Writes `data` to the memory, as the guest's CPU does.
    pub fn set(&mut self, at: usize, data: &[u8]) {
        self.guest.vm.write(self.iova + at as u64, data);
        self.bytes[at..at + data.len()].copy_from_slice(data);
    }

    /// Begins a pending write: from now on, the device may write `data` for work request `id`.
    pub fn begin(&mut self, id: u64, at: usize, data: Vec<u8>) {
        self.pending.push(Pending { id, at, data });
    }

    /// Whether work request `id` has a pending write.
    pub fn is_pending(&self, id: u64) -> bool {
        self.pending.iter().any(|pending| pending.id == id)
    }

    /// Ends the pending write of work request `id`, and checks that all of its data was written.
    pub fn done(&mut self, id: u64) {
        if let Some(pending) = self.take(id) {
            self.bytes[pending.range()].copy_from_slice(&pending.data);
        }
        self.check();
    }

    /// Ends the pending write of work request `id`. The bytes that the device has written so far
    /// stay. Returns whether all of the data was written.
    pub fn refuse(&mut self, id: u64) -> bool {
        self.check();
        let Some(pending) = self.take(id) else {
            return false;
        };
        let now = self.read();
        self.bytes[pending.range()].copy_from_slice(&now[pending.range()]);
        now[pending.range()] == pending.data
    }

    /// Ends the pending write of work request `id`, and checks that nothing was written.
    pub fn untouched(&mut self, id: u64) {
        self.take(id);
        self.check();
    }

    /// Checks that the memory differs from the model only by pending writes.
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
        assert!(
            first.is_none(),
            "written without the access flag at {first:?}"
        );
    }

    fn read(&self) -> Vec<u8> {
        self.guest.vm.read(self.iova, self.bytes.len())
    }

    fn take(&mut self, id: u64) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        Some(self.pending.swap_remove(at))
    }
}
