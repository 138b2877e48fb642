// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Possible results of tries according to the keys of a vault.

use virtio_rdma_abi::ib::{AsyncEvent, WcStatus};

use super::side::{Kind, Try};
use super::{Vault, AREA};

impl Vault<'_> {
    /// Updates the possible results of a try according to the current keys.
    pub(super) fn judge(&mut self, one: &mut Try) {
        if one.kind.changes_keys() || matches!(one.kind, Kind::Invalidate(_)) {
            return;
        }
        let access = one.kind.access();
        let is_remote = one.kind.refused() == WcStatus::RemAccessErr;
        let (key, at, len) = (one.mr.key, one.at, one.len);
        let opens = !one.after_invalidation
            && (self.keys.opens(key, at, len, access)
                || is_remote && self.keys.windows.opens(key, at, len, access));
        let refused = if is_remote && !self.access.contains(access) {
            Some(WcStatus::RemInvReqErr)
        } else {
            (!opens).then(|| one.kind.refused())
        };
        match refused {
            None if !one.allowed => {
                one.allowed = true;
                // A try that was allowed earlier may have been executed while it was allowed.
                if !one.succeeds || !one.kind.writes() {
                    one.succeeds = true;
                    self.begin(one);
                }
            }
            None => {}
            Some(status) => {
                one.fails = Some(status);
                if one.allowed && one.kind.writes() {
                    // The device writes no further bytes of this try.
                    let memory = &mut self.owner.memory;
                    one.succeeds = !memory.is_pending(one.id) || memory.refuse(one.id);
                }
                one.allowed = false;
                match status {
                    WcStatus::RemAccessErr => self.may_raise.push(AsyncEvent::QpAccessErr),
                    WcStatus::RemInvReqErr => self.may_raise.push(AsyncEvent::QpReqErr),
                    _ => {}
                }
            }
        }
    }

    /// Begins the pending writes of a try that is allowed now.
    fn begin(&mut self, one: &Try) {
        let Try { id, at, len, .. } = *one;
        let there = at / AREA * AREA;
        let before = self.owner.memory.bytes(at..at + len).to_vec();
        let given = self.thief.memory.bytes(there..there + len).to_vec();
        let after = match one.kind {
            Kind::Add => {
                let word = u64::from_le_bytes(before[..].try_into().unwrap());
                word.wrapping_add(id).to_le_bytes().to_vec()
            }
            _ => given,
        };
        if one.kind.writes() {
            self.owner.memory.begin(id, at, after);
        }
        if matches!(one.kind, Kind::Read | Kind::Send | Kind::Add)
            && !self.thief.memory.is_pending(id)
        {
            self.thief.memory.begin(id, there, before);
        }
    }

    /// Updates the possible results of all tries after a change of keys.
    pub(super) fn reconsider(&mut self) {
        let ours = std::mem::take(&mut self.owner.tries);
        let theirs = std::mem::take(&mut self.thief.tries);
        let [ours, theirs] = [ours, theirs].map(|mut tries| {
            for one in &mut tries {
                self.judge(one);
            }
            tries
        });
        (self.owner.tries, self.thief.tries) = (ours, theirs);
        let mut adrift = std::mem::take(&mut self.adrift);
        for one in &mut adrift {
            self.judge(one);
        }
        self.adrift = adrift;
    }
}
