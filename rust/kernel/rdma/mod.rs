// SPDX-License-Identifier: GPL-2.0

//! Drivers of RDMA devices.
//!
//! A driver implements [`Driver`], and one trait for each optional group of verbs of its device.
//! From these, [`Operations`] builds the table of callbacks at compile time. [`Registration`]
//! registers a device with the RDMA core.
//!
//! The core allocates and frees most objects itself. Each of them is an
//! [`Object`](object::Object): the C structure followed by the driver's part. The driver's part is
//! initialized in place when the object is created, and dropped when it is destroyed. So a driver
//! destroys its side of an object in `Drop`.
//!
//! | concern | module |
//! |---|---|
//! | devices, registration | [`device`], [`operations`], [`attributes`], [`port`], [`gid`] |
//! | user contexts, their mappings and data | [`ucontext`], [`mmap`], [`udata`] |
//! | objects | [`object`], [`pd`], [`mr`], [`mw`], [`ah`], [`cq`], [`qp`], [`qp_attr`], [`srq`], [`multicast`] |
//! | work requests and completions of kernel clients | [`wr`], [`wc`] |
//! | memory | [`umem`], [`user_memory`], [`dmabuf`], [`queue_memory`], [`page_list`] |
//! | events and their receivers | [`event`], [`consumer`] |
//! | counters and details for administrators | [`stats`], [`counter`], [`restrack`] |
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

/// Copies fields that have the same names in both structures.
macro_rules! copy_fields {
    ($from:expr => $to:expr; $($field:ident),* $(,)?) => {
        $($to.$field = $from.$field;)*
    };
}

/// Declares an enumeration with values of an enumeration of the core. The conversion of any other
/// value fails with `$error`.
macro_rules! core_enum {
    ($(#[$meta:meta])* $name:ident: $raw:ident else $error:ident {
        $($(#[$variant_meta:meta])* $variant:ident = $value:ident,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = bindings::$value,)*
        }

        impl TryFrom<bindings::$raw> for $name {
            type Error = Error;

            fn try_from(value: bindings::$raw) -> Result<Self> {
                match value {
                    $(bindings::$value => Ok(Self::$variant),)*
                    _ => Err($error),
                }
            }
        }
    };
}

pub mod ah;
pub mod attributes;
pub mod consumer;
pub mod counter;
pub mod cq;
pub mod device;
pub mod dmabuf;
pub mod event;
pub mod gid;
pub mod mmap;
pub mod mr;
pub mod multicast;
pub mod mw;
pub mod object;
pub mod operations;
pub mod page_list;
pub mod pd;
pub mod pma;
pub mod port;
pub mod qp;
pub mod qp_attr;
pub mod queue_memory;
pub mod restrack;
pub mod srq;
pub mod stats;
#[cfg(CONFIG_RUST_RDMA_KUNIT_TEST)]
pub(crate) mod tests;
pub mod ucontext;
pub mod udata;
pub mod umem;
pub mod user_memory;
mod user_pages;
pub mod wc;
mod while_bound;
pub mod wr;

pub use device::Device;
pub use device::DeviceRef;
pub use device::Driver;
pub use device::Registration;
pub use operations::Operations;
pub use udata::Udata;
