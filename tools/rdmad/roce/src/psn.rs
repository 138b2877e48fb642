// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Packet sequence numbers.

use std::fmt;

use virtio_rdma_abi::ib::MASK_24;

/// A packet sequence number: 24 bits, wrapping (IBTA 9.2.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psn(u32);

impl Psn {
    /// The PSN whose value is the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK_24)
    }

    /// The value, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later, modulo 2^24.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The previous PSN.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Distance from `other` to `self` in packets, in -2^23..2^23: positive if `self` is later.
    pub const fn since(self, other: Self) -> i32 {
        // Shifting left makes bit 23 of the difference the sign; shifting right extends the sign.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wraps_at_24_bits() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).prev(), last);
        assert_eq!(Psn::new(0x0100_0005).value(), 5);
    }

    #[test]
    fn distance_is_signed_and_circular() {
        assert_eq!(Psn::new(2).since(Psn::new(0xff_fffe)), 4);
        assert_eq!(Psn::new(0xff_fffe).since(Psn::new(2)), -4);
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000);
    }
}
