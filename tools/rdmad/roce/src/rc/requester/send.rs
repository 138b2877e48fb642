// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending: selection of the next packet, and its headers.

use std::time::Instant;

use crate::connection::{ident, Pause, QpError, Sent};
use crate::env::{Incident, RequesterEnv};
use crate::headers::{Headers, RcRequest};
use crate::packet::{build_frame, frame_size};
use crate::psn::Psn;
use crate::segment::segment;
use crate::work::{SendOp, ATOMIC_SIZE};

use super::{is_answered, Requester};

/// The packet to send next.
struct Next {
    headers: Headers,
    /// Offset of the payload in the message, in bytes.
    offset: u32,
    /// Length of the payload in bytes.
    length: u32,
    /// Payload of an atomic WRITE, which is not in local memory but in the work request.
    word: Option<[u8; 8]>,
    /// Position of the packet to send after this one. A READ request occupies the positions of all
    /// its response packets.
    end: u64,
}

impl Next {
    /// A packet without payload.
    fn bare(headers: Headers, end: u64) -> Self {
        Self {
            headers,
            offset: 0,
            length: 0,
            word: None,
            end,
        }
    }
}

impl<L> Requester<L> {
    /// Sends packets until there is nothing to send or frames of `budget` bytes are sent. The last
    /// frame may exceed the budget.
    pub fn transmit<E: RequesterEnv<Send = L>>(
        &mut self,
        budget: usize,
        now: Instant,
        env: &mut E,
    ) -> Result<Sent, QpError> {
        if !self.queue.is_empty() {
            self.window.go_on(now, || env.share());
        }
        let mut bytes = 0;
        let pause = loop {
            self.complete_acked(env)?;
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
            if bytes >= budget || bytes > 0 && env.is_spent() {
                break Pause::Budget;
            }
            if !self.may_request(&next, env) {
                break Pause::NoFrame;
            }
            let Some(size) = self.send(&next, now, env) else {
                break Pause::NoFrame;
            };
            bytes += size;
            if self.ack_deadline.is_none() && self.una < self.next {
                self.start_ack_timer(now);
            }
        };
        let waits = matches!(pause, Pause::Idle) && self.ack_deadline.is_some();
        if waits && self.una < self.next {
            self.prober.wait(bytes > 0, now);
        } else {
            self.prober.rest();
        }
        if self.queue.is_empty() {
            self.window.pause(now);
        }
        Ok(Sent { bytes, pause })
    }

    /// Whether the port can take the responses to the packet that is sent next.
    fn may_request<E: RequesterEnv<Send = L>>(&self, next: &Next, env: &mut E) -> bool {
        let pending = self.queue.get(self.cursor);
        if !pending.is_some_and(|pending| pending.is_answered()) {
            return true;
        }
        // The window limits the difference, so the cast does not truncate.
        env.may_request(self.requested() + (next.end - self.next) as u32)
    }

    /// Sends a packet. Returns the size of its frame in bytes, 0 if the payload could not be
    /// gathered, or `None` if there is no frame buffer.
    fn send<E: RequesterEnv<Send = L>>(
        &mut self,
        next: &Next,
        now: Instant,
        env: &mut E,
    ) -> Option<usize> {
        let length = next.length as usize;
        let id = ident(next.headers.bth.psn);
        let size = frame_size(&self.connection.path, &next.headers.body, length);
        let mut frame = env.frame(&self.connection.path.dst_mac, size)?;
        let pending = self.queue.get_mut(self.cursor)?;
        let template = self.connection.template();
        let built = build_frame(&mut frame, template, id, &next.headers, length, |out| {
            if out.is_empty() {
                return Ok(());
            }
            if let Some(word) = next.word {
                out.copy_from_slice(&word);
                return Ok(());
            }
            env.gather(&pending.wr.local, next.offset, out)
        });
        if let Err(fault) = built {
            pending.failed = Some(fault);
            return Some(0);
        }
        if self.next < self.sent {
            env.note(Incident::Retransmission, next.headers.bth.psn, 0);
        } else if next.headers.bth.ack_req {
            // The round trip of a READ is measured with its first response packet.
            self.prober.asks(self.next + 1, now);
        }
        self.probing = false;
        self.next = next.end;
        self.sent = self.sent.max(next.end);
        self.cursor += usize::from(next.end == pending.end);
        self.unanswered += u32::from(is_answered(&pending.wr.op));
        env.send(frame);
        Some(size)
    }

