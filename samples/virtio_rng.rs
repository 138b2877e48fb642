// SPDX-License-Identifier: GPL-2.0

//! A driver of virtio entropy devices, as an example, and as a test of the bus abstractions.
//!
//! The device writes random bytes into buffers. The driver has one buffer: when the device has
//! written to it, readers of `/dev/hwrng` take bytes out, and the reader that takes the last byte
//! gives the buffer back to the device.
//!
//! Lock order: `Rng::state`, then the lock of the queue.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
#[path = "../rust/kbuild/bindings/mod.rs"]
mod bindings;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../rust/kernel/hw_random/mod.rs"]
mod hw_random;
#[allow(dead_code, unreachable_pub, unsafe_code)]
#[path = "../rust/kernel/sync/mod.rs"]
mod sync;
// The sample needs neither configuration nor shared memory.
#[allow(dead_code, unreachable_pub, unsafe_code, unused_imports)]
#[path = "../rust/kernel/virtio/mod.rs"]
mod virtio;

use crate::{
    hw_random::HwRng,
    virtio::{
        Feature,
        Handler,
        Virtqueue,
        VirtqueueInfo, //
    },
};
use core::ops::Range;
use kernel::{
    device::{
        Bound,
        Core, //
    },
    prelude::*,
    str::CString,
    sync::{
        new_condvar,
        new_spinlock_irq,
        Arc,
        ArcBorrow,
        CondVar,
        SpinLockIrq, //
    },
};

/// Number of bytes in one request to the device.
const BUFFER_SIZE: usize = 64;

type Buffer = KBox<virtio::Buffer<()>>;

/// State that the interrupt and readers share.
struct State {
    /// The buffer, unless the device has it.
    buffer: Option<Buffer>,
    /// The bytes of the buffer that are not read yet.
    unread: Range<usize>,
    /// Whether the device will deliver no more bytes.
    is_stopped: bool,
}

impl State {
    /// Moves unread bytes to a reader. No other reader gets these bytes.
    fn take(&mut self, data: &mut hw_random::Buffer<'_>) {
        let unread = self.buffer.as_ref().map(|buffer| buffer.writable());
        let bytes = unread.and_then(|bytes| bytes.get(self.unread.clone()));
        self.unread.start += data.write(bytes.unwrap_or_default());
    }
}

/// A device.
#[pin_data]
struct Rng {
    queue: Arc<Virtqueue<()>>,
    #[pin]
    state: SpinLockIrq<State>,
    #[pin]
    changed: CondVar,
}

impl Rng {
    fn new() -> Result<Arc<Self>> {
        let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
        let state = State {
            buffer: None,
            unread: 0..0,
            is_stopped: false,
        };
        Arc::pin_init(
            pin_init!(Self {
                queue,
                state <- new_spinlock_irq!(state, "virtio_rng_sample::state"),
                changed <- new_condvar!("virtio_rng_sample::changed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets the device up and requests the first bytes.
    fn start(self: &Arc<Self>, dev: &virtio::Device<Core<'_>>) -> Result {
        let buffer = virtio::Buffer::new(0, BUFFER_SIZE, (), GFP_KERNEL)?;
        let mut info = KVec::with_capacity(1, GFP_KERNEL)?;
        let name = CString::try_from(c"input")?;
        let handler: Arc<dyn Handler> = self.clone();
        info.push(
            VirtqueueInfo::new(name, &self.queue, Some(handler)),
            GFP_KERNEL,
        )?;
        dev.find_vqs(info)?;
        dev.ready()?;
        self.request(&mut self.state.lock(), buffer)?;
        self.queue.kick();
        Ok(())
    }

    /// Gives the device the buffer. The caller then notifies the device.
    fn request(&self, state: &mut State, mut buffer: Buffer) -> Result {
        // Zeroed: otherwise a device that writes less than it reports would repeat bytes that were
        // read.
        buffer.reset(0, BUFFER_SIZE)?;
        if let Err((error, buffer)) = self.queue.add(buffer) {
            state.buffer = Some(buffer);
            return Err(error);
        }
        Ok(())
    }

    /// Ends waiting and later reads.
    fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}

impl Handler for Rng {
    fn vq_callback(self: ArcBorrow<'_, Self>, _dev: &virtio::Device<Bound>) {
        while let Some((buffer, written)) = self.queue.get_buf() {
            let mut state = self.state.lock();
            state.buffer = Some(buffer);
            state.unread = 0..written;
        }
        self.changed.notify_all();
    }
}

impl HwRng for Rng {
    fn read(&self, data: &mut hw_random::Buffer<'_>, can_wait: bool) -> Result {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return Err(ENODEV);
            }
            state.take(data);
            if state.unread.is_empty() {
                if let Some(buffer) = state.buffer.take() {
                    self.request(&mut state, buffer)?;
                    // Without the lock, since a notification may cost a VM exit.
                    drop(state);
                    self.queue.kick();
                    state = self.state.lock();
                }
            }
            if data.remaining() == 0 || !can_wait {
                return Ok(());
            }
            // The device may have answered while the lock was not held.
            if state.buffer.is_some() || state.is_stopped {
                continue;
            }
            if self.changed.wait_interruptible(&mut state) {
                return Err(ERESTARTSYS);
            }
        }
    }
}

struct Driver;

/// A bound device.
#[pin_data]
struct Data {
    rng: Arc<Rng>,
    /// Dropped after `unbind()`, which ends the reads that wait.
    #[pin]
    _registration: hw_random::Registration<Rng>,
}

crate::virtio_device_table!(ID_TABLE, [virtio::DeviceId::new(virtio::VirtioID::Rng)]);

#[vtable]
impl virtio::Driver for Driver {
    type OwnerModule = crate::LocalModule;
    type Data<'bound> = Data;

    const ID_TABLE: virtio::IdTable = &ID_TABLE;
    const FEATURES: &'static [Feature] = &[];

    fn probe<'bound>(
        dev: &'bound virtio::Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let rng = Rng::new()?;
            rng.start(dev)?;
            let device: &kernel::device::Device<_> = dev.as_ref();
            let name = CString::try_from_fmt(fmt!("virtio_rng_sample.{}", device.name()))?;
            Ok(try_pin_init!(Data {
                rng: rng.clone(),
                _registration <- hw_random::Registration::new(name, rng.clone()),
            }))
        })
    }

    fn unbind<'bound>(_dev: &'bound virtio::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        this.rng.stop();
    }

    /// Reads wait until the device is back.
    fn reset_prepare<'bound>(
        _dev: &'bound virtio::Device<Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        // Taken out, so that no reader gives the buffer to a device that loses its state. Dropped
        // without the lock held.
        let _buffer = {
            let mut state = this.rng.state.lock();
            state.unread = 0..0;
            state.buffer.take()
        };
        Ok(())
    }

    fn reset_done<'bound>(
        dev: &'bound virtio::Device<Core<'_>>,
        this: Pin<&Self::Data<'bound>>,
    ) -> Result {
        this.rng.start(dev).inspect_err(|_| this.rng.stop())
    }

    fn shutdown<'bound>(_dev: &'bound virtio::Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        this.rng.stop();
    }
}

crate::module_virtio_driver! {
    type: Driver,
    name: "virtio_rng_sample",
    authors: ["The virtio-rdma authors"],
    description: "Driver of virtio entropy devices",
    license: "GPL",
}
