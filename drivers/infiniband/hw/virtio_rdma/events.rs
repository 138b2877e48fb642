// SPDX-License-Identifier: GPL-2.0

//! Event queues, in which the device reports completions and asynchronous events.
//!
//! Each queue is kept full of buffers. The interrupt handler takes out all used buffers, passes
//! their events on, and only then adds the buffers again. So each interrupt handles all events that
//! raised it. However fast the device is, one interrupt handles no more events than the queue has
//! buffers.

use crate::{
    abi::event::Event,
    decode::event::KnownEvent,
    event_handlers::EventHandlers,
    trace,
    virtio::{
        self,
        Buffer,
        Handler,
        Virtqueue,
        VirtqueueInfo, //
    },
};
use core::mem::take;
use kernel::{
    device::{
        self,
        Bound, //
    },
    prelude::*,
    str::CString,
    sync::{
        new_spinlock_irq,
        Arc,
        ArcBorrow,
        SpinLockIrq, //
    },
};

type EventBuffer = KBox<Buffer<()>>;

/// Maximum number of buffers of a queue. The device keeps events that find no buffer, so more
/// buffers would be of no use.
const BUFFERS: usize = 256;

#[pin_data]
pub(crate) struct EventQueue {
    queue: Arc<Virtqueue<()>>,
    event_handlers: Arc<EventHandlers>,
    /// An empty vector with room for the buffers that the interrupt handler takes out.
    #[pin]
    handled: SpinLockIrq<KVec<EventBuffer>>,
}

impl EventQueue {
    /// An event queue that is not attached to a device.
    pub(crate) fn new(event_handlers: Arc<EventHandlers>) -> Result<Arc<Self>> {
        let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                queue,
                event_handlers,
                handled <- new_spinlock_irq!(KVec::new(), "virtio_rdma::events::handled"),
            }),
            GFP_KERNEL,
        )
    }

    /// The queue, its `name` and its handler, as `find_vqs()` takes them.
    pub(crate) fn info(self: &Arc<Self>, name: CString) -> VirtqueueInfo {
        VirtqueueInfo::new(name, &self.queue, Some(self.clone()))
    }

    /// Fills the queue, once the device is ready.
    pub(crate) fn fill(&self) -> Result {
        let size = self.queue.vring_size().min(BUFFERS);
        let room = KVec::with_capacity(size, GFP_KERNEL)?;
        *self.handled.lock() = room;
        for _ in 0..size {
            let buffer = Buffer::new(0, Event::SIZE, (), GFP_KERNEL)?;
            self.queue.add(buffer).map_err(|(error, _)| error)?;
        }
        self.queue.kick();
        Ok(())
    }

    /// Passes on the event in the first `written` bytes of a buffer.
    fn dispatch(&self, dev: &device::Device, buffer: &[u8], written: usize) {
        match KnownEvent::decode(buffer, written) {
            Some(event) => self.event_handlers.deliver(dev, &event),
            None => trace::event(|| {
                let kind = Event::decode(buffer).unwrap_or_default().raw_kind;
                let none = (c"NONE", trace::NO_NUMBER);
                (dev.name(), c"UNKNOWN", none.0, none.1, kind.into())
            }),
        }
    }
}

impl Handler for EventQueue {
    fn vq_callback(self: ArcBorrow<'_, Self>, dev: &virtio::Device<Bound>) {
        let mut handled = take(&mut *self.handled.lock());
        while let Some((buffer, written)) = self.queue.get_buf() {
            self.dispatch(dev.as_ref(), buffer.writable(), written);
            // The vector has room for all buffers of the queue.
            let _ = handled.push_within_capacity(buffer);
        }
        while let Some(mut buffer) = handled.pop() {
            // Can't fail: the buffer was allocated with this length.
            let _ = buffer.reset(0, Event::SIZE);
            // Fails only for a queue that the device broke, and such a queue needs no buffers.
            let _ = self.queue.add_or_keep(buffer);
        }
        self.queue.kick();
        *self.handled.lock() = handled;
    }
}
