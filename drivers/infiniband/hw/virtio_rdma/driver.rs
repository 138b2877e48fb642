// SPDX-License-Identifier: GPL-2.0

//! Binding to a device on the virtio bus.

use crate::{
    abi::VIRTIO_ID_RDMA,
    debugfs::{
        self,
        CommandsFile, //
    },
    device::{
        Device,
        HealthCheck, //
    },
    limits::FEATURES,
    net::notifier::Notifier,
    netdev::NetdevBinding,
    sync::periodic::Periodic,
    trace,
    unbinding::Awaited,
    verbs::Verbs,
    virtio::{
        self,
        Feature,
        VirtioID, //
    },
};
#[cfg(not(OUT_OF_TREE))]
use kernel::virtio_device_table;
use kernel::{
    device::{
        Bound,
        Core, //
    },
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

/// Features that the driver can't do without.
const REQUIRED: [(Feature, &str); 3] = [
    (Feature::VERSION_1, "VERSION_1"),
    (Feature::ACCESS_PLATFORM, "ACCESS_PLATFORM"),
    (Feature::RING_RESET, "RING_RESET"),
];

const _: () = assert!(VirtioID::Rdma as u32 == VIRTIO_ID_RDMA);

virtio_device_table!(ID_TABLE, [virtio::DeviceId::new(VirtioID::Rdma)]);

pub(crate) struct Driver;

/// A bound device.
#[pin_data]
pub(crate) struct Data {
    /// `None` once the device is being unbound.
    #[pin]
    ready: Mutex<Option<Ready>>,
    #[pin]
    health_check: Periodic<HealthCheck>,
    device: Arc<Device>,
    _commands: Option<CommandsFile>,
}

/// The registrations through which other parts of the kernel use the device. Dropping them waits
/// for these users; the device answers commands until then.
struct Ready {
    /// Dropped before the verbs, since it sets the network device of the verbs' port.
    _netdev: Pin<KBox<Notifier<Pin<KBox<NetdevBinding>>>>>,
    _verbs: Verbs,
}

impl Ready {
    fn new(dev: &virtio::Device<Core<'_>>, device: &Arc<Device>) -> Result<Self> {
        let verbs = Verbs::new(dev, device.clone())?;
        let guid = device.limits().config.sys_image_guid;
        let netdev = KBox::pin_init(
            NetdevBinding::new(dev.as_ref(), guid, verbs.port()?),
            GFP_KERNEL,
        )?;
        verbs.follow_netdev();
        Ok(Self {
            _netdev: netdev,
            _verbs: verbs,
        })
    }
}

#[vtable]
impl virtio::Driver for Driver {
    type OwnerModule = crate::LocalModule;
    type Data<'bound> = Data;

    const ID_TABLE: virtio::IdTable = &ID_TABLE;
    const FEATURES: &'static [Feature] = &FEATURES;

    fn probe<'bound>(
        dev: &'bound virtio::Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            for (feature, name) in REQUIRED {
                if !dev.has_feature(feature) {
                    dev_err!(
                        dev.as_ref(),
                        "the device lacks feature {}: it is not used\n",
                        name
                    );
                    return Err(ENODEV);
                }
            }
            let device = Device::new(dev)?;
            Ok(try_pin_init!(Data {
                // The device also works without the file.
                _commands: debugfs::commands(dev.as_ref(), device.ctrl().clone()).ok(),
                // The health check is started before the registrations: users of the registrations
                // may wait for a failing device, and only the health check notices the failure.
                health_check <- device.health_check(),
                ready <- {
                    let ready = Ready::new(dev, &device).inspect_err(|error| {
                        dev_err!(
                            dev.as_ref(),
                            "can't register the RDMA device, so it is not used: {:?}\n",
                            error
                        );
                        let _ = device.shut_down(dev);
                    })?;
                    new_mutex!(Some(ready), "virtio_rdma::driver::ready")
                },
                device,
            }))
        })
    }

    fn unbind<'bound>(dev: &'bound virtio::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let unbinding = this.device.unbinding();
        let waits_for = |awaited| {
            if let Some(unbinding) = &unbinding {
                unbinding.waits_for(awaited);
            }
        };
        // Clients of a failing device wait until it has stopped.
        this.device.lifecycle().await_stop_to_unbind();
        waits_for(Awaited::Clients);
        // The drop waits for users, and a user may wait for a failing device until the health check
        // notices the failure. So the lock is not held, and the health check is still running.
        let ready = this.ready.lock().take();
        drop(ready);
        waits_for(Awaited::Reset);
        let _ = this.device.shut_down(dev);
    }

    /// Hastens the check whether the device needs a reset. No other reason for the interrupt
    /// exists: no field of the configuration ever changes.
    fn config_changed<'bound>(dev: &'bound virtio::Device<Bound>, this: Pin<&Self::Data<'bound>>) {
        trace::event(|| {
            let none = trace::NO_NUMBER;
            (dev.as_ref().name(), c"CONFIG_CHANGED", c"DEVICE", none, 0)
        });
        this.device.ctrl().note_config_change();
        this.health_check.hasten();
    }
}
