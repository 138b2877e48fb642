// SPDX-License-Identifier: GPL-2.0

//! Memory regions.
//!
//! # Examples
//!
//! ```
//! # crate::rdma::tests::null::null_driver!(MyDriver);
//!
//! use crate::rdma::{
//!     mr::{
//!         AccessFlags, DmabufMemory, DmabufRegions, FastReg, FastRegistration, MemoryRegions, Mr,
//!         MrChange, NewMr, UserMemory,
//!     },
//!     page_list::MappedPages,
//!     pd::Pd,
//!     umem::Umem,
//! };
//!
//! /// The memory of an MR.
//! enum Memory {
//!     User(Umem),
//!     Mapped(MappedPages),
//! }
//!
//! impl MemoryRegions for MyDriver {
//!     type Mr = Memory;
//!
//!     fn get_dma_mr(_pd: &Pd<Self>, _access: AccessFlags) -> Result<NewMr<Memory>> {
//!         Err(EOPNOTSUPP)
//!     }
//!
//!     fn reg_user_mr(pd: &Pd<Self>, memory: UserMemory) -> Result<NewMr<Memory>> {
//!         let umem = Umem::pin(pd.device(), memory.start, memory.length, memory.access)?;
//!         // Here the device gets the pages and chooses the keys.
//!         Ok(NewMr {
//!             lkey: 0x100,
//!             rkey: 0x100,
//!             driver: Memory::User(umem),
//!         })
//!     }
//!
//!     fn rereg_user_mr(_mr: &Mr<Self>, _pd: &Pd<Self>, change: &MrChange) -> Result {
//!         match change {
//!             MrChange::Nothing => Ok(()),
//!             MrChange::Access(_) | MrChange::Memory { .. } => Err(EOPNOTSUPP),
//!         }
//!     }
//!
//!     fn dereg_mr(_mr: &Mr<Self>) -> Result {
//!         // Here the device stops using the memory, which is dropped afterwards.
//!         Ok(())
//!     }
//! }
//!
//! impl FastRegistration for MyDriver {
//!     fn alloc_mr(pd: &Pd<Self>, max_pages: u32) -> Result<NewMr<Memory>> {
//!         Ok(NewMr {
//!             lkey: 0x200,
//!             rkey: 0x200,
//!             driver: Memory::Mapped(MappedPages::new(pd.device(), max_pages)?),
//!         })
//!     }
//!
//!     fn mapped_pages(mr: &Mr<Self>) -> Option<&MappedPages> {
//!         match &**mr {
//!             Memory::Mapped(pages) => Some(pages),
//!             Memory::User(_) => None,
//!         }
//!     }
//! }
//!
//! impl DmabufRegions for MyDriver {
//!     fn reg_dmabuf_mr(_pd: &Pd<Self>, memory: &DmabufMemory) -> Result<NewMr<Memory>> {
//!         pr_debug!("{} bytes from {} on\n", memory.length, memory.offset);
//!         Err(EOPNOTSUPP)
//!     }
//! }
//!
//! /// The address of the page list of a REG_MR, and the number of pages.
//! fn pages<T: FastRegistration>(request: &FastReg<'_, T>) -> Result<(u64, u32)> {
//!     let pages = T::mapped_pages(request.mr()).ok_or(EINVAL)?;
//!     Ok((pages.dma_address(), pages.count()))
//! }
//! ```
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    object::{
        core_object,
        CoreObject,
        Object, //
    },
    page_list::MappedPages,
    pd::{
        Pd,
        ProtectionDomains, //
    },
    udata, //
};
use crate::bindings;
use core::{
    mem::MaybeUninit,
    ptr, //
};
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A device with memory regions.
pub trait MemoryRegions: ProtectionDomains {
    /// Driver's part of an MR. Dropping it destroys the MR.
    type Mr: Send + Sync;

    /// Creates an MR over all memory, addressed by DMA addresses.
    fn get_dma_mr(pd: &Pd<Self>, access: AccessFlags) -> Result<NewMr<Self::Mr>>;

    /// Creates an MR over memory of the current process.
    fn reg_user_mr(pd: &Pd<Self>, memory: UserMemory) -> Result<NewMr<Self::Mr>>;

    /// Changes an MR over memory of the current process and moves it to PD `pd`. The MR keeps its
    /// keys. After an error the MR is unchanged. No other callback for the MR runs at the same
    /// time.
    fn rereg_user_mr(mr: &Mr<Self>, pd: &Pd<Self>, change: &MrChange) -> Result;

