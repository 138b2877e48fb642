// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work requests that a connection posts.

use testkit::engine::{pattern, Wr};
use virtio_rdma_abi::ib::{SendFlags, WrOpcode};

use super::end::{offset, word, Message, Sent, AREA, AREAS, LOCAL, REMOTE};
use super::Connection;
use crate::choices::Choices;
use crate::driver;

impl Connection<'_> {
    /// Posts a work request with attributes from `choices`, if there is room.
    pub(super) fn post(&mut self, side: usize, choices: &mut Choices) {
        let opcodes: &[WrOpcode] = match self.reliable {
            true => &[
                WrOpcode::Send,
                WrOpcode::SendWithImm,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaWriteWithImm,
                WrOpcode::RdmaRead,
                WrOpcode::AtomicFetchAndAdd,
                WrOpcode::AtomicCmpAndSwp,
            ],
            false => &[
                WrOpcode::Send,
                WrOpcode::SendWithImm,
                WrOpcode::RdmaWrite,
                WrOpcode::RdmaWriteWithImm,
            ],
        };
        if self.reliable && choices.once_in(8) {
            self.pass_on(side, choices);
        }
        let opcode = choices.of(opcodes);
        let len = match choices.below(4) {
            0 => choices.below(64),
            1 => choices.below(1100),
            2 => choices.below(AREA as usize + 1),
            _ => 0,
        };
        let solicited = choices.once_in(4);
        // Only the completion of a later work request frees the areas of unsignaled ones, so their
        // number is limited.
        let [ours, theirs] = self.sides(side);
        let unsignaled = ours.sent.iter().rev().take_while(|wr| !wr.signaled).count();
        let signaled = !choices.once_in(3) || unsignaled >= AREAS / 2;
        let fenced = choices.once_in(6);
        let (Some(&local), Some(&remote)) = (ours.free[LOCAL].last(), theirs.free[REMOTE].last())
        else {
            return;
        };
        let takes_receive = matches!(
            opcode,
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm
        );
        ours.posted += 1;
        let id = ours.posted << 1;
        let data = pattern(len, ours.qp.cookie ^ (id << 32));
        let mut wr = Wr::new(id, opcode);
        ours.clear(LOCAL, local);
        let mut far = None;
        let expected = match opcode {
            WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => {
                let before = theirs.word;
                let [add, swap] = match opcode {
                    WrOpcode::AtomicFetchAndAdd => {
                        theirs.word = before.wrapping_add(id);
                        [id, 0]
                    }
                    // Every other compare-and-swap succeeds.
                    _ if id & 2 == 0 => {
                        theirs.word = id;
                        [before, id]
                    }
                    _ => [!before, id],
                };
                wr = wr
                    .local(&ours.mr, offset(LOCAL, local), 8)
                    .remote(&theirs.mr, word())
                    .operands(add, swap);
                before.to_le_bytes().to_vec()
            }
            WrOpcode::RdmaRead => {
                theirs.clear(REMOTE, remote);
                theirs.put(REMOTE, remote, &data);
                wr = wr
                    .local(&ours.mr, offset(LOCAL, local), len as u32)
                    .remote(&theirs.mr, offset(REMOTE, remote));
                far = Some(remote);
                data
            }
            _ => {
                ours.put(LOCAL, local, &data);
                if choices.once_in(4) && len <= 200 {
                    wr = wr.inline(&data);
                } else {
                    wr = wr.local(&ours.mr, offset(LOCAL, local), len as u32);
                }
                if matches!(opcode, WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm) {
                    theirs.clear(REMOTE, remote);
                    wr = wr.remote(&theirs.mr, offset(REMOTE, remote));
                    far = Some(remote);
                }
                data
            }
        };
        let mut flags = if signaled {
            wr.flags
        } else {
            SendFlags(wr.flags.0 & !SendFlags::SIGNALED.0)
        };
        if solicited && takes_receive {
            flags = flags | SendFlags::SOLICITED;
        }
        if fenced && self.reliable {
            flags = flags | SendFlags::FENCE;
        }
        let with_imm = matches!(opcode, WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm);
        let imm = (id as u32).to_be_bytes();
        if with_imm {
            wr = wr.imm(imm);
        }
        let [ours, theirs] = self.sides(side);
        ours.free[LOCAL].pop();
        if far.is_some() {
            theirs.free[REMOTE].pop();
        }
        if takes_receive {
            ours.messages.push_back(Message {
                data: expected.clone(),
                imm: with_imm.then_some(imm),
                placed: opcode != WrOpcode::RdmaWriteWithImm,
                solicited,
            });
        }
        ours.sent.push_back(Sent {
            id,
            opcode,
            signaled,
            local,
            shared: false,
            remote: far,
            data: expected,
        });
        driver::post(&ours.qp, &wr.flags(flags));
    }

    /// If the last work request is a READ, posts a SEND of the fetched data, with a fence.
    fn pass_on(&mut self, side: usize, choices: &mut Choices) {
        let [ours, _] = self.sides(side);
        let Some(read) = ours.sent.back_mut() else {
            return;
        };
        if read.opcode != WrOpcode::RdmaRead || read.shared {
            return;
        }
        read.shared = true;
        let (local, data) = (read.local, read.data.clone());
        ours.posted += 1;
        let id = ours.posted << 1;
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        let solicited = choices.once_in(4);
        let wr = Wr::new(id, WrOpcode::Send)
            .local(&ours.mr, offset(LOCAL, local), data.len() as u32)
            .flags(match solicited {
                true => flags | SendFlags::SOLICITED,
                false => flags,
            });
        ours.messages.push_back(Message {
            data: data.clone(),
            imm: None,
            placed: true,
            solicited,
        });
        ours.sent.push_back(Sent {
            id,
            opcode: WrOpcode::Send,
            signaled: true,
            local,
            shared: false,
            remote: None,
            data,
        });
        driver::post(&ours.qp, &wr);
    }
}
