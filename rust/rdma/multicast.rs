// SPDX-License-Identifier: GPL-2.0

//! Multicast groups of queue pairs of unreliable datagrams.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    qp::Qp,
    qp_attr::ModifyQueuePairs, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device whose queue pairs may be attached to multicast groups. A group is known by its GID, in
/// network byte order; on Ethernet it has no LID.
///
/// Only QPs of type [`Ud`](super::qp::QpType::Ud) and GIDs of groups get here.
///
/// # Examples
///
/// ```
/// use crate::rdma::{multicast::MulticastGroups, qp::Qp};
///
/// /// Has a QP leave one group for another.
/// fn move_to<T: MulticastGroups>(qp: &Qp<T>, from: &[u8; 16], to: &[u8; 16]) -> Result {
///     T::attach(qp, to)?;
///     T::detach(qp, from)
/// }
/// ```
pub trait MulticastGroups: ModifyQueuePairs {
    /// Has a QP receive what is sent to a group.
    fn attach(qp: &Qp<Self>, group: &[u8; 16]) -> Result;

    /// Ends that. The core does not destroy a QP as long as this has not succeeded for each group
    /// that it is attached to.
    fn detach(qp: &Qp<Self>, group: &[u8; 16]) -> Result;
}

/// # Safety
///
/// Called by the core as `attach_mcast` of a device of `T`: `qp` is created, `gid` valid.
pub(super) unsafe extern "C" fn attach<T: MulticastGroups>(
    qp: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: By the function's safety requirements; all members of the union are 16 bytes of any
    // value.
    let (qp, group) = unsafe { (Qp::<T>::from_raw(qp), &(*gid).raw) };
    from_result(|| T::attach(qp, group).map(|()| 0))
}

/// # Safety
///
/// Called by the core as `detach_mcast` of a device of `T`: `qp` is created, `gid` valid.
pub(super) unsafe extern "C" fn detach<T: MulticastGroups>(
    qp: *mut bindings::ib_qp,
    gid: *mut bindings::ib_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: By the function's safety requirements; all members of the union are 16 bytes of any
    // value.
    let (qp, group) = unsafe { (Qp::<T>::from_raw(qp), &(*gid).raw) };
    from_result(|| T::detach(qp, group).map(|()| 0))
}
