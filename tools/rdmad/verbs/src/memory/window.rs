// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows (IBTA 10.6.7): access of peers to a part of an MR, under a separate R_Key.
//!
//! A type 1 window can be bound and rebound by any QP of its PD, and used through any of them. A
//! type 2 (2B) window must be invalidated before it is bound again, and works only at the QP that
//! bound it. A bound window of either type uses the pages of its MR, which can't be destroyed while
//! a window is bound to it.

mod saved;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use budget::{Charge, MemoryBudget};
use roce::work::WcReason;
use scheduler::shared::Mutex;
use virtio_rdma_abi::ib::{AccessFlags, MwType};
use virtio_rdma_abi::number::{MrNumber, MwNumber, Pdn, Qpn};

pub(crate) use self::saved::WindowState;
use super::key_fault::{KeyFault, KeyResult};
use super::mr::{number_of, Variants};
use super::region::{drain, writes_need_local_write};
use super::{Mr, Region};
use crate::config::BOOKKEEPING;
use crate::error::{Result, What};
use crate::pd::PdUse;
use crate::shuffle::Secret;
use crate::table::Table;

/// Access flags that a binding may request. Local flags are accepted but not granted: a window has
/// no L_Key.
const ACCESS: AccessFlags = AccessFlags(
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
    pd: PdUse,
    mw_type: MwType,
    state: Mutex<Inner>,
    _charge: Charge,
}

#[derive(Debug)]
struct Inner {
    /// Current R_Key.
    key: u32,
    bound: Option<Bound>,
}

/// The binding of a window.
#[derive(Debug)]
struct Bound {
    region: Arc<Region>,
    /// The QP to which a type 2 window is bound.
    qpn: Option<Qpn>,
    /// Use of the MR. Dropped after `region`'s last user is gone.
    mr: WindowUse,
}

/// The QP for which a key is used: for its own work requests or for requests of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyUser {
    /// PD of the QP.
    pub pdn: Pdn,
    /// QPN of the QP.
    pub qpn: Qpn,
}

/// The operation of a BIND_MW work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MwBind {
    /// R_Key of the window before the binding. For a type 2 window or an unbound one, only the
    /// window's number in this key is used.
    pub old_key: u32,
    /// R_Key of the window after the binding.
    pub new_key: u32,
    /// Access flags of the window.
    pub access: AccessFlags,
    /// Address of the window's first byte in the MR.
    pub addr: u64,
    /// Length in bytes; 0 to unbind.
    pub len: u64,
}

impl MwBind {
    /// The part of `region`, an MR's memory, that the window will cover. Fails if the part is not
    /// inside the MR, if the MR does not permit windows or is zero-based, or if the window grants
    /// remote write access and the MR has no local write access (IBTA C10-73 to C10-75).
    fn cut(&self, region: &Region) -> KeyResult<Region> {
        let granted = region.access();
        let admits = granted.contains(AccessFlags::MW_BIND)
            && !granted.contains(AccessFlags::ZERO_BASED)
            && (!writes_need_local_write(self.access)
                || granted.contains(AccessFlags::LOCAL_WRITE));
        if !admits {
            return Err(KeyFault(WcReason::AccessNotGranted));
        }
        let access = self.access.without(AccessFlags::LOCAL_WRITE);
        let window = region.window(self.new_key, access, self.addr, self.len);
        window.ok_or(KeyFault(WcReason::OutOfBounds))
    }
}

/// The memory windows of an HCA.
#[derive(Debug)]
pub(crate) struct WindowTable {
    table: Table<MwNumber, Window>,
    first: u32,
    variants: Variants<MwNumber>,
    /// Memory that the HCA may allocate.
    budget: MemoryBudget,
}

impl WindowTable {
    /// An empty table for windows whose numbers are in `numbers`.
    pub(super) fn new(secret: &Secret, budget: &MemoryBudget, numbers: Range<u32>) -> Self {
        Self {
            budget: budget.clone(),
            first: numbers.start,
            variants: Variants::new(secret, numbers.clone()),
            table: Table::new(secret, numbers),
        }
    }