    /// Destroys an MR on the device. The driver's part is dropped afterwards.
    ///
    /// # Errors
    ///
    /// `EBUSY` while memory windows are bound to the MR; the MR is then unchanged.
    fn dereg_mr(mr: &Mr<Self>) -> Result;
}

/// A device with MRs over memory of other drivers.
pub trait DmabufRegions: MemoryRegions {
    /// Creates an MR over a part of a DMA buffer.
    fn reg_dmabuf_mr(pd: &Pd<Self>, memory: &DmabufMemory) -> Result<NewMr<Self::Mr>>;
}

/// A device with MRs that kernel clients map and register repeatedly by work requests (fast
/// registration, IBTA 10.6.4).
pub trait FastRegistration: MemoryRegions {
    /// Creates an MR for up to `max_pages` pages. The MR is invalid until a work request registers
    /// it.
    fn alloc_mr(pd: &Pd<Self>, max_pages: u32) -> Result<NewMr<Self::Mr>>;

    /// The pages of an MR from [`alloc_mr`](Self::alloc_mr); `None` for other MRs. Called in any
    /// context.
    fn mapped_pages(mr: &Mr<Self>) -> Option<&MappedPages>;
}

/// Access flags of memory: bits of `enum ib_access_flags`.
///
/// # Examples
///
/// ```
/// use crate::rdma::mr::AccessFlags;
///
/// let access = AccessFlags(AccessFlags::LOCAL_WRITE.0 | AccessFlags::OPTIONAL.0);
/// assert!(access.without(AccessFlags::OPTIONAL) == AccessFlags::LOCAL_WRITE);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessFlags(pub u32);

impl AccessFlags {
    /// Write access by local work requests.
    pub const LOCAL_WRITE: Self = Self(bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE);
    /// Flags that a device may ignore.
    pub const OPTIONAL: Self = Self(bindings::ib_access_flags_IB_ACCESS_OPTIONAL);

    /// The bits that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Memory of a process, for a new MR.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory {
    /// Address in the process.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address by which work requests name the first byte.
    pub iova: u64,
    /// Access flags of the MR.
    pub access: AccessFlags,
}

/// A part of a DMA buffer, for a new MR.
#[derive(Clone, Copy, Debug)]
pub struct DmabufMemory {
    /// File descriptor of the buffer in the current process.
    pub fd: c_int,
    /// Offset of the part in the buffer. The offset and `iova` are equal modulo the page size.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The address by which work requests name the first byte.
    pub iova: u64,
    /// Access flags of the MR.
    pub access: AccessFlags,
}

/// Changes to an MR over memory of a process, other than its PD.
///
/// # Examples
///
/// ```
/// use crate::rdma::mr::{AccessFlags, MrChange};
///
/// /// The access flags of an MR after a change.
/// fn access_flags(before: AccessFlags, change: &MrChange) -> AccessFlags {
///     match *change {
///         MrChange::Nothing => before,
///         MrChange::Access(access) => access,
///         MrChange::Memory { access, .. } => access.unwrap_or(before),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum MrChange {
    /// No change other than the PD.
    Nothing,
    /// New access flags.
    Access(AccessFlags),
    /// New memory.
    Memory {
        /// Address in the process.
        start: u64,
        /// Length in bytes.
        length: u64,
        /// The address by which work requests name the first byte.
        iova: u64,
        /// New access flags; `None` keeps the access flags of the MR.
        access: Option<AccessFlags>,
    },
}

/// An MR that was created.
pub struct NewMr<D> {
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// Driver's part.
    pub driver: D,
}

/// A memory region.
pub type Mr<T> = Object<bindings::ib_mr, T>;

core_object!(ib_mr, MemoryRegions, Mr, ());

/// Allocates the core's structure of an MR. The core allocates the structures of other objects
/// itself, but leaves MRs to drivers, which may pool them.
fn into_raw<T: MemoryRegions>(new: NewMr<T::Mr>) -> Result<*mut bindings::ib_mr> {
    let object = KBox::<Mr<T>>::new_uninit(GFP_KERNEL | __GFP_ZERO)?;
    let raw = KBox::into_raw(object).cast::<bindings::ib_mr>();
    // SAFETY: `raw` is the start of a zeroed allocation for an object, which nothing else refers
    // to; zeroes are a valid C structure.
    unsafe {
        (*raw).lkey = new.lkey;
        (*raw).rkey = new.rkey;
        let Ok(()) = Mr::<T>::init(raw, new.driver, ());
    }
    Ok(raw)
}

