// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows (IBTA 10.6.7): rights of peers to a part of an MR under an R_Key of their own.
//!
//! A window of type 1 is bound, and bound anew, by any QP of its PD and reached by any. One of type
//! 2 (2B) is bound once until it is invalidated, and only the QP that bound it reaches it. The
//! memory is found through the pages of the MR, which stays as long as a window is bound to it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use budget::{Budget, Charge};
use parking_lot::Mutex;
use virtio_rdma_abi::ib::{AccessFlags, MwType};
use virtio_rdma_abi::number::{MwNumber, Pdn, Qpn};

use super::mr::{number_of, KeyResult, Variants};
use super::region::{drain, writes_need_local_write};
use super::{KeyFault, Mr, Region};
use crate::config::BOOKKEEPING;
use crate::error::{Errno, Result};
use crate::pd::PdUse;
use crate::shuffle::Secret;
use crate::table::Table;

/// Rights that a window may have. It gives none of this side, whatever is asked for: it has no
/// L_Key.
const RIGHTS: AccessFlags = AccessFlags(
    AccessFlags::LOCAL_WRITE.0
        | AccessFlags::REMOTE_WRITE.0
        | AccessFlags::REMOTE_READ.0
        | AccessFlags::REMOTE_ATOMIC.0
        | AccessFlags::ZERO_BASED.0
        | AccessFlags::FLUSH_GLOBAL.0,
);

/// A memory window.
#[derive(Debug)]
pub(crate) struct Window {
    number: MwNumber,
    /// PD that it belongs to.
    pd: PdUse,
    mw_type: MwType,
    state: Mutex<WindowState>,
    _charge: Charge,
}

#[derive(Debug)]
struct WindowState {
    /// R_Key.
    key: u32,
    bound: Option<Bound>,
}

/// The binding of a window.
#[derive(Debug)]
struct Bound {
    region: Arc<Region>,
    /// The QP that a window of type 2 belongs to.
    qpn: Option<Qpn>,
    /// Given back when nobody uses the region any more.
    _mr: WindowUse,
}

/// The user of a remote key: work of the peer at a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUser {
    /// PD of the QP.
    pub pdn: Pdn,
    /// QPN.
    pub qpn: Qpn,
}

/// The operation of a BIND_MW work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    /// R_Key of the window until now, of which only the number matters if that is not bound anyway,
    /// as of type 2,
    pub old_key: u32,
    /// and from now on.
    pub new_key: u32,
    /// Rights.
    pub access: AccessFlags,
    /// Address of the first byte in the MR.
    pub addr: u64,
    /// Bytes; none to unbind.
    pub len: u64,
}

impl Binding {
    /// The part of `region` that the window is to show: there must be such a part, the MR must
    /// admit windows, and rights to write need the local right (IBTA C10-73 to C10-75). An MR whose
    /// addresses count from 0 has no windows.
    fn cut(&self, region: &Region) -> KeyResult<Region> {
        let rights = region.access();
        let admits = rights.contains(AccessFlags::MW_BIND)
            && !rights.contains(AccessFlags::ZERO_BASED)
            && (!writes_need_local_write(self.access) || rights.contains(AccessFlags::LOCAL_WRITE));
        let access = self.access.without(AccessFlags::LOCAL_WRITE);
        admits
            .then(|| region.window(self.new_key, access, self.addr, self.len))
            .flatten()
            .ok_or(KeyFault)
    }
}

/// The memory windows of a device.
#[derive(Debug)]
pub(crate) struct WindowTable {
    table: Table<MwNumber, Window>,
    first: u32,
    variants: Variants<MwNumber>,
    /// Memory that the device may allocate.
    budget: Budget,
}

impl WindowTable {
    /// An empty table for the numbers in `numbers`.
    pub(super) fn new(secret: &Secret, budget: &Budget, numbers: Range<u32>) -> Self {
        Self {
            budget: budget.clone(),
            first: numbers.start,
            variants: Variants::new(secret, numbers.clone()),
            table: Table::new(secret, numbers),
        }
    }

    /// Whether `key` is that of a window, if of anything.
    #[inline]
    pub(super) fn owns(&self, key: u32) -> bool {
        number_of::<MwNumber>(key).get() >= self.first
    }

    /// Makes a new window, which is not bound, and returns its number and key.
    pub(crate) fn insert(&self, pd: PdUse, mw_type: MwType) -> Result<(MwNumber, u32)> {
        // Memory for a window and its binding.
        let bound = size_of::<Region>() + BOOKKEEPING;
        let charge = self.budget.charge_object::<Window>(bound)?;
        let reserved = self.table.reserve().ok_or(Errno::NOMEM)?;
        let number = reserved.number();
        let key = self.variants.key(number);
        reserved.insert(Arc::new(Window {
            number,
            pd,
            mw_type,
            state: Mutex::new(WindowState { key, bound: None }),
            _charge: charge,
        }));
        Ok((number, key))
    }

    /// Removes a window: its key opens nothing from now on. Workers may still be at it until they
    /// are synchronised with; then its number is given back by [`release`](Self::release).
    pub(crate) fn remove(&self, number: MwNumber) -> Option<Arc<Window>> {
        self.table.remove(number)
    }