    /// Whether `key` is the key of a window rather than of an MR.
    #[inline]
    pub(super) fn owns(&self, key: u32) -> bool {
        number_of::<MwNumber>(key).get() >= self.first
    }

    /// The charge for a window and its binding.
    fn charge(&self) -> Result<Charge> {
        let bound = size_of::<Region>() + BOOKKEEPING;
        Ok(self.budget.charge_object::<Window>(bound)?)
    }

    /// Creates an unbound window. Returns its number and key.
    pub(crate) fn insert(&self, pd: PdUse, mw_type: MwType) -> Result<(MwNumber, u32)> {
        let charge = self.charge()?;
        let reserved = self.table.number(What::Mwn)?;
        let number = reserved.number();
        let key = self.variants.key(number);
        reserved.insert(Arc::new(Window {
            number,
            pd,
            mw_type,
            state: Mutex::new(Inner { key, bound: None }),
            _charge: charge,
        }));
        Ok((number, key))
    }

    /// Removes a window: its key is invalid from now on. Workers may use the window until the
    /// caller has synchronized with them. After that [`release`](Self::release) frees the number.
    pub(crate) fn remove(&self, number: MwNumber) -> Option<Arc<Window>> {
        self.table.remove(number)
    }

    /// Unbinds a removed window and frees its number. Returns the QP to which a type 2 window was
    /// bound.
    pub(crate) fn release(&self, window: &Window) -> Option<Qpn> {
        let (key, bound) = {
            let mut state = window.state.lock();
            (state.key, state.bound.take())
        };
        // The next window with this number must not start with the last key of this one.
        self.variants.note(key);
        let qpn = bound.as_ref().and_then(|bound| bound.qpn);
        if let Some(bound) = bound {
            bound.end();
        }
        self.table.release(window.number);
        qpn
    }

    pub(crate) fn numbers(&self) -> Vec<MwNumber> {
        self.table.iter().map(|window| window.number).collect()
    }

    /// Binds a window to a part of `mr`, or unbinds it if `mr` is `None`, for a work request of QP
    /// `by`. Returns the window's number if only this QP may use the binding. On return no thread
    /// uses the memory of the old binding any more. The caller must have no
    /// [`Message`](super::Message) open.
    pub(super) fn bind(
        &self,
        by: KeyUser,
        wanted: &MwBind,
        mr: Option<&Arc<Mr>>,
    ) -> KeyResult<Option<MwNumber>> {
        let number: MwNumber = number_of(wanted.old_key);
        let window = self.table.get(number);
        let window = window.ok_or(KeyFault(WcReason::NoSuchKey))?;
        let is_two = window.mw_type == MwType::Two;
        if window.pd.number() != by.pdn {
            return Err(KeyFault(WcReason::OtherPd));
        }
        if number_of::<MwNumber>(wanted.new_key) != number {
            return Err(KeyFault(WcReason::KeyMismatch));
        }
        if !ACCESS.contains(wanted.access) {
            return Err(KeyFault(WcReason::BadAccessFlags));
        }
        // Only an invalidation unbinds a type 2 window (IBTA o10-37.2.40).
        if is_two && mr.is_none() {
            return Err(KeyFault(WcReason::UnsuitableKey));
        }
        let bound = match mr {
            None => None,
            Some(mr) => {
                let memory = mr.fixed().ok_or(KeyFault(WcReason::UnsuitableKey))?;
                let region = wanted.cut(memory)?;
                Some(Bound {
                    region: Arc::new(region),
                    qpn: is_two.then_some(by.qpn),
                    mr: WindowUse::new(mr).ok_or(KeyFault(WcReason::KeyRevoked))?,
                })
            }
        };
        let before = {
            let mut state = window.state.lock();
            match window.mw_type {
                MwType::One if state.key != wanted.old_key => {
                    return Err(KeyFault(WcReason::NoSuchKey));
                }
                MwType::Two if state.bound.is_some() => {
                    return Err(KeyFault(WcReason::KeyInUse));
                }
                MwType::One | MwType::Two => {}
            }
            state.key = wanted.new_key;
            std::mem::replace(&mut state.bound, bound)
        };
        if let Some(before) = before {
            before.end();
        }
        Ok(is_two.then_some(number))
    }

