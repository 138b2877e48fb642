// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    device::IbDevice,
    dmabuf,
    pages::Pages,
    peer_memory, //
};
use crate::{
    abi::{
        ctrl::{
            CmdCreateMr,
            CmdDeregMr,
            CmdGetDmaMr,
            CmdRegUserMr,
            CmdRegUserMrPages,
            CmdReregMr,
            ReregFlags,
            RspMr, //
        },
        feature::Feature,
        ib,
        number::MrNumber, //
    },
    ctrl::Failure,
    decode::config::Limits,
    device::Device,
    rdma::{
        self,
        mr::{
            AccessFlags,
            FastRegistration,
            MemoryRegions,
            MrChange,
            NewMr,
            UserMemory, //
        },
        page_list::MappedPages,
        pd::Pd,
        umem::Umem, //
    }, //
};
use core::mem::take;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

/// The access flags that all MRs of this device can grant, and that all of its QPs permit.
pub(super) const SUPPORTED: ib::AccessFlags = ib::AccessFlags(
    ib::AccessFlags::LOCAL_WRITE.0
        | ib::AccessFlags::REMOTE_WRITE.0
        | ib::AccessFlags::REMOTE_READ.0
        | ib::AccessFlags::REMOTE_ATOMIC.0,
);

/// Hints without effect here: a page list names each pinned page in any case.
const HINTS: ib::AccessFlags = ib::AccessFlags::HUGETLB;

/// Access flags that QPs of processes permit in addition to [`SUPPORTED`].
pub(super) const FLUSHES: ib::AccessFlags =
    ib::AccessFlags(ib::AccessFlags::FLUSH_GLOBAL.0 | ib::AccessFlags::FLUSH_PERSISTENT.0);

/// The access flags that MRs of processes can grant in addition to [`SUPPORTED`].
pub(super) fn optional_access_flags(limits: &Limits) -> ib::AccessFlags {
    let mut access = ib::AccessFlags::NONE;
    if limits.has(Feature::MemWindows) {
        access = access | ib::AccessFlags::MW_BIND;
    }
    if limits.has(Feature::Flush) {
        access = access | ib::AccessFlags::FLUSH_GLOBAL;
    }
    access
}

// Values are converted below, and by `modify` for the access flags that QPs permit.
assert_same! {
    ib::AccessFlags::LOCAL_WRITE.0 => ib_access_flags_IB_ACCESS_LOCAL_WRITE,
    ib::AccessFlags::REMOTE_WRITE.0 => ib_access_flags_IB_ACCESS_REMOTE_WRITE,
    ib::AccessFlags::REMOTE_READ.0 => ib_access_flags_IB_ACCESS_REMOTE_READ,
    ib::AccessFlags::REMOTE_ATOMIC.0 => ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
    ib::AccessFlags::MW_BIND.0 => ib_access_flags_IB_ACCESS_MW_BIND,
    ib::AccessFlags::ZERO_BASED.0 => ib_access_flags_IB_ZERO_BASED,
    ib::AccessFlags::ON_DEMAND.0 => ib_access_flags_IB_ACCESS_ON_DEMAND,
    ib::AccessFlags::HUGETLB.0 => ib_access_flags_IB_ACCESS_HUGETLB,
    ib::AccessFlags::FLUSH_GLOBAL.0 => ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
    ib::AccessFlags::FLUSH_PERSISTENT.0 => ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
    ib::AccessFlags::RELAXED_ORDERING.0 => ib_access_flags_IB_ACCESS_RELAXED_ORDERING,
}

/// `access` in the device's encoding. The flags of [`SUPPORTED`] and `optional` are allowed.
///
/// # Errors
///
/// `EOPNOTSUPP` for any other flag.
pub(super) fn access_flags(
    access: AccessFlags,
    optional: ib::AccessFlags,
) -> Result<ib::AccessFlags> {
    let access = ib::AccessFlags(access.without(AccessFlags::OPTIONAL).0).without(HINTS);
    (SUPPORTED | optional)
        .contains(access)
        .then_some(access)
        .ok_or(EOPNOTSUPP)
}