    /// Unbinds a removed window and gives its number back. Returns the QP that it belonged to, if
    /// it was bound to one.
    pub(crate) fn release(&self, window: &Window) -> Option<Qpn> {
        let (key, bound) = {
            let mut state = window.state.lock();
            (state.key, state.bound.take())
        };
        // The next window with this number starts with another key than this one ended with.
        self.variants.note(key);
        let qpn = bound.as_ref().and_then(|bound| bound.qpn);
        if let Some(bound) = bound {
            bound.end();
        }
        self.table.release(window.number);
        qpn
    }

    /// The numbers of all windows.
    pub(crate) fn numbers(&self) -> Vec<MwNumber> {
        self.table.iter().map(|window| window.number).collect()
    }

    /// Binds a window to a part of `mr`, or to nothing if there is none, for work of a QP. Returns
    /// its number if it belongs to that QP now. On return nobody uses what it was bound to before.
    /// The caller has no [`Message`](super::Message) open.
    pub(super) fn bind(
        &self,
        by: KeyUser,
        wanted: &Binding,
        mr: Option<&Arc<Mr>>,
    ) -> KeyResult<Option<MwNumber>> {
        let number: MwNumber = number_of(wanted.old_key);
        let window = self.table.get(number).ok_or(KeyFault)?;
        let is_two = window.mw_type == MwType::Two;
        // Only the invalidation unbinds a window of type 2 (IBTA o10-37.2.40).
        if window.pd.number() != by.pdn
            || number_of::<MwNumber>(wanted.new_key) != number
            || !RIGHTS.contains(wanted.access)
            || is_two && mr.is_none()
        {
            return Err(KeyFault);
        }
        let bound = match mr {
            None => None,
            Some(mr) => {
                let region = wanted.cut(mr.fixed().ok_or(KeyFault)?)?;
                Some(Bound {
                    region: Arc::new(region),
                    qpn: is_two.then_some(by.qpn),
                    _mr: WindowUse::new(mr).ok_or(KeyFault)?,
                })
            }
        };
        let before = {
            let mut state = window.state.lock();
            let admits = match window.mw_type {
                MwType::One => state.key == wanted.old_key,
                MwType::Two => state.bound.is_none(),
            };
            if !admits {
                return Err(KeyFault);
            }
            state.key = wanted.new_key;
            std::mem::replace(&mut state.bound, bound)
        };
        if let Some(before) = before {
            before.end();
        }
        Ok(is_two.then_some(number))
    }

    /// Unbinds the window of type 2 that `key` names, for work of the QP that bound it. On return
    /// nobody uses its memory any more. The caller has no [`Message`](super::Message) open.
    pub(super) fn invalidate(&self, key: u32, by: KeyUser) -> KeyResult<()> {
        let window = self.table.get(number_of(key)).ok_or(KeyFault)?;
        let bound = {
            let mut state = window.state.lock();
            let valid = window.pd.number() == by.pdn && state.key == key;
            match &state.bound {
                Some(bound) if valid && bound.qpn == Some(by.qpn) => {}
                _ => return Err(KeyFault),
            }
            state.bound.take()
        };
        if let Some(bound) = bound {
            bound.end();
        }
        Ok(())
    }

    /// Unbinds window `number` if it belongs to QP `qpn`, which is no more.
    pub(crate) fn unbind_for(&self, number: MwNumber, qpn: Qpn) {
        let unbind = |window: &Window| {
            let mut state = window.state.lock();
            let belongs = |bound: &&mut Bound| bound.qpn == Some(qpn);
            match state.bound.as_mut().filter(belongs) {
                Some(_) => state.bound.take(),
                None => None,
            }
        };
        if let Some(bound) = self.table.with(number, unbind).flatten() {
            bound.end();
        }
    }

    /// Calls `visit` with what the window that `key` names shows to work of the peer at a QP, if
    /// anything.
    #[inline]
    pub(super) fn visit<R>(
        &self,
        key: u32,
        by: KeyUser,
        visit: impl FnOnce(&Arc<Region>) -> R,
    ) -> Option<R> {
        let visit = |window: &Window| {
            if window.pd.number() != by.pdn {
                return None;
            }
            let state = window.state.lock();
            let bound = state.bound.as_ref()?;
            bound
                .qpn
                .is_none_or(|qpn| qpn == by.qpn)
                .then(|| visit(&bound.region))
        };
        self.table.with(number_of(key), visit).flatten()
    }
}

impl Bound {
    /// Waits until nobody uses the memory any more.
    fn end(self) {
        drain(self.region);
    }
}

/// How many windows are bound to an MR, or that there will be none any more.
#[derive(Debug, Default)]
pub(super) struct WindowCount(AtomicU32);

/// No window is bound any more.
const CLOSED: u32 = u32::MAX;

impl WindowCount {
    /// Admits no window any more, unless there are some. Returns whether there are none.
    pub(super) fn close(&self) -> bool {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

/// Use of an MR by a window that is bound to it.
#[derive(Debug)]
struct WindowUse(Arc<Mr>);

impl WindowUse {
    fn new(mr: &Arc<Mr>) -> Option<Self> {
        let one_more = |count| (count < CLOSED - 1).then(|| count + 1);
        mr.windows()
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()?;
        Some(Self(mr.clone()))
    }
}

impl Drop for WindowUse {
    fn drop(&mut self) {
        self.0.windows().0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
