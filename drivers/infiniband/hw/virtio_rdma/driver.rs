// SPDX-License-Identifier: GPL-2.0

//! Binding to a device on the virtio bus.

use crate::{
    abi::{
        config::F_RING_ADDR,
        ctrl::CmdQueryPort,
        VIRTIO_ID_RDMA, //
    },
    device::Device,
    virtio::{
        self,
        Feature, //
    },
};
use kernel::{
    device::Core,
    prelude::*,
    sync::Arc, //
};

/// Queues are rings at addresses that the driver names.
const RING_ADDR: Feature = Feature::device_type(F_RING_ADDR);

/// What the driver cannot do without.
const REQUIRED: [(Feature, &str); 4] = [
    (Feature::VERSION_1, "VERSION_1"),
    (Feature::ACCESS_PLATFORM, "ACCESS_PLATFORM"),
    (Feature::RING_RESET, "RING_RESET"),
    (RING_ADDR, "RING_ADDR"),
];

crate::virtio_device_table!(ID_TABLE, [virtio::DeviceId::new(VIRTIO_ID_RDMA)]);

/// The driver.
pub(crate) struct Driver;

/// A bound device.
#[pin_data]
pub(crate) struct Data {
    device: Arc<Device>,
}

#[vtable]
impl virtio::Driver for Driver {
    type Data<'bound> = Data;

    const ID_TABLE: virtio::IdTable = &ID_TABLE;
    const FEATURES: &'static [Feature] = &[RING_ADDR];

    fn probe<'bound>(
        dev: &'bound virtio::Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            for (feature, name) in REQUIRED {
                if !dev.has_feature(feature) {
                    dev_err!(dev.as_ref(), "the device lacks feature {}\n", name);
                    return Err(ENODEV);
                }
            }
            let device = Device::new(dev)?;
            let port = device.ctrl().exec(&CmdQueryPort { port: 1 })?;
            dev_info!(
                dev.as_ref(),
                "port state {} mtu {}\n",
                port.state,
                port.active_mtu
            );
            Ok(try_pin_init!(Data { device }))
        })
    }

    fn unbind<'bound>(dev: &'bound virtio::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = this.device.shut_down(dev);
    }
}
