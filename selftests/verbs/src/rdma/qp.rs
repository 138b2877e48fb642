// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! RC queue pairs.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::context::{created, none};
use super::work::{link, posted, raw_send, sges_of};
use super::{check, ffi, Cq, Payload, Pd, PostError, SendWr, Sge};

/// QP states and attributes as libibverbs has them, for tests of the state table.
pub type Attr = ffi::ibv_qp_attr;
/// `enum ibv_qp_state`.
pub type QpState = ffi::ibv_qp_state;

/// What a QP is created with.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Outstanding send work requests.
    pub send_wr: u32,
    /// Outstanding receives.
    pub recv_wr: u32,
    /// SGEs of a send work request.
    pub send_sge: u32,
    /// SGEs of a receive.
    pub recv_sge: u32,
    /// Inline payload in bytes.
    pub inline: u32,
    /// Whether every send work request completes with a CQE.
    pub signal_all: bool,
}

/// The way to the peer.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// QPN of the peer.
    pub qpn: u32,
    /// First PSN of the peer.
    pub psn: u32,
    /// GID of the peer.
    pub gid: [u8; 16],
    /// Index of the own GID.
    pub gid_index: u8,
    /// Path MTU, `enum ibv_mtu`.
    pub mtu: u32,
    /// RDMA READs that the peer may have outstanding here.
    pub reads: u8,
    /// Minimum RNR NAK timer, as the code of the specification.
    pub rnr_timer: u8,
}

/// How the requester waits and retries.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// First PSN.
    pub psn: u32,
    /// Local ACK timeout: 4.096 µs · 2ⁿ.
    pub timeout: u8,
    /// Transport retries.
    pub retries: u8,
    /// RNR retries, 7 for no limit.
    pub rnr_retries: u8,
    /// RDMA READs outstanding here.
    pub reads: u8,
}

/// An RC QP.
pub struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    caps: Caps,
    _pd: Rc<Pd>,
    _send: Rc<Cq>,
    _recv: Rc<Cq>,
}

impl Qp {
    /// An RC QP in RESET.
    pub fn new(pd: &Rc<Pd>, send: &Rc<Cq>, recv: &Rc<Cq>, caps: Caps) -> Result<Self> {
        // SAFETY: All-zero bytes are a valid ibv_qp_init_attr.
        let mut init: ffi::ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = send.raw();
        init.recv_cq = recv.raw();
        init.qp_type = ffi::IBV_QPT_RC;
        init.sq_sig_all = caps.signal_all.into();
        init.cap.max_send_wr = caps.send_wr;
        init.cap.max_recv_wr = caps.recv_wr;
        init.cap.max_send_sge = caps.send_sge;
        init.cap.max_recv_sge = caps.recv_sge;
        init.cap.max_inline_data = caps.inline;
        // SAFETY: PD and CQs exist.
        let raw = created("create QP", unsafe {
            ffi::ibv_create_qp(pd.raw(), &mut init)
        })?;
        Ok(Self {
            raw,
            caps: Caps {
                send_wr: init.cap.max_send_wr,
                recv_wr: init.cap.max_recv_wr,
                send_sge: init.cap.max_send_sge,
                recv_sge: init.cap.max_recv_sge,
                inline: init.cap.max_inline_data,
                signal_all: caps.signal_all,
            },
            _pd: Rc::clone(pd),
            _send: Rc::clone(send),
            _recv: Rc::clone(recv),
        })
    }

