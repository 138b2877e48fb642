// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Answers to commands: success with a response structure, or an errno.
//!
//! A success response with a wrong length is [`Answer::Invalid`]. Then the device may or may not
//! have executed the command. So the caller fails the device and keeps the memory that the command
//! names.

use core::ffi::CStr;

use super::abi::ctrl::{Errno, RESPONSE_OK};
use super::abi::wire::Wire;

/// An answer to a command whose response structure is `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The command succeeded.
    Success(T),
    /// The device refused the command. An unknown errno becomes [`Errno::Eio`].
    Refused(Errno),
    /// The answer is malformed: whether the device executed the command is unknown.
    Invalid,
}

impl<T: Wire> Answer<T> {
    /// The result in a word: OK, the name of the errno, or INVALID.
    pub const fn c_name(&self) -> &'static CStr {
        match self {
            Self::Success(_) => c"OK",
            Self::Refused(errno) => errno.c_name(),
            Self::Invalid => c"INVALID",
        }
    }

    /// Decodes an answer from a command's response buffer. `written` is the number of bytes that
    /// the device claims to have written.
    pub fn decode(buffer: &[u8], written: usize) -> Self {
        match buffer.get(..written).unwrap_or_default() {
            [RESPONSE_OK, body @ ..] if body.len() == T::SIZE => Self::Success(T::get(body)),
            [] | [RESPONSE_OK, ..] => Self::Invalid,
            [number, ..] => Self::Refused(Errno::try_from(*number).unwrap_or(Errno::Eio)),
        }
    }
}

/// A response with invalid values. Unlike after [`Answer::Invalid`], the command is known to have
/// succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidResponse;
