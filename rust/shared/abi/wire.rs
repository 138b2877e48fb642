// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Codec between native values and the little-endian bytes of the ABI.
//!
//! Virtio structures have no padding, so most fields of this device are unaligned. Packed
//! structures would invite unaligned references. So every structure is an ordinary Rust value, and
//! its layout is a list of byte offsets. The macros check at compile time that the fields are
//! contiguous and that the total size is the stated size.

/// A value with a fixed little-endian representation of [`SIZE`](Wire::SIZE) bytes.
pub trait Wire: Sized {
    /// Number of bytes on the wire.
    const SIZE: usize;
    /// Natural alignment: the alignment of the widest integer in the value. Most structures in the
    /// ABI are not aligned to it.
    const ALIGN: usize;
    /// The value whose bytes are all zero.
    const ZERO: Self;
    /// Encodes the value to `out`, which must be exactly [`SIZE`](Wire::SIZE) bytes long.
    fn put(&self, out: &mut [u8]);
    /// Decodes a value from `bytes`, which must be exactly [`SIZE`](Wire::SIZE) bytes long.
    fn get(bytes: &[u8]) -> Self;
}

macro_rules! wire_integer {
    ($($ty:ty)*) => {$(
        impl Wire for $ty {
            const SIZE: usize = core::mem::size_of::<$ty>();
            const ALIGN: usize = core::mem::size_of::<$ty>();
            const ZERO: Self = 0;
            #[inline(always)]
            fn put(&self, out: &mut [u8]) {
                out.copy_from_slice(&self.to_le_bytes());
            }
            #[inline(always)]
            fn get(bytes: &[u8]) -> Self {
                let mut raw = [0; core::mem::size_of::<$ty>()];
                raw.copy_from_slice(bytes);
                Self::from_le_bytes(raw)
            }
        }
    )*};
}

wire_integer!(u8 u16 u32 u64);

/// Implements the codec for a transparent wrapper.
macro_rules! wire_transparent {
    ($name:ident: $repr:ty) => {
        impl $crate::abi::wire::Wire for $name {
            const SIZE: usize = <$repr as $crate::abi::wire::Wire>::SIZE;
            const ALIGN: usize = <$repr as $crate::abi::wire::Wire>::ALIGN;
            const ZERO: Self = Self(<$repr as $crate::abi::wire::Wire>::ZERO);
            #[inline(always)]
            fn put(&self, out: &mut [u8]) {
                $crate::abi::wire::Wire::put(&self.0, out);
            }
            #[inline(always)]
            fn get(bytes: &[u8]) -> Self {
                Self($crate::abi::wire::Wire::get(bytes))
            }
        }
    };
}

/// Arrays of bytes in fixed order: GIDs, MAC addresses, reserved areas.
impl<const N: usize> Wire for [u8; N] {
    const SIZE: usize = N;
    const ALIGN: usize = 1;
    const ZERO: Self = [0; N];
    #[inline(always)]
    fn put(&self, out: &mut [u8]) {
        out.copy_from_slice(self);
    }
    #[inline(always)]
    fn get(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Offset in the structure.
    pub offset: usize,
    /// Number of bytes.
    pub size: usize,
    /// [Natural alignment](Wire::ALIGN).
    pub align: usize,
}

#[allow(dead_code)]
impl Field {
    /// Whether all `fields` are aligned in a structure that starts at offset `start`.
    pub const fn are_aligned(start: usize, fields: &[Self]) -> bool {
        let mut rest = fields;
        while let [first, others @ ..] = rest {
            if (start + first.offset) % first.align != 0 {
                return false;
            }
            rest = others;
        }
        true
    }
}

/// The largest alignment of `fields`.
pub const fn greatest_align(fields: &[Field]) -> usize {
    let mut align = 1;
    let mut rest = fields;
    while let [first, others @ ..] = rest {
        if first.align > align {
            align = first.align;
        }
        rest = others;
    }
    align
}

/// A number that is not a value of an enumeration of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownValue(pub u32);

/// Declares a structure of the ABI: `pub struct Name: SIZE { OFFSET => field: type, … }`.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $size:literal {
            $( $(#[$field_meta:meta])* $offset:literal => $field:ident: $ty:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )*
        }

        const _: () = {
            let end = 0;
            $(
                assert!($offset == end, "fields follow each other without a gap");
                let end = end + <$ty as $crate::abi::wire::Wire>::SIZE;
            )*
            assert!($size == end, "the size is the sum of the fields");
        };

        impl $crate::abi::wire::Wire for $name {
            const SIZE: usize = $size;
            const ALIGN: usize = $crate::abi::wire::greatest_align(Self::FIELDS);
            const ZERO: Self = Self { $( $field: <$ty as $crate::abi::wire::Wire>::ZERO, )* };
            #[inline(always)]
            fn put(&self, out: &mut [u8]) {
                debug_assert_eq!(out.len(), $size);
                $(
                    $crate::abi::wire::Wire::put(
                        &self.$field,
                        &mut out[$offset..$offset + <$ty as $crate::abi::wire::Wire>::SIZE],
                    );
                )*
            }
            #[inline(always)]
            fn get(bytes: &[u8]) -> Self {
                debug_assert_eq!(bytes.len(), $size);
                Self {
                    $(
                        $field: $crate::abi::wire::Wire::get(
                            &bytes[$offset..$offset + <$ty as $crate::abi::wire::Wire>::SIZE],
                        ),
                    )*
                }
            }
        }

        #[allow(dead_code)]
        impl $name {
            /// Number of bytes on the wire.
            pub const SIZE: usize = $size;

            /// The fields, in order.
            pub const FIELDS: &'static [$crate::abi::wire::Field] = &[$(
                $crate::abi::wire::Field {
                    name: stringify!($field),
                    offset: $offset,
                    size: <$ty as $crate::abi::wire::Wire>::SIZE,
                    align: <$ty as $crate::abi::wire::Wire>::ALIGN,
                },
            )*];

