// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model of the common configuration registers, written from virtio 1.3, 4.1.4.3 and 2.1. A write
//! has an effect only if it has the width and the offset of a register.

use std::collections::VecDeque;

use super::QUEUES;

/// Length of the registers in bytes.
const LEN: usize = 0x3c;
const NO_VECTOR: u16 = 0xffff;
/// Number of vectors: one for each queue and one for the configuration.
const VECTORS: u16 = QUEUES.len() as u16 + 1;

const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;

/// Offered features: a feature of the device type, then INDIRECT_DESC, VERSION_1, ACCESS_PLATFORM,
/// RING_RESET.
const OFFERED: u64 = (1 << 3) | (1 << 28) | REQUIRED;
const REQUIRED: u64 = (1 << 32) | (1 << 33) | (1 << 40);

/// Work for the service thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Activate the device: the driver has set DRIVER_OK.
    Activate,
    /// Reset the device.
    Reset,
    /// Start a queue that was enabled after DRIVER_OK.
    Start(usize),
    ResetQueue(usize),
}

/// A queue's registers.
#[derive(Clone, Copy, Debug)]
pub struct QueueModel {
    size: u16,
    /// Interrupt vector, `0xffff` for none.
    pub vector: u16,
    /// Whether the driver has enabled the queue.
    pub enabled: bool,
    resetting: bool,
    addresses: [u64; 3],
    /// Whether the device may have taken requests from the queue.
    pub started: bool,
}

impl QueueModel {
    fn new(size: u16) -> Self {
        Self {
            size,
            vector: NO_VECTOR,
            enabled: false,
            resetting: false,
            addresses: [0; 3],
            started: false,
        }
    }

    fn is_valid(&self) -> bool {
        let size = u64::from(self.size);
        let lens = [16 * size, 4 + 2 * size, 4 + 8 * size];
        let aligned = [16, 2, 4];
        (0..3).all(|i| {
            let at = self.addresses[i];
            at % aligned[i] == 0 && at.checked_add(lens[i]).is_some()
        })
    }
}

/// The common configuration registers.
#[derive(Clone, Debug)]
pub struct Common {
    device_select: u32,
    driver_select: u32,
    /// Feature bits that the driver has accepted.
    pub accepted: u64,
    /// Interrupt vector of configuration changes.
    pub config_vector: u16,
    status: u8,
    /// Number of configuration changes, modulo 256.
    pub generation: u8,
    queue_select: u16,
    /// Registers of the queues.
    pub queues: [QueueModel; QUEUES.len()],
    resetting: bool,
    /// Whether the device was stopped after a failure.
    pub failed: bool,
    /// Whether the ISR register shows a configuration change.
    pub isr_config: bool,
    /// Work that the service thread has not done yet, in order.
    pub tasks: VecDeque<Task>,
}

impl Common {
    /// The registers after power-on.
    pub fn new(generation: u8) -> Self {
        Self {
            device_select: 0,
            driver_select: 0,
            accepted: 0,
            config_vector: NO_VECTOR,
            status: 0,
            generation,
            queue_select: 0,
            queues: QUEUES.map(QueueModel::new),
            resetting: false,
            failed: false,
            isr_config: false,
            tasks: VecDeque::new(),
        }
    }

