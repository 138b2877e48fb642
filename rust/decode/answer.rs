// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Answers to commands: success with a response structure, or an errno.
//!
//! A success of any other length than the command's response is [`Answer::Invalid`]. The device may
//! have executed the command or not, so its user takes it for dead and keeps the memory that the
//! command names.

use super::abi::ctrl::{Errno, RESPONSE_OK};
use super::abi::wire::Wire;

/// An answer to a command whose response structure is `T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// The command succeeded.
    Success(T),
    /// The device refused it. A number that does not exist is [`Errno::Eio`].
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
            [number, ..] => Self::Refused(Errno::try_from(*number).unwrap_or(Errno::Eio)),
        }
    }
}

/// A response with values that do not exist. Unlike [`Answer::Invalid`] it leaves no doubt about
/// the command itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidResponse;
