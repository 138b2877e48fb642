// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The extended interfaces: CQs whose completions are read field by field, and send work requests
//! that are built call by call.

use std::mem::{offset_of, zeroed};
use std::ptr::NonNull;
use std::rc::Rc;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use anyhow::{bail, Context as _, Result};

use super::context::created;
use super::{check, ffi, Caps, Context, Cq, Kind, Op, Payload, Pd, Qp, SendWr, Wc};

/// The `verbs_context` that contains a context. It has the extended verbs.
///
/// # Safety
///
/// The context is open.
pub(super) unsafe fn extended(
    context: *mut ffi::ibv_context,
) -> Result<NonNull<ffi::verbs_context>> {
    // SAFETY: A context with this value of `abi_compat` is the last field of a verbs_context.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            bail!("a context without extended verbs");
        }
        let extended = context.byte_sub(offset_of!(ffi::verbs_context, context));
        NonNull::new(extended.cast()).context("no context")
    }
}

/// The extended attributes of a device.
pub(super) fn attributes(context: &Context) -> Result<ffi::ibv_device_attr_ex> {
    // SAFETY: All-zero bytes are valid attributes; the context is open.
    unsafe {
        let mut attr: ffi::ibv_device_attr_ex = zeroed();
        let query = extended(context.raw())?.as_ref().query_device_ex;
        let query = query.context("no query_device_ex")?;
        let size = size_of::<ffi::ibv_device_attr_ex>();
        check(query(context.raw(), std::ptr::null(), &mut attr, size))
            .context("query extended device")?;
        Ok(attr)
    }
}

/// Creates an extended CQ whose completions have all standard fields. `edit` changes the
/// attributes.
pub fn create_cq(
    context: &Rc<Context>,
    entries: u32,
    edit: impl FnOnce(&mut ffi::ibv_cq_init_attr_ex),
) -> Result<Rc<Cq>> {
    // SAFETY: All-zero bytes are valid attributes.
    let mut attr: ffi::ibv_cq_init_attr_ex = unsafe { zeroed() };
    attr.cqe = entries;
    attr.wc_flags = ffi::IBV_WC_STANDARD_FLAGS.into();
    edit(&mut attr);
    // SAFETY: The context is open, and the attributes are valid memory.
    let raw = unsafe {
        let create = extended(context.raw())?.as_ref().create_cq_ex;
        create.context("no create_cq_ex")?(context.raw(), &mut attr)
    };
    // `struct ibv_cq_ex` begins with the fields of `struct ibv_cq`.
    let raw = created("create extended CQ", raw.cast())?;
    Ok(Cq::extended(raw, context))
}

/// Polls up to `max` completions through the functions of an extended CQ.
///
/// # Safety
///
/// The CQ exists and is extended.
pub(super) unsafe fn poll(
    cq: *mut ffi::ibv_cq_ex,
    found: &mut Vec<Wc>,
    max: usize,
) -> Result<usize> {
    const ENOENT: i32 = 2;
    let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
    macro_rules! read {
        ($function:ident) => {
            (*cq).$function.context(stringify!($function))?(cq)
        };
    }
    // SAFETY: The caller's CQ has these functions; fields are read between start and end.
    unsafe {
        match (*cq).start_poll.context("start_poll")?(cq, &mut attr) {
            0 => (),
            ENOENT => return Ok(0),
            code => return Err(check(code).unwrap_err()).context("start to poll"),
        }
        let mut count = 0;
        let status = loop {
            let status = (*cq).status;
            found.push(Wc::new(
                (*cq).wr_id,
                [status, read!(read_vendor_err)],
                read!(read_opcode),
                read!(read_byte_len),
                read!(read_wc_flags),
                read!(read_imm_data),
                [read!(read_qp_num), read!(read_src_qp)],
                read!(read_sl),
            ));
            count += 1;
            if count == max {
                break 0;
            }
            match (*cq).next_poll.context("next_poll")?(cq) {
                0 => (),
                status => break status,
            }
        };
        (*cq).end_poll.context("end_poll")?(cq);
        match status {
            0 | ENOENT => Ok(count),
            code => Err(check(code).unwrap_err()).context("poll on"),
        }
    }
}

