// SPDX-License-Identifier: GPL-2.0

//! A device that does nothing, whose driver implements only what is required, and its registration.

use super::host::Host;
use crate::{
    bindings,
    net,
    rdma::{
        device::{
            is_name_pattern,
            Allocated,
            Config, //
        },
        Registration, //
    }, //
};
use kernel::{
    device,
    device::Bound,
    prelude::*, //
};

/// Declares a driver that does nothing, to which examples add more traits.
#[cfg(OUT_OF_TREE)]
macro_rules! null_driver {
    ($name:ident) => {
        struct $name;
        $crate::rdma::tests::null::implement_null!($name);
    };
}
#[cfg(OUT_OF_TREE)]
pub(crate) use null_driver;

/// Implements the traits that every driver must implement.
macro_rules! implement_null {
    ($name:ident) => {
        #[kernel::macros::vtable]
        impl $crate::rdma::Driver for $name {
            type OwnerModule = $crate::LocalModule;

            const NAME: &'static kernel::str::CStr = c"null%d";
            const NODE_DESC: &'static kernel::str::CStr = c"nothing";
            const DRIVER_ID: u32 = 0;
            const UVERBS_ABI_VERSION: u32 = 1;
            const OPERATIONS: $crate::rdma::Operations<Self> = $crate::rdma::Operations::new();

            fn query_device(
                _device: &$crate::rdma::Device<Self>,
            ) -> $crate::rdma::attributes::DeviceAttr {
                $crate::rdma::attributes::DeviceAttr {
                    max_pd: 1,
                    max_pkeys: 1,
                    ..Default::default()
                }
            }
        }

        impl $crate::rdma::port::Ports for $name {
            fn query_port(
                _device: &$crate::rdma::Device<Self>,
                _port: u32,
            ) -> kernel::error::Result<$crate::rdma::port::PortAttr> {
                Ok($crate::rdma::port::PortAttr {
                    state: 1,
                    phys_state: 3,
                    max_mtu: 5,
                    active_mtu: 3,
                    phys_mtu: 1500,
                    gid_tbl_len: 1,
                    pkey_tbl_len: 1,
                    port_cap_flags: 0,
                    max_msg_sz: 0,
                    bad_pkey_cntr: 0,
                    qkey_viol_cntr: 0,
                    active_width: 1,
                    active_speed: 1,
                })
            }

            fn port_immutable(
                _device: &$crate::rdma::Device<Self>,
                _port: u32,
            ) -> kernel::error::Result<$crate::rdma::port::PortImmutable> {
                Ok($crate::rdma::port::PortImmutable {
                    pkey_tbl_len: 1,
                    gid_tbl_len: 1,
                    protocol: $crate::rdma::port::Protocol::RoceV2,
                })
            }

            fn query_pkey(
                _device: &$crate::rdma::Device<Self>,
                _port: u32,
                index: u16,
            ) -> kernel::error::Result<u16> {
                (index == 0)
                    .then_some(u16::MAX)
                    .ok_or(kernel::error::code::EINVAL)
            }
        }

        impl $crate::rdma::pd::ProtectionDomains for $name {
            type Pd = ();

            fn alloc_pd(_device: &$crate::rdma::Device<Self>) -> kernel::error::Result {
                Ok(())
            }
        }
    };
}
pub(crate) use implement_null;

/// The driver's data of a device: a number.
pub(super) struct Null(u32);

implement_null!(Null);

/// The minimal configuration of a device on `bound`.
pub(super) fn config(bound: &device::Device<Bound>) -> Config<'_> {
    Config {
        bound_device: bound,
        parent: bound,
        dma_device: bound,
        node_guid: [1; 8],
        ports: 1,
        completion_vectors: 1,
        user_queues_in_kernel: None,
        port_counters: false,
        qp_counters: false,
        adaptive_moderation: false,
    }
}

/// Registers a device.
fn register(config: &Config<'_>) -> Result<Registration<Null>> {
    Registration::new(config, Ok(Null(7)))
}

/// Registers a device on a host.
pub(super) fn register_on(host: &Host) -> Result<Registration<Null>> {
    register(&config(host.device()))
}