    /// The bytes that a read of all registers returns.
    pub fn image(&self) -> [u8; LEN] {
        let mut image = [0; LEN];
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0x00, &self.device_select.to_le_bytes());
        put(0x04, &half(OFFERED, self.device_select).to_le_bytes());
        put(0x08, &self.driver_select.to_le_bytes());
        put(0x0c, &half(self.accepted, self.driver_select).to_le_bytes());
        put(0x10, &self.config_vector.to_le_bytes());
        put(0x12, &(QUEUES.len() as u16).to_le_bytes());
        let failed = if self.failed { NEEDS_RESET } else { 0 };
        put(0x14, &[self.status | failed, self.generation]);
        put(0x16, &self.queue_select.to_le_bytes());
        if let Some(queue) = self.queues.get(usize::from(self.queue_select)) {
            put(0x18, &queue.size.to_le_bytes());
            put(0x1a, &queue.vector.to_le_bytes());
            put(0x1c, &u16::from(queue.enabled).to_le_bytes());
            put(0x1e, &self.queue_select.to_le_bytes());
            for (i, address) in queue.addresses.iter().enumerate() {
                put(0x20 + 8 * i, &address.to_le_bytes());
            }
            put(0x3a, &u16::from(queue.resetting).to_le_bytes());
        }
        image
    }

    /// Executes a write to the registers.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if self.resetting || data.len() > 8 {
            return;
        }
        let mut bytes = [0; 8];
        bytes[..data.len()].copy_from_slice(data);
        let value = u64::from_le_bytes(bytes);
        let (word, short) = (value as u32, value as u16);
        match (offset, data.len()) {
            (0x00, 4) => self.device_select = word,
            (0x08, 4) => self.driver_select = word,
            (0x0c, 4) if self.status & FEATURES_OK == 0 => match self.driver_select {
                0 => self.accepted = (self.accepted >> 32 << 32) | u64::from(word),
                1 => self.accepted = self.accepted & 0xffff_ffff | (u64::from(word) << 32),
                _ => {}
            },
            (0x10, 2) => self.config_vector = known(short),
            (0x14, 1) => self.write_status(value as u8),
            (0x16, 2) => self.queue_select = short,
            _ => self.write_queue(offset, data.len(), value),
        }
    }

    fn write_status(&mut self, value: u8) {
        if value == 0 {
            if self.status & DRIVER_OK == 0 {
                self.reset_done();
            } else {
                self.resetting = true;
                self.tasks.push_back(Task::Reset);
            }
            return;
        }
        let new = value & !self.status;
        let sound = self.accepted & !OFFERED == 0 && self.accepted & REQUIRED == REQUIRED;
        if new & FEATURES_OK != 0 && !sound {
            self.status |= value & !(FEATURES_OK | NEEDS_RESET | DRIVER_OK);
        } else if new & DRIVER_OK == 0 || (self.status | value) & FEATURES_OK != 0 {
            self.status |= value & !NEEDS_RESET;
            if new & DRIVER_OK != 0 {
                self.tasks.push_back(Task::Activate);
            }
        }
    }

    fn write_queue(&mut self, offset: u64, width: usize, value: u64) {
        let index = usize::from(self.queue_select);
        let ready = self.status & DRIVER_OK != 0;
        let negotiated = self.status & FEATURES_OK != 0 && self.accepted & (1 << 40) != 0;
        let Some(queue) = self.queues.get_mut(index) else {
            return;
        };
        let idle = !queue.enabled && !queue.resetting;
        let short = value as u16;
        match (offset, width) {
            (0x18, 2) if idle && short.is_power_of_two() && short <= QUEUES[index] => {
                queue.size = short;
            }
            (0x1a, 2) if !queue.resetting => queue.vector = known(short),
            (0x1c, 2) if idle && short == 1 && queue.is_valid() => {
                queue.enabled = true;
                if ready {
                    self.tasks.push_back(Task::Start(index));
                }
            }
            (0x3a, 2) if short == 1 && negotiated && queue.enabled && !queue.resetting => {
                if ready {
                    queue.resetting = true;
                    self.tasks.push_back(Task::ResetQueue(index));
                } else {
                    *queue = QueueModel::new(QUEUES[index]);
                }
            }
            (0x20 | 0x28 | 0x30, 8) if idle => {
                queue.addresses[(offset as usize - 0x20) / 8] = value
            }
            (0x20..=0x34, 4) if idle && offset % 4 == 0 => {
                let address = &mut queue.addresses[(offset as usize - 0x20) / 8];
                let shift = 8 * (offset % 8);
                *address = *address & !(0xffff_ffff << shift) | (value << shift);
            }
            _ => {}
        }
    }

    /// Updates the registers after the service thread has done a task.
    pub fn done(&mut self, task: Task) {
        match task {
            Task::Reset => self.reset_done(),
            Task::ResetQueue(queue) => self.queues[queue] = QueueModel::new(QUEUES[queue]),
            Task::Activate | Task::Start(_) if self.failed => {}
            Task::Activate => {
                for queue in &mut self.queues {
                    queue.started = queue.enabled;
                }
            }
            Task::Start(queue) => self.queues[queue].started = self.queues[queue].enabled,
        }
    }

    /// Records a change of the configuration or the status.
    pub fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.isr_config = true;
    }

    /// Begins a function-level reset.
    pub fn begin_reset(&mut self) {
        if !self.resetting {
            self.resetting = true;
            self.tasks.push_back(Task::Reset);
        }
    }

    fn reset_done(&mut self) {
        let tasks = std::mem::take(&mut self.tasks);
        *self = Self::new(self.generation);
        self.tasks = tasks;
    }
}

fn known(vector: u16) -> u16 {
    if vector < VECTORS {
        vector
    } else {
        NO_VECTOR
    }
}

fn half(bits: u64, select: u32) -> u32 {
    match select {
        0 => bits as u32,
        1 => (bits >> 32) as u32,
        _ => 0,
    }
}
