// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The requester of an unreliable connection.

mod saved;

use budget::{ChargedQueue, Exhausted, MemoryBudget};

use crate::connection::{ident, Connection, Pause, QpError, Sent, TemplatedConnection};
use crate::env::RequesterEnv;
use crate::headers::{Body, Headers};
use crate::net::Path;
use crate::packet::{build_frame, frame_size};
use crate::psn::Psn;
use crate::segment::segment;
use crate::work::{SendOp, SendWr, WcFault, With, MAX_MESSAGE};

pub use self::saved::RequesterState;

/// Sends the work requests of one QP. `L` describes the local memory of a work request.
#[derive(Debug)]
pub struct Requester<L> {
    connection: TemplatedConnection,
    /// Work requests that have not ended. An invalid one also has the fault with which it will
    /// fail.
    queue: ChargedQueue<(SendWr<L>, Option<WcFault>)>,
    /// Number of packets of the first work request that were sent.
    index: u32,
    next: Psn,
    dead: bool,
    /// Whether the requester starts no further work requests. A work request that has begun
    /// continues.
    held: bool,
}

impl<L> Requester<L> {
    /// A requester whose first packet has the PSN `sq_psn`. It has no room for work requests;
    /// [`make_room`](Self::make_room) adds room.
    pub fn new(connection: Connection, sq_psn: u32) -> Self {
        Self {
            connection: TemplatedConnection::new(connection),
            queue: ChargedQueue::default(),
            index: 0,
            next: Psn::new(sq_psn),
            dead: false,
            held: false,
        }
    }

    /// Makes room for `depth` work requests at a time, charged to `budget`.
    pub fn make_room(&mut self, budget: &MemoryBudget, depth: usize) -> Result<(), Exhausted> {
        self.queue.make_room(budget, depth)
    }

    /// Whether [`post`](Self::post) would accept a work request.
    pub fn has_room(&self) -> bool {
        !self.queue.is_full() && !self.dead
    }

    /// Whether every posted work request has ended.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether every work request that has begun has ended.
    pub fn is_drained(&self) -> bool {
        self.index == 0
    }

    /// Pauses (`held`) or resumes the start of work requests. A work request that has begun
    /// continues.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Queues a work request. Returns it if there is no room or the QP has failed. A work request
    /// that is too long, or that UC does not support, is queued to fail, as by
    /// [`post_failed`](Self::post_failed).
    pub fn post(&mut self, wr: SendWr<L>) -> Result<(), SendWr<L>> {
        let failed = match wr.op {
            SendOp::Read { .. }
            | SendOp::Atomic { .. }
            | SendOp::AtomicWrite { .. }
            | SendOp::Flush(_)
            | SendOp::Send {
                with: With::Inv(_), ..
            } => Some(WcFault::NOT_PERMITTED),
            _ => (wr.length > MAX_MESSAGE).then_some(WcFault::TOO_LONG),
        };
        self.enqueue(wr, failed)
    }

    /// Queues an invalid work request. When all earlier work requests have ended, it ends with
    /// `fault` and the requester fails.
    pub fn post_failed(&mut self, wr: SendWr<L>, fault: WcFault) -> Result<(), SendWr<L>> {
        self.enqueue(wr, Some(fault))
    }

    fn enqueue(&mut self, wr: SendWr<L>, failed: Option<WcFault>) -> Result<(), SendWr<L>> {
        if self.dead {
            return Err(wr);
        }
        self.queue.push_back((wr, failed)).map_err(|(wr, _)| wr)
    }

    /// PSN of the next packet.
    pub fn next_psn(&self) -> Psn {
        self.next
    }

    /// Skips the PSNs of `packets` packets whose messages were transferred without packets. Call
    /// this only if [`is_empty`](Self::is_empty).
    pub fn advance(&mut self, packets: u32) {
        debug_assert!(self.is_empty());
        self.next = self.next.add(packets);
    }

    /// Changes the path of packets to the peer.
    pub fn set_path(&mut self, path: Path) {
        self.connection.set_path(path);
    }

    /// Stops the requester and returns the work requests that have not ended, in the order of
    /// posting.
    pub fn drain(&mut self) -> impl Iterator<Item = SendWr<L>> + '_ {
        self.dead = true;
        self.queue.drain().map(|(wr, _)| wr)
    }

    /// Sends packets until there is nothing to send or frames of `budget` bytes are sent. The last
    /// frame may exceed the budget.
    pub fn transmit<E: RequesterEnv<Send = L>>(
        &mut self,
        budget: usize,
        env: &mut E,
    ) -> Result<Sent, QpError> {
        let mut bytes = 0;
        let pause = loop {
            let begins = !self.dead && (self.index > 0 || !self.held);
            let Some((wr, failed)) = self.queue.front().filter(|_| begins) else {
                break Pause::Idle;
            };
            if let Some(fault) = *failed {
                return Err(self.fail(fault, env));
            }
            if let SendOp::Local { .. } = wr.op {
                // All earlier work requests have ended, so neither a fence nor `drained` makes this
                // one wait.
                match env.execute_local(&wr.local) {
                    Ok(()) => self.complete(env),
                    Err(fault) => return Err(self.fail(fault, env)),
                }
                continue;
            }
            if bytes >= budget || bytes > 0 && env.is_spent() {
                break Pause::Budget;
            }
            match self.send(env) {
                Ok(Some(size)) => bytes += size,
                Ok(None) => break Pause::NoFrame,
                Err(fault) => return Err(self.fail(fault, env)),
            }
        };
        Ok(Sent { bytes, pause })
    }

    /// Sends a packet of the first work request. Returns the size of its frame in bytes, or `None`
    /// if there is no frame buffer.
    fn send<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) -> Result<Option<usize>, WcFault> {
        let Some((wr, _)) = self.queue.front() else {
            return Ok(Some(0));
        };
        let segment = segment(self.connection.mtu, wr, self.index).ok_or(WcFault::NOT_PERMITTED)?;
        let mut bth = self.connection.bth(self.next);
        bth.solicited = segment.solicited;
        let headers = Headers::new(bth, Body::Uc(segment.part));
        let length = segment.length as usize;
        let size = frame_size(&self.connection.path, &headers.body, length);
        let Some(mut frame) = env.frame(&self.connection.path.dst_mac, size) else {
            return Ok(None);
        };
        build_frame(
            &mut frame,
            self.connection.template(),
            ident(self.next),
            &headers,
            length,
            |out| {
                if out.is_empty() {
                    return Ok(());
                }
                env.gather(&wr.local, segment.offset, out)
            },
        )?;
        env.send(frame);
        self.next = self.next.add(1);
        self.index += 1;
        if segment.last {
            self.complete(env);
        }
        Ok(Some(size))
    }

    fn complete<E: RequesterEnv<Send = L>>(&mut self, env: &mut E) {
        self.index = 0;
        if let Some((wr, _)) = self.queue.pop_front() {
            env.complete_send(wr, Ok(()));
        }
    }

    /// Ends the first work request with `fault`. If some of its packets were already sent, the
    /// peer's responder drops the incomplete message.
    fn fail<E: RequesterEnv<Send = L>>(&mut self, fault: WcFault, env: &mut E) -> QpError {
        self.dead = true;
        if let Some((wr, _)) = self.queue.pop_front() {
            env.complete_send(wr, Err(fault));
        }
        QpError { event: None }
    }
}
