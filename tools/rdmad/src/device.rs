// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The verbs engine as a virtio device.

use std::sync::Arc;

use vdev::Queue;
use vdev::SharedMemory;
use vdev::VirtioDevice;
use virtio_rdma_abi::config::*;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::wire::Wire;

/// Virtio device type of RDMA.
const DEVICE_ID: u16 = 42;
/// Network controller, other.
const PCI_CLASS: u32 = 0x02_80_00;
/// Sizes of the control queue and of an event queue.
const CONTROL_QUEUE_SIZE: u16 = 256;
const EVENT_QUEUE_SIZE: u16 = 1024;
/// Requests that are served in one go.
const BATCH: usize = 64;
const DOORBELL_PAGES: u32 = 4096;
const DOORBELL_PAGE_SIZE: u64 = 4096;

/// One VM's device.
pub struct RdmaDevice {
    config: [u8; CONFIG_SIZE],
    features: u64,
}

impl RdmaDevice {
    pub fn new(mac: crate::cli::Mac, withheld: &[u32]) -> Self {
        let mut config = [0; CONFIG_SIZE];
        Config {
            phys_port_cnt: 1,
            sys_image_guid: eui64_from_mac(mac.0),
            max_mr_size: 1 << 40,
            page_size_cap: 4096,
            max_qp: 1024,
            max_qp_wr: 16384,
            max_send_sge: 16,
            max_recv_sge: 16,
            max_sge_rd: 16,
            max_cq: 1024,
            max_cqe: 32768,
            max_mr: 65536,
            max_pd: 65536,
            max_qp_rd_atom: 16,
            max_res_rd_atom: 16384,
            max_qp_init_rd_atom: 16,
            atomic_cap: 2,
            max_ah: 65536,
            max_fast_reg_page_list_len: 512,
            max_pkeys: 1,
            local_ca_ack_delay: 15,
            device_cap_flags: DeviceCaps::SYS_IMAGE_GUID | DeviceCaps::RC_RNR_NAK_GEN,
            ..Config::ZERO
        }
        .put(&mut config[..Config::SIZE]);
        OwnRingsConfig {
            num_event_queues: 4,
            max_qp: 1024,
            max_qp_wr: 16384,
            max_cq: 1024,
            max_cqe: 32768,
            max_inline_data: 256,
            doorbell_pages: DOORBELL_PAGES,
        }
        .put(&mut config[OWN_RINGS_CONFIG_OFFSET..OWN_RINGS_CONFIG_OFFSET + OwnRingsConfig::SIZE]);
        let mut features = 1 << F_RING_ADDR;
        for bit in withheld {
            features &= !(1 << bit);
        }
        Self { config, features }
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
        sizes.resize(5, EVENT_QUEUE_SIZE);
        sizes
    }

    fn shared_memory(&self) -> Option<SharedMemory> {
        Some(SharedMemory {
            id: DOORBELL_SHM_ID,
            len: u64::from(DOORBELL_PAGES) * DOORBELL_PAGE_SIZE,
        })
    }

    fn config_read(&self, offset: usize, data: &mut [u8]) {
        data.fill(0);
        for (byte, value) in data.iter_mut().zip(self.config.iter().skip(offset)) {
            *byte = *value;
        }
    }

    fn activate(&self, features: u64, _queues: &[Arc<Queue>]) {
        tracing::info!("features {features:#x}");
    }

    fn reset(&self) {}

    fn serve(&self, queue: &Arc<Queue>) -> bool {
        if queue.index() != CONTROL_QUEUE {
            return false;
        }
        for _ in 0..BATCH {
            let Some(request) = queue.pop(MAX_REQUEST) else {
                return false;
            };
            tracing::info!("command {:?}", request.input());
            let answer = match request.input().first().copied().map(Command::try_from) {
                Some(Ok(Command::QueryPort)) => {
                    [&[RESPONSE_OK], &RspQueryPort::ZERO.to_bytes()[..]].concat()
                }
                Some(Ok(Command::AddGid | Command::DelGid)) => vec![RESPONSE_OK],
                _ => vec![38],
            };
            queue.push(request, &answer);
        }
        true
    }

    fn shm_write(&self, offset: u64, value: u32) {
        tracing::info!("doorbell {offset:#x} {value:#x}");
    }
}
