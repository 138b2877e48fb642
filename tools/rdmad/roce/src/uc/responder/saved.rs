// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of a responder.

use serde::{Deserialize, Serialize};

use crate::psn::Psn;
use crate::saved::MessageState;
use crate::work::RecvWr;

use super::{MessageInProgress, Responder};

/// The state of a [`Responder`] without its path MTU, its access flags and the held receive.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponderState {
    /// The message in progress.
    pub message: MessageState,
    /// Expected PSN.
    pub expected: u32,
    /// 1 if the QP has failed.
    pub dead: u8,
    /// Padding, 0.
    pub reserved: [u8; 3],
}

impl<R> Responder<R> {
    /// The state from which another process can continue.
    pub fn save(&self) -> ResponderState {
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

    /// The held receive, of the message in progress or of a dropped message.
    pub fn held(&self) -> Option<&RecvWr<R>> {
        self.recv.as_ref()
    }

    /// Makes a new responder continue from `state`. `recv` is the receive that
    /// [`held`](Self::held) returned.
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