/// The network device of port 1. The device keeps a reference to it.
fn netdev_of(device: &Allocated<Null>) -> *mut bindings::net_device {
    // SAFETY: The device is allocated.
    let netdev = unsafe { bindings::ib_device_get_netdev(device.as_raw(), 1) };
    // SAFETY: The reference is ours.
    unsafe { bindings::dev_put(netdev) };
    netdev
}

suite! { rust_rdma_null {
    /// The C side uses the name as a format string.
    fn names_take_one_number() {
        for name in [c"null%d", c"%d", c"a%db"] {
            check!(is_name_pattern(name));
        }
        for name in [c"null", c"", c"%", c"null%s", c"null%d%d", c"null%%d", c"null%d%", c"%5d"] {
            check!(!is_name_pattern(name));
        }
    }

    fn a_registered_device_has_its_data() {
        let host = Host::new(c"rdma_test")?;
        let device = host.device();
        let registration = register_on(&host)?;
        let registered = registration.device().try_get().ok_or(ENODEV)?;
        check!(registered.0 == 7);
        check!(core::ptr::eq(registered.dma_device(), device));
        check!(core::ptr::eq(registered.bound_device(), device));
    }

    fn two_devices_have_two_names() {
        let host = Host::new(c"rdma_test")?;
        let first = register_on(&host)?;
        let second = register_on(&host)?;
        check!(first.device().try_get().is_some() && second.device().try_get().is_some());
        drop(first);
        check!(second.device().try_get().is_some());
    }

    /// A device that is not an ancestor of the bound device is refused, since it may be unbound
    /// before the bound device.
    fn parent_and_dma_device_are_ancestors() {
        let host = Host::new(c"rdma_test")?;
        let other = Host::new(c"rdma_test_other")?;
        let (device, stranger) = (host.device(), other.device());
        let of_stranger = Config { parent: stranger, ..config(device) };
        check!(register(&of_stranger).is_err_and(|error| error == EINVAL));
        let of_stranger = Config { dma_device: stranger, ..config(device) };
        check!(register(&of_stranger).is_err_and(|error| error == EINVAL));
    }

    /// The core divides by the number of completion vectors.
    fn a_device_has_ports_and_completion_vectors() {
        let host = Host::new(c"rdma_test")?;
        let without = Config { completion_vectors: 0, ..config(host.device()) };
        check!(register(&without).is_err_and(|error| error == EINVAL));
        for ports in [0, u32::MAX] {
            let without = Config { ports, ..config(host.device()) };
            check!(register(&without).is_err_and(|error| error == EINVAL));
        }
    }

    /// A driver registers a device again each time after a suspend or a reset.
    fn a_registration_leaves_no_resources_of_the_bound_device() {
        let host = Host::new(c"rdma_test")?;
        let before = host.resources();
        let registration = register_on(&host)?;
        check!(host.resources() > before);
        drop(registration);
        check!(host.resources() == before);
    }

    /// A device that moves to another network namespace is not registered for a while. Its network
    /// device may appear or go in that time.
    fn a_netdev_is_set_without_a_registration() {
        let host = Host::new(c"rdma_test")?;
        let allocated = Allocated::<Null>::new(&config(host.device()), Ok(Null(7)))?;
        let device = allocated.reference();
        let ((), netdev) = net::device::find_best(&net::rtnl::lock(), |_| Some(())).ok_or(ENODEV)?;
        check!(device.try_get().is_none());
        for _ in 0..2 {
            device.set_netdev(1, Some(&netdev))?;
            check!(netdev_of(&allocated) == netdev.as_raw());
            device.set_netdev(1, None)?;
            check!(netdev_of(&allocated).is_null());
        }
        check!(device.set_netdev(2, Some(&netdev)).is_err_and(|error| error == EINVAL));
        // The core drops this one, and takes no other.
        device.set_netdev(1, Some(&netdev))?;
        drop(allocated);
        check!(device.set_netdev(1, Some(&netdev)).is_err_and(|error| error == ENODEV));
    }

    fn a_registration_ends_with_its_binding() {
        let host = Host::new(c"rdma_test")?;
        let registration = register_on(&host)?;
        let device = registration.device().clone();
        check!(device.try_get().is_some());
        drop(host);
        check!(device.try_get().is_none());
        drop(registration);
        check!(device.try_get().is_none());
    }
} }
