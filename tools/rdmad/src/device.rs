// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The verbs engine as a virtio device.

use std::sync::Arc;
use std::sync::OnceLock;

use dma::DmaSpace;
use roce::Frame;
use vdev::Queue;
use vdev::SharedMemory;
use vdev::VirtioDevice;
use vdev::TRANSPORT_FEATURES;
use verbs::Device;
use verbs::DeviceConfig;
use verbs::EventSink;
use verbs::Fabric;
use verbs::FramePort;
use virtio_rdma_abi::config::DOORBELL_SHM_ID;
use virtio_rdma_abi::config::F_RING_ADDR;
use virtio_rdma_abi::ctrl::CONTROL_QUEUE;
use virtio_rdma_abi::ctrl::MAX_REQUEST;
use virtio_rdma_abi::ctrl::MAX_RESPONSE;
use virtio_rdma_abi::event::Event;
use virtio_rdma_abi::ring::DOORBELL_PAGE_SIZE;
use vswitch::EnginePort;

/// Virtio device type of RDMA.
const DEVICE_ID: u16 = 42;
/// PCI class: network controller, other.
const PCI_CLASS: u32 = 0x02_80_00;
/// Greatest sizes of the control queue and of an event queue.
const CONTROL_QUEUE_SIZE: u16 = 256;
const EVENT_QUEUE_SIZE: u16 = 1024;
/// Control commands in one turn; then a reset that waits has its own.
const BATCH: usize = 16;

/// One VM's device.
pub struct RdmaDevice {
    verbs: Arc<Device>,
    events: Arc<EventVirtqueues>,
    features: u64,
    event_queues: usize,
    doorbells: u64,
}

impl RdmaDevice {
    /// Makes a device, with its port of the switch, that offers all but the `withheld` feature bits.
    pub fn new(
        config: DeviceConfig,
        withheld: &[u32],
        space: Arc<DmaSpace>,
        fabric: &Fabric,
        port: EnginePort,
    ) -> Self {
        let withheld = withheld.iter().fold(0, |bits, bit| bits | (1 << bit));
        let events = Arc::new(EventVirtqueues::default());
        let limits = config.limits.clone();
        let verbs = Device::new(
            config,
            space,
            fabric,
            events.clone(),
            Arc::new(SwitchPort(port.clone())),
        );
        let waker = Arc::downgrade(&verbs);
        port.on_ready(move || {
            if let Some(verbs) = waker.upgrade() {
                verbs.frames_ready();
            }
        });
        verbs.set_link(true);
        Self {
            verbs,
            events,
            features: (Device::features() | TRANSPORT_FEATURES) & !withheld,
            // Without own rings there is no event queue.
            event_queues: if withheld & (1 << F_RING_ADDR) == 0 {
                limits.event_queues as usize
            } else {
                0
            },
            doorbells: u64::from(limits.doorbell_pages),
        }
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        self.verbs.detach();
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
        self.features
    }

    fn queue_sizes(&self) -> Vec<u16> {
        let mut sizes = vec![CONTROL_QUEUE_SIZE];
        sizes.resize(1 + self.event_queues, EVENT_QUEUE_SIZE);
        sizes
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: DOORBELL_SHM_ID,
            len: self.doorbells * u64::from(DOORBELL_PAGE_SIZE),
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        let config = self.verbs.config_space();
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = config.get(offset + i).copied().unwrap_or(0);
        }
    }

    fn activate(&self, features: u64, queues: &[Arc<Queue>]) {
        // They are the same ones each time.
        self.events.0.get_or_init(|| queues.to_vec());
        self.verbs.set_features(features);
    }

    fn reset(&self) {
        self.verbs.reset();
    }

    fn kick(&self, index: u16) -> bool {
        if index == CONTROL_QUEUE {
            return false;
        }
        self.verbs.events_available(index);
        true
    }

    fn serve(&self, queue: &Arc<Queue>) -> bool {
        let mut response = Vec::with_capacity(MAX_RESPONSE);
        for _ in 0..BATCH {
            let Some(request) = queue.pop(MAX_REQUEST) else {
                return false;
            };
            let room = usize::try_from(request.output_len()).unwrap_or(usize::MAX);
            self.verbs.command(request.input(), room, &mut response);
            queue.push(request, &response);
            response.clear();
        }
        true
    }

    fn shm_write(&self, offset: u64, value: u32) {
        let page_size = u64::from(DOORBELL_PAGE_SIZE);
        if offset % page_size == 0 {
            // The region has as many pages as a u32 counts.
            self.verbs.doorbell((offset / page_size) as u32, value);
        }
    }
}

/// The event virtqueues; all virtqueues of the device, in fact, once the driver is ready.
#[derive(Default)]
struct EventVirtqueues(OnceLock<Vec<Arc<Queue>>>);

impl EventSink for EventVirtqueues {
    fn push(&self, queue: u16, event: Event) -> bool {
        let Some(queue) = self
            .0
            .get()
            .and_then(|queues| queues.get(usize::from(queue)))
        else {
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
        queue.push(buffer, &event.to_bytes());
        true
    }
}

/// The engine's port of the switch.
struct SwitchPort(EnginePort);

impl FramePort for SwitchPort {
    fn frame(&self, len: usize) -> Option<Frame> {
        self.0.frame(len)
    }

    fn send(&self, frame: Frame) {
        self.0.send(frame);
    }

    fn receive(&self) -> Option<Frame> {
        self.0.receive()
    }
}
