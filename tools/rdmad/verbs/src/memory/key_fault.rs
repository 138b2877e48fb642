// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Why a key can't be used.

use roce::work::{WcFault, WcReason};
use virtio_rdma_abi::ib::WcStatus;

/// Error: a key can't be used, or an MR can't be registered, bound or invalidated as requested. The
/// reason is the check that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyFault(pub WcReason);

impl KeyFault {
    /// The fault of a work request that uses the key as L_Key.
    pub(crate) fn local(self) -> WcFault {
        WcFault::new(WcStatus::LocProtErr, self.0)
    }

    /// The fault of a work request that registers, binds or invalidates the key.
    pub(crate) fn change(self) -> WcFault {
        WcFault::new(WcStatus::MwBindErr, self.0)
    }
}

pub(super) type KeyResult<T> = Result<T, KeyFault>;