/// A parent domain of `pd` with a thread domain.
pub struct ParentDomain {
    pd: Rc<Pd>,
    parent: NonNull<ffi::ibv_pd>,
    td: NonNull<ffi::ibv_td>,
}

impl ParentDomain {
    /// Allocates a thread domain and a parent domain.
    pub fn new(pd: &Rc<Pd>) -> Result<Self> {
        let context = pd.context().raw();
        // SAFETY: The context is open and the PD exists, and attributes are valid memory.
        unsafe {
            let verbs = extended(context)?.as_ref();
            let mut init = ffi::ibv_td_init_attr { comp_mask: 0 };
            let td = verbs.alloc_td.context("no alloc_td")?(context, &mut init);
            let td = created("allocate thread domain", td)?;
            let mut attr: ffi::ibv_parent_domain_init_attr = zeroed();
            attr.pd = pd.raw();
            attr.td = td.as_ptr();
            let alloc = verbs
                .alloc_parent_domain
                .context("no alloc_parent_domain")?;
            let parent = created("allocate parent domain", alloc(context, &mut attr))?;
            Ok(Self {
                pd: Rc::clone(pd),
                parent,
                td,
            })
        }
    }

    /// Creates a QP in the parent domain. The QP is in RESET.
    pub fn qp(&self, kind: Kind, cqs: [&Rc<Cq>; 2], caps: Caps) -> Result<Qp> {
        Qp::extended(kind, &self.pd, cqs, caps, |attr| {
            attr.pd = self.parent.as_ptr()
        })
    }

    /// Deallocates the parent domain, then the thread domain, and returns both results. After an
    /// error, the object still exists.
    pub fn deallocate(&mut self) -> [Result<()>; 2] {
        // SAFETY: Both objects exist unless an earlier call has deallocated them, and no caller
        // repeats such a call.
        unsafe {
            let parent = check(ffi::ibv_dealloc_pd(self.parent.as_ptr()));
            let td = extended(self.pd.context().raw()).and_then(|verbs| {
                let dealloc = verbs.as_ref().dealloc_td.context("no dealloc_td")?;
                check(dealloc(self.td.as_ptr())).context("deallocate thread domain")
            });
            [parent.context("deallocate parent domain"), td]
        }
    }
}

impl Cq {
    /// Waits for completions of an extended CQ, calls `inside` before the end of this batch of
    /// completions, and returns the ids of the batch.
    pub fn batch(&self, limit: Duration, inside: impl FnOnce() -> Result<()>) -> Result<Vec<u64>> {
        let cq: *mut ffi::ibv_cq_ex = self.raw().cast();
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        let deadline = Instant::now() + limit;
        // SAFETY: The CQ exists and is extended.
        unsafe {
            while (*cq).start_poll.context("start_poll")?(cq, &mut attr) != 0 {
                if Instant::now() > deadline {
                    bail!("no completion in {limit:?}");
                }
                yield_now();
            }
            let mut ids = vec![(*cq).wr_id];
            let result = inside();
            while (*cq).next_poll.context("next_poll")?(cq) == 0 {
                ids.push((*cq).wr_id);
            }
            (*cq).end_poll.context("end_poll")?(cq);
            result.map(|()| ids)
        }
    }
}

/// Send operations of a QP type, `enum ibv_qp_create_send_ops_flags`.
pub fn operations(kind: Kind) -> u64 {
    let flags = match kind {
        Kind::Rc => {
            ffi::IBV_QP_EX_WITH_RDMA_WRITE
                | ffi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | ffi::IBV_QP_EX_WITH_SEND
                | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM
                | ffi::IBV_QP_EX_WITH_SEND_WITH_INV
                | ffi::IBV_QP_EX_WITH_RDMA_READ
                | ffi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
                | ffi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        }
        Kind::Uc => {
            ffi::IBV_QP_EX_WITH_RDMA_WRITE
                | ffi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
                | ffi::IBV_QP_EX_WITH_SEND
                | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM
        }
        Kind::Ud => ffi::IBV_QP_EX_WITH_SEND | ffi::IBV_QP_EX_WITH_SEND_WITH_IMM,
    };
    flags.into()
}

