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

/// A device whose queue pairs can be attached to multicast groups. The GID of a group, in network
/// byte order, identifies the group; on Ethernet a group has no LID.
///
/// The core calls these functions only for QPs of type [`Ud`](super::qp::QpType::Ud) and for
/// multicast GIDs.
///
/// # Examples
///
/// ```
/// use crate::rdma::{multicast::MulticastGroups, qp::Qp};
///
/// /// Moves a QP from one group to another.
/// fn move_to<T: MulticastGroups>(qp: &Qp<T>, from: &[u8; 16], to: &[u8; 16]) -> Result {
///     T::attach(qp, to)?;
///     T::detach(qp, from)
/// }
/// ```
pub trait MulticastGroups: ModifyQueuePairs {
    /// Attaches a QP to a group: the QP receives datagrams to the group.
    fn attach(qp: &Qp<Self>, group: &[u8; 16]) -> Result;

    /// Detaches a QP from a group. The core does not destroy a QP before `detach` has succeeded for
    /// all groups of the QP.
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
    // SAFETY: `qp` is created and `gid` valid; all members of the union are 16 bytes of any value.
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
    // SAFETY: `qp` is created and `gid` valid; all members of the union are 16 bytes of any value.
    let (qp, group) = unsafe { (Qp::<T>::from_raw(qp), &(*gid).raw) };
    from_result(|| T::detach(qp, group).map(|()| 0))
}
