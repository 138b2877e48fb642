// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of control commands.

use dma::DmaError;
pub(crate) use rustix::io::Errno;

/// Result of a control command; the errno goes into the response byte.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The errno of a command whose memory the DMA map does not allow.
pub(crate) fn fault(_: DmaError) -> Errno {
    Errno::FAULT
}

/// Refuses with `EINVAL` unless `valid`.
pub(crate) fn require(valid: bool) -> Result<()> {
    if valid {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}