/// The pointer that `make` returns, or its error encoded as a pointer.
fn err_ptr(make: impl FnOnce() -> Result<*mut bindings::ib_mr>) -> *mut bindings::ib_mr {
    make().unwrap_or_else(Error::to_ptr)
}

/// A REG_MR work request, which makes an MR valid for the pages that were mapped last.
///
/// The client neither maps nor frees the MR while it posts the request.
pub struct FastReg<'a, T: MemoryRegions> {
    mr: &'a Mr<T>,
    key: u32,
    access: AccessFlags,
}

impl<'a, T: MemoryRegions> FastReg<'a, T> {
    /// # Safety
    ///
    /// `raw` is valid. It points to an MR of a device of `T`, which is not destroyed during `'a`.
    pub(super) unsafe fn from_raw(raw: &bindings::ib_reg_wr) -> Result<Self> {
        Ok(Self {
            // SAFETY: `raw` points to an MR of a device of `T`, which is not destroyed during `'a`.
            mr: unsafe { Mr::from_raw(raw.mr) },
            key: raw.key,
            access: AccessFlags(u32::try_from(raw.access)?),
        })
    }

    /// The MR.
    pub fn mr(&self) -> &'a Mr<T> {
        self.mr
    }

    /// The new local and remote key of the MR.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The new access flags of the MR.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// The address by which work requests name the first byte.
    pub fn iova(&self) -> u64 {
        // SAFETY: The MR is valid, and the client does not map it during the post.
        unsafe { (*self.mr.as_raw()).iova }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        // SAFETY: See `iova`.
        unsafe { (*self.mr.as_raw()).length }
    }

    /// Binary logarithm of the page size. `EINVAL` for an MR that was never mapped.
    pub fn page_shift(&self) -> Result<u8> {
        // SAFETY: See `iova`.
        let size = unsafe { (*self.mr.as_raw()).page_size };
        if !size.is_power_of_two() {
            return Err(EINVAL);
        }
        Ok(u8::try_from(size.trailing_zeros())?)
    }
}

/// # Safety
///
/// Called by the core as `get_dma_mr` of a device of `T`: `pd` is valid.
pub(super) unsafe extern "C" fn get_dma<T: MemoryRegions>(
    pd: *mut bindings::ib_pd,
    access: c_int,
) -> *mut bindings::ib_mr {
    err_ptr(|| {
        let access = AccessFlags(u32::try_from(access)?);
        // SAFETY: `pd` is valid.
        into_raw::<T>(T::get_dma_mr(unsafe { Pd::from_raw(pd) }, access)?)
    })
}

/// # Safety
///
/// Called by the core as `reg_user_mr` of a device of `T`: `pd` is valid, `dmah` null or valid,
/// `udata` valid.
pub(super) unsafe extern "C" fn reg_user<T: MemoryRegions>(
    pd: *mut bindings::ib_pd,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    err_ptr(|| {
        if !dmah.is_null() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: `udata` is valid.
        unsafe { udata::expect_none(udata) }?;
        let memory = UserMemory {
            start,
            length,
            iova,
            access: AccessFlags(u32::try_from(access)?),
        };
        // SAFETY: `pd` is valid.
        into_raw::<T>(T::reg_user_mr(unsafe { Pd::from_raw(pd) }, memory)?)
    })
}

