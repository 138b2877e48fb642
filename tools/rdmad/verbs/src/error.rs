// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of control commands.

use dma::DmaError;
pub(crate) use rustix::io::Errno;
use virtio_rdma_abi::ctrl;

/// Result of a control command; the [number](on_the_wire) of the errno goes into the response byte.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The number by which a driver knows an errno of this host.
pub(crate) fn on_the_wire(errno: Errno) -> ctrl::Errno {
    match errno {
        Errno::PERM => ctrl::Errno::Eperm,
        Errno::NOMEM => ctrl::Errno::Enomem,
        Errno::FAULT => ctrl::Errno::Efault,
        Errno::BUSY => ctrl::Errno::Ebusy,
        Errno::EXIST => ctrl::Errno::Eexist,
        Errno::INVAL => ctrl::Errno::Einval,
        Errno::OPNOTSUPP => ctrl::Errno::Eopnotsupp,
        Errno::ADDRINUSE => ctrl::Errno::Eaddrinuse,
        _ => ctrl::Errno::Eio,
    }
}

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
