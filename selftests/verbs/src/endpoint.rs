// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One end of a pair of QPs.

use std::rc::Rc;

use anyhow::Result;

use crate::rdma::{
    access, ffi, Caps, Channel, Cq, Kind, Mr, Op, Path, Pd, Qp, SendWr, Sge, Timing, Wc,
};
use crate::session::{Session, LIMIT};

/// Options of a QP and its CQs. Both sides may have different options.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Transport service.
    pub kind: Kind,
    /// Queue sizes of the QP.
    pub caps: Caps,
    /// Entries of each CQ; by default the number of work requests of its queue.
    pub cq_entries: Option<u32>,
    /// Whether the CQs have a completion channel.
    pub events: bool,
    /// Remote operations that the QP permits.
    pub access: u32,
    /// Path MTU, `enum ibv_mtu`.
    pub mtu: u32,
    /// Maximum number of RDMA READs outstanding in each direction.
    pub reads: u8,
    /// Local ACK timeout n, which stands for 4.096 µs · 2ⁿ.
    pub timeout: u8,
    /// Number of transport retries.
    pub retries: u8,
    /// Number of RNR retries; 7 means no limit.
    pub rnr_retries: u8,
    /// Minimum RNR NAK timer, as a code of the IBTA specification.
    pub rnr_timer: u8,
    /// First PSN.
    pub psn: u32,
    /// Whether a UD QP does not receive its own messages to multicast groups.
    pub blocks_loopback: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::Rc,
            caps: Caps {
                send_wr: 64,
                recv_wr: 64,
                send_sge: 1,
                recv_sge: 1,
                inline: 0,
                signal_all: false,
            },
            cq_entries: None,
            events: false,
            access: access::ALL,
            mtu: ffi::IBV_MTU_1024,
            reads: 1,
            // 4.096 µs · 2¹⁸ is about a second: an emulated peer may be slow.
            timeout: 18,
            retries: 7,
            rnr_retries: 7,
            // Code of 1.28 ms.
            rnr_timer: 14,
            psn: 0x00ff_fff0,
            blocks_loopback: false,
        }
    }
}

/// One end of a connected pair.
pub struct Endpoint {
    /// The QP, in RTS.
    pub qp: Rc<Qp>,
    /// CQ of the send queue.
    pub send: Rc<Cq>,
    /// CQ of the receive queue.
    pub recv: Rc<Cq>,
    pub pd: Rc<Pd>,
    /// Path from the QP to the peer.
    pub path: Path,
}

impl Endpoint {
    /// Creates one end in a new PD and connects it with the end of the other side.
    pub fn connect(session: &mut Session, options: &Options) -> Result<Self> {
        let pd = Pd::new(&session.context)?;
        Self::connect_in(session, &pd, options)
    }

    /// Like [`connect`](Self::connect), in an existing PD.
    pub fn connect_in(session: &mut Session, pd: &Rc<Pd>, options: &Options) -> Result<Self> {
        let context = pd.context();
        let channel = match options.events {
            true => Some(Channel::new(context)?),
            false => None,
        };
        let caps = options.caps;
        let send = Cq::new(
            context,
            options.cq_entries.unwrap_or(caps.send_wr),
            channel.as_ref(),
        )?;
        let recv = Cq::new(
            context,
            options.cq_entries.unwrap_or(caps.recv_wr),
            channel.as_ref(),
        )?;
        let qp = match options.blocks_loopback {
            true => Qp::extended(options.kind, pd, [&send, &recv], caps, |attr| {
                attr.comp_mask |= ffi::IBV_QP_INIT_ATTR_CREATE_FLAGS;
                attr.create_flags = ffi::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
            }),
            false => Qp::of(options.kind, pd, &send, &recv, caps),
        }?;
        let qp = Rc::new(qp);
        let path = Self::link(session, &qp, options)?;
        Ok(Self {
            qp,
            send,
            recv,
            pd: Rc::clone(pd),
            path,
        })
    }

    /// Connects a QP in RESET with the QP of the other side and moves it to RTS. The session keeps
    /// the QP.
    pub fn link(session: &mut Session, qp: &Rc<Qp>, options: &Options) -> Result<Path> {
        let gid_index = session.settings.gid_index;
        let gid = session.swap_gid()?;
        let [qpn, psn] = session.peer.swap([qp.qpn().into(), options.psn.into()])?;
        let path = Path {
            qpn: qpn.try_into()?,
            psn: psn.try_into()?,
            gid,
            gid_index,
            mtu: options.mtu,
            reads: options.reads,
            rnr_timer: options.rnr_timer,
        };
        qp.init(options.access)?;
        qp.rtr(&path)?;
        qp.rts(&Timing {
            psn: options.psn,
            timeout: options.timeout,
            retries: options.retries,
            rnr_retries: options.rnr_retries,
            reads: options.reads,
        })?;
        session.keep(qp);
        // Neither side sends before both can receive.
        session.peer.meet()?;
        Ok(path)
    }

    /// Posts a signaled send work request and waits for its completion.
    pub fn run(&self, op: Op, sges: &[Sge]) -> Result<Wc> {
        self.qp.send(&SendWr::new(1, op, sges))?;
        self.sent()
    }

    /// Waits for one completion of the send queue.
    pub fn sent(&self) -> Result<Wc> {
        Ok(self.send.wait(1, LIMIT)?[0])
    }

    /// Waits for one completion of the receive queue.
    pub fn received(&self) -> Result<Wc> {
        Ok(self.recv.wait(1, LIMIT)?[0])
    }

    /// Registers `length` bytes of new memory in the endpoint's PD with the access flags
    /// [`access::ALL`].
    pub fn memory(&self, length: usize) -> Result<Mr> {
        Mr::new(&self.pd, length, access::ALL)
    }
}
