// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$meta:meta])* $field:ident,)*) => {
        /// Counters of one port or uplink, as they stood at one moment each.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            /// Name of the port or uplink.
            pub name: String,
            $($(#[$meta])* pub $field: u64,)*
        }

        /// The live counters behind [`Stats`].
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
    /// Frames accepted from here.
    received,
    /// Frames delivered here: to the network interface, the engine or the uplink.
    sent,
    /// Frames refused from here: too short, too long, from a source address that is not theirs, or
    /// RoCE from a network interface.
    refused,
    /// Frames from here that had nowhere to go.
    no_route,
    /// Frames for here that were dropped because the receiver was full or absent.
    dropped,
    /// Errors of the socket while reading frames from here, for example those that ICMP messages
    /// cause.
    errors,
}

/// A number that only the switch changes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
