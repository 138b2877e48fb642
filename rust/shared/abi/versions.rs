// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Versions of the interface between kernel module and provider, and structures that can grow.
//!
//! A new field needs no new version: structures grow at their end ([`Extensible`]), and zero in a
//! new field means the old behaviour. The version is incremented only for changes that no field can
//! express. Each side supports a range of versions, and a context uses the newest version that both
//! support. `Documentation/versions.md` describes the policy.

use super::wire::Wire;

/// Version of the release that this source belongs to: major, minor, patch. The driver reports it
/// in place of a firmware version, since the device reports none.
pub const RELEASE: [u16; 3] = [0, 1, 0];

/// Version of a provider or module that does not state its versions.
pub const UNSTATED: u32 = 6;

wire_struct! {
    /// Range of versions that one side supports; all zero if it does not state them.
    pub struct Versions: 8 {
        /// The oldest.
        0 => oldest: u32,
        /// The newest.
        4 => newest: u32,
    }
}

/// Reason why two sides have no common version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disagreement {
    /// The kernel module is too old and must be updated.
    OldModule,
    /// The provider is too old and must be updated.
    OldProvider,
    /// The provider's range of versions is invalid.
    NoRange,
}

impl Versions {
    /// Versions that this source supports, in the module and in the provider.
    pub const SPOKEN: Self = Self {
        oldest: 6,
        newest: 7,
    };

    /// Whether `version` is in the range.
    pub const fn contains(&self, version: u32) -> bool {
        self.oldest <= version && version <= self.newest
    }

    /// The stated versions, or [`UNSTATED`] if none are stated.
    pub fn or_unstated(self) -> Self {
        match self {
            Self::ZERO => Self {
                oldest: UNSTATED,
                newest: UNSTATED,
            },
            stated => stated,
        }
    }

    /// The version of a context whose module supports the versions `self` and whose provider states
    /// `provider`.
    ///
    /// # Errors
    ///
    /// [`Disagreement`] if there is no common version.
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

/// A structure whose sender and receiver may know different lengths, since fields are added at its
/// end.
pub trait Extensible: Wire {
    /// The bytes of a whole structure.
    type Bytes: AsRef<[u8]> + AsMut<[u8]> + Copy;

    /// A structure of zero bytes.
    const ZEROES: Self::Bytes;

    /// Smallest length in bytes that a sender may send: the length in the oldest supported version,
    /// or 0 if the structure may be absent.
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

/// Reason why received bytes are not a valid structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The structure is shorter than any sender sends.
    TooShort,
    /// The sender requests a feature that the receiver does not know.
    Unknown,
}

/// Decodes a structure that was received as `bytes`. If the sender knows fewer fields than the
/// receiver, the missing fields are zero. If the sender knows more fields, the fields that the
/// receiver does not know must be zero. The kernel's copy from user space has the same rule.
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

/// Implements [`Extensible`] for structures: `Name from MIN_SIZE`.
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
