// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$meta:meta])* $field:ident,)*) => {
        /// Values of the counters of one port or uplink. They are read one after the other, not at
        /// one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            /// Name of the port or uplink.
            pub name: String,
            $($(#[$meta])* pub $field: u64,)*
        }

        /// The live counters, from which [`Stats`] are read.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            pub(crate) name: String,
            $(pub(crate) $field: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats {
                    name: self.name.clone(),
                    $($field: self.$field.0.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counters! {
    /// Frames accepted from this port or uplink.
    received,
    /// Frames delivered to this port (its network interface or engine) or uplink.
    sent,
    /// Frames from this port or uplink that were refused: too short, too long, with a source
    /// address that is not the sender's, or RoCE from a network interface.
    refused,
    /// Frames from this port or uplink that had no destination.
    no_route,
    /// Frames to this port or uplink that were dropped since the receiver was full or absent.
    dropped,
    /// Errors of the socket while reading frames from this port or uplink, for example those that
    /// ICMP messages cause.
    errors,
}

/// A counter that only the switch changes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
