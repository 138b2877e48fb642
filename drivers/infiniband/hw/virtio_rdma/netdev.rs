// SPDX-License-Identifier: GPL-2.0

//! The network device that carries the port's RoCE traffic and configuration.
//!
//! It is the one in the same PCI slot as the RDMA device, if there is one; else the one that has
//! the MAC address of the port, which the device gives as its system image GUID. It may come later
//! than the RDMA device and go earlier.
//!
//! Lock order: the RTNL, then `Binding::bound`.

use crate::{
    abi::config::mac_from_eui64,
    net::{
        self,
        notifier::{
            Event,
            Notifier,
            NotifierOps, //
        }, //
    }, //
};
use kernel::{
    device,
    prelude::*,
    sync::{
        aref::ARef,
        new_mutex,
        Arc,
        Mutex, //
    },
};

/// Owner of a port.
pub(crate) trait PortOwner: Send + Sync {
    /// The port's network device is `netdev` from here on. No reference to an earlier one may be
    /// kept.
    fn set_netdev(&self, netdev: Option<&net::device::Device>);

    /// State or MTU of the network device changed.
    fn netdev_changed(&self, netdev: &net::device::Device);
}

/// How well a network device fits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    SameAddress,
    SameSlot,
}

/// Binds a port and a network device.
#[pin_data]
pub(crate) struct Binding {
    dev: ARef<device::Device>,
    address: Option<[u8; net::device::ETH_ALEN]>,
    owner: Arc<dyn PortOwner>,
    #[pin]
    bound: Mutex<Option<(Fit, ARef<net::device::Device>)>>,
}

impl Binding {
    /// Starts to look for the network device of `owner`, and finds one that is there already.
    ///
    /// `dev` is the RDMA device on its bus, `guid` its system image GUID.
    pub(crate) fn new(
        dev: &device::Device,
        guid: [u8; 8],
        owner: Arc<dyn PortOwner>,
    ) -> impl PinInit<Notifier<Pin<KBox<Self>>>, Error> {
        let dev = dev.into();
        pin_init::pin_init_scope(move || {
            let binding = KBox::pin_init(
                pin_init!(Self {
                    dev,
                    address: mac_from_eui64(guid),
                    owner,
                    bound <- new_mutex!(None, "virtio_rdma::netdev::bound"),
                }),
                GFP_KERNEL,
            )?;
            Ok(Notifier::new(binding))
        })
    }

    fn fit(&self, netdev: &net::device::Device) -> Option<Fit> {
        // Devices on top of others have the address of the lowest, but no parent on a bus.
        netdev.parent()?;
        let address = netdev.permanent_address()?;
        if netdev.shares_pci_slot(&self.dev) {
            Some(Fit::SameSlot)
        } else if Some(address) == self.address {
            Some(Fit::SameAddress)
        } else {
            None
        }
    }
}

impl NotifierOps for Binding {
    fn event(&self, event: Event, netdev: &net::device::Device) {
        let mut bound = self.bound.lock();
        let is_bound = bound
            .as_ref()
            .is_some_and(|(_, bound)| core::ptr::eq(&**bound, netdev));
        match event {
            Event::Register if !is_bound => {
                let fit = self.fit(netdev);
                if fit > bound.as_ref().map(|(fit, _)| *fit) {
                    *bound = fit.map(|fit| (fit, netdev.into()));
                    self.owner.set_netdev(Some(netdev));
                }
            }
            Event::Unregister if is_bound => {
                *bound = None;
                self.owner.set_netdev(None);
            }
            Event::Up | Event::Down | Event::Change | Event::ChangeMtu if is_bound => {
                self.owner.netdev_changed(netdev)
            }
            _ => (),
        }
    }
}
