// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Queue pairs.

use std::mem::zeroed;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::context::{created, none};
use super::work::{link, posted, raw_send, sges_of};
use super::{check, extended, ffi, Cq, Payload, Pd, PostError, SendWr, Sge, Srq};

/// `struct ibv_qp_attr`.
pub type Attr = ffi::ibv_qp_attr;
/// `enum ibv_qp_state`.
pub type QpState = ffi::ibv_qp_state;

/// Transport service of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// Q_Key of all UD QPs.
pub const QKEY: u32 = 0x1122_3344;

/// Destination QPN of multicast messages.
pub const MULTICAST_QPN: u32 = 0x00ff_ffff;

/// Queue sizes of a QP.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Maximum number of outstanding send work requests.
    pub send_wr: u32,
    /// Maximum number of outstanding receives.
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

/// Attributes of the path to the peer, for the change to RTR.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// QPN of the peer.
    pub qpn: u32,
    /// First PSN of the peer.
    pub psn: u32,
    /// GID of the peer.
    pub gid: [u8; 16],
    /// Index of the local GID.
    pub gid_index: u8,
    /// Path MTU, `enum ibv_mtu`.
    pub mtu: u32,
    /// Maximum number of outstanding RDMA READs of the peer.
    pub reads: u8,
    /// Minimum RNR NAK timer, as a code of the IBTA specification.
    pub rnr_timer: u8,
}

/// Attributes of the requester, for the change to RTS.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// First PSN.
    pub psn: u32,
    /// Local ACK timeout n, which stands for 4.096 µs · 2ⁿ.
    pub timeout: u8,
    /// Number of transport retries.
    pub retries: u8,
    /// Number of RNR retries; 7 means no limit.
    pub rnr_retries: u8,
    /// Maximum number of outstanding RDMA READs of this side.
    pub reads: u8,
}

pub struct Qp {
    raw: NonNull<ffi::ibv_qp>,
    kind: Kind,
    caps: Caps,
    _pd: Rc<Pd>,
    _send: Rc<Cq>,
    _recv: Rc<Cq>,
    _srq: Option<Rc<Srq>>,
}

fn init(kind: Kind, send: &Rc<Cq>, recv: &Rc<Cq>, caps: Caps) -> ffi::ibv_qp_init_attr {
    // SAFETY: All-zero bytes are a valid ibv_qp_init_attr.
    let mut init: ffi::ibv_qp_init_attr = unsafe { zeroed() };
    init.send_cq = send.raw();
    init.recv_cq = recv.raw();
    init.qp_type = match kind {
        Kind::Rc => ffi::IBV_QPT_RC,
        Kind::Uc => ffi::IBV_QPT_UC,
        Kind::Ud => ffi::IBV_QPT_UD,
    };
    init.sq_sig_all = caps.signal_all.into();
    init.cap.max_send_wr = caps.send_wr;
    init.cap.max_recv_wr = caps.recv_wr;
    init.cap.max_send_sge = caps.send_sge;
    init.cap.max_recv_sge = caps.recv_sge;
    init.cap.max_inline_data = caps.inline;
    init
}

impl Qp {
    /// Creates an RC QP. It is in RESET.
    pub fn new(pd: &Rc<Pd>, send: &Rc<Cq>, recv: &Rc<Cq>, caps: Caps) -> Result<Self> {
        Self::of(Kind::Rc, pd, send, recv, caps)
    }

    /// Creates a QP of type `kind`. It is in RESET.
    pub fn of(kind: Kind, pd: &Rc<Pd>, send: &Rc<Cq>, recv: &Rc<Cq>, caps: Caps) -> Result<Self> {
        let mut init = init(kind, send, recv, caps);
        // SAFETY: PD and CQs exist.
        let raw = created("create QP", unsafe {
            ffi::ibv_create_qp(pd.raw(), &mut init)
        })?;
        let signal_all = caps.signal_all;
        Ok(Self::made(raw, kind, init.cap, signal_all, pd, send, recv))
    }

    /// Creates a QP that takes its receives from `srq`. It is in RESET.
    pub fn with_srq(
        kind: Kind,
        pd: &Rc<Pd>,
        [send, recv]: [&Rc<Cq>; 2],
        srq: &Rc<Srq>,
        caps: Caps,
    ) -> Result<Self> {
        let mut init = init(kind, send, recv, caps);
        init.srq = srq.raw();
        // SAFETY: PD, CQs and SRQ exist.
        let raw = created("create QP with SRQ", unsafe {
            ffi::ibv_create_qp(pd.raw(), &mut init)
        })?;
        let mut qp = Self::made(raw, kind, init.cap, caps.signal_all, pd, send, recv);
        qp._srq = Some(Rc::clone(srq));
        Ok(qp)
    }

    /// Creates a QP that supports [`build`](Self::build) for all operations of its type. `edit`
    /// changes the attributes. The QP is in RESET.
    pub fn extended(
        kind: Kind,
        pd: &Rc<Pd>,
        [send, recv]: [&Rc<Cq>; 2],
        caps: Caps,
        edit: impl FnOnce(&mut ffi::ibv_qp_init_attr_ex),
    ) -> Result<Self> {
        let (raw, cap) = extended::create_qp(pd, &init(kind, send, recv, caps), |attr| {
            attr.comp_mask |= ffi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            attr.send_ops_flags = extended::operations(kind);
            edit(attr);
        })?;
        let signal_all = caps.signal_all;
        Ok(Self::made(raw, kind, cap, signal_all, pd, send, recv))
    }

