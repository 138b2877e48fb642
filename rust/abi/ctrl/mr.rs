// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands about memory: PDs, MRs, memory windows.

use super::super::ib::AccessFlags;
use super::super::number::{MrNumber, MwNumber, Pdn};
use super::super::wire::Wire;
use super::{Command, Empty, Request, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// CREATE_PD has no request data.
    pub struct CmdCreatePd: 0 {}
}

wire_struct! {
    /// `struct rsp_create_pd`.
    pub struct RspCreatePd: 4 {
        /// Handle.
        0 => pdn: Pdn,
    }
}
request!(CmdCreatePd, CreatePd, RspCreatePd);

wire_struct! {
    /// `struct cmd_destroy_pd`.
    pub struct CmdDestroyPd: 4 {
        /// Handle.
        0 => pdn: Pdn,
    }
}
request!(CmdDestroyPd, DestroyPd, Empty);

wire_struct! {
    /// `struct cmd_get_dma_mr`.
    pub struct CmdGetDmaMr: 8 {
        /// PD.
        0 => pdn: Pdn,
        /// Rights.
        4 => access_flags: AccessFlags,
    }
}

wire_struct! {
    /// `struct rsp_get_dma_mr`, `rsp_create_mr` and `rsp_reg_user_mr`: a new MR.
    pub struct RspMr: 12 {
        /// Handle.
        0 => mrn: MrNumber,
        /// Local key.
        4 => lkey: u32,
        /// Remote key.
        8 => rkey: u32,
    }
}
request!(CmdGetDmaMr, GetDmaMr, RspMr);

wire_struct! {
    /// `struct cmd_create_mr`.
    pub struct CmdCreateMr: 12 {
        /// PD.
        0 => pdn: Pdn,
        /// Rights.
        4 => access_flags: AccessFlags,
        /// Pages at most.
        8 => max_num_sg: u32,
    }
}
request!(CmdCreateMr, CreateMr, RspMr);

wire_struct! {
    /// `struct cmd_map_mr_sg`.
    pub struct CmdMapMrSg: 32 {
        /// MR.
        0 => mrn: MrNumber,
        /// Number of pages.
        4 => npages: u32,
        /// Address of the first byte in the MR.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// DMA address of the page list: `npages` le64.
        24 => pages: u64,
    }
}

wire_struct! {
    /// `struct rsp_map_mr_sg`.
    pub struct RspMapMrSg: 4 {
        /// Number of pages mapped.
        0 => npages: u32,
    }
}
request!(CmdMapMrSg, MapMrSg, RspMapMrSg);

wire_struct! {
    /// `struct cmd_reg_user_mr`. The first byte lies at offset `start % 4096` of the first page.
    pub struct CmdRegUserMr: 44 {
        /// PD.
        0 => pdn: Pdn,
        /// Rights.
        4 => access_flags: AccessFlags,
        /// Address in the process.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// Address of the first byte in work requests.
        24 => virt_addr: u64,
        /// DMA address of the page list: `npages` le64, each the DMA address of a 4 KiB page.
        32 => pages: u64,
        /// Number of pages.
        40 => npages: u32,
    }
}
request!(CmdRegUserMr, RegUserMr, RspMr);

wire_enum! {
    /// Shape of a page list.
    pub enum PageListDepth: u8 {
        /// `pages` is the list: `npages` le64, each the DMA address of a page.
        Flat = 0,
        /// `pages` is a directory of le64, each the DMA address of a block of [`PAGE_LIST_BLOCK`]
        /// bytes; the blocks in turn are the list, each full but the last.
        TwoLevels = 1,
    }
}

/// Size and alignment of a block of a two-level page list, in bytes.
pub const PAGE_LIST_BLOCK: usize = 4096;

wire_struct! {
    /// REG_USER_MR with [`Feature::MrPages`](super::super::feature::Feature::MrPages): the RFC's
    /// structure, whose `npages` then counts pages of `1 << page_shift` bytes, and the shape of its
    /// list. The first byte lies at offset `virt_addr % (1 << page_shift)` of the first page.
    pub struct CmdRegUserMrPages: 52 {
        /// The RFC's fields.
        0 => base: CmdRegUserMr,
        /// Page size is 2ⁿ bytes, a bit of `page_size_cap`.
        44 => page_shift: u8,
        /// [`PageListDepth`].
        45 => depth: u8,
        /// Reserved, zero.
        46 => reserved: [u8; 6],
    }
}
request!(CmdRegUserMrPages, RegUserMr, RspMr);

wire_struct! {
    /// `struct cmd_dereg_mr`.
    pub struct CmdDeregMr: 4 {
        /// Handle.
        0 => mrn: MrNumber,
    }
}
request!(CmdDeregMr, DeregMr, Empty);

wire_struct! {
    /// ALLOC_MW, with [`Feature::MemWindows`](super::super::feature::Feature::MemWindows).
    pub struct CmdAllocMw: 8 {
        /// PD.
        0 => pdn: Pdn,
        /// [`MwType`](super::super::ib::MwType).
        4 => mw_type: u8,
        /// Reserved, zero.
        5 => reserved: [u8; 3],
    }
}

wire_struct! {
    /// A new memory window, which is not bound.
    pub struct RspAllocMw: 8 {
        /// Handle; bits 31–8 of its R_Keys.
        0 => mwn: MwNumber,
        /// R_Key, which opens nothing before the window is bound.
        4 => rkey: u32,
    }
}
request!(CmdAllocMw, AllocMw, RspAllocMw);

wire_struct! {
    /// DEALLOC_MW, with [`Feature::MemWindows`](super::super::feature::Feature::MemWindows).
    pub struct CmdDeallocMw: 4 {
        /// Handle.
        0 => mwn: MwNumber,
    }
}
request!(CmdDeallocMw, DeallocMw, Empty);

wire_mask! {
    /// Changes that REREG_MR makes: the values of the kernel's `enum ib_mr_rereg_flags`.
    pub struct ReregFlags: u32 {
        /// The memory: `virt_addr`, `length` and pages.
        TRANSLATION = 1 << 0,
        /// `pdn`.
        PD = 1 << 1,
        /// `access_flags`.
        ACCESS = 1 << 2,
    }
}

wire_struct! {
    /// REREG_MR. The keys stay.
    pub struct CmdReregMr: 60 {
        /// MR.
        0 => mrn: MrNumber,
        /// The changes; fields below that belong to no change are ignored.
        4 => flags: ReregFlags,
        /// The new memory, PD and rights.
        8 => memory: CmdRegUserMrPages,
    }
}
request!(CmdReregMr, ReregMr, Empty);

wire_struct! {
    /// REVOKE_MR, with [`Feature::Peers`](super::super::feature::Feature::Peers).
    pub struct CmdRevokeMr: 4 {
        /// Handle, which stays the MR's.
        0 => mrn: MrNumber,
    }
}
request!(CmdRevokeMr, RevokeMr, Empty);
