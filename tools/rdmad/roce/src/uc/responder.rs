// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The responder of an unreliable connection (IBTA 9.8.2, 9.9.3).
//!
//! An unexpected PSN shows that packets got lost: the message in progress is dropped. The next
//! packet that starts a message is accepted with any PSN, and the expected PSN becomes that PSN
//! plus 1. A message that can't be executed for another reason is dropped in the same way. The
//! receive of a dropped SEND is held for the next message that needs a receive.

mod saved;

use crate::connection::QpError;
use crate::env::{BadReceive, Incident, RemoteFault, ResponderEnv};
use crate::headers::{Body, Part, Reth, SendPart, WritePart};
use crate::packet::{fits, Packet};
use crate::psn::Psn;
use crate::work::{AccessFlags, Mtu, RecvCompletion, RecvWr, Remote, MAX_MESSAGE};

pub use self::saved::ResponderState;

/// A message whose last packet has not arrived.
#[derive(Clone, Copy, Debug)]
enum MessageInProgress {
    /// A SEND into the held receive.
    Send {
        received: u32,
    },
    Write {
        reth: Reth,
        received: u32,
    },
}

/// Why a packet is not executed.
enum Rejection {
    /// The packet and its message are dropped.
    Drop,
    /// The QP fails.
    Fail(QpError),
}

impl From<RemoteFault> for Rejection {
    fn from(_: RemoteFault) -> Self {
        Self::Drop
    }
}

impl From<BadReceive> for Rejection {
    fn from(_: BadReceive) -> Self {
        Self::Fail(QpError { event: None })
    }
}

/// Receives the messages of the peer of one QP. `R` describes the local memory of a receive work
/// request.
#[derive(Debug)]
pub struct Responder<R> {
    mtu: Mtu,
    access: AccessFlags,
    expected: Psn,
    message: Option<MessageInProgress>,
    /// The held receive, of the message in progress or of a dropped message.
    recv: Option<RecvWr<R>>,
    dead: bool,
}

impl<R> Responder<R> {
    /// A responder that expects the PSN `rq_psn` and permits `access`.
    pub fn new(mtu: Mtu, rq_psn: u32, access: AccessFlags) -> Self {
        Self {
            mtu,
            access,
            expected: Psn::new(rq_psn),
            message: None,
            recv: None,
            dead: false,
        }
    }

    /// Path MTU.
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Remote operations that the QP permits.
    pub fn access(&self) -> AccessFlags {
        self.access
    }

    /// Changes the remote operations that the QP permits.
    pub fn set_access(&mut self, access: AccessFlags) {
        self.access = access;
    }

    /// Expected PSN: the PSN after that of the last accepted packet.
    pub fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Sets the expected PSN after messages that were transferred without packets. Drops the
    /// message in progress.
    pub fn resume(&mut self, psn: Psn) {
        self.expected = psn;
        self.message = None;
    }

    /// Takes the held receive for a message that is transferred without packets. Drops the message
    /// in progress.
    pub fn take_receive(&mut self) -> Option<RecvWr<R>> {
        self.message = None;
        self.recv.take()
    }

    /// Ends the connection and returns the held receive.
    pub fn drain(&mut self) -> Option<RecvWr<R>> {
        self.dead = true;
        self.message = None;
        self.recv.take()
    }

