// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Errors of control commands.

use dma::DmaError;
pub(crate) use rustix::io::Errno;
use virtio_rdma_abi::ctrl;

/// Result of a control command. The response byte carries the [ABI's number](on_the_wire) of the
/// errno.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The ABI's number of an errno of this host.
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

/// Returns `EFAULT`: the errno of a command that names memory outside of the DMA map.
pub(crate) fn fault(_: DmaError) -> Errno {
    Errno::FAULT
}

/// Fails with `EINVAL` unless `valid`.
pub(crate) fn require(valid: bool) -> Result<()> {
    if valid {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}
