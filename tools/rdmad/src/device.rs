// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Adapts the verbs engine to a virtio device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use dma::DmaSpace;
use vdev::{SharedMemory, VirtioDevice, Virtqueue, TRANSPORT_FEATURES};
use verbs::{Hca, HcaConfig, Runtime, Virtqueues};
use virtio_rdma_abi::config::DOORBELL_SHM_ID;
use virtio_rdma_abi::ctrl::{CONTROL_QUEUE, MAX_REQUEST, MAX_RESPONSE};
use virtio_rdma_abi::event::Event;
use virtio_rdma_abi::feature::{Feature, Features};
use virtqueue::Split;
use vswitch::{Caller, EnginePort};

/// Virtio device type of virtio-rdma.
const DEVICE_ID: u16 = 42;
/// PCI class: network controller, other.
const PCI_CLASS: u32 = 0x02_80_00;
/// Maximum number of control commands in one turn, after which a pending reset is executed.
const BATCH: usize = 16;

/// The device of one VM.
pub struct RdmaDevice {
    hca: Arc<Hca>,
    queues: Arc<DeviceQueues>,
    features: Features,
    queue_sizes: Vec<u16>,
    doorbell_pages: u32,
    doorbell_shift: u8,
}

impl RdmaDevice {
    /// Makes a device and connects it to its port of the switch. The device offers the transport
    /// features in `more`, and all other features except `withheld` and features that depend on
    /// these.
    pub fn new(
        mut config: HcaConfig,
        withheld: Features,
        more: Features,
        space: Arc<DmaSpace>,
        runtime: &Runtime,
        port: EnginePort,
    ) -> Self {
        let features = Features::ALL.union(Features(TRANSPORT_FEATURES));
        let features = features.without(withheld).in_force().union(more);
        if !features.has(Feature::Multicast) {
            config.limits = config.limits.without_multicast();
        }
        let queues = Arc::new(DeviceQueues::default());
        let limits = config.limits.clone();
        let hca = Hca::new(
            config,
            space,
            runtime,
            queues.clone(),
            Arc::new(port.clone()),
        );
        let waker = Arc::downgrade(&hca);
        port.on_ready(move |caller| {
            if let Some(hca) = waker.upgrade() {
                match caller {
                    Caller::Busy => hca.frames_ready(),
                    Caller::Idle => hca.serve_frames_here(),
                }
            }
        });
        hca.set_link(true);
        Self {
            hca,
            queues,
            features,
            queue_sizes: limits.virtqueue_sizes(),
            doorbell_pages: limits.doorbell_pages,
            doorbell_shift: limits.doorbell_shift,
        }
    }
}

impl RdmaDevice {
    pub fn hca(&self) -> &Arc<Hca> {
        &self.hca
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        self.hca.detach();
    }
}

impl VirtioDevice for RdmaDevice {
    fn device_id(&self) -> u16 {
        DEVICE_ID
    }

    fn pci_class(&self) -> u32 {
        PCI_CLASS
    }

    fn features(&self) -> u64 {
        self.features.0
    }

    fn queue_sizes(&self) -> Vec<u16> {
        self.queue_sizes.clone()
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: DOORBELL_SHM_ID,
            len: u64::from(self.doorbell_pages) << self.doorbell_shift,
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        let mut config = self.hca.config_space();
        for feature in Features::ALL.without(self.features).iter() {
            config[feature.config()].fill(0);
        }
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = config.get(offset + i).copied().unwrap_or(0);
        }
    }

    fn activate(&self, features: u64, queues: &[Arc<Virtqueue>]) {
        // Each activation passes the same queues.
        self.queues.all.get_or_init(|| queues.to_vec());
        let features = Features(features);
        self.queues.set_features(features);
        self.hca.set_features(features);
    }

    fn reset(&self) {
        self.hca.reset();
        self.queues.carry_events.store(false, Ordering::Release);
    }

    fn save(&self) -> Result<Vec<u8>, String> {
        self.hca.save()
    }

    fn restore(
        &self,
        features: u64,
        queues: &[Arc<Virtqueue>],
        state: &[u8],
    ) -> Result<(), String> {
        self.queues.all.get_or_init(|| queues.to_vec());
        let features = Features(features);
        let restored = self.hca.restore(state);
        restored.map_err(|error| error.to_string())?;
        if self.hca.negotiated() != features.in_force() {
            self.hca.reset();
            return Err("the saved device has other features than its function".to_owned());
        }
        self.queues.set_features(features);
        Ok(())
    }

    fn resume(&self) {
        self.hca.resume();
    }

    fn fail(&self, why: &str) {
        self.hca.fail(why);
    }

    fn reset_queue(&self, index: u16) {
        self.hca.virtqueue_reset(index);
    }

    fn kick(&self, index: u16) -> bool {
        if index == CONTROL_QUEUE {
            return false;
        }
        self.hca.notified(index);
        true
    }

    fn serve(&self, queue: &Arc<Virtqueue>) -> bool {
        let mut response = Vec::with_capacity(MAX_RESPONSE);
        for _ in 0..BATCH {
            let Some(request) = queue.pop_in_order(MAX_REQUEST) else {
                return false;
            };
            let room = usize::try_from(request.output_len()).unwrap_or(usize::MAX);
            self.hca.command(request.input(), room, &mut response);
            queue.push(request, &response);
            response.clear();
        }
        true
    }

    fn shm_write(&self, offset: u64, value: u32) {
        let page = offset >> self.doorbell_shift;
        if offset == page << self.doorbell_shift {
            // The number of a page of the region fits u32.
            self.hca.doorbell(page as u32, value);
        }
    }
}

/// The virtqueues of the device, which are set at the first activation.
#[derive(Default)]
struct DeviceQueues {
    all: OnceLock<Vec<Arc<Virtqueue>>>,
    /// Whether the device has event queues, because the driver has negotiated own rings.
    carry_events: AtomicBool,
}

impl DeviceQueues {
    fn set_features(&self, features: Features) {
        let own_rings = features.has(Feature::RingAddr);
        self.carry_events.store(own_rings, Ordering::Release);
    }

    fn get(&self, number: u16) -> Option<&Arc<Virtqueue>> {
        self.all.get()?.get(usize::from(number))
    }
}

impl Virtqueues for DeviceQueues {
    fn push(&self, queue: u16, event: Event) -> bool {
        if !self.carry_events.load(Ordering::Acquire) {
            return false;
        }
        let Some(queue) = self.get(queue) else {
            return false;
        };
        let Some(buffer) = queue.pop(0) else {
            return false;
        };
        let room = buffer.output_len();
        if room < Event::SIZE as u64 {
            queue.reject(format_args!("buffer of {room} bytes for an event"));
            return false;
        }
        queue.push_later(buffer, &event.to_bytes());
        true
    }

    fn split(&self, queue: u16) -> Option<Split> {
        self.get(queue)?.split()
    }

    fn interrupt(&self, queue: u16) {
        if let Some(queue) = self.get(queue) {
            queue.interrupt_later();
        }
    }

    fn fail(&self, why: &str) {
        if let Some(queue) = self.get(CONTROL_QUEUE) {
            queue.needs_reset(why);
        }
    }

    fn send_interrupts(&self) {
        vdev::send_interrupts();
    }
}
