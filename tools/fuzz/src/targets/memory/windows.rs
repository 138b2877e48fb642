// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory windows of both types.

use testkit::engine::{local_inv, wqe, FULL};
use virtio_rdma_abi::ctrl::CmdAllocMw;
use virtio_rdma_abi::ib::{AccessFlags, MwType, WrOpcode};
use virtio_rdma_abi::wqe::BindMw;

use super::{Bench, Kind, Opens};
use crate::input::Input;

impl Bench<'_> {
    pub(super) fn allocate_window(&mut self, input: &mut Input<'_>) {
        let mw_type = input.of(&[MwType::One, MwType::Two]);
        let request = CmdAllocMw {
            pdn: self.owner.pdn,
            mw_type: mw_type.value(),
            reserved: [0; 3],
        };
        if let Ok(made) = self.owner.call(request) {
            self.windows.push((made.mwn, made.rkey, mw_type));
        }
    }

    /// Binds a window to a part of an MR.
    pub(super) fn bind(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.some(input, &[Kind::Fixed, Kind::Fast]) else {
            return;
        };
        if self.windows.is_empty() {
            return;
        }
        let choice = input.below(self.windows.len());
        let (mwn, before, mw_type) = self.windows[choice];
        let mr = self.open[at].clone();
        let start = u64::from(input.any::<u16>()) % mr.len;
        let len = 1 + u64::from(input.any::<u16>()) % (mr.len - start);
        let access = input.of(&[FULL, AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE]);
        let access = AccessFlags(access.0 & !AccessFlags::LOCAL_WRITE.0);
        let key = (before & !0xff) | (before.wrapping_add(1) & 0xff);
        let bind = BindMw {
            addr: mr.va + start,
            length: input.edge(len),
            mw_rkey: before,
            rkey: key,
            lkey: mr.key,
            access,
            reserved: [0; 4],
        };
        let done = self.local(&wqe(0, WrOpcode::BindMw, 0, &bind));
        if !done {
            return;
        }
        // A length of 0 unbinds the window. The access flags of the MR are not checked for this.
        assert!(
            bind.length == 0 || mr.access.contains(AccessFlags::MW_BIND),
            "bound without MW_BIND"
        );
        let first = bind.addr - mr.va;
        assert!(first + bind.length <= mr.len, "bound beyond the MR");
        self.windows[choice].1 = key;
        let gone = self.open.iter().position(|o| o.window == Some(mwn));
        if let Some(gone) = gone {
            let old = self.open.remove(gone);
            self.closed.push(old.key);
        }
        if bind.length == 0 {
            self.closed.push(key);
            return;
        }
        self.closed.retain(|closed| *closed != key);
        self.open.push(Opens {
            key,
            mr: mr.mr,
            window: Some(mwn),
            kind: Kind::Window,
            va: bind.addr,
            len: bind.length,
            offset: mr.offset + first,
            access,
            // A type 2 window is unbound when its QP fails.
            certain: mw_type == MwType::One,
            ..mr
        });
    }

    pub(super) fn invalidate(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.some(input, &[Kind::Window]) else {
            return;
        };
        if self.local(&local_inv(0, self.open[at].key)) {
            let gone = self.open.remove(at);
            self.closed.push(gone.key);
        }
    }
}
