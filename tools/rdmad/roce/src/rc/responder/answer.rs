// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sending of responses: READ responses, results of atomic operations, acknowledgements and NAKs.

use std::convert::Infallible;
use std::mem;

use crate::connection::{ident, Pause, QpError, Sent};
use crate::env::{Incident, ResponderEnv};
use crate::headers::{Aeth, Headers, RcResponse, ReadPart, Syndrome};
use crate::net::{Ecn, Path, Template};
use crate::opcode::Position;
use crate::packet::{build_frame, frame_size};
use crate::psn::Psn;

use super::job::ResponseContent;
use super::{nak_of, Responder};

impl<R> Responder<R> {
    /// Sends a congestion notification, then queued answers, then an acknowledgement or NAK. Stops
    /// when there is nothing to send or frames of `budget` bytes are sent. The last frame may
    /// exceed the budget.
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
            if bytes >= budget || bytes > 0 && env.is_spent() {
                break Pause::Budget;
            }
            let sent = if self.notifier.is_owed() {
                self.send_notification(env)
            } else if self.jobs.is_empty() {
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

    /// Sends one response packet of the first job. Returns the size of its frame in bytes, 0 if no
    /// packet was sent, or `None` if there is no frame buffer.
    fn send_response<E: ResponderEnv<Recv = R>>(
        &mut self,
        env: &mut E,
    ) -> Result<Option<usize>, QpError> {
        let Some(job) = self.jobs.front_mut() else {
            return Ok(Some(0));
        };
        let aeth = Aeth {
            syndrome: Syndrome::ACK,
            msn: job.msn,
        };
        let (response, length, ends) = match job.answer {
            ResponseContent::Read {
                remaining, started, ..
            } => {
                let length = remaining.min(self.connection.mtu.bytes());
                let position = Position::of(!started, length == remaining);
                let part = ReadPart::new(position, aeth);
                (RcResponse::Read(part), length, position.ends())
            }
            ResponseContent::Atomic(original) => (RcResponse::Atomic(aeth, original), 0, true),
            ResponseContent::Written | ResponseContent::Flushed => {
                (RcResponse::Read(ReadPart::Only(aeth)), 0, true)
            }
        };
        let headers = Headers::new(self.connection.bth(job.psn), response);
        let size = frame_size(&self.connection.path, &headers.body, length as usize);
        let Some(mut frame) = env.frame(&self.connection.path.dst_mac, size) else {
            return Ok(None);
        };
        let built = build_frame(
            &mut frame,
            self.connection.template(),
            ident(job.psn),
            &headers,
            length as usize,
            |payload| match job.answer {
                ResponseContent::Read { remote, .. } if !payload.is_empty() => {
                    env.read(remote, payload)
                }
                ResponseContent::Read { .. }
                | ResponseContent::Atomic(_)
                | ResponseContent::Written
                | ResponseContent::Flushed => Ok(()),
            },
        );
        if let Err(fault) = built {
            if job.duplicate {
                self.jobs.pop_front();
                return Ok(Some(0));
            }
            // The connection ends at this response, so answers to later requests are dropped.
            self.expected = job.psn;
            self.jobs.clear();
            let (code, event) = nak_of(fault);
            return Err(self.fail(code, Some(event)));
        }
        let psn = job.psn;
        job.psn = psn.add(1);
        if let ResponseContent::Read {
            remote,
            remaining,
            started,
        } = &mut job.answer
        {
            if mem::replace(started, true) {
                self.sent.go_on(psn);
            } else {
                self.sent
                    .begin(psn, env.ticket(&self.connection.path.dst_mac));
            }
            *remaining -= length;
            remote.va = remote.va.wrapping_add(u64::from(length));
        }
        if ends {
            self.jobs.pop_front();
        }
        env.send(frame);
        Ok(Some(size))
    }

    /// Sends a congestion notification: packets of the requester meet congestion.
    fn send_notification<E: ResponderEnv<Recv = R>>(&mut self, env: &mut E) -> Option<usize> {
        let mut bth = self.connection.bth(Psn::new(0));
        bth.becn = true;
        let headers = Headers::new(bth, RcResponse::Congestion);
        let path = Path {
            traffic_class: Ecn::NotCapable.within(self.connection.path.traffic_class),
            ..self.connection.path
        };
        let size = self.send_bare(&path, &Template::of(&path), &headers, env)?;
        self.notifier.sent();
        env.note(Incident::NotificationSent, self.expected, 0);
        Some(size)
    }

    /// Sends the pending NAK or acknowledgement.
    fn send_ack<E: ResponderEnv<Recv = R>>(&mut self, env: &mut E) -> Option<usize> {
        let (syndrome, psn) = match self.nak {
            Some(syndrome) => (syndrome, self.expected),
            None => (Syndrome::ACK, self.expected.prev()),
        };
        let aeth = Aeth {
            syndrome,
            msn: self.msn,
        };
        let headers = Headers::new(self.connection.bth(psn), RcResponse::Ack(aeth));
        let connection = &self.connection;
        let size = self.send_bare(&connection.path, connection.template(), &headers, env)?;
        match self.nak {
            Some(Syndrome::Rnr(timer)) => env.note(Incident::RnrNakSent, psn, timer.into()),
            Some(Syndrome::Nak(code)) => env.note(Incident::NakSent, psn, code as u32),
            Some(Syndrome::Ack(_)) | None => {}
        }
        self.nak = None;
        self.ack_pending = false;
        Some(size)
    }

    /// Sends a packet without payload. Returns the size of its frame in bytes, or `None` if there
    /// is no frame buffer.
    fn send_bare<E: ResponderEnv<Recv = R>>(
        &self,
        path: &Path,
        template: &Template,
        headers: &Headers,
        env: &mut E,
    ) -> Option<usize> {
        let size = frame_size(path, &headers.body, 0);
        let mut frame = env.frame(&path.dst_mac, size)?;
        let id = ident(headers.bth.psn);
        let built: Result<(), Infallible> =
            build_frame(&mut frame, template, id, headers, 0, |_| Ok(()));
        match built {
            Ok(()) => env.send(frame),
        }
        Some(size)
    }
}
