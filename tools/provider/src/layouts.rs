// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The private interface between libibverbs and providers in each release of rdma-core.
//! Documentation/rdma-core.md explains how these facts were found.
//!
//! The private ABI has a number, which is part of the names of provider libraries and of the
//! function that registers a provider. The interface has changed without a new number too, so a
//! *layout* is identified by its first release. `build.rs` checks the headers against these
//! layouts, and the provider chooses the layout of the loaded libibverbs.

use std::ffi::CStr;
use std::io::Write;

/// The private interface of the releases from `since` until the next layout.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    /// First release of rdma-core with this layout.
    pub since: u32,
    /// Number of the private ABI.
    pub abi: u32,
    /// A function that libibverbs exports since this release, if the ABI number does not identify
    /// the layout.
    pub mark: Option<&'static CStr>,
    /// Bytes of `struct verbs_context`, which grows at its head.
    pub context_size: usize,
}

/// All layouts, oldest first.
pub const LAYOUTS: [Layout; 6] = [
    Layout {
        since: 39,
        abi: 34,
        mark: None,
        context_size: 648,
    },
    Layout {
        since: 57,
        abi: 57,
        mark: None,
        context_size: 648,
    },
    Layout {
        since: 59,
        abi: 59,
        mark: Some(c"ibv_cmd_alloc_dmah"),
        context_size: 672,
    },
    Layout {
        since: 62,
        abi: 59,
        mark: Some(c"ibv_cmd_query_port_speed"),
        context_size: 680,
    },
    Layout {
        since: 64,
        abi: 64,
        mark: Some(c"ibv_dmabuf_heap_alloc"),
        context_size: 696,
    },
    Layout {
        since: 65,
        abi: 65,
        mark: Some(c"ibv_cmd_create_comp_cntr"),
        context_size: 696,
    },
];

/// Members of `struct verbs_context_ops` in their order. A number after a member is the release
/// that added the member; members without a number are in the first known release.
const OPERATIONS: &str = "
    advise_mr alloc_buf:64 alloc_dm alloc_dmah:59 alloc_mw alloc_null_mr alloc_parent_domain
    alloc_pd alloc_td async_event attach_counters_point_flow attach_mcast bind_mw close_xrcd
    cq_event create_ah create_comp_cntr:65 create_counters create_cq create_cq_ex create_flow
    create_flow_action_esp create_qp create_qp_ex create_rwq_ind_table create_srq create_srq_ex
    create_wq dealloc_dmah:59 dealloc_mw dealloc_pd dealloc_td dereg_mr destroy_ah
    destroy_comp_cntr:65 destroy_counters destroy_cq destroy_flow destroy_flow_action destroy_qp
    destroy_rwq_ind_table destroy_srq destroy_wq detach_mcast dm_export_dmabuf_fd:62 free_buf:64
    free_context free_dm get_srq_num import_dm import_mr import_pd inc_comp_cntr:65
    inc_err_comp_cntr:65 modify_cq modify_flow_action_esp modify_qp modify_qp_rate_limit
    modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send post_srq_ops post_srq_recv
    qp_attach_comp_cntr:65 query_comp_cntr_caps:65 query_device_ex query_ece query_port
    query_port_speed:62 query_qp query_qp_data_in_order query_rt_values query_srq
    read_comp_cntr:65 read_counters read_err_comp_cntr:65 reg_dm_mr reg_dmabuf_mr reg_mr
    reg_mr_ex:59 req_notify_cq rereg_mr resize_cq set_comp_cntr:65 set_ece set_err_comp_cntr:65
    unimport_dm unimport_mr unimport_pd";

/// Functions of libibverbs that the provider calls, with the number of their arguments in the first
/// known release.
const FUNCTIONS: &str = "
    _verbs_init_and_alloc_context:5 ibv_cmd_alloc_mw:7 ibv_cmd_alloc_pd:6 ibv_cmd_attach_mcast:3
    ibv_cmd_create_ah:5 ibv_cmd_create_cq:9 ibv_cmd_create_cq_ex:8 ibv_cmd_create_qp:7
    ibv_cmd_create_qp_ex2:7 ibv_cmd_create_srq:7 ibv_cmd_dealloc_mw:1 ibv_cmd_dealloc_pd:1
    ibv_cmd_dereg_mr:1 ibv_cmd_destroy_ah:1 ibv_cmd_destroy_cq:1 ibv_cmd_destroy_qp:1
    ibv_cmd_destroy_srq:1 ibv_cmd_detach_mcast:3 ibv_cmd_get_context:5 ibv_cmd_modify_cq:4
    ibv_cmd_modify_qp:5 ibv_cmd_modify_qp_ex:7 ibv_cmd_modify_srq:5 ibv_cmd_poll_cq:3
    ibv_cmd_post_recv:3 ibv_cmd_post_send:3 ibv_cmd_query_device_any:6 ibv_cmd_query_port:5
    ibv_cmd_query_qp:6 ibv_cmd_query_srq:4 ibv_cmd_reg_dmabuf_mr:7 ibv_cmd_reg_mr:10
    ibv_cmd_req_notify_cq:2 ibv_cmd_rereg_mr:11 ibv_cmd_resize_cq:6 verbs_open_device:2
    verbs_set_ops:2 verbs_uninit_context:1";

