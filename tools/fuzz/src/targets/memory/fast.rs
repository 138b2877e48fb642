// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fast registration: REG_MR with a page list in the work request or from MAP_MR_SG, and
//! invalidation by the owner or by its peer.

use testkit::engine::{local_inv, wqe, Wr, FULL};
use virtio_rdma_abi::ctrl::{CmdCreateMr, CmdMapMrSg};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::number::MrNumber;
use virtio_rdma_abi::wqe::{Reg, RegPages};

use super::{Bench, Kind, Opens, MR_PAGES};
use crate::input::Input;
use crate::stage;

/// Maximum number of MRs for fast registration.
const MOST: usize = 4;

/// An MR for fast registration: its number and its first key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fast {
    mrn: MrNumber,
    key: u32,
}

impl Bench<'_> {
    pub(super) fn fast(&mut self, input: &mut Input<'_>) {
        match input.below(4) {
            0 if self.fast.len() < MOST => self.create_fast(),
            0 | 1 => self.register_fast(input),
            2 => self.invalidate_key(input),
            _ => self.send_with_invalidate(input),
        }
    }

    fn create_fast(&mut self) {
        let request = CmdCreateMr {
            pdn: self.owner.pdn,
            access_flags: AccessFlags::NONE,
            max_num_sg: MR_PAGES as u32,
        };
        if let Ok(made) = self.owner.call(request) {
            self.fast.push(Fast {
                mrn: made.mrn,
                key: made.rkey,
            });
            // The new MR has a key but no pages, so the key gives no access yet.
            self.closed.push(made.rkey);
        }
    }

    /// Removes the MR with this number from the list.
    pub(super) fn forget_fast(&mut self, mrn: MrNumber) {
        self.fast.retain(|fast| fast.mrn != mrn);
    }

    fn register_fast(&mut self, input: &mut Input<'_>) {
        if self.fast.is_empty() {
            return;
        }
        let fast = self.fast[input.below(self.fast.len())];
        let (request, opens) = self.request(input);
        let key = (fast.key & !0xff) | u32::from(input.any::<u8>());
        let access = AccessFlags(opens.access.0 & FULL.0);
        let pages = self.owner.page_list(&opens.pages);
        let npages = opens.pages.len() as u32;
        let mut base = Reg {
            mrn: fast.mrn,
            key,
            access,
        };
        // Sometimes the work request is wrong: it has the key of another MR, or is for an MR that
        // was created with its memory.
        let is_wrong = match (input.below(8), self.open.first()) {
            (7, _) => {
                base.key ^= 1 << (8 + input.below(24));
                true
            }
            (6, Some(other)) if other.kind == Kind::Fixed => {
                (base.mrn, base.key) = (other.mr, other.key);
                true
            }
            _ => false,
        };
        let bytes = if !self.features.has(Feature::RegPages) {
            let map = CmdMapMrSg {
                mrn: fast.mrn,
                npages,
                start: opens.va,
                length: opens.len,
                pages,
            };
            self.owner.call(map).expect("pages of an MR");
            wqe(0, WrOpcode::RegMr, 0, &base)
        } else {
            let reg = RegPages {
                base,
                pages,
                npages,
                iova: opens.va,
                length: opens.len,
                page_shift: request.page_shift,
                reserved: [0; 4],
            };
            wqe(0, WrOpcode::RegMr, 0, &reg)
        };
        let done = self.local(&bytes);
        let is_free = !self
            .open
            .iter()
            .any(|o| o.window.is_none() && o.mr == fast.mrn);
        assert_eq!(done, is_free && !is_wrong, "{base:?} {opens:?}");
        if done {
            self.closed.retain(|closed| *closed != key);
            self.open.push(Opens {
                key,
                mr: fast.mrn,
                kind: Kind::Fast,
                access,
                ..opens
            });
        }
    }

    /// A key of any kind, and its index in `open` if it is valid.
    fn any_key(&self, input: &mut Input<'_>) -> (u32, Option<usize>) {
        let keys = self.open.len();
        match input.once_in(4) || keys == 0 {
            true => (self.closed[input.below(self.closed.len())], None),
            false => {
                let at = input.below(keys);
                (self.open[at].key, Some(at))
            }
        }
    }

    fn invalidate_key(&mut self, input: &mut Input<'_>) {
        let (key, at) = self.any_key(input);
        let done = self.local(&local_inv(0, key));
        self.invalidated(at, done);
    }

    /// Checks the result `done` of an invalidation, and removes the key if the invalidation has
    /// succeeded.
    fn invalidated(&mut self, at: Option<usize>, done: bool) {
        let kind = at.map(|at| self.open[at].kind);
        match kind {
            Some(Kind::Fast) => assert!(done, "not invalidated"),
            // Either result is possible: only a type 2 window of the same QP can be invalidated,
            // and the model does not record the QP.
            Some(Kind::Window) => {}
            Some(Kind::Fixed) | None => assert!(!done, "invalidated: {at:?}"),
        }
        if let (Some(at), true) = (at, done) {
            let gone = self.open.remove(at);
            self.closed.push(gone.key);
        }
    }

    /// Sends a message from the peer that invalidates a key of the owner.
    fn send_with_invalidate(&mut self, input: &mut Input<'_>) {
        let (key, at) = self.any_key(input);
        self.qps[1].post_recv(1, &[]);
        let send = Wr::new(2, WrOpcode::SendWithInv).imm(key.to_le_bytes());
        self.qps[0].post(&send);
        stage::run_until_idle(&self.world.runtime);
        let sent = self.cqs[0].poll().expect("a completion of the sender");
        let done = sent.status == WcStatus::Success.value();
        let received = self.cqs[1].poll().expect("a completion of the receiver");
        assert_eq!(
            received.status == WcStatus::Success.value(),
            done,
            "{sent:?}, {received:?}"
        );
        if done {
            assert_eq!(received.ex, key.to_le_bytes(), "the key");
        } else {
            self.connect_anew();
        }
        self.invalidated(at, done);
    }
}
