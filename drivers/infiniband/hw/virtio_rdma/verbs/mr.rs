// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    device::IbDevice,
    dmabuf, //
};
use crate::{
    abi::{
        ctrl::{
            CmdCreateMr,
            CmdDeregMr,
            CmdGetDmaMr,
            CmdRegUserMr,
            CmdRegUserMrPages,
            PageListDepth,
            RspMr,
            PAGE_LIST_BLOCK, //
        },
        ib, //
    },
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
        page_list::{
            MappedPages,
            PageDirectory,
            PageList, //
        },
        pd::Pd,
        umem::Umem, //
    }, //
};
use core::mem::take;
use kernel::{
    dma::DmaAddress,
    prelude::*,
    sync::Arc, //
};

/// The rights that MRs of this device can give, and its QPs admit.
pub(super) const SUPPORTED: ib::AccessFlags = ib::AccessFlags(
    ib::AccessFlags::LOCAL_WRITE.0
        | ib::AccessFlags::REMOTE_WRITE.0
        | ib::AccessFlags::REMOTE_READ.0
        | ib::AccessFlags::REMOTE_ATOMIC.0,
);

/// Hints that change nothing here: pages are looked up one by one in any case.
const HINTS: ib::AccessFlags = ib::AccessFlags::HUGETLB;

/// The rights as the device takes them.
///
/// # Errors
///
/// `EOPNOTSUPP` for those that it does not know.
pub(super) fn access_flags(access: AccessFlags) -> Result<ib::AccessFlags> {
    let access = ib::AccessFlags(access.without(AccessFlags::OPTIONAL).0).without(HINTS);
    SUPPORTED
        .contains(access)
        .then_some(access)
        .ok_or(EOPNOTSUPP)
}

/// An MR.
pub(crate) struct Mr {
    device: Arc<Device>,
    number: u32,
    memory: Memory,
}

/// What an MR lies over.
#[derive(Default)]
enum Memory {
    /// All memory.
    #[default]
    All,
    /// Memory of a process.
    User(User),
    /// Memory of another driver, by pages of 2ⁿ bytes.
    Dmabuf(dmabuf::Buffer, u8),
    /// What is mapped into it, if anything.
    Mapped(MappedPages),
}

/// Memory of a process.
struct User {
    /// Shared with an MR that is to take this one's place.
    umem: Arc<Umem>,
    page_shift: u8,
    memory: UserMemory,
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
                memory,
            },
        }
    }

    /// The device's handle.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// What it lies over, in a word.
    pub(super) fn kind(&self) -> &'static CStr {
        match self.memory {
            Memory::All => c"dma",
            Memory::User(_) => c"user",
            Memory::Dmabuf(..) => c"dmabuf",
            Memory::Mapped(_) => c"fast-registration",
        }
    }

    /// Its pages have 2ⁿ bytes, where that was chosen when it was made.
    pub(super) fn page_shift(&self) -> Option<u8> {
        match &self.memory {
            Memory::User(user) => Some(user.page_shift),
            Memory::Dmabuf(_, page_shift) => Some(*page_shift),
            Memory::All | Memory::Mapped(_) => None,
        }
    }

    /// The pages that were mapped, of an MR for fast registration.
    pub(super) fn mapped_pages(&self) -> Option<&MappedPages> {
        match &self.memory {
            Memory::Mapped(pages) => Some(pages),
            Memory::All | Memory::User(_) | Memory::Dmabuf(..) => None,
        }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        match take(&mut self.memory) {
            Memory::Dmabuf(buffer, _) => dmabuf::destroy(&self.device, self.number, buffer),
            memory => {
                let request = CmdDeregMr { mrn: self.number };
                super::destroy(&self.device, &request, memory);
            }
        }
    }
}

/// A page list as the device reads it.
pub(super) enum Pages {
    Flat(PageList),
    TwoLevels(PageDirectory),
}

impl Pages {
    /// Lists `count` pages, in two levels if one would be large and the device knows them.
    fn new(
        ib_device: &rdma::Device<IbDevice>,
        count: usize,
        pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        const { assert!(PageDirectory::BLOCK == PAGE_LIST_BLOCK) };

        let dma_device = ib_device.dma_device();
        if count > PageList::EASY_PAGES && ib_device.device.limits().mr_pages {
            PageDirectory::new(dma_device, count, pages).map(Self::TwoLevels)
        } else {
            PageList::new(dma_device, count, pages).map(Self::Flat)
        }
    }

