// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks of completions against posted work requests.

use std::mem::replace;

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::{QpState, WcFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;

use super::end::{filled, word, End, Message, Sent, LOCAL, RECEIVE, REMOTE};
use super::Connection;

impl Connection<'_> {
    /// Polls once. Returns whether there was a completion.
    pub(super) fn poll_one(&mut self, side: usize) -> bool {
        let reliable = self.reliable;
        let [ours, theirs] = self.sides(side);
        ours.follow();
        ours.take_events();
        let left = ours.left.pop_front();
        // The completion may have been written before the CQ was armed in the new ring, so its
        // event may not have arrived.
        let early = left.is_none() && ours.early > 0;
        let Some(cqe) = left.or_else(|| ours.cq.poll()) else {
            return false;
        };
        ours.polled = true;
        let solicited = if cqe.status != WcStatus::Success.value() {
            ours.flushed(theirs, &cqe, reliable);
            true
        } else if cqe.wr_id & 1 == 0 {
            ours.send_ended(theirs, &cqe, reliable);
            false
        } else {
            ours.receive_ended(theirs, &cqe, reliable)
        };
        let is_starved = ours.guest.is_starved();
        if early && !is_starved {
            ours.early -= 1;
            ours.owed |= solicited && ours.armed.is_some();
        }
        let qualifies = solicited || ours.armed == Some(ArmKind::Next);
        ours.note_polled(qualifies && !early && !is_starved);
        true
    }

    /// Checks at the end of a run that all work requests are complete and all events were raised.
    pub(super) fn check_end(&mut self) {
        for side in 0..2 {
            let reliable = self.reliable;
            let [ours, theirs] = self.sides(side);
            ours.take_events();
            assert!(!ours.owed, "no event since the CQ moved");
            ours.check_delayed();
            // The last work requests may be unsignaled.
            while let Some(sent) = ours.sent.pop_front() {
                assert!(!sent.signaled, "no completion of {sent:?}");
                ours.check(theirs, sent, reliable);
            }
            if ours.ending {
                assert!(
                    ours.qp.state() != QpState::Err || ours.received.is_empty(),
                    "not flushed: {:?}",
                    ours.received
                );
            } else if reliable {
                assert!(
                    ours.messages.is_empty(),
                    "not received: {:?}",
                    ours.messages
                );
                let word = theirs.guest.vm.read(theirs.mr.iova + word(), 8);
                assert_eq!(word, theirs.word.to_le_bytes(), "the word");
            }
        }
        if self.reliable && !self.is_ending() {
            self.check_count(0);
            self.check_count(1);
        }
    }
}

impl End<'_> {
    /// Checks the completion of a work request in error.
    fn flushed(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) {
        assert!(self.ending, "nothing was wrong: {cqe:?}");
        let status = WcStatus::try_from(cqe.status).unwrap();
        if cqe.wr_id & 1 != 0 {
            let received = self.received.pop_front().map(|received| received.id);
            assert_eq!(received, Some(cqe.wr_id), "receives end in their order");
            assert_eq!(status, WcStatus::WrFlushErr);
            return;
        }
        loop {
            let sent = self.sent.pop_front();
            let sent = sent.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
            if sent.id == cqe.wr_id {
                let first = !replace(&mut self.failed, true);
                assert!(
                    status == WcStatus::WrFlushErr || first && status == WcStatus::RetryExcErr,
                    "{cqe:?}"
                );
                // The areas are not reused, because packets of the work request may be in flight.
                return;
            }
            assert!(
                !sent.signaled && !self.failed,
                "{sent:?} has no completion before {cqe:?}"
            );
            self.check(theirs, sent, reliable);
        }
    }

    fn send_ended(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) {
        assert!(!self.failed, "after one that failed: {cqe:?}");
        loop {
            let sent = self.sent.pop_front();
            let sent = sent.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
            let is_it = sent.id == cqe.wr_id;
            assert!(
                is_it || !sent.signaled,
                "{sent:?} has no completion before {cqe:?}"
            );
            assert!(!is_it || sent.signaled, "{sent:?} is unsignaled: {cqe:?}");
            self.check_drain(&sent);
            self.check(theirs, sent, reliable);
            if is_it {
                return;
            }
        }
    }

    /// Checks the data of a successful work request: it is in the right area and in no other.
    fn check(&mut self, theirs: &mut Self, sent: Sent, reliable: bool) {
        if reliable {
            self.check_pace(&sent);
        }
        self.count.note(&sent);
        match sent.opcode {
            WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => {
                self.holds(LOCAL, sent.local, &sent.data, &sent);
            }
            _ => {
                if let (Some(remote), true) = (sent.remote, reliable) {
                    theirs.holds(REMOTE, remote, &sent.data, &sent);
                }
            }
        }
        if !sent.shared {
            self.free[LOCAL].push(sent.local);
        }
        if let Some(remote) = sent.remote {
            theirs.free[REMOTE].push(remote);
        }
    }

    /// Checks the completion of a receive. Returns whether its message was solicited.
    fn receive_ended(&mut self, theirs: &mut Self, cqe: &Cqe, reliable: bool) -> bool {
        let received = self.received.pop_front();
        let received = received.unwrap_or_else(|| panic!("no receive ends so: {cqe:?}"));
        assert_eq!(
            received.id, cqe.wr_id,
            "receives end in their order: {cqe:?}"
        );
        let imm = cqe.wc_flags.contains(WcFlags::WITH_IMM).then_some(cqe.ex);
        let bytes = self.area(RECEIVE, received.area);
        self.free[RECEIVE].push(received.area);
        let fits = |message: &Message| {
            let data = if message.placed {
                &message.data[..]
            } else {
                &[]
            };
            cqe.byte_len as usize == message.data.len()
                && imm == message.imm
                && match reliable {
                    true => bytes == filled(data),
                    // An earlier incomplete message may have left data past the end of this one.
                    false => bytes.starts_with(data),
                }
        };
        if reliable {
            let message = theirs.messages.pop_front();
            let message = message.unwrap_or_else(|| panic!("nobody sent that: {cqe:?}"));
            assert!(fits(&message), "{cqe:?} is not {message:?}");
            return message.solicited;
        }
        // Without a reliable connection, messages may be lost, reordered or duplicated.
        let like = theirs.messages.iter().filter(|message| fits(message));
        let solicited = like.map(|message| message.solicited);
        // Several messages may match. The result is true only if all of them are solicited.
        let sure = solicited.reduce(|all, one| all && one);
        sure.unwrap_or_else(|| panic!("nobody sent that: {cqe:?}"))
    }
}
