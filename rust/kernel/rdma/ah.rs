// SPDX-License-Identifier: GPL-2.0

//! Address handles.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    gid::GidEntry,
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    pd::{
        Pd,
        ProtectionDomains, //
    },
    qp_attr::AhAttr,
    Udata, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with address handles.
///
/// Kernel clients create and destroy AHs also with locks held and in interrupts. So only
/// [`create_user_ah`](Self::create_user_ah) may sleep. The other functions of this trait and the
/// drop of an [`Ah`](Self::Ah) must not.
///
/// # Examples
///
/// ```
/// # crate::rdma::tests::null::null_driver!(MyDriver);
///
/// use crate::rdma::{
///     ah::{AddressHandles, Ah, AhInitAttr},
///     pd::Pd,
///     qp_attr::AhAttr,
///     Udata,
/// };
///
/// impl AddressHandles for MyDriver {
///     /// The path, which each work request carries to the device.
///     type Ah = AhAttr;
///
///     fn create_ah(_pd: &Pd<Self>, init: &AhInitAttr<'_>) -> Result<AhAttr> {
///         Ok(*init.attr())
///     }
///
///     fn create_user_ah(
///         pd: &Pd<Self>,
///         init: &AhInitAttr<'_>,
///         udata: &Udata<'_>,
///     ) -> Result<AhAttr> {
///         udata.no_request()?;
///         Self::create_ah(pd, init)
///     }
///
///     fn query_ah(ah: &Ah<Self>) -> AhAttr {
///         **ah
///     }
/// }
/// ```
pub trait AddressHandles: ProtectionDomains {
    /// Driver's part of an AH. Dropping it destroys the AH.
    type Ah: Send + Sync;

    /// Creates an AH of a kernel client.
    fn create_ah(pd: &Pd<Self>, init: &AhInitAttr<'_>) -> Result<Self::Ah>;

    /// Creates an AH of a process.
    fn create_user_ah(pd: &Pd<Self>, init: &AhInitAttr<'_>, udata: &Udata<'_>) -> Result<Self::Ah>;

    /// The path of an AH.
    fn query_ah(ah: &Ah<Self>) -> AhAttr;
}

/// Attributes of a new AH.
///
/// # Examples
///
/// ```
/// use crate::rdma::ah::AhInitAttr;
///
/// /// The destination GID, if the source address belongs to the path's port.
/// fn destination(init: &AhInitAttr<'_>) -> Result<[u8; 16]> {
///     let attr = init.attr();
///     (init.source().port() == attr.port_num).then_some(attr.dgid).ok_or(EINVAL)
/// }
/// ```
pub struct AhInitAttr<'a> {
    attr: AhAttr,
    source: GidEntry<'a>,
}

impl<'a> AhInitAttr<'a> {
    /// # Safety
    ///
    /// `raw` points to a path, of which [`AhAttr::from_raw`] says what is initialized. The entry of
    /// the GID table that the path points to is valid for `'a`.
    unsafe fn from_raw(raw: *const bindings::rdma_ah_init_attr) -> Result<Self> {
        // SAFETY: `raw` points to a path.
        let raw = unsafe { (*raw).ah_attr };
        // SAFETY: `raw` points to a path that is initialized as `AhAttr::from_raw` requires it.
        let attr = unsafe { AhAttr::from_raw(raw) }?;
        // SAFETY: The path's global route is initialized, since `AhAttr` refuses a path without
        // one.
        let source = unsafe { (*raw).grh.sgid_attr };
        if source.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The entry that the path points to is valid for `'a`.
        let source = unsafe { GidEntry::from_raw(source) };
        Ok(Self { attr, source })
    }

    /// The path, with the resolved MAC address.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The source address. It may be deleted before the AH, but no other address gets its index as
    /// long as the AH exists.
    pub fn source(&self) -> &GidEntry<'a> {
        &self.source
    }
}

/// An address handle.
pub type Ah<T> = Object<bindings::ib_ah, T>;

core_object!(ib_ah, AddressHandles, Ah, ());

/// Initializes the AH `raw` with the driver's part that `create` returns.
///
/// # Safety
///
/// `raw` is allocated by the core for a device of `T` and not in use; `init`, and everything that
/// it points to, are valid.
unsafe fn create_with<T: AddressHandles>(
    raw: *mut bindings::ib_ah,
    init: *const bindings::rdma_ah_init_attr,
    create: impl FnOnce(&Pd<T>, &AhInitAttr<'_>) -> Result<T::Ah>,
) -> Result<c_int> {
    // SAFETY: `init` and everything that it points to are valid.
    let init = unsafe { AhInitAttr::from_raw(init) }?;
    // SAFETY: The core has set the PD, which is not destroyed before its AHs.
    let pd = unsafe { Pd::<T>::from_raw((*raw).pd) };
    let driver = create(pd, &init)?;
    // SAFETY: `raw` has the size that the operations state and is not in use yet.
    let Ok(()) = unsafe { Ah::<T>::init(raw, driver, ()) };
    Ok(0)
}

/// # Safety
///
/// Called by the core as `create_ah` of a device of `T`: `ah` is allocated and not in use, `init`
/// valid and its source GID held, `udata` null.
pub(super) unsafe extern "C" fn create<T: AddressHandles>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    _udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: `ah` is allocated and not in use, `init` is valid, and the core holds its source GID.
    from_result(|| unsafe { create_with::<T>(ah, init, T::create_ah) })
}

/// # Safety
///
/// Called by the core as `create_user_ah` of a device of `T`: `ah` is allocated and not in use,
/// `init` valid and its source GID held, `udata` valid.
pub(super) unsafe extern "C" fn create_user<T: AddressHandles>(
    ah: *mut bindings::ib_ah,
    init: *mut bindings::rdma_ah_init_attr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is valid.
        let udata = unsafe { Udata::of_process(udata) }?;
        // SAFETY: `ah` is allocated and not in use, `init` is valid, and the core holds its source
        // GID.
        unsafe { create_with::<T>(ah, init, |pd, init| T::create_user_ah(pd, init, &udata)) }
    })
}

/// # Safety
///
/// Called by the core as `query_ah` of a device of `T`: `ah` is created, `attr` is writable and may
/// be uninitialized.
pub(super) unsafe extern "C" fn query<T: AddressHandles>(
    ah: *mut bindings::ib_ah,
    attr: *mut bindings::rdma_ah_attr,
) -> c_int {
    // SAFETY: `ah` is created.
    let queried = T::query_ah(unsafe { Ah::<T>::from_raw(ah) });
    // SAFETY: `attr` is writable. Zeroes are a valid value of the structure.
    unsafe {
        attr.write_bytes(0, 1);
        queried.write(&mut *attr);
    }
    0
}

/// # Safety
///
/// Called by the core as `destroy_ah` of a device of `T`: `ah` was created and nothing uses it any
/// more.
pub(super) unsafe extern "C" fn destroy<T: AddressHandles>(
    ah: *mut bindings::ib_ah,
    _flags: u32,
) -> c_int {
    // SAFETY: Nothing uses `ah` any more, so there is no other reference.
    unsafe { Ah::<T>::drop_parts(ah) };
    0
}