    /// The next packet; `None` if no packet may be sent now. `ask` is set if each packet must
    /// request an acknowledgement.
    fn choose(&mut self, ask: bool) -> Option<Next> {
        let (at, in_flight) = (self.next, self.next - self.una);
        let window = if self.probing && at < self.sent {
            // The probe was in flight before, so it does not add to the packets in flight.
            self.sent - self.una
        } else {
            self.window.packets()
        };
        let room = window
            .checked_sub(in_flight)
            .filter(|&room| room > 0 && !self.dead)?;
        let pending = self
            .queue
            .get(self.cursor)
            .filter(|pending| pending.failed.is_none() && !self.holds(pending))?;
        let wr = &pending.wr;
        if at == pending.first && self.is_fenced() {
            return None;
        }
        let mtu = self.connection.mtu.bytes();
        // A message has at most 2^23 packets, so the cast does not truncate.
        let index = (at - pending.first) as u32;
        let psn = self.psn(at);
        if is_answered(&pending.wr.op) && self.unanswered >= u32::from(self.attr.max_rd_atomic) {
            return None;
        }
        match wr.op {
            SendOp::Read { remote } => {
                let end = pending.request_end(at);
                // A request that is larger than the window is sent when nothing is in flight.
                if end - at > room && in_flight > 0 {
                    return None;
                }
                let offset = index * mtu;
                // The request has at most the packets of its message, so the cast does not
                // truncate.
                let length = (wr.length - offset).min((end - at) as u32 * mtu);
                let request = RcRequest::Read(remote.range(offset, length));
                Some(Next::bare(self.asking(request, psn), end))
            }
            SendOp::Atomic { remote, op } => {
                let request = RcRequest::Atomic(remote, op);
                Some(Next::bare(self.asking(request, psn), at + 1))
            }
            SendOp::AtomicWrite { remote, data } => {
                let request = RcRequest::AtomicWrite(remote.range(0, ATOMIC_SIZE));
                Some(Next {
                    length: ATOMIC_SIZE,
                    word: Some(data),
                    ..Next::bare(self.asking(request, psn), at + 1)
                })
            }
            SendOp::Flush(op) => {
                let request = RcRequest::flush(&op);
                Some(Next::bare(self.asking(request, psn), at + 1))
            }
            SendOp::Send { .. } | SendOp::Write { .. } => {
                let segment = segment(self.connection.mtu, wr, index)?;
                // The first retransmitted packet also requests an acknowledgement, because the next
                // packets may be delayed for longer than the timeout. The last retransmitted packet
                // requests one too: it may be a probe.
                let repeats = at < self.sent && (at == self.una || at + 1 == self.sent);
                let mut bth = self.connection.bth(psn);
                bth.solicited = segment.solicited;
                bth.ack_req = ask
                    || segment.last
                    || repeats
                    || room == 1
                    || (at + 1) % self.window.ack_interval() == 0;
                Some(Next {
                    headers: Headers::new(bth, RcRequest::Part(segment.part)),
                    offset: segment.offset,
                    length: segment.length,
                    word: None,
                    end: at + 1,
                })
            }
            SendOp::Local { .. } => None,
        }
    }

    /// Headers of a request with the AckReq bit.
    fn asking(&self, request: RcRequest, psn: Psn) -> Headers {
        let mut bth = self.connection.bth(psn);
        bth.ack_req = true;
        Headers::new(bth, request)
    }
}
