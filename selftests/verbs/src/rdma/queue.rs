// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Completion queues and completion channels.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::rc::Rc;
use std::thread::yield_now;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context as _, Result};
use virtio_rdma_abi::cqe::WcReason;

use super::context::{created, none, wait_readable};
use super::{check, extended, ffi, Context};

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// Id of the work request.
    pub id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// The reason for an error, of our device.
    pub vendor_err: u32,
    /// `enum ibv_wc_opcode`; valid only if the status is success.
    pub opcode: u32,
    /// Number of bytes received.
    pub bytes: u32,
    /// Immediate data, in host byte order.
    pub imm: Option<u32>,
    /// Key that the message has invalidated.
    pub invalidated: Option<u32>,
    /// QPN of this side.
    pub qpn: u32,
    /// QPN of a datagram's sender.
    pub source: u32,
    /// Flags, `enum ibv_wc_flags`.
    pub flags: u32,
    /// Service level.
    pub sl: u8,
}

/// The name of a completion status, as in `enum ibv_wc_status`.
pub fn status_name(status: u32) -> &'static str {
    const NAMES: [&str; 22] = [
        "SUCCESS",
        "LOC_LEN_ERR",
        "LOC_QP_OP_ERR",
        "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",
        "WR_FLUSH_ERR",
        "MW_BIND_ERR",
        "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",
        "REM_INV_REQ_ERR",
        "REM_ACCESS_ERR",
        "REM_OP_ERR",
        "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR",
        "LOC_RDD_VIOL_ERR",
        "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",
        "INV_EECN_ERR",
        "INV_EEC_STATE_ERR",
        "FATAL_ERR",
        "RESP_TIMEOUT_ERR",
        "GENERAL_ERR",
    ];
    NAMES
        .get(status as usize)
        .copied()
        .unwrap_or("unknown status")
}

impl Wc {
    /// A completion from the values of libibverbs.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn new(
        id: u64,
        [status, vendor_err]: [u32; 2],
        opcode: u32,
        bytes: u32,
        flags: u32,
        extra: u32,
        [qpn, source]: [u32; 2],
        sl: u8,
    ) -> Self {
        let has = |flag| status == ffi::IBV_WC_SUCCESS && flags & flag != 0;
        Self {
            id,
            status,
            vendor_err,
            opcode,
            bytes,
            imm: has(ffi::IBV_WC_WITH_IMM).then_some(u32::from_be(extra)),
            invalidated: has(ffi::IBV_WC_WITH_INV).then_some(extra),
            qpn,
            source,
            flags,
            sl,
        }
    }

    /// Fails unless the status is success.
    pub fn ok(self) -> Result<Self> {
        self.expect(ffi::IBV_WC_SUCCESS)
    }

    /// Fails unless the status is `status`, for this reason.
    pub fn expect_for(self, status: u32, reason: WcReason) -> Result<Self> {
        let told = u8::try_from(self.vendor_err).ok();
        let told = told.and_then(|told| WcReason::try_from(told).ok());
        ensure!(
            told == Some(reason),
            "the reason is {} instead of {reason:?}: {self:?}",
            self.vendor_err
        );
        self.expect(status)
    }

    /// Fails unless the status is `status`.
    pub fn expect(self, status: u32) -> Result<Self> {
        ensure!(
            self.status == status,
            "work request {} ended with {} instead of {}",
            self.id,
            status_name(self.status),
            status_name(status)
        );
        Ok(self)
    }
}

/// A completion channel.
pub struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    context: Rc<Context>,
}

impl Channel {
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>> {
        // SAFETY: The context is open.
        let raw = created("create completion channel", unsafe {
            ffi::ibv_create_comp_channel(context.raw())
        })?;
        Ok(Rc::new(Self {
            raw,
            context: Rc::clone(context),
        }))
    }

    /// Whether an event arrives within `timeout`.
    pub fn ready(&self, timeout: Duration) -> bool {
        // SAFETY: The channel exists and its descriptor is open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) };
        wait_readable(fd, timeout).is_ok()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: Each CQ of the channel holds a reference to it, so none of them exists now.
        if let Err(error) = check(unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) }) {
            println!("# destroy completion channel: {error}");
        }
    }
}

/// A completion queue.
pub struct Cq {
    raw: NonNull<ffi::ibv_cq>,
    channel: Option<Rc<Channel>>,
    /// Completions that were polled, but not yet returned by [`wait`](Self::wait).
    kept: RefCell<Vec<Wc>>,
    /// The CQ is an extended CQ, whose completions are read field by field.
    extended: bool,
    _context: Rc<Context>,
}