/// An argument that a release has added to a function. The provider passes null.
pub struct Argument {
    /// First release of rdma-core with the argument.
    pub since: u32,
    /// Name of the function.
    pub function: &'static str,
    /// Index among the arguments of the function.
    pub index: usize,
    /// Name of the argument in the headers.
    pub name: &'static str,
}

/// All added arguments.
pub const ARGUMENTS: [Argument; 4] = [
    Argument {
        since: 54,
        function: "ibv_cmd_reg_dmabuf_mr",
        index: 7,
        name: "driver",
    },
    Argument {
        since: 57,
        function: "ibv_cmd_get_context",
        index: 3,
        name: "fd_arr",
    },
    Argument {
        since: 59,
        function: "ibv_cmd_create_cq_ex",
        index: 2,
        name: "prov_attr",
    },
    Argument {
        since: 64,
        function: "ibv_cmd_create_qp_ex2",
        index: 7,
        name: "driver",
    },
];

/// Constants that the headers have since release 44 or 45.
pub const NUMBERS: [(&str, u32); 12] = [
    ("IBV_ACCESS_FLUSH_GLOBAL", 1 << 8),
    ("IBV_ACCESS_FLUSH_PERSISTENT", 1 << 9),
    ("IBV_FLUSH_GLOBAL", 1 << 0),
    ("IBV_FLUSH_PERSISTENT", 1 << 1),
    ("IBV_FLUSH_RANGE", 0),
    ("IBV_FLUSH_MR", 1),
    ("IBV_QP_EX_WITH_ATOMIC_WRITE", 1 << 12),
    ("IBV_QP_EX_WITH_FLUSH", 1 << 11),
    ("IBV_WC_ATOMIC_WRITE", 9),
    ("IBV_WC_FLUSH", 8),
    ("IBV_WR_ATOMIC_WRITE", 15),
    ("IBV_WR_FLUSH", 14),
];

/// Words of a table, and the numbers after their colons, or 0.
fn entries(table: &'static str) -> impl Iterator<Item = (&'static str, u32)> {
    table.split_ascii_whitespace().map(|entry| {
        let (name, number) = entry.split_once(':').unwrap_or((entry, ""));
        (name, number.parse().unwrap_or(0))
    })
}

/// Members of `struct verbs_context_ops` in all layouts, each with the release that added it. 0
/// stands for the first known release or an earlier release.
pub fn operations() -> impl Iterator<Item = (&'static str, u32)> {
    entries(OPERATIONS)
}

/// Functions that the provider calls, and the number of their arguments in the first known release.
pub fn functions() -> impl Iterator<Item = (&'static str, u32)> {
    entries(FUNCTIONS)
}

/// The layout of a release. A future release gets the newest layout.
pub fn of_release(release: u32) -> Option<&'static Layout> {
    LAYOUTS.iter().rev().find(|layout| layout.since <= release)
}

impl Layout {
    /// The layout of a libibverbs; `has` tells whether it exports a function. `None` if its exports
    /// match no layout, or contradict the matching layout.
    pub fn of(has: impl Fn(&CStr) -> bool) -> Option<&'static Self> {
        let number = |layout: &Self| {
            let mut name = [0; 32];
            has(layout.registration(&mut name))
        };
        let marked = |layout: &Self| layout.mark.is_none_or(&has);
        let index = LAYOUTS
            .iter()
            .rposition(|layout| number(layout) && marked(layout))?;
        let (older, newer) = LAYOUTS.split_at(index + 1);
        let fits =
            older.iter().all(marked) && !newer.iter().any(|layout| layout.mark.is_some_and(&has));
        fits.then_some(&LAYOUTS[index])
    }

    /// The name of the function that registers a provider.
    pub fn registration<'a>(&self, room: &'a mut [u8; 32]) -> &'a CStr {
        // The last byte stays zero.
        let _ = write!(&mut room[..31], "verbs_register_driver_{}", self.abi);
        CStr::from_bytes_until_nul(room).unwrap_or_default()
    }
}