    /// QPN.
    pub fn qpn(&self) -> u32 {
        // SAFETY: The QP exists.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// What the QP was made with, which may be more than asked for.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Changes the attributes that `edit` sets and returns the mask of.
    pub fn modify(&self, edit: impl FnOnce(&mut Attr) -> u32) -> Result<()> {
        // SAFETY: All-zero bytes are a valid ibv_qp_attr.
        let mut attr: Attr = unsafe { zeroed() };
        let mask = edit(&mut attr);
        // SAFETY: The QP exists, and the attributes are valid memory.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &mut attr, mask.try_into()?) })
            .with_context(|| format!("modify QP to state {}", attr.qp_state))
    }

    /// RESET to INIT.
    pub fn init(&self, access: u32) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = ffi::IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = access;
            ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | ffi::IBV_QP_ACCESS_FLAGS
        })
    }

    /// INIT to RTR.
    pub fn rtr(&self, path: &Path) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = ffi::IBV_QPS_RTR;
            attr.path_mtu = path.mtu;
            attr.dest_qp_num = path.qpn;
            attr.rq_psn = path.psn;
            attr.max_dest_rd_atomic = path.reads;
            attr.min_rnr_timer = path.rnr_timer;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.port_num = 1;
            attr.ah_attr.grh.dgid.raw = path.gid;
            attr.ah_attr.grh.sgid_index = path.gid_index;
            attr.ah_attr.grh.hop_limit = 64;
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_AV
                | ffi::IBV_QP_PATH_MTU
                | ffi::IBV_QP_DEST_QPN
                | ffi::IBV_QP_RQ_PSN
                | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
                | ffi::IBV_QP_MIN_RNR_TIMER
        })
    }

    /// RTR to RTS.
    pub fn rts(&self, timing: &Timing) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = ffi::IBV_QPS_RTS;
            attr.sq_psn = timing.psn;
            attr.timeout = timing.timeout;
            attr.retry_cnt = timing.retries;
            attr.rnr_retry = timing.rnr_retries;
            attr.max_rd_atomic = timing.reads;
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_SQ_PSN
                | ffi::IBV_QP_TIMEOUT
                | ffi::IBV_QP_RETRY_CNT
                | ffi::IBV_QP_RNR_RETRY
                | ffi::IBV_QP_MAX_QP_RD_ATOMIC
        })
    }

    /// To `state` with no other attribute: RESET or ERR.
    pub fn to_state(&self, state: QpState) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = state;
            ffi::IBV_QP_STATE
        })
    }

    /// All attributes.
    pub fn query(&self) -> Result<Attr> {
        const MASK: u32 = ffi::IBV_QP_STATE
            | ffi::IBV_QP_ACCESS_FLAGS
            | ffi::IBV_QP_AV
            | ffi::IBV_QP_PATH_MTU
            | ffi::IBV_QP_TIMEOUT
            | ffi::IBV_QP_RETRY_CNT
            | ffi::IBV_QP_RNR_RETRY
            | ffi::IBV_QP_RQ_PSN
            | ffi::IBV_QP_SQ_PSN
            | ffi::IBV_QP_MAX_QP_RD_ATOMIC
            | ffi::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::IBV_QP_MIN_RNR_TIMER
            | ffi::IBV_QP_DEST_QPN
            | ffi::IBV_QP_CAP
            | ffi::IBV_QP_PORT
            | ffi::IBV_QP_PKEY_INDEX;
        // SAFETY: All-zero bytes are valid values of both structures; the QP exists.
        unsafe {
            let mut attr: Attr = zeroed();
            let mut init: ffi::ibv_qp_init_attr = zeroed();
            check(ffi::ibv_query_qp(
                self.raw.as_ptr(),
                &mut attr,
                MASK.try_into()?,
                &mut init,
            ))
            .context("query QP")?;
            Ok(attr)
        }
    }

    /// The current state.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.query()?.qp_state)
    }

    /// Posts one send work request.
    pub fn send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.send_all(std::slice::from_ref(wr))
    }

    /// Posts a list of send work requests with one call.
    pub fn send_all(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let mut lists: Vec<Vec<ffi::ibv_sge>> = wrs.iter().map(|wr| sges_of(wr.payload)).collect();
        let mut raw: Vec<ffi::ibv_send_wr> = wrs
            .iter()
            .zip(&mut lists)
            .map(|(wr, list)| raw_send(wr, list))
            .collect();
        link(&mut raw, |wr, next| wr.next = next);
        let first = raw.as_mut_ptr();
        let mut bad = none();
        // SAFETY: The QP exists and its provider filled in post_send. The requests and their SGE lists live until the
        // call returns. Inline payload is valid memory; whatever else an SGE names is checked by the device.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_send;
            post.map_or(95, |post| post(self.raw.as_ptr(), first, &mut bad))
        };
        posted(code, &raw, bad)
    }

    /// Posts one receive.
    pub fn recv(&self, id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.recv_all(&[(id, sges)])
    }

    /// Posts a list of receives with one call.
    pub fn recv_all(&self, wrs: &[(u64, &[Sge])]) -> Result<(), PostError> {
        let mut lists: Vec<Vec<ffi::ibv_sge>> =
            wrs.iter().map(|wr| sges_of(Payload::Sges(wr.1))).collect();
        let mut raw: Vec<ffi::ibv_recv_wr> = wrs
            .iter()
            .zip(&mut lists)
            .map(|(wr, list)| ffi::ibv_recv_wr {
                wr_id: wr.0,
                next: none(),
                sg_list: list.as_mut_ptr(),
                num_sge: list.len() as i32,
            })
            .collect();
        link(&mut raw, |wr, next| wr.next = next);
        let first = raw.as_mut_ptr();
        let mut bad = none();
        // SAFETY: As in `send_all`.
        let code = unsafe {
            let post = (*self.raw.as_ref().context).ops.post_recv;
            post.map_or(95, |post| post(self.raw.as_ptr(), first, &mut bad))
        };
        posted(code, &raw, bad)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: The QP exists and is destroyed once.
        if let Err(error) = check(unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) }) {
            println!("# destroy QP: {error}");
        }
    }
}