pub(crate) struct Mr {
    device: Arc<Device>,
    number: MrNumber,
    /// State of the MR on the device, a value of [`fate`].
    fate: Atomic<u32>,
    memory: Memory,
}

/// Values of [`Mr::fate`].
mod fate {
    /// The MR exists: no command destroyed it, or the device answered that it is in use.
    pub(super) const EXISTS: u32 = 0;
    /// The device has destroyed the MR.
    pub(super) const GONE: u32 = 1;
    /// The command to destroy the MR failed: the device may still use the memory.
    pub(super) const UNKNOWN: u32 = 2;
}

/// The memory of an MR.
#[derive(Default)]
enum Memory {
    /// All memory of the guest, addressed by DMA addresses.
    #[default]
    All,
    /// Memory of a process.
    User(Pin<KBox<UserPages>>),
    /// Memory of another driver, in pages of 2ⁿ bytes.
    Dmabuf(dmabuf::Buffer, u8),
    /// The pages that `map_mr_sg` mapped, for fast registration.
    Mapped(MappedPages),
}

/// Pinned memory of a process, and the page size of the MR over it.
#[pin_data]
struct UserPages {
    /// Locked while memory is pinned and a command runs.
    #[pin]
    user: Mutex<User>,
    /// Page shift of the memory in `user`. Readers do not wait for a change.
    page_shift: Atomic<u32>,
}

/// Pinned memory of a process.
struct User {
    /// Shared with the `User` that replaces this one while the MR is re-registered.
    umem: Arc<Umem>,
    page_shift: u8,
    memory: UserMemory,
}

impl User {
    /// The same memory with other access flags.
    fn with_access(&self, access: AccessFlags) -> Self {
        Self {
            umem: self.umem.clone(),
            page_shift: self.page_shift,
            memory: UserMemory {
                access,
                ..self.memory
            },
        }
    }
}

impl Mr {
    /// An MR over memory of another driver.
    pub(super) fn over_dmabuf(
        device: &Arc<Device>,
        response: RspMr,
        buffer: dmabuf::Buffer,
        page_shift: u8,
    ) -> NewMr<Self> {
        Self::new(device, response, Memory::Dmabuf(buffer, page_shift))
    }

    fn new(device: &Arc<Device>, response: RspMr, memory: Memory) -> NewMr<Self> {
        NewMr {
            lkey: response.lkey,
            rkey: response.rkey,
            driver: Self {
                device: device.clone(),
                number: response.mrn,
                fate: Atomic::new(fate::EXISTS),
                memory,
            },
        }
    }

    pub(super) fn number(&self) -> MrNumber {
        self.number
    }

    /// The kind of memory, as one word.
    pub(super) fn kind(&self) -> &'static CStr {
        match self.memory {
            Memory::All => c"dma",
            Memory::User(_) => c"user",
            Memory::Dmabuf(..) => c"dmabuf",
            Memory::Mapped(_) => c"fast-registration",
        }
    }

    /// Binary logarithm of the page size; `None` if the driver does not choose the page size.
    pub(super) fn page_shift(&self) -> Option<u32> {
        match &self.memory {
            Memory::User(pages) => Some(pages.page_shift.load(Relaxed)),
            Memory::Dmabuf(_, page_shift) => Some((*page_shift).into()),
            Memory::All | Memory::Mapped(_) => None,
        }
    }

    /// The mapped pages of an MR for fast registration.
    pub(super) fn mapped_pages(&self) -> Option<&MappedPages> {
        match &self.memory {
            Memory::Mapped(pages) => Some(pages),
            Memory::All | Memory::User(_) | Memory::Dmabuf(..) => None,
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        let is_kernels = matches!(self.memory, Memory::All | Memory::Mapped(_));
        match (self.fate.load(Acquire), take(&mut self.memory)) {
            (fate::GONE, memory) => drop(memory),
            (fate::UNKNOWN, memory) => self.device.quarantine(memory),
            (_, Memory::Dmabuf(buffer, _)) => dmabuf::destroy(&self.device, self.number, buffer),
            (_, memory) => {
                let request = CmdDeregMr { mrn: self.number };
                super::destroy(&self.device, &request, memory);
            }
        }
        if is_kernels {
            // The client frees the memory, which a failing device may still access.
            self.device.lifecycle().await_stop();
        }
    }
}

