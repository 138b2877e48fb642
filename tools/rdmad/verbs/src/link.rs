// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The link of a port: its state and the MTU of the guest's network device.

use std::sync::atomic::{AtomicU32, AtomicU8, Ordering};

use virtio_rdma_abi::ib::Mtu;

/// The switch has the link up.
const SWITCH: u8 = 1;
/// The guest's network device is up.
const NETDEV: u8 = 2;
/// No rule of a scenario has the link down.
const RAISED: u8 = 4;
/// The link is up.
const UP: u8 = SWITCH | NETDEV | RAISED;

/// The link of a port. It is up while the switch and the guest's network device are up, and no rule
/// has taken it down.
#[derive(Debug)]
pub(crate) struct Link {
    state: AtomicU8,
    /// MTU of the guest's network device.
    mtu: AtomicU32,
}

impl Link {
    /// A link that the switch has down. Unless the driver tells otherwise, the network device is up
    /// and has any MTU.
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU8::new(NETDEV | RAISED),
            mtu: AtomicU32::new(u32::MAX),
        }
    }

    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.state.load(Ordering::Acquire) == UP
    }

    /// The largest path MTU whose packets fit both the network device's MTU and `own`, the port's.
    #[inline]
    pub(crate) fn path_mtu(&self, own: u32) -> Mtu {
        Mtu::within(self.mtu.load(Ordering::Relaxed).min(own))
    }

    /// Sets the switch's state. Returns whether the link went up or down by this.
    pub(crate) fn set_switch(&self, up: bool) -> bool {
        self.set(SWITCH, up)
    }

    /// Takes the link down by a rule. Returns whether it went down by this; `None` if a rule has it
    /// down already.
    pub(crate) fn lower(&self) -> Option<bool> {
        let old = self.state.fetch_and(!RAISED, Ordering::AcqRel);
        (old & RAISED != 0).then_some(old == UP)
    }

    /// Ends what a rule did. Returns whether the link went up by this.
    pub(crate) fn raise(&self) -> bool {
        self.set(RAISED, true)
    }

    /// Sets state and MTU of the network device.
    pub(crate) fn set_netdev(&self, up: bool, mtu: u32) {
        self.mtu.store(mtu, Ordering::Relaxed);
        self.set(NETDEV, up);
    }

    /// Forgets what the driver told, and what rules did.
    pub(crate) fn reset(&self) {
        self.raise();
        self.set_netdev(true, u32::MAX);
    }

    /// State and MTU, from which another process can restore the link.
    pub(crate) fn save(&self) -> (u8, u32) {
        let state = self.state.load(Ordering::Acquire);
        (state, self.mtu.load(Ordering::Relaxed))
    }

    /// Restores the link, except for the switch's state. Returns whether the link was up when it
    /// was saved.
    pub(crate) fn restore(&self, (state, mtu): (u8, u32)) -> bool {
        self.set_netdev(state & NETDEV != 0, mtu);
        state == UP
    }

    fn set(&self, bit: u8, up: bool) -> bool {
        let old = match up {
            true => self.state.fetch_or(bit, Ordering::AcqRel),
            false => self.state.fetch_and(!bit, Ordering::AcqRel),
        };
        let was_set = old & bit != 0;
        was_set != up && old | bit == UP
    }
}
