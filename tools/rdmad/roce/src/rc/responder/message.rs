// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! SEND and RDMA WRITE.

use crate::env::{RemoteFault, ResponderEnv};
use crate::headers::{NakCode, Reth, SendPart, WritePart};
use crate::packet::{fits, Packet};
use crate::work::{AccessFlags, RecvCompletion, RecvWr, Remote, WcFault, WcStatus, With};

use super::{NakReason, Responder, INVALID};

/// A SEND or WRITE whose last packet has not arrived.
#[derive(Debug)]
pub(super) enum RequestInProgress<R> {
    Send { recv: RecvWr<R>, received: u32 },
    Write { reth: Reth, received: u32 },
}

impl<R> Responder<R> {
    /// Executes a packet of a SEND.
    pub(super) fn send<E: ResponderEnv<Recv = R>>(
        &mut self,
        part: SendPart,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), NakReason> {
        let position = part.position();
        if !fits(position, packet.payload, self.connection.mtu) {
            return Err(INVALID);
        }
        let (recv, received) = match self.message.take() {
            None if position.starts() => (env.take_receive()?.ok_or(NakReason::NotReady)?, 0),
            Some(RequestInProgress::Send { recv, received }) if !position.starts() => {
                (recv, received)
            }
            message => {
                self.message = message;
                return Err(INVALID);
            }
        };
        let payload = packet.payload;
        let mut completion =
            RecvCompletion::sent(received, part.with(), packet.headers.bth.solicited);
        if payload.len() > (recv.length - received) as usize {
            completion.result = Err(WcFault::RECEIVE_TOO_SHORT);
            env.complete_recv(recv, completion);
            return Err(NakReason::Fatal(NakCode::InvalidRequest, None));
        }
        if !payload.is_empty() {
            if let Err(fault) = env.scatter_recv(&recv.local, received, payload, position.ends()) {
                completion.result = Err(fault);
                env.complete_recv(recv, completion);
                return Err(NakReason::Fatal(NakCode::RemoteOperational, None));
            }
        }
        // The sum is at most `recv.length`, so it can't overflow.
        let received = received + payload.len() as u32;
        if position.ends() {
            completion.byte_len = received;
            if let With::Inv(rkey) = completion.with {
                if let Err(reason) = env.invalidate(rkey) {
                    completion.result = Err(WcFault::new(WcStatus::RemInvReqErr, reason));
                    env.complete_recv(recv, completion);
                    return Err(RemoteFault::Access.into());
                }
            }
            env.complete_recv(recv, completion);
        } else {
            self.message = Some(RequestInProgress::Send { recv, received });
        }
        Ok(())
    }

    /// Executes a packet of an RDMA WRITE.
    pub(super) fn write<E: ResponderEnv<Recv = R>>(
        &mut self,
        part: WritePart,
        packet: &Packet<'_>,
        env: &mut E,
    ) -> Result<(), NakReason> {
        let position = part.position();
        if !fits(position, packet.payload, self.connection.mtu) {
            return Err(INVALID);
        }
        let (reth, received) = match (&self.message, part.reth()) {
            (None, Some(reth)) => {
                env.begin(reth.rkey, AccessFlags::REMOTE_WRITE)?;
                self.admit(reth, AccessFlags::REMOTE_WRITE, env)?;
                (reth, 0)
            }
            (&Some(RequestInProgress::Write { reth, received }), None) => (reth, received),
            _ => return Err(INVALID),
        };
        let payload = packet.payload;
        let left = (reth.length - received) as usize;
        if payload.len() > left || position.ends() != (payload.len() == left) {
            return Err(INVALID);
        }
        let at = Remote {
            va: reth.va.wrapping_add(u64::from(received)),
            rkey: reth.rkey,
        };
        // The receive is taken before the data is written: without a posted receive, the packet
        // must not change memory.
        let recv = match part.imm() {
            Some(imm) => Some((env.take_receive()?.ok_or(NakReason::NotReady)?, imm)),
            None => None,
        };
        let written = if payload.is_empty() {
            Ok(())
        } else {
            env.write(at, payload, position.ends())
        };
        // The sum is at most `reth.length`, so it can't overflow.
        let received = received + payload.len() as u32;
        self.message = (!position.ends()).then_some(RequestInProgress::Write { reth, received });
        if let Some((recv, imm)) = recv {
            let solicited = packet.headers.bth.solicited;
            let mut completion = RecvCompletion::written(reth.length, imm, solicited);
            if written.is_err() {
                completion.result = Err(WcFault::FLUSHED);
            }
            env.complete_recv(recv, completion);
        }
        Ok(written?)
    }
}