    fn dma_address(&self) -> DmaAddress {
        match self {
            Self::Flat(list) => list.dma_address(),
            Self::TwoLevels(directory) => directory.dma_address(),
        }
    }

    fn depth(&self) -> PageListDepth {
        match self {
            Self::Flat(_) => PageListDepth::Flat,
            Self::TwoLevels(_) => PageListDepth::TwoLevels,
        }
    }
}

/// The command that makes an MR over memory that is pinned, without its shape if the device does not know that, and the
/// list that it names.
pub(super) fn prepare(
    pd: &Pd<IbDevice>,
    umem: &Umem,
    page_shift: u8,
    memory: &UserMemory,
) -> Result<(CmdRegUserMrPages, Pages)> {
    let count = umem.page_count(page_shift)?;
    let list = Pages::new(pd.device(), count, umem.pages(page_shift)?)?;
    let base = CmdRegUserMr {
        pdn: pd.number(),
        access_flags: access_flags(memory.access)?,
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
    Ok((request, list))
}

/// Makes an MR over memory of a process that is pinned.
fn register(pd: &Pd<IbDevice>, user: User) -> Result<NewMr<Mr>> {
    let device = &pd.device().device;
    let (request, list) = prepare(pd, &user.umem, user.page_shift, &user.memory)?;
    // The device copies the list before it answers.
    let used = (user, list);
    let (response, (user, _)) = if device.limits().mr_pages {
        super::create(device, &request, used)?
    } else {
        super::create(device, &request.base, used)?
    };
    Ok(Mr::new(device, response, Memory::User(user)))
}

impl MemoryRegions for IbDevice {
    type Mr = Mr;

    fn get_dma_mr(pd: &Pd<Self>, access: AccessFlags) -> Result<NewMr<Mr>> {
        let device = &pd.device().device;
        let request = CmdGetDmaMr {
            pdn: pd.number(),
            access_flags: access_flags(access)?,
        };
        let (response, ()) = super::create(device, &request, ())?;
        Ok(Mr::new(device, response, Memory::All))
    }

    fn reg_user_mr(pd: &Pd<Self>, memory: UserMemory) -> Result<NewMr<Mr>> {
        let ib_device = pd.device();
        access_flags(memory.access)?;
        if memory.length == 0 || memory.length > ib_device.max_mr_size() {
            return Err(EINVAL);
        }
        let mut umem = Umem::pin(ib_device, memory.start, memory.length, memory.access)?;
        // Where the address in work requests is not at the same offset in its page, no size will do.
        let page_shift = umem.best_page_shift(ib_device.mr_page_sizes(), memory.iova)?;
        let user = User {
            umem: Arc::new(umem, GFP_KERNEL)?,
            page_shift,
            memory,
        };
        register(pd, user)
    }

    fn rereg_user_mr(
        mr: &rdma::mr::Mr<Self>,
        pd: &Pd<Self>,
        change: &MrChange,
    ) -> Result<NewMr<Mr>> {
        let Memory::User(old) = &mr.memory else {
            return Err(EINVAL);
        };
        let access = match *change {
            MrChange::Memory {
                start,
                length,
                iova,
                access,
            } => {
                let memory = UserMemory {
                    start,
                    length,
                    iova,
                    access: access.unwrap_or(old.memory.access),
                };
                return Self::reg_user_mr(pd, memory);
            }
            MrChange::Access(access) => access,
            MrChange::Nothing => old.memory.access,
        };
        old.umem.check_access(access)?;
        let user = User {
            umem: old.umem.clone(),
            page_shift: old.page_shift,
            memory: UserMemory {
                access,
                ..old.memory
            },
        };
        register(pd, user)
    }
}

impl FastRegistration for IbDevice {
    fn alloc_mr(pd: &Pd<Self>, max_pages: u32) -> Result<NewMr<Mr>> {
        let ib_device = pd.device();
        let device = &ib_device.device;
        if max_pages > ib_device.max_fast_reg_pages() {
            return Err(EINVAL);
        }
        let pages = MappedPages::new(ib_device.dma_device(), max_pages)?;
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