    /// Unbinds the type 2 window that `key` names, for work of the QP that bound it. On return no
    /// thread uses the window's memory any more. The caller must have no
    /// [`Message`](super::Message) open.
    pub(super) fn invalidate(&self, key: u32, by: KeyUser) -> KeyResult<()> {
        let window = self.table.get(number_of(key));
        let window = window.ok_or(KeyFault(WcReason::NoSuchKey))?;
        let bound = {
            let mut state = window.state.lock();
            state.check(&window, key, by)?;
            if window.mw_type == MwType::One {
                return Err(KeyFault(WcReason::UnsuitableKey));
            }
            state.bound.take()
        };
        if let Some(bound) = bound {
            bound.end();
        }
        Ok(())
    }

    /// Unbinds window `number` if it is bound to QP `qpn`, which is being destroyed.
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

    /// Like [`MrTable::fault`](super::MrTable::fault), for a key of a window.
    #[cold]
    pub(super) fn fault(
        &self,
        key: u32,
        by: KeyUser,
        range: Option<(u64, u64)>,
        access: AccessFlags,
    ) -> KeyFault {
        let Some(window) = self.table.get(number_of(key)) else {
            return KeyFault(WcReason::NoSuchKey);
        };
        let state = window.state.lock();
        match state.check(&window, key, by) {
            Ok(bound) => bound.region.fault(range, access),
            Err(fault) => fault,
        }
    }

    /// Calls `visit` with the memory of the window that `key` names, if the window is bound and the
    /// peer of QP `by` may use it. To be called within a turn.
    #[inline]
    pub(super) fn visit<R>(
        &self,
        key: u32,
        by: KeyUser,
        visit: impl FnOnce(&Arc<Region>) -> R,
    ) -> Option<R> {
        let held = self.table.hold(number_of(key))?;
        let window = held.get()?;
        let state = window.state.lock();
        let bound = state.check(window, key, by).ok()?;
        Some(visit(&bound.region))
    }
}

impl Inner {
    /// The binding of `window` under `key`, which QP `by` may use.
    fn check(&self, window: &Window, key: u32, by: KeyUser) -> KeyResult<&Bound> {
        if self.key != key {
            return Err(KeyFault(WcReason::NoSuchKey));
        }
        if window.pd.number() != by.pdn {
            return Err(KeyFault(WcReason::OtherPd));
        }
        let bound = self.bound.as_ref();
        let bound = bound.ok_or(KeyFault(WcReason::KeyRevoked))?;
        match bound.qpn {
            Some(qpn) if qpn != by.qpn => Err(KeyFault(WcReason::OtherQp)),
            _ => Ok(bound),
        }
    }
}

impl Bound {
    /// Waits until no thread uses the memory of this former binding any more.
    fn end(self) {
        drain(self.region);
    }
}

/// Number of windows bound to an MR, or [`CLOSED`].
#[derive(Debug, Default)]
pub(super) struct WindowCount(AtomicU32);

/// Value of a [`WindowCount`] whose MR is being removed or replaced: no window is bound to the MR,
/// and no window can be bound to it.
const CLOSED: u32 = u32::MAX;

impl WindowCount {
    /// Number of windows that are bound to the MR.
    pub(super) fn bound(&self) -> u32 {
        match self.0.load(Ordering::Acquire) {
            CLOSED => 0,
            bound => bound,
        }
    }

    /// Prevents new bindings if no window is bound to the MR. Returns false if a window is bound.
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

impl WindowUse {
    fn number(&self) -> MrNumber {
        self.0.number()
    }
}

impl Drop for WindowUse {
    fn drop(&mut self) {
        self.0.windows().0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
