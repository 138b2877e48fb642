// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The committed state of a responder.

use crate::committed::MessageState;
use crate::psn::Psn;
use crate::work::RecvWr;

use super::{MessageInProgress, Responder};

/// The state of a [`Responder`] beside its path MTU, its access and the receive that it holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderState {
    /// The message under way.
    pub message: MessageState,
    /// Expected PSN.
    pub expected: u32,
    /// 1 if the QP has failed.
    pub dead: u8,
    /// 0.
    pub reserved: [u8; 3],
}

impl<R> Responder<R> {
    /// The state to go on from in another process.
    pub fn commit(&self) -> ResponderState {
        ResponderState {
            message: match self.message {
                None => MessageState::NONE,
                Some(MessageInProgress::Send { received }) => MessageState::send(received),
                Some(MessageInProgress::Write { reth, received }) => {
                    MessageState::write(reth, received)
                }
            },
            expected: self.expected.value(),
            dead: self.dead.into(),
            reserved: [0; 3],
        }
    }

    /// The receive of the message under way, or of one that was dropped.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        self.recv.as_ref()
    }

    /// Has a new responder go on from `state`, with the receive that it held.
    pub fn restore(&mut self, state: &ResponderState, recv: Option<RecvWr<R>>) {
        let MessageState { received, .. } = state.message;
        self.message = match state.message.reth() {
            Some(reth) => Some(MessageInProgress::Write { reth, received }),
            None => state
                .message
                .is_send()
                .then_some(MessageInProgress::Send { received }),
        };
        self.recv = recv;
        self.expected = Psn::new(state.expected);
        self.dead = state.dead != 0;
    }
}
