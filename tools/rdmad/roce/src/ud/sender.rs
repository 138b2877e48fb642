// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending datagrams.

use virtio_rdma_abi::number::Qpn;

use crate::connection::ident;
use crate::env::RequesterEnv;
use crate::headers::{Body, Bth, Deth, Headers};
use crate::net::{Path, Template};
use crate::packet::{build_frame, frame_size};
use crate::psn::Psn;
use crate::work::{Mtu, SendFlags, SendOp, SendWr, WcFault, WcResult, With};

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Addresses of the packet.
    pub path: Path,
    /// QPN of the receiver.
    pub qpn: Qpn,
    /// Q_Key of the packet.
    pub qkey: u32,
    /// P_Key of the packet.
    pub pkey: u16,
}

/// Sends the datagrams of one QP.
#[derive(Clone, Debug)]
pub struct Sender {
    qpn: Qpn,
    mtu: Mtu,
    next: Psn,
}

impl Sender {
    /// A sender of QP `qpn`, whose first packet has the PSN `sq_psn`. A datagram has at most `mtu`
    /// bytes, the MTU of the port.
    pub fn new(qpn: Qpn, sq_psn: u32, mtu: Mtu) -> Self {
        Self {
            qpn,
            mtu,
            next: Psn::new(sq_psn),
        }
    }

    /// PSN of the next packet.
    pub fn next_psn(&self) -> Psn {
        self.next
    }

    /// Skips the PSN of a datagram that was transferred without a packet.
    pub fn advance(&mut self) {
        self.next = self.next.add(1);
    }

    /// Checks whether `wr` may be sent. The error is the fault that `wr` ends with.
    pub fn check<L>(&self, wr: &SendWr<L>) -> WcResult {
        self.immediate(wr).map(drop)
    }

    /// Immediate data of `wr`, after the checks of [`check`](Self::check).
    fn immediate<L>(&self, wr: &SendWr<L>) -> Result<Option<[u8; 4]>, WcFault> {
        let SendOp::Send { with } = wr.op else {
            return Err(WcFault::NOT_PERMITTED);
        };
        if let With::Inv(_) = with {
            return Err(WcFault::NOT_PERMITTED);
        }
        if wr.length > self.mtu.bytes() {
            return Err(WcFault::TOO_LONG);
        }
        Ok(with.imm())
    }

    /// Sends a datagram. Returns the size of its frame in bytes, or `None` if there is no frame
    /// buffer. An error is the fault that the work request ends with. The caller completes the
    /// work request: this function does not call `complete_send` of the environment.
    pub fn send<E: RequesterEnv>(
        &mut self,
        wr: &SendWr<E::Send>,
        to: &Destination,
        env: &mut E,
    ) -> Result<Option<usize>, WcFault> {
        let imm = self.immediate(wr)?;
        let mut bth = Bth::new(to.pkey, to.qpn, self.next);
        bth.solicited = wr.flags.contains(SendFlags::SOLICITED);
        let deth = Deth {
            qkey: to.qkey,
            src_qpn: self.qpn,
        };
        let headers = Headers::new(bth, Body::Ud { deth, imm });
        let length = wr.length as usize;
        let size = frame_size(&to.path, &headers.body, length);
        let Some(mut frame) = env.frame(&to.path.dst_mac, size) else {
            return Ok(None);
        };
        build_frame(
            &mut frame,
            &Template::of(&to.path),
            ident(self.next),
            &headers,
            length,
            |out| {
                if out.is_empty() {
                    return Ok(());
                }
                env.gather(&wr.local, 0, out)
            },
        )?;
        env.send(frame);
        self.advance();
        Ok(Some(size))
    }
}
