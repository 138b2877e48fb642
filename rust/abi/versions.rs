// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Versions of the interface between kernel module and provider, and structures of different
//! lengths.
//!
//! A field that is added needs no new version: structures grow at their end ([`Extensible`]), and
//! zero in a new field means the behaviour without it. A version is counted up for what no field
//! can tell. Each side speaks a range of versions, and a context has the newest that both speak.
//! `Documentation/versions.md` has the policy.

use super::wire::Wire;

/// The version of a provider that does not state any, and of a module that answers none.
pub const UNSTATED: u32 = 6;

wire_struct! {
    /// Versions that one side speaks; all zero if it does not state them.
    pub struct Versions: 8 {
        /// The oldest.
        0 => oldest: u32,
        /// The newest.
        4 => newest: u32,
    }
}

/// Reason for which two sides can't agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// The kernel module speaks older versions only: it has to be updated.
    OldModule,
    /// The provider speaks older versions only: it has to be updated.
    OldProvider,
    /// The provider states versions that are no range.
    NoRange,
}

impl Versions {
    /// Versions that this source speaks, as module and as provider.
    pub const SPOKEN: Self = Self {
        oldest: 6,
        newest: 7,
    };

    /// Whether `version` is one of them.
    pub const fn contains(&self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The stated versions, or [`UNSTATED`] for a provider that states none.
    pub fn or_unstated(self) -> Self {
        match self {
            Self::ZERO => Self {
                oldest: UNSTATED,
                newest: UNSTATED,
            },
            stated => stated,
        }
    }

    /// The version of a context, if a module speaks these and `provider` is what its provider
    /// states.
    ///
    /// # Errors
    ///
    /// [`Disagreement`] if there is none.
    pub fn agree(&self, provider: &Self) -> Result<u32, Disagreement> {
        let provider = provider.or_unstated();
        if provider.oldest == 0 || provider.oldest > provider.newest {
            Err(Disagreement::NoRange)
        } else if provider.newest < self.oldest {
            Err(Disagreement::OldProvider)
        } else if self.newest < provider.oldest {
            Err(Disagreement::OldModule)
        } else {
            Ok(self.newest.min(provider.newest))
        }
    }
}

/// A structure of which sender and receiver may know different lengths, since fields are added at
/// its end.
pub trait Extensible: Wire {
    /// The bytes of a value.
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Copy;

    /// Bytes that are all zero.
    const ZEROES: Self::Bytes;

    /// Bytes that each sender gives at least: the length in the oldest version that is spoken, or 0
    /// if the structure may be left out.
    const MIN_SIZE: usize;

    /// The bytes of this value.
    fn encode(&self) -> Self::Bytes {
        let mut bytes = Self::ZEROES;
        self.put(bytes.as_mut());
        bytes
    }

    /// The value of these bytes.
    fn decode_whole(bytes: &Self::Bytes) -> Self {
        Self::get(bytes.as_ref())
    }
}

/// Reason for which bytes are no value of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// They are fewer than any sender gives.
    TooShort,
    /// The sender asks for what the receiver does not know.
    Unknown,
}

/// The value that a sender gave as `bytes`: it knows fewer fields than the receiver, and the others
/// are zero, or more, and those have to be zero. The kernel's copy from user space has the same
/// rule.
///
/// # Errors
///
/// [`Misfit`].
pub fn received<T: Extensible>(bytes: &[u8]) -> Result<T, Misfit> {
    if bytes.len() < T::MIN_SIZE {
        return Err(Misfit::TooShort);
    }
    let (known, unknown) = bytes.split_at(bytes.len().min(T::SIZE));
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Misfit::Unknown);
    }
    let mut whole = T::ZEROES;
    whole.as_mut()[..known.len()].copy_from_slice(known);
    Ok(T::decode_whole(&whole))
}

/// Declares which structures are [`Extensible`]: `Name from MIN_SIZE`.
macro_rules! extensible {
    ($( $name:ident from $min:expr, )*) => {
        $(
            impl $crate::abi::versions::Extensible for $name {
                type Bytes = [u8; $name::SIZE];
                const ZEROES: Self::Bytes = [0; $name::SIZE];
                const MIN_SIZE: usize = $min;
            }

            const _: () = assert!(
                $name::SIZE.checked_sub($min).is_some(),
                "the newest version is the longest"
            );
            const _: () = assert!($name::SIZE % 8 == 0, "uverbs takes multiples of 8 bytes");
        )*
    };
}
