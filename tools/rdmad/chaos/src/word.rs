// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Values that the text of a rule names.

use virtio_rdma_abi::ctrl::{Command, Errno};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, QpType, WcStatus, WrOpcode};

/// Words of the ABI, as its specification spells them.
macro_rules! words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            const ALL: &'static [Self] = <$type>::ALL;

            fn word(self) -> &'static str {
                // The names of the ABI are ASCII.
                self.c_name().to_str().unwrap_or_default()
            }
        }
    )*};
}

/// A value that the text of a rule names.
pub(crate) trait Word: Copy + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;
}

words! { Command WrOpcode Errno WcStatus AsyncEvent QpType }

impl Word for Feature {
    const ALL: &'static [Self] = Self::ALL;

    fn word(self) -> &'static str {
        self.name()
    }
}

/// Declares an enumeration whose values have a word and a number each.
macro_rules! worded {
    (
        $(#[$meta:meta])*
        $visible:vis enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $word:literal, $number:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $crate::word::Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                match self {
                    $(Self::$variant => $number,)*
                }
            }
        }
    };
}

pub(crate) use worded;
