// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Numbers of objects, one type for each kind of object.
//!
//! A number of one kind can't be used as a number of another kind:
//!
//! ```rust
//! use virtio_rdma_abi::ctrl::CmdDestroyQp;
//! use virtio_rdma_abi::number::Qpn;
//! let qpn = Qpn::new(7);
//! let _ = CmdDestroyQp { qpn };
//! ```
//!
//! A CQN is not a QPN, and a PDN is not an MR number:
//!
//! ```compile_fail
//! use virtio_rdma_abi::ctrl::CmdDestroyQp;
//! use virtio_rdma_abi::number::Cqn;
//! let cqn = Cqn::new(7);
//! let _ = CmdDestroyQp { qpn: cqn };
//! ```
//!
//! ```compile_fail
//! use virtio_rdma_abi::ctrl::CmdDeregMr;
//! use virtio_rdma_abi::number::Pdn;
//! let pdn = Pdn::new(7);
//! let _ = CmdDeregMr { mrn: pdn };
//! ```
//!
//! The doorbell of a CQ does not take a QPN:
//!
//! ```compile_fail
//! use virtio_rdma_abi::number::Qpn;
//! use virtio_rdma_abi::ring::Doorbell;
//! let qpn = Qpn::new(7);
//! let _ = Doorbell::Cq(qpn);
//! ```

use super::ib::MASK_24;

/// A number of one kind of object.
pub trait Number: Copy + Ord + core::fmt::Debug {
    /// The number with this value.
    fn new(value: u32) -> Self;
    /// Its value.
    fn get(self) -> u32;
}

macro_rules! numbers {
    ($( $(#[$meta:meta])* $name:ident, )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        #[allow(dead_code)]
        impl $name {
            /// The number with this value.
            #[inline(always)]
            pub const fn new(value: u32) -> Self {
                Self(value)
            }

            /// Its value.
            #[inline(always)]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl Number for $name {
            #[inline(always)]
            fn new(value: u32) -> Self {
                Self(value)
            }
            #[inline(always)]
            fn get(self) -> u32 {
                self.0
            }
        }

        impl From<$name> for u32 {
            #[inline(always)]
            fn from(number: $name) -> Self {
                number.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(&self.0, f)
            }
        }

        wire_transparent!($name: u32);
    )*};
}

numbers! {
    /// Number of a QP (QPN).
    ///
    /// Packets and doorbells have 24 bits for a QPN, fields of the ABI 32. So the value of a field
    /// may be [invalid](Self::is_valid), which the reader of the field must check.
    Qpn,
    /// Handle of a CQ.
    Cqn,
    /// Handle of an SRQ.
    Srqn,
    /// Handle of a PD.
    Pdn,
    /// Handle of an MR. It is not the MR's key.
    MrNumber,
    /// Handle of a memory window, which is also bits 31–8 of its R_Keys.
    MwNumber,
    /// Handle of a counter set.
    CounterSetNumber,
    /// Number of a port within a device process, which may have several. No structure carries it: a
    /// driver knows only one port, [`PORT`](super::ib::PORT).
    PortId,
}

#[allow(dead_code)]
impl Srqn {
    /// Value for no SRQ.
    pub const NONE: Self = Self(0);
}

#[allow(dead_code)]
impl CounterSetNumber {
    /// Value for no counter set.
    pub const NONE: Self = Self(0);
}

#[allow(dead_code)]
impl Qpn {
    /// Value for no QP.
    pub const NONE: Self = Self(0);

    /// The QPN with these bytes in network byte order, as in packets.
    #[inline]
    pub const fn from_be_bytes(bytes: [u8; 3]) -> Self {
        let [high, middle, low] = bytes;
        Self(u32::from_be_bytes([0, high, middle, low]))
    }

    /// The low 24 bits in network byte order, as in packets. [Valid](Self::is_valid) QPNs have no
    /// higher bits.
    #[inline]
    pub const fn to_be_bytes(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }

    /// The QPN reduced to its low 24 bits.
    #[inline]
    pub const fn cut(self) -> Self {
        Self(self.0 & MASK_24)
    }

    /// Whether the number is valid for a QP: nonzero, and at most 24 bits.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 != 0 && self.0 <= MASK_24
    }
}