    fn made(
        raw: NonNull<ffi::ibv_qp>,
        kind: Kind,
        cap: ffi::ibv_qp_cap,
        signal_all: bool,
        pd: &Rc<Pd>,
        send: &Rc<Cq>,
        recv: &Rc<Cq>,
    ) -> Self {
        Self {
            raw,
            kind,
            caps: Caps {
                send_wr: cap.max_send_wr,
                recv_wr: cap.max_recv_wr,
                send_sge: cap.max_send_sge,
                recv_sge: cap.max_recv_sge,
                inline: cap.max_inline_data,
                signal_all,
            },
            _pd: Rc::clone(pd),
            _send: Rc::clone(send),
            _recv: Rc::clone(recv),
            _srq: None,
        }
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: The QP exists.
        unsafe { self.raw.as_ref().qp_num }
    }

    /// Actual queue sizes of the QP, at least the requested ones.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Changes attributes of the QP. `edit` sets them and returns their mask.
    pub fn modify(&self, edit: impl FnOnce(&mut Attr) -> u32) -> Result<()> {
        // SAFETY: All-zero bytes are a valid ibv_qp_attr.
        let mut attr: Attr = unsafe { zeroed() };
        let mask = edit(&mut attr);
        // SAFETY: The QP exists, and the attributes are valid memory.
        check(unsafe { ffi::ibv_modify_qp(self.raw.as_ptr(), &mut attr, mask.try_into()?) })
            .with_context(|| format!("modify QP to state {}", attr.qp_state))
    }

    /// Moves the QP from RESET to INIT.
    pub fn init(&self, access: u32) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = ffi::IBV_QPS_INIT;
            attr.port_num = 1;
            let own = match self.kind {
                Kind::Ud => {
                    attr.qkey = QKEY;
                    ffi::IBV_QP_QKEY
                }
                Kind::Rc | Kind::Uc => {
                    attr.qp_access_flags = access;
                    ffi::IBV_QP_ACCESS_FLAGS
                }
            };
            ffi::IBV_QP_STATE | ffi::IBV_QP_PKEY_INDEX | ffi::IBV_QP_PORT | own
        })
    }

    /// Moves the QP from INIT to RTR.
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
            let connected =
                ffi::IBV_QP_AV | ffi::IBV_QP_PATH_MTU | ffi::IBV_QP_DEST_QPN | ffi::IBV_QP_RQ_PSN;
            let reliable = ffi::IBV_QP_MAX_DEST_RD_ATOMIC | ffi::IBV_QP_MIN_RNR_TIMER;
            ffi::IBV_QP_STATE
                | match self.kind {
                    Kind::Rc => connected | reliable,
                    Kind::Uc => connected,
                    Kind::Ud => 0,
                }
        })
    }

    /// Moves the QP from RTR to RTS.
    pub fn rts(&self, timing: &Timing) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = ffi::IBV_QPS_RTS;
            attr.sq_psn = timing.psn;
            attr.timeout = timing.timeout;
            attr.retry_cnt = timing.retries;
            attr.rnr_retry = timing.rnr_retries;
            attr.max_rd_atomic = timing.reads;
            let reliable = ffi::IBV_QP_TIMEOUT
                | ffi::IBV_QP_RETRY_CNT
                | ffi::IBV_QP_RNR_RETRY
                | ffi::IBV_QP_MAX_QP_RD_ATOMIC;
            ffi::IBV_QP_STATE
                | ffi::IBV_QP_SQ_PSN
                | match self.kind {
                    Kind::Rc => reliable,
                    Kind::Uc | Kind::Ud => 0,
                }
        })
    }

    /// Moves the QP to `state` without other attributes: RESET, SQD or ERR, or from SQD to RTS.
    pub fn to_state(&self, state: QpState) -> Result<()> {
        self.modify(|attr| {
            attr.qp_state = state;
            ffi::IBV_QP_STATE
        })
    }

    /// Queries all attributes.
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
            | ffi::IBV_QP_PKEY_INDEX
            | ffi::IBV_QP_QKEY;
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

    /// Queries the current state.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.query()?.qp_state)
    }

    /// Attaches the QP to a multicast group.
    pub fn attach(&self, group: &[u8; 16]) -> Result<()> {
        let gid = ffi::ibv_gid { raw: *group };
        // SAFETY: The QP exists, and the GID is valid for the call.
        check(unsafe { ffi::ibv_attach_mcast(self.raw.as_ptr(), &gid, 0) }).context("attach QP")
    }

    /// Detaches the QP from a multicast group.
    pub fn detach(&self, group: &[u8; 16]) -> Result<()> {
        let gid = ffi::ibv_gid { raw: *group };
        // SAFETY: The QP exists, and the GID is valid for the call.
        check(unsafe { ffi::ibv_detach_mcast(self.raw.as_ptr(), &gid, 0) }).context("detach QP")
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
        // SAFETY: The QP exists. The requests and their SGE lists live until the call returns.
        // Inline payload is valid memory. The device checks all other addresses and keys.
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
