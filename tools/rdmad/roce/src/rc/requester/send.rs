// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending: which packet comes next, and what it looks like.

use std::time::Instant;

use crate::headers::{Bth, Reth, Transport};
use crate::opcode::{Extra, Op, Opcode, Position};
use crate::packet::{build, frame_size};
use crate::rc::env::RequesterEnv;
use crate::rc::{ident, Pause, QpError, Sent, WINDOW};
use crate::work::{Remote, SendFlags, SendOp};

use super::{Pending, Requester};

/// An acknowledgement is asked for at least once in so many packets.
const ACK_INTERVAL: u64 = WINDOW as u64 / 4;

/// What to send next.
struct Next {
    transport: Transport,
    /// Payload, as a part of the message.
    offset: u32,
    length: u32,
    /// Packet to be sent after this one. A READ request takes the place of all its responses.
    end: u64,
}

impl<L> Requester<L> {
    /// Sends packets until there is nothing to send or frames of `budget` bytes are sent; the last may exceed it.
    pub fn transmit<E: RequesterEnv<Send = L>>(
        &mut self,
        budget: usize,
        now: Instant,
        env: &mut E,
    ) -> Result<Sent, QpError> {
        let mut bytes = 0;
        let pause = loop {
            self.settle(env)?;
            if self.rnr_deadline.is_some_and(|at| now < at) {
                break Pause::Idle;
            }
            self.rnr_deadline = None;
            let Some(next) = self.choose() else {
                break Pause::Idle;
            };
            if bytes >= budget {
                break Pause::Budget;
            }
            let Some(size) = self.send(&next, env) else {
                break Pause::NoFrame;
            };
            bytes += size;
            if self.ack_deadline.is_none() && self.una < self.next {
                self.start_ack_timer(now);
            }
        };
        Ok(Sent { bytes, pause })
    }

    /// Sends a packet. Returns the bytes sent, none if local memory refused its payload, or `None` without a frame
    /// buffer.
    fn send<E: RequesterEnv<Send = L>>(&mut self, next: &Next, env: &mut E) -> Option<usize> {
        let path = &self.connection.path;
        let length = next.length as usize;
        let psn = next.transport.bth.psn;
        let size = frame_size(path, &next.transport, length);
        let mut frame = env.frame(size)?;
        let pending = &mut self.queue[self.cursor];
        let built = build(
            &mut frame,
            path,
            ident(psn),
            &next.transport,
            length,
            |out| {
                if out.is_empty() {
                    return Ok(());
                }
                env.gather(&pending.wr.local, next.offset, out)
            },
        );
        if let Err(status) = built {
            pending.failed = Some(status);
            return Some(0);
        }
        self.next = next.end;
        self.sent = self.sent.max(next.end);
        self.cursor += usize::from(next.end == pending.end);
        self.reads += u32::from(next.transport.bth.opcode.op == Op::ReadRequest);
        env.send(frame);
        Some(size)
    }

    /// The next packet, if one may be sent now.
    fn choose(&mut self) -> Option<Next> {
        let (at, in_flight) = (self.next, self.next - self.una);
        let room = u64::from(WINDOW)
            .checked_sub(in_flight)
            .filter(|&room| room > 0 && !self.dead)?;
        let pending = self
            .queue
            .get(self.cursor)
            .filter(|pending| pending.failed.is_none())?;
        let wr = &pending.wr;
        if at == pending.first
            && wr.flags.contains(SendFlags::FENCE)
            && self.queue.range(..self.cursor).any(Pending::is_read)
        {
            return None;
        }
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets.
        let index = (at - pending.first) as u32;
        let offset = index * mtu;
        let psn = self.psn(at);
        let bth = |op| {
            Bth::new(
                Opcode::rc(op),
                self.connection.pkey,
                self.connection.dest_qpn,
                psn,
            )
        };

        if let SendOp::Read { remote } = wr.op {
            let end = pending.request_end(at);
            if self.reads >= u32::from(self.attr.max_rd_atomic) || end - at > room {
                return None;
            }
            // At most the packets of the whole message.
            let length = (wr.length - offset).min((end - at) as u32 * mtu);
            let mut transport = Transport::new(bth(Op::ReadRequest));
            transport.bth.ack_req = true;
            transport.reth = Some(reth(remote, offset, length));
            return Some(Next {
                transport,
                offset,
                length: 0,
                end,
            });
        }

        let last = at + 1 == pending.end;
        let position = Position::of(index == 0, last);
        let (remote, imm) = match wr.op {
            SendOp::Send { imm } => (None, imm),
            SendOp::Write { remote, imm } => (Some(remote), imm),
            SendOp::Read { .. } => return None,
        };
        let imm = imm.filter(|_| last);
        let extra = if imm.is_some() {
            Extra::Imm
        } else {
            Extra::None
        };
        let op = if remote.is_some() {
            Op::Write(position, extra)
        } else {
            Op::Send(position, extra)
        };
        let mut transport = Transport::new(bth(op));
        transport.imm = imm;
        transport.reth = remote
            .filter(|_| index == 0)
            .map(|remote| reth(remote, 0, wr.length));
        // The first packet of a repetition asks too: what follows may be held up for longer than the peer waits.
        let repeats = at == self.una && at < self.sent;
        transport.bth.ack_req =
            last || repeats || room == 1 || at % ACK_INTERVAL == ACK_INTERVAL - 1;
        // A WRITE without immediate data completes no receive that could be solicited.
        transport.bth.solicited =
            last && wr.flags.contains(SendFlags::SOLICITED) && (imm.is_some() || remote.is_none());
        Some(Next {
            transport,
            offset,
            length: (wr.length - offset).min(mtu),
            end: at + 1,
        })
    }
}

/// The RETH for `length` bytes from `offset` of a remote range. The responder checks that it does not wrap.
fn reth(remote: Remote, offset: u32, length: u32) -> Reth {
    Reth {
        va: remote.va.wrapping_add(u64::from(offset)),
        rkey: remote.rkey,
        length,
    }
}
