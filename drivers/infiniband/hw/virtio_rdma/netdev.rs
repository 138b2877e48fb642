// SPDX-License-Identifier: GPL-2.0

//! The network device that carries the port's RoCE traffic and configuration.
//!
//! A network device in the same PCI slot as the RDMA device is preferred. Otherwise the network
//! device with the port's MAC address is chosen; the driver derives this address from the system
//! image GUID. The network device may appear later than the RDMA device and vanish earlier. When it
//! vanishes, the next one that fits is chosen.
//!
//! Lock order: the RTNL, then `NetdevBinding::bound`, then the locks of [`PortOwner::set_netdev`].

use crate::{
    abi::config::mac_from_eui64,
    net::{
        self,
        notifier::{
            Event,
            Notifier,
            NotifierOps, //
        },
        rtnl::Rtnl, //
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

pub(crate) trait PortOwner: Send + Sync {
    /// Sets the port's network device. The owner drops all references to the previous one, whether
    /// the RDMA device is registered or not: the network device may wait for this.
    fn set_netdev(&self, netdev: Option<&net::device::Device>) -> Result;

    /// Called when state or MTU of the network device changed.
    fn netdev_changed(&self, netdev: &net::device::Device);
}

/// The reason why a network device fits the port. The last variant is the best reason.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    SameAddress,
    SameSlot,
}

/// Binding of a port to its network device.
#[pin_data]
pub(crate) struct NetdevBinding {
    dev: ARef<device::Device>,
    address: Option<[u8; net::device::ETH_ALEN]>,
    owner: Arc<dyn PortOwner>,
    #[pin]
    bound: Mutex<Bound>,
}

/// The network device of a port, if there is one, and the reason why it was chosen.
type Bound = Option<(Fit, ARef<net::device::Device>)>;

impl NetdevBinding {
    /// Follows the network device of `owner`, which may exist already.
    ///
    /// `dev` is the bus device of the RDMA device, `guid` its system image GUID.
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
        // VLAN and macvlan devices are skipped here: they have their lower device's address, but no
        // parent on a bus.
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

    /// Binds the port to `netdev`, or to none.
    fn bind(&self, bound: &mut Bound, netdev: Option<(Fit, ARef<net::device::Device>)>) {
        *bound = netdev;
        let netdev = bound.as_ref().map(|(_, netdev)| &**netdev);
        if let Err(error) = self.owner.set_netdev(netdev) {
            dev_warn!(
                self.dev,
                "can't bind network device {}, so the port stays DOWN: {:?}\n",
                netdev.map_or(0, net::device::Device::index),
                error
            );
        }
    }

    /// Warns of another address than the port's: the switch of the host may drop its frames.
    fn check_address(&self, netdev: &net::device::Device) {
        if self.address.is_some() && netdev.address() != self.address {
            dev_warn!(
                self.dev,
                "network device {} has another MAC address than the port ({:02x?}, not {:02x?}): \
                 the host drops its frames unless it allows this address\n",
                netdev.index(),
                netdev.address().unwrap_or_default(),
                self.address.unwrap_or_default()
            );
        }
    }
}

impl NotifierOps for NetdevBinding {
    fn event(&self, event: Event, netdev: &net::device::Device, rtnl: &Rtnl) {
        let mut bound = self.bound.lock();
        let is_bound = bound
            .as_ref()
            .is_some_and(|(_, bound)| core::ptr::eq(&**bound, netdev));
        match event {
            Event::Register if !is_bound => {
                let fit = self.fit(netdev);
                if fit > bound.as_ref().map(|(fit, _)| *fit) {
                    self.bind(&mut bound, fit.map(|fit| (fit, netdev.into())));
                }
            }
            Event::Unregister if is_bound => {
                // Another device may have been there all the time, and fitted less well. A device
                // that is still registered comes back: it moves to another namespace.
                let others = !netdev.is_registered();
                let next = others.then(|| net::device::find_best(rtnl, |netdev| self.fit(netdev)));
                self.bind(&mut bound, next.flatten());
            }
            Event::Up | Event::Down | Event::Change | Event::ChangeMtu if is_bound => {
                self.owner.netdev_changed(netdev)
            }
            Event::ChangeAddress if is_bound => self.check_address(netdev),
            _ => (),
        }
    }
}