impl Cq {
    /// Creates a CQ of at least `entries` entries, with or without a completion channel.
    pub fn new(
        context: &Rc<Context>,
        entries: u32,
        channel: Option<&Rc<Channel>>,
    ) -> Result<Rc<Self>> {
        let raw_channel = channel.map_or(none(), |channel| channel.raw.as_ptr());
        if let Some(channel) = channel {
            ensure!(
                Rc::ptr_eq(&channel.context, context),
                "a channel of another context"
            );
        }
        // SAFETY: The context is open, and the channel, if any, exists.
        let raw = unsafe {
            ffi::ibv_create_cq(context.raw(), entries.try_into()?, none(), raw_channel, 0)
        };
        Ok(Rc::new(Self {
            raw: created("create CQ", raw)?,
            channel: channel.map(Rc::clone),
            kept: RefCell::default(),
            extended: false,
            _context: Rc::clone(context),
        }))
    }

    /// Wraps an extended CQ that was created.
    pub(super) fn extended(raw: NonNull<ffi::ibv_cq>, context: &Rc<Context>) -> Rc<Self> {
        Rc::new(Self {
            raw,
            channel: None,
            kept: RefCell::default(),
            extended: true,
            _context: Rc::clone(context),
        })
    }

    pub fn entries(&self) -> u32 {
        // SAFETY: The CQ exists.
        unsafe { self.raw.as_ref().cqe }.try_into().unwrap_or(0)
    }

    /// Resizes the CQ to at least `entries` entries.
    pub fn resize(&self, entries: u32) -> Result<()> {
        // SAFETY: The CQ exists.
        check(unsafe { ffi::ibv_resize_cq(self.raw.as_ptr(), entries.try_into()?) })
            .context("resize CQ")
    }

    /// Polls up to 16 completions. This function itself makes no system call.
    pub fn poll(&self, found: &mut Vec<Wc>) -> Result<usize> {
        const BATCH: usize = 16;
        if self.extended {
            // SAFETY: The CQ exists and is extended.
            return unsafe { extended::poll(self.raw.as_ptr().cast(), found, BATCH) };
        }
        let mut raw = [const { MaybeUninit::<ffi::ibv_wc>::uninit() }; BATCH];
        // SAFETY: The CQ exists, and its provider filled in poll_cq, which fills at most BATCH
        // entries of `raw`.
        let count = unsafe {
            let context = self.raw.as_ref().context;
            let poll = (*context).ops.poll_cq.context("no poll_cq")?;
            poll(self.raw.as_ptr(), BATCH as i32, raw.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).ok().context("poll CQ failed")?;
        for wc in &raw[..count] {
            // SAFETY: poll_cq has filled the first `count` entries.
            let wc = unsafe { wc.assume_init_ref() };
            // SAFETY: Both members of the union are plain 32-bit integers.
            let extra = unsafe { wc.__bindgen_anon_1.imm_data };
            found.push(Wc::new(
                wc.wr_id,
                [wc.status, wc.vendor_err],
                wc.opcode,
                wc.byte_len,
                wc.wc_flags,
                extra,
                [wc.qp_num, wc.src_qp],
                wc.sl,
            ));
        }
        Ok(count)
    }

    /// Waits at most `limit` for `count` completions. If a poll returns more, the rest is kept for
    /// the next call.
    pub fn wait(&self, count: usize, limit: Duration) -> Result<Vec<Wc>> {
        let deadline = Instant::now() + limit;
        let mut found = self.kept.take();
        while found.len() < count {
            if self.poll(&mut found)? == 0 {
                if Instant::now() > deadline {
                    bail!(
                        "{} of {count} completions in {limit:?}: {found:?}",
                        found.len()
                    );
                }
                yield_now();
            }
        }
        self.kept.replace(found.split_off(count));
        Ok(found)
    }

    /// Fails if there is a completion.
    pub fn expect_empty(&self) -> Result<()> {
        let mut found = self.kept.take();
        self.poll(&mut found)?;
        ensure!(found.is_empty(), "unexpected completions: {found:?}");
        Ok(())
    }

    /// Requests an event for the next completion, or for the next solicited completion.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: The CQ exists, and its provider filled in req_notify_cq.
        let code = unsafe {
            let context = self.raw.as_ref().context;
            let arm = (*context).ops.req_notify_cq.context("no req_notify_cq")?;
            arm(self.raw.as_ptr(), i32::from(solicited_only))
        };
        check(code).context("arm CQ")
    }

    /// Waits at most `limit` for an event of this CQ, and acknowledges the event.
    pub fn event(&self, limit: Duration) -> Result<()> {
        let channel = self.channel.as_ref().context("a CQ without a channel")?;
        ensure!(channel.ready(limit), "no completion event in {limit:?}");
        let mut cq = none();
        let mut user = none();
        // SAFETY: The channel exists, and the CQ that the call names is acknowledged once.
        unsafe {
            check(ffi::ibv_get_cq_event(
                channel.raw.as_ptr(),
                &mut cq,
                &mut user,
            ))
            .context("get CQ event")?;
            ffi::ibv_ack_cq_events(cq, 1);
        }
        ensure!(cq == self.raw.as_ptr(), "an event of another CQ");
        Ok(())
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: Each QP of the CQ holds a reference to it, so none of them exists now, and all
        // events are acknowledged.
        if let Err(error) = check(unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) }) {
            println!("# destroy CQ: {error}");
        }
    }
}