    /// Handles a packet of this connection. Returns true if the packet was executed, false if it
    /// was dropped.
    pub fn on_packet<E: ResponderEnv<Recv = R>>(
        &mut self,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<bool, QpError> {
        let Body::Uc(part) = packet.headers.body else {
            return Ok(false);
        };
        if self.dead {
            return Ok(false);
        }
        let position = part.position();
        let psn = packet.headers.bth.psn;
        if psn != self.expected {
            env.note(Incident::OutOfSequence, psn, self.expected.value());
        }
        if psn != self.expected || position.starts() {
            self.message = None;
        }
        if self.message.is_none() && !position.starts() {
            return Ok(false);
        }
        self.expected = psn.add(1);
        let taken = if !fits(position, packet.payload, self.mtu) {
            Err(Rejection::Drop)
        } else {
            match part {
                Part::Send(part) => self.send(part, packet, env),
                Part::Write(part) => self.write(part, packet, env),
            }
        };
        match taken {
            Ok(()) => Ok(true),
            Err(Rejection::Drop) => {
                self.message = None;
                Ok(false)
            }
            Err(Rejection::Fail(error)) => {
                self.dead = true;
                self.message = None;
                Err(error)
            }
        }
    }

    fn send<E: ResponderEnv<Recv = R>>(
        &mut self,
        part: SendPart,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Rejection> {
        let position = part.position();
        let received = match self.message.take() {
            None => 0,
            Some(MessageInProgress::Send { received }) => received,
            Some(MessageInProgress::Write { .. }) => return Err(Rejection::Drop),
        };
        let recv = self.receive(env)?;
        let payload = packet.payload;
        if payload.len() > (recv.length - received) as usize {
            self.recv = Some(recv);
            return Err(Rejection::Drop);
        }
        let mut completion =
            RecvCompletion::sent(received, part.with(), packet.headers.bth.solicited);
        if !payload.is_empty() {
            if let Err(fault) = env.scatter_recv(&recv.local, received, payload, position.ends()) {
                completion.result = Err(fault);
                env.complete_recv(recv, completion);
                return Err(Rejection::Fail(QpError { event: None }));
            }
        }
        // The sum is at most `recv.length`, so it can't overflow.
        let received = received + payload.len() as u32;
        if position.ends() {
            completion.byte_len = received;
            env.complete_recv(recv, completion);
        } else {
            self.recv = Some(recv);
            self.message = Some(MessageInProgress::Send { received });
        }
        Ok(())
    }

    fn write<E: ResponderEnv<Recv = R>>(
        &mut self,
        part: WritePart,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), Rejection> {
        let position = part.position();
        let (reth, received) = match (self.message.take(), part.reth()) {
            (None, Some(reth)) => {
                env.begin(reth.rkey, AccessFlags::REMOTE_WRITE)?;
                self.admit(reth, env)?;
                (reth, 0)
            }
            (Some(MessageInProgress::Write { reth, received }), None) => (reth, received),
            _ => return Err(Rejection::Drop),
        };
        let payload = packet.payload;
        let left = (reth.length - received) as usize;
        if payload.len() > left || position.ends() != (payload.len() == left) {
            return Err(Rejection::Drop);
        }
        let at = Remote {
            va: reth.va.wrapping_add(u64::from(received)),
            rkey: reth.rkey,
        };
        // The receive is taken before the data is written: without a posted receive, the packet
        // must not change memory.
        let recv = match part.imm() {
            Some(imm) => Some((self.receive(env)?, imm)),
            None => None,
        };
        let written = if payload.is_empty() {
            Ok(())
        } else {
            env.write(at, payload, position.ends())
        };
        if let Err(fault) = written {
            self.recv = recv.map(|(recv, _)| recv).or(self.recv.take());
            return Err(fault.into());
        }
        if let Some((recv, imm)) = recv {
            let solicited = packet.headers.bth.solicited;
            let completion = RecvCompletion::written(reth.length, imm, solicited);
            env.complete_recv(recv, completion);
        }
        if !position.ends() {
            // The sum is at most `reth.length`, so it can't overflow.
            let received = received + payload.len() as u32;
            self.message = Some(MessageInProgress::Write { reth, received });
        }
        Ok(())
    }

    /// Checks that the QP permits RDMA WRITEs and that the peer may write the range of `reth`.
    fn admit<E: ResponderEnv<Recv = R>>(&self, reth: Reth, env: &mut E) -> Result<(), Rejection> {
        let access = AccessFlags::REMOTE_WRITE;
        if !self.access.contains(access) || reth.length > MAX_MESSAGE {
            return Err(Rejection::Drop);
        }
        if reth.length > 0 {
            env.check(reth.remote(), reth.length, access)?;
        }
        Ok(())
    }

    /// The held receive, or the next posted one.
    fn receive<E: ResponderEnv<Recv = R>>(&mut self, env: &mut E) -> Result<RecvWr<R>, Rejection> {
        match self.recv.take() {
            Some(recv) => Ok(recv),
            None => env.take_receive()?.ok_or(Rejection::Drop),
        }
    }
}
