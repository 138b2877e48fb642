// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for memory: PDs, MRs and memory windows.

use super::super::ib::AccessFlags;
use super::super::number::{MrNumber, MwNumber, Pdn};
use super::super::wire::Wire;
use super::{Command, ControlCommand, Empty, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// CREATE_PD has no request data.
    pub struct CmdCreatePd: 0 {}
}

wire_struct! {
    /// Response of CREATE_PD (RFC: `struct rsp_create_pd`).
    pub struct RspCreatePd: 4 {
        /// Handle.
        0 => pdn: Pdn,
    }
}
request!(CmdCreatePd, CreatePd, RspCreatePd, new pdn);

wire_struct! {
    /// Request of DESTROY_PD (RFC: `struct cmd_destroy_pd`).
    pub struct CmdDestroyPd: 4 {
        /// Handle.
        0 => pdn: Pdn,
    }
}
request!(CmdDestroyPd, DestroyPd, Empty, of pdn);

wire_struct! {
    /// Request of GET_DMA_MR (RFC: `struct cmd_get_dma_mr`).
    pub struct CmdGetDmaMr: 8 {
        /// PD.
        0 => pdn: Pdn,
        /// Access flags.
        4 => access_flags: AccessFlags,
    }
}

wire_struct! {
    /// Response of GET_DMA_MR, CREATE_MR and REG_USER_MR: a new MR (RFC: `struct rsp_get_dma_mr`,
    /// `rsp_create_mr` and `rsp_reg_user_mr`).
    pub struct RspMr: 12 {
        /// Handle.
        0 => mrn: MrNumber,
        /// Local key.
        4 => lkey: u32,
        /// Remote key.
        8 => rkey: u32,
    }
}
request!(CmdGetDmaMr, GetDmaMr, RspMr, new mrn);

wire_struct! {
    /// Request of CREATE_MR (RFC: `struct cmd_create_mr`).
    pub struct CmdCreateMr: 12 {
        /// PD.
        0 => pdn: Pdn,
        /// Access flags.
        4 => access_flags: AccessFlags,
        /// Maximum number of pages that the MR may have.
        8 => max_num_sg: u32,
    }
}
request!(CmdCreateMr, CreateMr, RspMr, new mrn);

wire_struct! {
    /// Request of MAP_MR_SG (RFC: `struct cmd_map_mr_sg`).
    pub struct CmdMapMrSg: 32 {
        /// MR.
        0 => mrn: MrNumber,
        /// Number of pages.
        4 => npages: u32,
        /// Address of the first byte in the MR, as used in work requests.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// DMA address of the page list: `npages` le64.
        24 => pages: u64,
    }
}

wire_struct! {
    /// Response of MAP_MR_SG (RFC: `struct rsp_map_mr_sg`).
    pub struct RspMapMrSg: 4 {
        /// Number of pages mapped.
        0 => npages: u32,
    }
}
request!(CmdMapMrSg, MapMrSg, RspMapMrSg, of mrn);

wire_struct! {
    /// Request of REG_USER_MR (RFC: `struct cmd_reg_user_mr`). The first byte is at offset `start %
    /// 4096` of the first page.
    pub struct CmdRegUserMr: 44 {
        /// PD.
        0 => pdn: Pdn,
        /// Access flags.
        4 => access_flags: AccessFlags,
        /// Address in the process's address space.
        8 => start: u64,
        /// Length in bytes.
        16 => length: u64,
        /// Address of the first byte, as used in work requests.
        24 => virt_addr: u64,
        /// DMA address of the page list: `npages` le64, each the DMA address of a 4 KiB page.
        32 => pages: u64,
        /// Number of pages.
        40 => npages: u32,
    }
}
request!(CmdRegUserMr, RegUserMr, RspMr, new mrn);

wire_enum! {
    /// Format of a page list.
    pub enum PageListDepth: u8 {
        /// One level: `pages` is the address of the list, `npages` le64, each the DMA address of a
        /// page.
        Flat = 0,
        /// Two levels: `pages` is the address of a directory of le64. Each is the DMA address of a
        /// block of [`PAGE_LIST_BLOCK`] bytes. The blocks hold the list; all but the last are full.
        TwoLevels = 1,
    }
}

/// Size and alignment of a block of a two-level page list, in bytes.
pub const PAGE_LIST_BLOCK: usize = 4096;

wire_struct! {
    /// REG_USER_MR with [`Feature::MrPages`](super::super::feature::Feature::MrPages): the RFC's
    /// structure, page size and list format. `npages` counts pages of `1 << page_shift` bytes. The
    /// first byte is at offset `virt_addr % (1 << page_shift)` of the first page.
    pub struct CmdRegUserMrPages: 52 {
        /// The RFC's fields.
        0 => base: CmdRegUserMr,
        /// Pages have 2ⁿ bytes. Must be a bit of `page_size_cap`.
        44 => page_shift: u8,
        /// List format, [`PageListDepth`].
        45 => depth: u8,
        /// Reserved, zero.
        46 => reserved: [u8; 6],
    }
}
request!(CmdRegUserMrPages, RegUserMr, RspMr, new mrn);

wire_struct! {
    /// Request of DEREG_MR (RFC: `struct cmd_dereg_mr`).
    pub struct CmdDeregMr: 4 {
        /// Handle.
        0 => mrn: MrNumber,
    }
}
request!(CmdDeregMr, DeregMr, Empty, of mrn);

wire_struct! {
    /// Request of ALLOC_MW. Needs
    /// [`Feature::MemWindows`](super::super::feature::Feature::MemWindows).
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
    /// A new memory window, not bound yet.
    pub struct RspAllocMw: 8 {
        /// Handle, which is also bits 31–8 of the window's R_Keys.
        0 => mwn: MwNumber,
        /// R_Key. It is not valid before the window is bound.
        4 => rkey: u32,
    }
}
request!(CmdAllocMw, AllocMw, RspAllocMw, new mwn);

wire_struct! {
    /// Request of DEALLOC_MW. Needs
    /// [`Feature::MemWindows`](super::super::feature::Feature::MemWindows).
    pub struct CmdDeallocMw: 4 {
        /// Handle.
        0 => mwn: MwNumber,
    }
}
request!(CmdDeallocMw, DeallocMw, Empty, of mwn);

wire_mask! {
    /// The parts of an MR that REREG_MR changes, numbered as in the kernel's `enum
    /// ib_mr_rereg_flags`.
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
    /// Request of REREG_MR. The keys of the MR do not change.
    pub struct CmdReregMr: 60 {
        /// MR.
        0 => mrn: MrNumber,
        /// The parts to change. Fields of `memory` for other parts are ignored.
        4 => flags: ReregFlags,
        /// The new memory, PD and access flags.
        8 => memory: CmdRegUserMrPages,
    }
}
request!(CmdReregMr, ReregMr, Empty, of mrn);

wire_struct! {
    /// Request of REVOKE_MR. Needs [`Feature::Peers`](super::super::feature::Feature::Peers).
    pub struct CmdRevokeMr: 4 {
        /// Handle. It remains valid.
        0 => mrn: MrNumber,
    }
}
request!(CmdRevokeMr, RevokeMr, Empty, of mrn);