/// # Safety
///
/// Called by the core as `reg_user_mr_dmabuf` of a device of `T`: `pd` is valid, `dmah` null or
/// valid, `attrs` valid.
pub(super) unsafe extern "C" fn reg_dmabuf<T: DmabufRegions>(
    pd: *mut bindings::ib_pd,
    offset: u64,
    length: u64,
    iova: u64,
    fd: c_int,
    access: c_int,
    dmah: *mut bindings::ib_dmah,
    attrs: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_mr {
    err_ptr(|| {
        if !dmah.is_null() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: `attrs` is valid.
        unsafe {
            udata::expect_none(&raw mut (*attrs).__bindgen_anon_1.hdr.driver_udata)?;
        }
        let memory = DmabufMemory {
            fd,
            offset,
            length,
            iova,
            access: AccessFlags(u32::try_from(access)?),
        };
        // SAFETY: `pd` is valid.
        let raw = into_raw::<T>(T::reg_dmabuf_mr(unsafe { Pd::from_raw(pd) }, &memory)?)?;
        // SAFETY: The MR is valid, and nothing else refers to it yet. The core itself sets these
        // fields only for MRs of `reg_user`.
        unsafe { ((*raw).iova, (*raw).length) = (iova, length) };
        Ok(raw)
    })
}

/// # Safety
///
/// Called by the core as `rereg_user_mr` of a device of `T`: `mr` is an MR of this device over
/// memory of a process, `new_pd` and `udata` are valid.
pub(super) unsafe extern "C" fn rereg_user<T: MemoryRegions>(
    mr: *mut bindings::ib_mr,
    flags: c_int,
    start: u64,
    length: u64,
    iova: u64,
    access: c_int,
    new_pd: *mut bindings::ib_pd,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_mr {
    err_ptr(|| {
        // SAFETY: `udata` is valid.
        unsafe { udata::expect_none(udata) }?;
        let changes = |flag: bindings::ib_mr_rereg_flags| flags & flag as c_int != 0;
        let access = changes(bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS)
            .then(|| u32::try_from(access).map(AccessFlags))
            .transpose()?;
        let change = if changes(bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS) {
            MrChange::Memory {
                start,
                length,
                iova,
                access,
            }
        } else {
            access.map_or(MrChange::Nothing, MrChange::Access)
        };
        // SAFETY: `mr` is an MR of this device, and `new_pd` is valid.
        let (old, pd) = unsafe { (Mr::from_raw(mr), Pd::from_raw(new_pd)) };
        T::rereg_user_mr(old, pd, &change)?;
        // Null, since the MR is changed in place and no new MR replaces it.
        Ok(ptr::null_mut())
    })
}

/// # Safety
///
/// Called by the core as `dereg_mr` of a device of `T`: `raw` is an MR of this device that nothing
/// uses any more, `udata` is null or valid.
pub(super) unsafe extern "C" fn dereg<T: MemoryRegions>(
    raw: *mut bindings::ib_mr,
    udata: *mut bindings::ib_udata,
) -> c_int {
    from_result(|| {
        // SAFETY: `udata` is null or valid.
        unsafe { udata::expect_none(udata) }?;
        // SAFETY: `raw` is an MR of this device.
        T::dereg_mr(unsafe { Mr::from_raw(raw) })?;
        // SAFETY: `into_raw` allocated the MR in a box, and there is no other reference.
        unsafe {
            Mr::<T>::drop_parts(raw);
            drop(KBox::from_raw(raw.cast::<MaybeUninit<Mr<T>>>()));
        }
        Ok(0)
    })
}

/// # Safety
///
/// Called by the core as `alloc_mr` of a device of `T`: `pd` is valid.
pub(super) unsafe extern "C" fn alloc<T: FastRegistration>(
    pd: *mut bindings::ib_pd,
    mr_type: bindings::ib_mr_type,
    max_pages: u32,
) -> *mut bindings::ib_mr {
    err_ptr(|| {
        if mr_type != bindings::ib_mr_type_IB_MR_TYPE_MEM_REG {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: `pd` is valid.
        into_raw::<T>(T::alloc_mr(unsafe { Pd::from_raw(pd) }, max_pages)?)
    })
}

/// # Safety
///
/// Called by the core as `map_mr_sg` of a device of `T`: `mr` is an MR of this device that no work
/// request uses, `list` is mapped and has `count` entries, `offset` is null or writable.
pub(super) unsafe extern "C" fn map<T: FastRegistration>(
    mr: *mut bindings::ib_mr,
    list: *mut bindings::scatterlist,
    count: c_int,
    offset: *mut c_uint,
) -> c_int {
    from_result(|| {
        // SAFETY: `mr` is an MR of this device that no work request uses.
        let pages = T::mapped_pages(unsafe { Mr::from_raw(mr) }).ok_or(EINVAL)?;
        pages.clear();
        // SAFETY: `list` is mapped and has `count` entries, and `offset` is null or writable.
        Ok(unsafe { bindings::ib_sg_to_pages(mr, list, count, offset, Some(map_page::<T>)) })
    })
}

/// # Safety
///
/// Called by `ib_sg_to_pages` on behalf of [`map`].
unsafe extern "C" fn map_page<T: FastRegistration>(
    mr: *mut bindings::ib_mr,
    address: u64,
) -> c_int {
    from_result(|| {
        // SAFETY: `ib_sg_to_pages` passes the MR of `map`, which is one of this device.
        let pages = T::mapped_pages(unsafe { Mr::from_raw(mr) }).ok_or(EINVAL)?;
        pages.push(address)?;
        Ok(0)
    })
}