/// Access flags of an MR of a process in the device's encoding.
fn user_access_flags(pd: &Pd<IbDevice>, access: AccessFlags) -> Result<ib::AccessFlags> {
    access_flags(access, optional_access_flags(pd.device().virtio.limits()))
}

/// The command that registers pinned memory, and the page list to which it refers.
/// The device copies the list before it answers.
pub(super) struct RegCommand {
    request: CmdRegUserMrPages,
    _list: Pages,
}

impl RegCommand {
    /// Lists the pages.
    pub(super) fn new(
        pd: &Pd<IbDevice>,
        umem: &Umem,
        page_shift: u8,
        memory: &UserMemory,
    ) -> Result<Self> {
        let ib_device = pd.device();
        let count = umem.page_count(page_shift)?;
        let has_two_levels = ib_device.virtio.limits().has(Feature::MrPages);
        let pages = umem.pages(page_shift)?;
        let list = Pages::new(ib_device, count, has_two_levels, pages)?;
        let base = CmdRegUserMr {
            pdn: pd.number(),
            access_flags: user_access_flags(pd, memory.access)?,
            start: memory.start,
            length: memory.length,
            virt_addr: memory.iova,
            pages: list.dma_address(),
            npages: u32::try_from(count)?,
        };
        let request = CmdRegUserMrPages {
            base,
            page_shift,
            depth: list.depth().value(),
            ..CmdRegUserMrPages::default()
        };
        Ok(Self {
            request,
            _list: list,
        })
    }

    /// Creates the MR on the device. Without the feature for page sizes, sends the shorter command
    /// of the RFC.
    pub(super) fn exec(&self, device: &Device) -> Result<RspMr, Failure> {
        match device.limits().has(Feature::MrPages) {
            true => device.ctrl().exec(&self.request),
            false => device.ctrl().exec(&self.request.base),
        }
    }
}

/// Pins memory of the current process.
fn pin(ib_device: &rdma::Device<IbDevice>, memory: UserMemory) -> Result<User> {
    access_flags(
        memory.access,
        optional_access_flags(ib_device.virtio.limits()),
    )?;
    if memory.length == 0 || memory.length > ib_device.max_mr_size() {
        return Err(EINVAL);
    }
    let mut umem = Umem::pin(ib_device, memory.start, memory.length, memory.access)?;
    // Fails if memory and `iova` begin at different offsets in their pages.
    let page_shift =
        umem.best_page_shift(ib_device.virtio.limits().mr_page_sizes(), memory.iova)?;
    Ok(User {
        umem: Arc::new(umem, GFP_KERNEL)?,
        page_shift,
        memory,
    })
}

impl MemoryRegions for IbDevice {
    type Mr = Mr;

    fn get_dma_mr(pd: &Pd<Self>, access: AccessFlags) -> Result<NewMr<Mr>> {
        let device = &pd.device().virtio;
        let request = CmdGetDmaMr {
            pdn: pd.number(),
            access_flags: access_flags(access, ib::AccessFlags::NONE)?,
        };
        let (response, ()) = super::create(device, &request, ())?;
        Ok(Mr::new(device, response, Memory::All))
    }

