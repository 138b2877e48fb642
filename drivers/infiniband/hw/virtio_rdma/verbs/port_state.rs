// SPDX-License-Identifier: GPL-2.0

//! Tells the device state and MTU of the port's network device.
//!
//! A command waits for the device, in the worst case until the control queue fails the device.
//! Meanwhile the RTNL must be free, since all network configuration of the guest waits for it. So
//! nothing here runs under the RTNL:
//! - Notifications of the network device come under the RTNL. They only queue a work item, which
//!   has a workqueue of its own.
//! - Queries of the port, and changes of a path MTU, tell the device first: their result never lags
//!   behind a change that a program has seen. The core calls both without the RTNL.
//! - The work item is disabled when the port's owner is dropped, after the notifier was
//!   unregistered, which takes and releases the RTNL.
//!
//! Lock order: a QP's lock for modifications, then [`PortState`]; the control queue's locks are
//! taken within. The RTNL is not taken within, and not held when [`PortState`] is taken.

use super::device::IbDevice;
use crate::{
    abi::{
        ctrl::CmdSetPort,
        feature::Feature,
        ib::{
            self,
            PORT, //
        }, //
    },
    ctrl::Failure,
    net,
    rdma::{
        self,
        DeviceRef, //
    },
    sync::{
        periodic::{
            Periodic,
            Tick, //
        },
        workqueue::Workqueue, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    time::Msecs, //
};

/// Time in ms from the registration until the first SET_PORT, unless the network device changes
/// before.
const FIRST_MS: Msecs = 1_000;

/// State and MTU of a network device.
#[derive(Clone, Copy, PartialEq, Eq)]
struct NetdevState {
    is_up: bool,
    mtu: u32,
}

impl NetdevState {
    fn of(netdev: Option<&net::device::Device>) -> Self {
        Self {
            is_up: netdev.is_some_and(net::device::Device::is_up),
            mtu: netdev.map_or(0, net::device::Device::mtu),
        }
    }
}

/// The state of the port's network device that the device knows; `None` before the first command.
pub(super) struct PortState(Pin<KBox<Mutex<Option<NetdevState>>>>);

impl PortState {
    pub(super) fn new() -> Result<Self> {
        let known = new_mutex!(None, "virtio_rdma::port_state");
        Ok(Self(KBox::pin_init(known, GFP_KERNEL)?))
    }
}

/// Tells the device state and MTU of the port's network device, unless it knows them or lacks the
/// feature.
pub(super) fn tell(this: &rdma::Device<IbDevice>) -> Result<(), Failure> {
    if !this.virtio.limits().has(Feature::PortState) {
        return Ok(());
    }
    // The state is read under the lock, so the last command carries the last state.
    let mut known = this.port_state.0.lock();
    let state = NetdevState::of(this.netdev(PORT.into()).as_deref());
    if *known == Some(state) {
        return Ok(());
    }
    let told = match state.is_up {
        true => ib::PortState::Active,
        false => ib::PortState::Down,
    };
    this.virtio.ctrl().exec(&CmdSetPort {
        port: PORT,
        state: told.value(),
        mtu: state.mtu,
    })?;
    *known = Some(state);
    Ok(())
}

/// Whether the port's network device carries packets with a path MTU of this value. A device with
/// `PortState` knows the network device's MTU and checks this itself.
pub(super) fn carries(this: &rdma::Device<IbDevice>, path_mtu: u8) -> bool {
    this.virtio.limits().has(Feature::PortState)
        || this
            .netdev(PORT.into())
            .is_none_or(|netdev| path_mtu <= ib::Mtu::within(netdev.mtu()).value())
}

/// The work item that tells the device.
pub(super) struct Teller(DeviceRef<IbDevice>);

impl Teller {
    /// `queue` is only for this work item, since it may wait long for the device.
    pub(super) fn new(
        queue: Arc<Workqueue>,
        device: DeviceRef<IbDevice>,
    ) -> impl PinInit<Periodic<Self>> {
        Periodic::new(queue, FIRST_MS, Self(device))
    }
}

impl Tick for Teller {
    fn tick(&self) -> bool {
        if let Some(device) = self.0.try_get() {
            if let Err(Failure::Refused(error)) = tell(&device) {
                dev_warn!(
                    device.virtio.as_device(),
                    "the device refused state and MTU of the network device, and keeps its former \
                     ones: {:?}\n",
                    error
                );
            }
        }
        false
    }
}
