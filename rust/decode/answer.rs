// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Answers to commands: success with a response structure, or an errno.
//!
//! A success of any other length than the command's response is [`Answer::Invalid`]. The device may
//! have executed the command or not, so its user takes it for dead and keeps the memory that the
//! command names.

use super::abi::ctrl::RESPONSE_OK;
use super::abi::wire::Wire;

/// The highest errno that Linux defines.
const MAX_ERRNO: u8 = 133;
/// `EIO` of Linux.
const EIO: u8 = 5;

/// A positive errno of Linux, 1 to 133.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(u8);

impl Errno {
    /// The errno of a response byte. One that Linux lacks becomes `EIO`.
    #[inline]
    fn decode(byte: u8) -> Self {
        match byte {
            1..=MAX_ERRNO => Self(byte),
            _ => Self(EIO),
        }
    }

    /// The number.
    #[inline]
    pub const fn value(self) -> u8 {
        self.0
    }
}

/// An answer to a command whose response structure is `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The command succeeded.
    Success(T),
    /// The device refused it.
    Refused(Errno),
    /// Neither: whether the device executed the command is unknown.
    Invalid,
}

impl<T: Wire> Answer<T> {
    /// Reads an answer from a command's buffer, of which the device says to have written `written`
    /// bytes.
    pub fn decode(buffer: &[u8], written: usize) -> Self {
        match buffer.get(..written).unwrap_or_default() {
            [RESPONSE_OK, body @ ..] if body.len() == T::SIZE => Self::Success(T::get(body)),
            [] | [RESPONSE_OK, ..] => Self::Invalid,
            [errno, ..] => Self::Refused(Errno::decode(*errno)),
        }
    }
}

/// A response with values that do not exist. Unlike [`Answer::Invalid`] it leaves no doubt about
/// the command itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidResponse;