/// Creates a QP with the attributes `init`. Only `edit` adds extended attributes.
pub(super) fn create_qp(
    pd: &Rc<Pd>,
    init: &ffi::ibv_qp_init_attr,
    edit: impl FnOnce(&mut ffi::ibv_qp_init_attr_ex),
) -> Result<(NonNull<ffi::ibv_qp>, ffi::ibv_qp_cap)> {
    // SAFETY: All-zero bytes are valid attributes.
    let mut attr: ffi::ibv_qp_init_attr_ex = unsafe { zeroed() };
    attr.send_cq = init.send_cq;
    attr.recv_cq = init.recv_cq;
    attr.cap = init.cap;
    attr.qp_type = init.qp_type;
    attr.sq_sig_all = init.sq_sig_all;
    attr.pd = pd.raw();
    attr.comp_mask = ffi::IBV_QP_INIT_ATTR_PD;
    edit(&mut attr);
    let context = pd.context().raw();
    // SAFETY: The context is open, PD and CQs exist, and the attributes are valid memory.
    let raw = unsafe {
        let create = extended(context)?.as_ref().create_qp_ex;
        create.context("no create_qp_ex")?(context, &mut attr)
    };
    Ok((created("create extended QP", raw)?, attr.cap))
}

/// End of a batch of work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The batch is posted.
    Complete,
    /// The batch is dropped.
    Abort,
}

impl Qp {
    /// Builds send work requests call by call, and posts or drops the batch.
    pub fn build(&self, wrs: &[SendWr<'_>], end: End) -> Result<()> {
        // SAFETY: The QP exists.
        let qp = unsafe { ffi::ibv_qp_to_qp_ex(self.raw()) };
        let qp = NonNull::new(qp)
            .context("a QP without extended send operations")?
            .as_ptr();
        macro_rules! call {
            ($function:ident $(, $argument:expr)*) => {
                (*qp).$function.context(stringify!($function))?(qp $(, $argument)*)
            };
        }
        // SAFETY: The QP exists and has these functions. Inline payload is valid memory until the
        // call returns. The device checks all other addresses and keys.
        let code = unsafe {
            call!(wr_start);
            for wr in wrs {
                (*qp).wr_id = wr.id;
                (*qp).wr_flags = wr.flags();
                match wr.op {
                    Op::Send => call!(wr_send),
                    Op::SendImm(imm) => call!(wr_send_imm, imm.to_be()),
                    Op::SendInvalidate(key) => call!(wr_send_inv, key),
                    Op::LocalInvalidate(key) => call!(wr_local_inv, key),
                    Op::AtomicWrite(addr, key, data) => {
                        call!(wr_atomic_write, key, addr, data.as_ptr().cast());
                    }
                    Op::Flush(addr, key, length, types, level) => {
                        call!(wr_flush, key, addr, length, types, level);
                    }
                    Op::Write(addr, key) => call!(wr_rdma_write, key, addr),
                    Op::WriteImm(addr, key, imm) => {
                        call!(wr_rdma_write_imm, key, addr, imm.to_be());
                    }
                    Op::Read(addr, key) => call!(wr_rdma_read, key, addr),
                    Op::CompareSwap(addr, key, compare, swap) => {
                        call!(wr_atomic_cmp_swp, key, addr, compare, swap);
                    }
                    Op::FetchAdd(addr, key, add) => call!(wr_atomic_fetch_add, key, addr, add),
                }
                if let Some(to) = wr.to {
                    call!(wr_set_ud_addr, to.ah.raw(), to.qpn, to.qkey);
                }
                match wr.payload {
                    // Some providers refuse an empty list for operations without payload.
                    Payload::Sges([]) => (),
                    Payload::Inline(bytes) => {
                        let start = bytes.as_ptr().cast_mut().cast();
                        call!(wr_set_inline_data, start, bytes.len());
                    }
                    Payload::Sges(_) => {
                        let list = super::work::sges_of(wr.payload);
                        call!(wr_set_sge_list, list.len(), list.as_ptr());
                    }
                }
            }
            match end {
                End::Complete => call!(wr_complete),
                End::Abort => {
                    call!(wr_abort);
                    0
                }
            }
        };
        check(code).context("complete a batch")
    }
}
