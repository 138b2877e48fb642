// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending: which packet comes next, and what it looks like.

use std::time::Instant;

use crate::connection::{ident, Pause, QpError, Sent};
use crate::env::{Incident, RequesterEnv};
use crate::headers::{AtomicEth, Bth, Feth, Transport};
use crate::opcode::{Op, Opcode, Service};
use crate::packet::{build, frame_size};
use crate::psn::Psn;
use crate::rc::WINDOW;
use crate::segment::{reth, segment};
use crate::work::{AtomicOp, FlushLevel, FlushOp, SendOp, ATOMIC_SIZE};

use super::{is_answered, Requester};

/// An acknowledgement is asked for at least once in so many packets.
const ACK_INTERVAL: u64 = WINDOW as u64 / 4;

/// What to send next.
struct Next {
    transport: Transport,
    /// Payload, as a part of the message.
    offset: u32,
    length: u32,
    /// The payload, if it is in the work request itself.
    word: Option<[u8; 8]>,
    /// Packet to be sent after this one. A READ request takes the place of all its responses.
    end: u64,
}

impl Next {
    /// A packet without payload.
    fn bare(transport: Transport, end: u64) -> Self {
        Self {
            transport,
            offset: 0,
            length: 0,
            word: None,
            end,
        }
    }
}

impl<L> Requester<L> {
    /// Sends packets until there is nothing to send or frames of `budget` bytes are sent; the last
    /// may exceed it.
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
            if self.execute_local(env) {
                continue;
            }
            let Some(next) = self.choose(env.is_slow()) else {
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

    /// Sends a packet. Returns the bytes sent, none if local memory refused its payload, or `None`
    /// without a frame buffer.
    fn send<E: RequesterEnv<Send = L>>(&mut self, next: &Next, env: &mut E) -> Option<usize> {
        let path = &self.connection.path;
        let length = next.length as usize;
        let psn = next.transport.bth.psn;
        let size = frame_size(path, &next.transport, length);
        let mut frame = env.frame(size)?;
        let pending = self.queue.get_mut(self.cursor)?;
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
                if let Some(word) = next.word {
                    out.copy_from_slice(&word);
                    return Ok(());
                }
                env.gather(&pending.wr.local, next.offset, out)
            },
        );
        if let Err(status) = built {
            pending.failed = Some(status);
            return Some(0);
        }
        if self.next < self.sent {
            env.count(Incident::Retransmission);
        }
        self.next = next.end;
        self.sent = self.sent.max(next.end);
        self.cursor += usize::from(next.end == pending.end);
        self.unanswered += u32::from(is_answered(&pending.wr.op));
        env.send(frame);
        Some(size)
    }

    /// The next packet, if one may be sent now. `ask` says that each asks for an acknowledgement.
    fn choose(&mut self, ask: bool) -> Option<Next> {
        let (at, in_flight) = (self.next, self.next - self.una);
        let room = u64::from(WINDOW)
            .checked_sub(in_flight)
            .filter(|&room| room > 0 && !self.dead)?;
        let pending = self
            .queue
            .get(self.cursor)
            .filter(|pending| pending.failed.is_none() && !self.holds(pending))?;
        let wr = &pending.wr;
        if at == pending.first && self.is_held() {
            return None;
        }
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets.
        let index = (at - pending.first) as u32;
        let psn = self.psn(at);
        if is_answered(&pending.wr.op) && self.unanswered >= u32::from(self.attr.max_rd_atomic) {
            return None;
        }
        match wr.op {
            SendOp::Read { remote } => {
                let end = pending.request_end(at);
                if end - at > room {
                    return None;
                }
                let offset = index * mtu;
                // At most the packets of the whole message.
                let length = (wr.length - offset).min((end - at) as u32 * mtu);
                let mut transport = self.request(Op::ReadRequest, psn);
                transport.reth = Some(reth(remote, offset, length));
                Some(Next::bare(transport, end))
            }
            SendOp::Atomic { remote, op } => {
                let (op, swap_add, compare) = match op {
                    AtomicOp::CompareSwap { compare, swap } => (Op::CompareSwap, swap, compare),
                    AtomicOp::FetchAdd { add } => (Op::FetchAdd, add, 0),
                };
                let mut transport = self.request(op, psn);
                transport.atomic = Some(AtomicEth {
                    va: remote.va,
                    rkey: remote.rkey,
                    swap_add,
                    compare,
                });
                Some(Next::bare(transport, at + 1))
            }
            SendOp::AtomicWrite { remote, data } => {
                let mut transport = self.request(Op::AtomicWrite, psn);
                transport.reth = Some(reth(remote, 0, ATOMIC_SIZE));
                Some(Next {
                    length: ATOMIC_SIZE,
                    word: Some(data),
                    ..Next::bare(transport, at + 1)
                })
            }
            SendOp::Flush(FlushOp {
                remote,
                length,
                types,
            }) => {
                let mut transport = self.request(Op::Flush, psn);
                transport.feth = Some(Feth {
                    types,
                    level: match length {
                        Some(_) => FlushLevel::Range,
                        None => FlushLevel::Mr,
                    },
                });
                transport.reth = Some(reth(remote, 0, length.unwrap_or(0)));
                Some(Next::bare(transport, at + 1))
            }
            SendOp::Send { .. } | SendOp::Write { .. } => {
                let mut segment = segment(Service::Rc, &self.connection, wr, index, psn)?;
                // The first packet of a repetition asks too: what follows may be held up for longer
                // than the peer waits.
                let repeats = at == self.una && at < self.sent;
                segment.transport.bth.ack_req = ask
                    || segment.last
                    || repeats
                    || room == 1
                    || at % ACK_INTERVAL == ACK_INTERVAL - 1;
                Some(Next {
                    transport: segment.transport,
                    offset: segment.offset,
                    length: segment.length,
                    word: None,
                    end: at + 1,
                })
            }
            SendOp::Local { .. } => None,
        }
    }

    /// Headers of a READ or atomic request.
    fn request(&self, op: Op, psn: Psn) -> Transport {
        let mut bth = Bth::new(
            Opcode::rc(op),
            self.connection.pkey,
            self.connection.dest_qpn,
            psn,
        );
        bth.ack_req = true;
        Transport::new(bth)
    }
}
