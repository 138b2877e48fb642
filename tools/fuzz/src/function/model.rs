// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the function: results and effects of accesses to its regions, and its interrupts.

use super::common::Common;
use super::config::Config;
use super::device::{Call, CONFIG, SHM_LEN};

/// BAR of the virtio registers.
pub const VIRTIO: u32 = 2;
/// BAR of the shared memory region.
const SHM: u32 = 4;
/// Lengths of the BARs in bytes.
pub const BARS: [u64; 6] = [0x1_0000, 0, 0x1_0000, 0, SHM_LEN, 0];
/// Offsets of the structures in the BAR of the virtio registers.
pub const ISR: u64 = 0x1000;
pub const DEVICE: u64 = 0x2000;
pub const NOTIFY: u64 = 0x8000;
const DEVICE_LEN: u64 = 0x1000;
const NO_VECTOR: u16 = 0xffff;

/// The expected result of a read.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    pub bytes: Vec<u8>,
    /// Whether the model can't predict the lowest bit of the first byte: the queue bit of the ISR
    /// register depends on the rings.
    pub either: bool,
}

impl Shown {
    /// Panics if `bytes` are not a result that the model expects.
    pub fn check(&self, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if let (true, Some(first)) = (self.either, bytes.first_mut()) {
            *first &= !1;
        }
        assert_eq!(bytes, self.bytes);
    }
}

/// An interrupt of the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    pub vector: u16,
    /// Whether the interrupt must occur. The interrupt for an answer depends on the flags in the
    /// ring, so it may or may not occur.
    pub certain: bool,
}

/// The state of the modelled function.
#[derive(Clone, Debug)]
pub struct Function {
    /// The common configuration registers.
    pub common: Common,
    /// The configuration space.
    pub config: Config,
    raised: Vec<Raised>,
    doorbells: Vec<Call>,
}

impl Function {
    /// The function after power-on, with the contents `initial` of the configuration space, and
    /// with `generation` configuration changes so far.
    pub fn new(initial: [u8; 256], generation: u8) -> Self {
        Self {
            common: Common::new(generation),
            config: Config::new(initial, BARS),
            raised: Vec::new(),
            doorbells: Vec::new(),
        }
    }

    /// Reads from a BAR.
    pub fn bar_read(&mut self, bar: u32, offset: u64, len: usize) -> Shown {
        let mut shown = Shown {
            bytes: vec![0; len],
            either: false,
        };
        let mut show = |from: &[u8], at: u64| {
            let rest = from.get(at as usize..).unwrap_or_default();
            let pairs = shown.bytes.iter_mut().zip(rest);
            pairs.for_each(|(to, from)| *to = *from);
        };
        match offset {
            _ if bar != VIRTIO => {}
            0..ISR => show(&self.common.image(), offset),
            ISR if len > 0 => {
                show(&[u8::from(self.common.isr_config) << 1], 0);
                self.common.isr_config = false;
                shown.either = true;
            }
            _ if (DEVICE..DEVICE + DEVICE_LEN).contains(&offset) => show(&CONFIG, offset - DEVICE),
            _ => {}
        }
        shown
    }

    /// Writes to a BAR.
    pub fn bar_write(&mut self, bar: u32, offset: u64, data: &[u8]) {
        match (bar, data) {
            (VIRTIO, _) if offset < ISR => self.common.write(offset, data),
            (SHM, &[a, b, c, d]) if offset < SHM_LEN && offset % 4 == 0 => {
                let value = u32::from_le_bytes([a, b, c, d]);
                self.doorbells.push(Call::Doorbell(offset, value));
            }
            _ => {}
        }
    }

    /// Reads from the configuration space.
    pub fn config_read(&mut self, offset: u64, len: usize) -> Shown {
        match self.config.reaches(offset, len) {
            Some((bar, offset)) => self.bar_read(bar, offset, len),
            None => Shown {
                bytes: self.config.read(offset, len),
                either: false,
            },
        }
    }

    /// Writes to the configuration space.
    pub fn config_write(&mut self, offset: u64, data: &[u8]) {
        self.config.write(offset, data);
        if self.config.initiates_reset(offset, data) {
            self.begin_reset();
        } else if let Some((bar, at)) = self.config.reaches(offset, data.len()) {
            self.bar_write(bar, at, data);
        }
    }

    /// Begins a function-level reset.
    pub fn begin_reset(&mut self) {
        self.config.reset();
        self.common.begin_reset();
    }

    /// Records a change of the configuration or the status.
    pub fn config_changed(&mut self) {
        self.common.changed();
        self.raise(self.common.config_vector, true);
    }

    /// Records an interrupt of a queue. If not `certain`, the interrupt may be absent.
    pub fn queue_interrupts(&mut self, queue: usize, certain: bool) {
        self.raise(self.common.queues[queue].vector, certain);
    }

    fn raise(&mut self, vector: u16, certain: bool) {
        if vector != NO_VECTOR {
            self.raised.push(Raised { vector, certain });
        }
    }

    /// Interrupts since the last call.
    pub fn take_raised(&mut self) -> Vec<Raised> {
        std::mem::take(&mut self.raised)
    }

    /// Writes to shared memory since the last call.
    pub fn take_doorbells(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.doorbells)
    }
}
