// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the configuration space: its contents after power-on, and the writable bits.

/// Length of the configuration space in bytes.
const LEN: usize = 256;
const CAP_MSIX: u8 = 0x11;
const CAP_VENDOR: u8 = 0x09;
const CAP_EXPRESS: u8 = 0x10;
/// `cfg_type` of the capability that accesses BARs through configuration space.
const CFG_PCI: u8 = 5;

/// The configuration space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The bytes that a read of the whole space returns.
    pub bytes: [u8; LEN],
    writable: [u8; LEN],
    initial: [u8; LEN],
    window: usize,
    /// Offset of the byte whose highest bit resets the function.
    trigger: usize,
}

impl Config {
    /// The configuration space of a function with the contents `initial` after power-on, and with
    /// BARs of these lengths in bytes.
    pub fn new(initial: [u8; LEN], bars: [u64; 6]) -> Self {
        let mut writable = [0; LEN];
        // Writable bits of the command register (memory space, bus master, INTx disable), and the
        // interrupt line register.
        writable[0x04..0x06].copy_from_slice(&0x0406u16.to_le_bytes());
        writable[0x3c] = 0xff;
        for (bar, len) in bars.into_iter().enumerate().filter(|&(_, len)| len > 0) {
            let at = 0x10 + 4 * bar;
            let mask = (!(len - 1)).to_le_bytes();
            // A 64-bit BAR also occupies the register of the next one.
            let width = if initial[at] & 4 != 0 { 8 } else { 4 };
            writable[at..at + width].copy_from_slice(&mask[..width]);
        }
        let (mut at, mut window, mut trigger) = (usize::from(initial[0x34]), 0, 0);
        while at != 0 {
            match (initial[at], initial[at + 3]) {
                (CAP_MSIX, _) => writable[at + 3] = 0xc0,
                (CAP_VENDOR, CFG_PCI) => {
                    writable[at + 4] = 0xff;
                    writable[at + 8..at + 16].fill(0xff);
                    window = at;
                }
                (CAP_EXPRESS, _) => {
                    writable[at + 8..at + 10].copy_from_slice(&[0xff, 0x7f]);
                    trigger = at + 9;
                }
                _ => {}
            }
            at = usize::from(initial[at + 1]);
        }
        assert_ne!(window, 0, "no window to the BARs");
        assert_ne!(trigger, 0, "no PCI Express capability");
        Self {
            bytes: initial,
            writable,
            initial,
            window,
            trigger,
        }
    }

    /// Offset of the data field of the capability that accesses BARs.
    pub fn window_data(&self) -> u64 {
        self.window as u64 + 16
    }

    /// Reads `len` bytes at `offset`. Bytes beyond the end read as 0xff.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let rest = self.bytes.iter().skip(offset as usize);
        rest.copied()
            .chain(std::iter::repeat(0xff))
            .take(len)
            .collect()
    }

    /// Writes `data` at `offset`; only writable bits change.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, &byte) in (offset as usize..LEN).zip(data) {
            let mask = self.writable[at];
            self.bytes[at] = (self.bytes[at] & !mask) | (byte & mask);
        }
    }

    /// Whether a write of `data` at `offset` resets the function.
    pub fn initiates_reset(&self, offset: u64, data: &[u8]) -> bool {
        let mut written = (offset as usize..LEN).zip(data);
        written.any(|(at, byte)| at == self.trigger && byte & 0x80 != 0)
    }

    /// The BAR and the offset that an access of `len` bytes at `offset` reaches. `None` unless it
    /// is an access to the data field of the capability that accesses BARs.
    pub fn reaches(&self, offset: u64, len: usize) -> Option<(u32, u64)> {
        let word = |at: usize| {
            let bytes = &self.bytes[self.window + at..][..4];
            u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
        };
        let (target, width) = (word(8), word(12));
        let hit = offset == self.window_data()
            && [1, 2, 4].contains(&width)
            && len as u64 == width
            && target % width == 0;
        hit.then(|| (u32::from(self.bytes[self.window + 4]), target))
    }

    /// Restores the contents after power-on.
    pub fn reset(&mut self) {
        self.bytes = self.initial;
    }
}
