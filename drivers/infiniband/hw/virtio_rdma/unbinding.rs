// SPDX-License-Identifier: GPL-2.0

//! Messages of an unbinding that waits long: for the reset of the device, or for its clients.
//!
//! Neither wait has a limit: memory that the device or a client still uses must not be freed. A
//! suspend of the machine and a reset of the PCI function wait too, since they unbind the driver.

use crate::sync::{
    periodic::{
        Periodic,
        Tick, //
    },
    workqueue::Workqueue, //
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
    time::{
        Instant,
        Monotonic,
        Msecs, //
    },
};

/// Interval in ms of the messages.
const MESSAGE_MS: Msecs = 10_000;

/// The reason for which an unbinding waits.
#[derive(Clone, Copy)]
pub(crate) enum Awaited {
    /// The device has not confirmed its reset.
    Reset,
    /// Clients use the device.
    Clients,
}

/// The reason for which an unbinding waits, and the time at which the wait began.
#[pin_data]
struct Progress {
    dev: ARef<device::Device>,
    #[pin]
    waits: Mutex<(Awaited, Instant<Monotonic>)>,
}

/// Writes the messages.
struct Messages(Arc<Progress>);

impl Tick for Messages {
    fn tick(&self) -> bool {
        let (awaited, since) = *self.0.waits.lock();
        let seconds = since.elapsed().as_millis() / 1_000;
        match awaited {
            Awaited::Reset => dev_warn!(
                self.0.dev,
                "the device has not confirmed its reset for {} s: unbinding waits\n",
                seconds
            ),
            Awaited::Clients => dev_warn!(
                self.0.dev,
                "clients have not released the device for {} s: unbinding waits\n",
                seconds
            ),
        }
        true
    }
}

/// An unbinding. Dropping it ends the messages.
pub(crate) struct Unbinding {
    progress: Arc<Progress>,
    _messages: Pin<KBox<Periodic<Messages>>>,
}

impl Unbinding {
    /// Begins to wait for the reset of `dev`. The messages are written by `queue`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`. The unbinding then continues without messages.
    pub(crate) fn new(dev: &device::Device, queue: Arc<Workqueue>) -> Result<Self> {
        let waits = (Awaited::Reset, Instant::now());
        let progress = Arc::pin_init(
            pin_init!(Progress {
                dev: dev.into(),
                waits <- new_mutex!(waits, "virtio_rdma::unbinding"),
            }),
            GFP_KERNEL,
        )?;
        let messages = Messages(progress.clone());
        Ok(Self {
            progress,
            _messages: KBox::pin_init(Periodic::new(queue, MESSAGE_MS, messages), GFP_KERNEL)?,
        })
    }

    /// Begins to wait for `awaited`.
    pub(crate) fn waits_for(&self, awaited: Awaited) {
        *self.progress.waits.lock() = (awaited, Instant::now());
    }
}