    fn reg_user_mr(pd: &Pd<Self>, memory: UserMemory) -> Result<NewMr<Mr>> {
        if let Some(range) = peer_memory::range(pd, &memory)? {
            return dmabuf::register(pd, &memory, || range.pin(pd.device(), &memory));
        }
        let device = &pd.device().virtio;
        let user = pin(pd.device(), memory)?;
        let command = RegCommand::new(pd, &user.umem, user.page_shift, &user.memory)?;
        let pages = KBox::pin_init(
            pin_init!(UserPages {
                page_shift: Atomic::new(user.page_shift.into()),
                user <- new_mutex!(user, "virtio_rdma::mr::user"),
            }),
            GFP_KERNEL,
        )?;
        let answer = command.exec(device);
        let (response, (pages, _)) =
            super::reclaim_or_quarantine(device, answer, (pages, command))?;
        Ok(Mr::new(device, response, Memory::User(pages)))
    }

    fn rereg_user_mr(mr: &rdma::mr::Mr<Self>, pd: &Pd<Self>, change: &MrChange) -> Result {
        let Memory::User(pages) = &mr.memory else {
            return Err(EINVAL);
        };
        // The command always carries the access flags and the PD.
        let mut flags = ReregFlags::PD | ReregFlags::ACCESS;
        let mut old = pages.user.lock();
        let new = match *change {
            MrChange::Memory {
                start,
                length,
                iova,
                access,
            } => {
                flags = flags | ReregFlags::TRANSLATION;
                let memory = UserMemory {
                    start,
                    length,
                    iova,
                    access: access.unwrap_or(old.memory.access),
                };
                // Only memory of the process can replace memory of the process.
                if peer_memory::range(pd, &memory)?.is_some() {
                    return Err(EOPNOTSUPP);
                }
                pin(pd.device(), memory)?
            }
            MrChange::Access(access) => {
                old.umem.check_access(access)?;
                old.with_access(access)
            }
            MrChange::Nothing => old.with_access(old.memory.access),
        };
        let mut request = CmdReregMr {
            mrn: mr.number,
            flags,
            ..CmdReregMr::default()
        };
        let mut command = None;
        if flags.contains(ReregFlags::TRANSLATION) {
            let all = RegCommand::new(pd, &new.umem, new.page_shift, &new.memory)?;
            request.memory = command.insert(all).request;
        } else {
            // The device ignores the fields that describe memory, since the translation does not
            // change.
            request.memory.base.pdn = pd.number();
            request.memory.base.access_flags = user_access_flags(pd, new.memory.access)?;
        }
        let (_, (new, _)) = super::create(&mr.device, &request, (new, command))?;
        // The device does not use the old memory any more.
        pages.page_shift.store(new.page_shift.into(), Relaxed);
        *old = new;
        Ok(())
    }

    fn dereg_mr(mr: &rdma::mr::Mr<Self>) -> Result {
        // `Drop` sends the command, with the buffer locked against its exporter. The device can't
        // refuse the command, since no window is bound to the MR.
        if let Memory::Dmabuf(..) = mr.memory {
            return Ok(());
        }
        let request = CmdDeregMr { mrn: mr.number };
        match mr.device.ctrl().exec(&request) {
            Ok(_) => mr.fate.store(fate::GONE, Release),
            Err(Failure::Refused(error)) if error == EBUSY => return Err(EBUSY),
            Err(failure) => {
                super::warn_of_refusal(&mr.device, &request, failure);
                mr.fate.store(fate::UNKNOWN, Release);
            }
        }
        Ok(())
    }
}

impl FastRegistration for IbDevice {
    fn alloc_mr(pd: &Pd<Self>, max_pages: u32) -> Result<NewMr<Mr>> {
        let ib_device = pd.device();
        let device = &ib_device.virtio;
        if max_pages > ib_device.max_fast_reg_pages() {
            return Err(EINVAL);
        }
        let pages = MappedPages::new(ib_device, max_pages)?;
        let request = CmdCreateMr {
            pdn: pd.number(),
            max_num_sg: max_pages,
            ..CmdCreateMr::default()
        };
        let (response, pages) = super::create(device, &request, pages)?;
        Ok(Mr::new(device, response, Memory::Mapped(pages)))
    }

    fn mapped_pages(mr: &rdma::mr::Mr<Self>) -> Option<&MappedPages> {
        mr.mapped_pages()
    }
}
