// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Answers: READ responses, acknowledgements and NAKs.

use std::convert::Infallible;

use crate::headers::{Aeth, Bth, Syndrome, Transport};
use crate::opcode::{Op, Opcode, Position};
use crate::packet::{build, frame_size};
use crate::rc::env::ResponderEnv;
use crate::rc::{ident, Pause, QpError, Sent};

use super::{nak_of, Responder};

impl<R> Responder<R> {
    /// Sends READ responses, then an acknowledgement or NAK, until there is nothing to send or frames of `budget` bytes
    /// are sent; the last may exceed it.
    pub fn transmit<E: ResponderEnv<Recv = R>>(
        &mut self,
        budget: usize,
        env: &mut E,
    ) -> Result<Sent, QpError> {
        let mut bytes = 0;
        let pause = loop {
            if !self.has_output() {
                break Pause::Idle;
            }
            if bytes >= budget {
                break Pause::Budget;
            }
            let sent = if self.reads.is_empty() {
                self.send_ack(env)
            } else {
                self.send_response(env)?
            };
            match sent {
                Some(sent) => bytes += sent,
                None => break Pause::NoFrame,
            }
        };
        Ok(Sent { bytes, pause })
    }

    /// Sends one response of the first READ. Returns the bytes sent, or `None` without a frame buffer.
    fn send_response<E: ResponderEnv<Recv = R>>(
        &mut self,
        env: &mut E,
    ) -> Result<Option<usize>, QpError> {
        let Some(job) = self.reads.front_mut() else {
            return Ok(Some(0));
        };
        let length = job.remaining.min(self.connection.mtu.bytes());
        let last = length == job.remaining;
        let position = Position::of(!job.started, last);
        let op = Opcode::rc(Op::ReadResponse(position));
        let mut transport = Transport::new(Bth::new(
            op,
            self.connection.pkey,
            self.connection.dest_qpn,
            job.psn,
        ));
        if position != Position::Middle {
            transport.aeth = Some(Aeth {
                syndrome: Syndrome::ACK,
                msn: job.msn,
            });
        }
        let path = &self.connection.path;
        let size = frame_size(path, &transport, length as usize);
        let Some(mut frame) = env.frame(size) else {
            return Ok(None);
        };
        let remote = job.remote;
        let built = build(
            &mut frame,
            path,
            ident(job.psn),
            &transport,
            length as usize,
            |payload| {
                if payload.is_empty() {
                    return Ok(());
                }
                env.read(remote, payload)
            },
        );
        if let Err(fault) = built {
            if job.duplicate {
                self.reads.pop_front();
                return Ok(Some(0));
            }
            // The connection ends at this response, whatever was accepted after its request.
            self.expected = job.psn;
            self.reads.clear();
            let (code, event) = nak_of(fault);
            return Err(self.fail(code, Some(event)));
        }
        job.started = true;
        job.psn = job.psn.add(1);
        job.remaining -= length;
        job.remote.va = job.remote.va.wrapping_add(u64::from(length));
        if last {
            self.reads.pop_front();
        }
        env.send(frame);
        Ok(Some(size))
    }

    /// Sends the pending NAK or acknowledgement.
    fn send_ack<E: ResponderEnv<Recv = R>>(&mut self, env: &mut E) -> Option<usize> {
        let (syndrome, psn) = match self.nak {
            Some(syndrome) => (syndrome, self.expected),
            None => (Syndrome::ACK, self.expected.prev()),
        };
        let bth = Bth::new(
            Opcode::rc(Op::Ack),
            self.connection.pkey,
            self.connection.dest_qpn,
            psn,
        );
        let mut transport = Transport::new(bth);
        transport.aeth = Some(Aeth {
            syndrome,
            msn: self.msn,
        });
        let path = &self.connection.path;
        let size = frame_size(path, &transport, 0);
        let mut frame = env.frame(size)?;
        let built: Result<(), Infallible> =
            build(&mut frame, path, ident(psn), &transport, 0, |_| Ok(()));
        match built {
            Ok(()) => env.send(frame),
        }
        self.nak = None;
        self.ack_pending = false;
        Some(size)
    }
}
