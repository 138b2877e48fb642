// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks of the completions of tries.

use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{QpState, WcFlags, WcStatus};

use super::side::{Kind, Try};
use super::Vault;

impl Vault<'_> {
    /// Checks that only permitted writes have changed the memory of both sides.
    pub(super) fn check_memory(&self) {
        self.owner.memory.check();
        self.thief.memory.check();
    }

    /// Polls each CQ once. Returns whether there was a completion.
    pub(super) fn poll_one(&mut self) -> bool {
        let mut any = false;
        for ours in [true, false] {
            let side = match ours {
                true => &self.owner,
                false => &self.thief,
            };
            let Some(cqe) = side.cq.poll() else {
                continue;
            };
            any = true;
            match cqe.wr_id & 1 {
                0 => self.ended(ours, &cqe),
                _ => self.received(ours, &cqe),
            }
        }
        any
    }

    /// Whether any work request may be flushed, because another one may have failed or a QP is in
    /// ERR.
    fn may_break(&self) -> bool {
        let mut tries = self.owner.tries.iter().chain(&self.thief.tries);
        self.ending || tries.any(|one| one.fails.is_some())
    }

    /// Checks the completion of a send work request: the owner's if `ours`, else the thief's.
    fn ended(&mut self, ours: bool, cqe: &Cqe) {
        let may_break = self.may_break();
        let side = match ours {
            true => &mut self.owner,
            false => &mut self.thief,
        };
        let one = side.tries.pop_front();
        let one = one.unwrap_or_else(|| panic!("nothing posted ends so: {cqe:?}"));
        assert_eq!(one.id, cqe.wr_id, "tries end in their order: {cqe:?}");
        let status = WcStatus::try_from(cqe.status).unwrap();
        let receives = [&mut self.owner, &mut self.thief].map(|side| side.receives.iter_mut());
        for receive in receives.into_iter().flatten() {
            if receive.id == one.id {
                // The message of a flushed try may still arrive and be checked against other keys.
                let fails = one.fails.is_some() || status != WcStatus::Success;
                receive.ended = Some((one.succeeds, fails));
            }
        }
        if status == WcStatus::Success {
            let failed = match ours {
                true => self.owner.failed,
                false => self.thief.failed,
            };
            assert!(!failed, "after one that failed: {one:?}");
            assert!(one.succeeds, "{one:?} was not allowed");
            if one.kind.changes_keys() {
                self.check_memory();
                match (one.kind, &mut self.keys.fast) {
                    (Kind::Window(change), _) => self.keys.windows.changed(&change),
                    (Kind::Register(change), Some(fast)) => fast.changed(&change),
                    _ => {}
                }
                self.reconsider();
                return;
            }
            self.owner.memory.done(one.id);
            self.thief.memory.done(one.id);
            if let Kind::Invalidate(key) = one.kind {
                self.invalidated(key);
            }
            return;
        }
        let broken = matches!(status, WcStatus::WrFlushErr | WcStatus::RetryExcErr);
        assert!(
            one.fails == Some(status) || broken && may_break,
            "{one:?} fails so: {cqe:?}"
        );
        self.failed(ours, &one, status);
        if broken && !ours {
            self.adrift.push(one);
        }
    }

    fn failed(&mut self, ours: bool, one: &Try, status: WcStatus) {
        let side = match ours {
            true => &mut self.owner,
            false => &mut self.thief,
        };
        let first = !std::mem::replace(&mut side.failed, true);
        self.silent |= ours && status != WcStatus::WrFlushErr;
        self.ending = true;
        // If the peer refused the first failed request, later requests are not executed. After any
        // other error, they may have been executed.
        let refused = [
            WcStatus::RemAccessErr,
            WcStatus::RemInvReqErr,
            WcStatus::RemOpErr,
        ];
        if !first || !refused.contains(&status) {
            return;
        }
        self.must_raise |= status != WcStatus::RemOpErr;
        // After a READ or an atomic operation, later work requests without a fence may already have
        // been executed.
        let later: Vec<_> = match one.kind {
            Kind::Write | Kind::Receive | Kind::Invalidate(_) => {
                side.tries.iter().map(|one| one.id).collect()
            }
            _ => Vec::new(),
        };
        self.owner.memory.refuse(one.id);
        for id in later {
            self.owner.memory.untouched(id);
            self.thief.memory.untouched(id);
        }
    }

    /// Checks the completion of a receive: the owner's if `ours`, else the thief's.
    fn received(&mut self, ours: bool, cqe: &Cqe) {
        let may_break = self.may_break();
        let (side, tries) = match ours {
            true => (&mut self.owner, &self.thief.tries),
            false => (&mut self.thief, &self.owner.tries),
        };
        let receive = side.receives.pop_front();
        let receive = receive.unwrap_or_else(|| panic!("no receive ends so: {cqe:?}"));
        assert_eq!(receive.id | 1, cqe.wr_id, "receives end in their order");
        let one = tries.iter().find(|one| one.id == receive.id);
        let verdict = one.map(|one| (one.succeeds, one.fails.is_some()));
        let verdict = verdict.or(receive.ended);
        let (succeeds, fails) = verdict.expect("a try that sends to it");
        match WcStatus::try_from(cqe.status).unwrap() {
            WcStatus::Success => {
                assert!(succeeds, "its message was not allowed: {cqe:?}");
                let (flags, ex) = match receive.invalidates {
                    Some(key) => (WcFlags::WITH_INVALIDATE, key),
                    None => (WcFlags::NONE, 0),
                };
                assert_eq!((cqe.wc_flags, cqe.ex), (flags, ex.to_le_bytes()), "{cqe:?}");
                assert_eq!(cqe.byte_len as usize, receive.len, "{cqe:?}");
                side.memory.done(receive.id);
                if let Some(key) = receive.invalidates {
                    self.invalidated(key);
                }
            }
            WcStatus::WrFlushErr => assert!(may_break, "nothing was wrong: {cqe:?}"),
            status => {
                let refused = match receive.invalidates {
                    Some(_) => WcStatus::RemInvReqErr,
                    None => WcStatus::LocProtErr,
                };
                self.silent |= receive.invalidates.is_none();
                self.must_raise |= receive.invalidates.is_some();
                let is_right = ours && fails && status == refused;
                assert!(is_right, "nothing was wrong: {cqe:?}");
            }
        }
    }

    /// Checks events of the owner's QP.
    pub(super) fn check_events(&mut self, events: &[EventKind]) {
        for event in events {
            let EventKind::Async(event) = *event else {
                panic!("no CQ is armed");
            };
            assert!(self.may_raise.contains(&event), "nobody caused {event:?}");
            let before = self.raised.replace(event);
            assert_eq!(before, None, "one failure, two events");
        }
    }

    /// Checks at the end of a run that all tries are complete and the events of errors were raised.
    pub(super) fn check_end(&mut self) {
        self.check_memory();
        for side in [&self.owner, &self.thief] {
            assert!(side.tries.is_empty(), "no completion of {:?}", side.tries);
            assert!(
                side.receives.is_empty() || self.ending && side.qp.state() != QpState::Err,
                "receives that nobody ends: {:?}",
                side.receives
            );
        }
        assert!(
            !self.must_raise || self.raised.is_some() || self.silent,
            "no event of a refused try"
        );
    }
}