            /// Encodes the value.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $crate::abi::wire::Wire::put(self, &mut bytes);
                bytes
            }

            /// Decodes the value.
            #[inline]
            pub fn from_bytes(bytes: &[u8; $size]) -> Self {
                $crate::abi::wire::Wire::get(bytes)
            }

            /// Decodes the value at the start of `bytes`. Returns `None` if `bytes` is too short.
            #[inline]
            pub fn decode(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk::<$size>().map(Self::from_bytes)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $crate::abi::wire::Wire::ZERO
            }
        }
    };
}

/// Number of bytes of a value's [name](spell), NUL included.
pub const fn spelled_len(variant: &str) -> usize {
    let variant = variant.as_bytes();
    let mut len = variant.len() + 1;
    let mut at = 1;
    while at < variant.len() {
        if variant[at].is_ascii_uppercase() {
            len += 1;
        }
        at += 1;
    }
    len
}

/// The name of a value in the specification, from the name of its variant: CREATE_QP for
/// `CreateQp`. The last byte is NUL.
pub const fn spell<const LEN: usize>(variant: &str) -> [u8; LEN] {
    let variant = variant.as_bytes();
    let mut name = [0; LEN];
    let (mut at, mut end) = (0, 0);
    while at < variant.len() {
        if at != 0 && variant[at].is_ascii_uppercase() {
            name[end] = b'_';
            end += 1;
        }
        name[end] = variant[at].to_ascii_uppercase();
        end += 1;
        at += 1;
    }
    name
}

/// Declares an enumeration of the ABI with a checked conversion from its wire type.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $repr:ty {
            $( $(#[$variant_meta:meta])* $variant:ident = $value:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $value, )*
        }

        #[allow(dead_code)]
        impl $name {
            /// All values, in the order of the specification.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// The value on the wire.
            #[inline]
            pub const fn value(self) -> $repr {
                self as $repr
            }

            /// The name in the specification, which people read in traces and logs.
            pub const fn c_name(self) -> &'static core::ffi::CStr {
                match self {
                    $( Self::$variant => {
                        const VARIANT: &str = stringify!($variant);
                        const LEN: usize = $crate::abi::wire::spelled_len(VARIANT);
                        const NAME: [u8; LEN] = $crate::abi::wire::spell(VARIANT);
                        match core::ffi::CStr::from_bytes_with_nul(&NAME) {
                            Ok(name) => name,
                            Err(_) => c"",
                        }
                    } )*
                }
            }
        }

        impl TryFrom<$repr> for $name {
            type Error = $crate::abi::wire::UnknownValue;
            #[inline]
            fn try_from(value: $repr) -> Result<Self, Self::Error> {
                match value {
                    $( $value => Ok(Self::$variant), )*
                    _ => Err($crate::abi::wire::UnknownValue(u32::from(value))),
                }
            }
        }
    };
}

/// Declares a bit mask of the ABI: a transparent wrapper with set operations.
macro_rules! wire_mask {
    (
        $(#[$meta:meta])*
        pub struct $name:ident: $repr:ty {
            $( $(#[$bit_meta:meta])* $bit:ident = $value:expr, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        #[allow(dead_code)]
        impl $name {
            $( $(#[$bit_meta])* pub const $bit: Self = Self($value); )*
            /// Names and values of the bits.
            pub const BITS: &'static [(&'static str, Self)] =
                &[$( (stringify!($bit), Self::$bit), )*];
            /// Every bit that the specification names.
            pub const ALL: Self = Self(0 $( | $value )*);
            /// No bit.
            pub const NONE: Self = Self(0);

            /// Whether every bit of `bits` is set.
            #[inline]
            pub const fn contains(self, bits: Self) -> bool {
                self.0 & bits.0 == bits.0
            }

            /// Whether any bit of `bits` is set.
            #[inline]
            pub const fn intersects(self, bits: Self) -> bool {
                self.0 & bits.0 != 0
            }

            /// The bits that are set in either mask.
            #[inline]
            pub const fn union(self, bits: Self) -> Self {
                Self(self.0 | bits.0)
            }

            /// The bits of `self` that are not set in `bits`.
            #[inline]
            pub const fn without(self, bits: Self) -> Self {
                Self(self.0 & !bits.0)
            }

            /// Whether a bit is set that the specification does not define.
            #[inline]
            pub const fn has_unknown(self) -> bool {
                self.0 & !Self::ALL.0 != 0
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;
            #[inline]
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        wire_transparent!($name: $repr);
    };
}
