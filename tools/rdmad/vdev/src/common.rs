// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Common configuration registers of virtio-pci (virtio 1.3, 4.1.4.3) and the state machine of the
//! device status.
//!
//! The registers record the driver's writes and return the [`Action`] that a write requires. A
//! reset changes the registers when the service thread has executed it. Until then the driver reads
//! the values from before the reset.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use virtqueue::Split;

use crate::function_state::NO_VECTOR;

/// Length of the registers in bytes, `queue_reset` included.
pub(crate) const COMMON_LEN: usize = 0x3c;

const DEVICE_FEATURE_SELECT: usize = 0x00;
const DEVICE_FEATURE: usize = 0x04;
const DRIVER_FEATURE_SELECT: usize = 0x08;
const DRIVER_FEATURE: usize = 0x0c;
const CONFIG_MSIX_VECTOR: usize = 0x10;
const NUM_QUEUES: usize = 0x12;
const DEVICE_STATUS: usize = 0x14;
const CONFIG_GENERATION: usize = 0x15;
const QUEUE_SELECT: usize = 0x16;
const QUEUE_SIZE: usize = 0x18;
const QUEUE_MSIX_VECTOR: usize = 0x1a;
const QUEUE_ENABLE: usize = 0x1c;
const QUEUE_NOTIFY_OFF: usize = 0x1e;
const QUEUE_DESC: usize = 0x20;
const QUEUE_DRIVER: usize = 0x28;
const QUEUE_DEVICE: usize = 0x30;
const QUEUE_RESET: usize = 0x3a;

pub(crate) const STATUS_DRIVER_OK: u8 = 4;
const STATUS_FEATURES_OK: u8 = 8;
const STATUS_NEEDS_RESET: u8 = 64;

/// Number of feature bit VIRTIO_F_INDIRECT_DESC: a descriptor may refer to a table of descriptors.
pub const F_INDIRECT_DESC: u32 = 28;
/// Number of feature bit VIRTIO_F_VERSION_1: the device follows the standard.
pub const F_VERSION_1: u32 = 32;
/// Number of feature bit VIRTIO_F_ACCESS_PLATFORM: the device uses DMA addresses.
pub const F_ACCESS_PLATFORM: u32 = 33;
/// Number of feature bit VIRTIO_F_ORDER_PLATFORM: the driver uses memory barriers as for a hardware
/// device, which are stronger than those between CPUs.
pub const F_ORDER_PLATFORM: u32 = 36;
/// Number of feature bit VIRTIO_F_RING_RESET: a single queue can be reset.
pub const F_RING_RESET: u32 = 40;
/// Features of the transport that are offered to the driver. F_ORDER_PLATFORM is not offered: this
/// software device accesses memory like another CPU.
pub const TRANSPORT_FEATURES: u64 =
    (1 << F_INDIRECT_DESC) | (1 << F_VERSION_1) | (1 << F_ACCESS_PLATFORM) | (1 << F_RING_RESET);
/// Features that a driver must accept if they are offered.
const REQUIRED_FEATURES: u64 = (1 << F_VERSION_1) | (1 << F_ACCESS_PLATFORM) | (1 << F_RING_RESET);

/// Actions that a register write requires, besides recording the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// No action.
    None,
    /// Activate the device: the driver has set DRIVER_OK.
    Activate,
    /// Reset the device. The registers change when [`CommonConfig::reset`] is called.
    Reset,
    /// None: a device reset has already reset the registers, because DRIVER_OK was not set.
    ResetDone,
    /// Start a queue that the driver has enabled after DRIVER_OK.
    StartQueue(u16),
    ResetQueue(u16),
    /// Set the interrupt vector of a queue.
    SetQueueVector(u16, u16),
    /// Set the interrupt vector of configuration changes.
    SetConfigVector(u16),
}

/// Register writes that violate the specification. They have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    Register { offset: u64, len: usize },
    Features { accepted: u64, offered: u64 },
    ReadyWithoutFeatures,
    QueueSize { queue: u16, size: u16 },
    QueueAddress { queue: u16, at: Split },
    QueueEnabled { queue: u16 },
    NoSuchQueue { queue: u16 },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register { offset, len } => {
                write!(
                    f,
                    "write of {len} bytes to common configuration at {offset:#x}"
                )
            }
            Self::Features { accepted, offered } => {
                write!(
                    f,
                    "driver accepts features {accepted:#x}, offered are {offered:#x}"
                )
            }
            Self::ReadyWithoutFeatures => write!(f, "driver is ready without FEATURES_OK"),
            Self::QueueSize { queue, size } => write!(f, "bad size {size} of queue {queue}"),
            Self::QueueAddress { queue, at } => write!(f, "bad address of queue {queue}: {at:x?}"),
            Self::QueueEnabled { queue } => {
                write!(f, "queue {queue} is enabled and can't be changed")
            }
            Self::NoSuchQueue { queue } => write!(f, "queue {queue} does not exist"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct QueueRegisters {
    max_size: u16,
    at: Split,
    vector: u16,
    enabled: bool,
    resetting: bool,
}

impl QueueRegisters {
    fn new(max_size: u16) -> Self {
        Self {
            max_size,
            at: Split {
                size: max_size,
                ..Split::default()
            },
            vector: NO_VECTOR,
            enabled: false,
            resetting: false,
        }
    }
}

/// The values of registers that a driver has written.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RegistersState {
    accepted: u64,
    config_vector: u16,
    status: u8,
    device_feature_select: u32,
    driver_feature_select: u32,
    queue_select: u16,
    queues: Vec<QueueRegistersState>,
}

/// The registers of a queue.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct QueueRegistersState {
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    vector: u16,
    enabled: bool,
}

/// The registers of a function.
#[derive(Debug)]
pub(crate) struct CommonConfig {
    offered: u64,
    accepted: u64,
    vectors: u16,
    config_vector: u16,
    status: u8,
    resetting: bool,
    device_feature_select: u32,
    driver_feature_select: u32,
    queue_select: u16,
    queues: Vec<QueueRegisters>,
}

impl CommonConfig {
    /// The registers of a device that offers `features`, with these maximum queue sizes and this
    /// number of interrupt vectors.
    pub(crate) fn new(features: u64, queue_sizes: &[u16], vectors: u16) -> Self {
        Self {
            offered: features,
            accepted: 0,
            vectors,
            config_vector: NO_VECTOR,
            status: 0,
            resetting: false,
            device_feature_select: 0,
            driver_feature_select: 0,
            queue_select: 0,
            queues: queue_sizes
                .iter()
                .map(|&size| QueueRegisters::new(size))
                .collect(),
        }
    }

    /// The values of the registers. `None` while a reset is under way.
    pub(crate) fn save(&self) -> Option<RegistersState> {
        if self.resetting || self.queues.iter().any(|queue| queue.resetting) {
            return None;
        }
        let queue = |queue: &QueueRegisters| QueueRegistersState {
            size: queue.at.size,
            descriptors: queue.at.descriptors,
            available: queue.at.available,
            used: queue.at.used,
            vector: queue.vector,
            enabled: queue.enabled,
        };
        Some(RegistersState {
            accepted: self.accepted,
            config_vector: self.config_vector,
            status: self.status,
            device_feature_select: self.device_feature_select,
            driver_feature_select: self.driver_feature_select,
            queue_select: self.queue_select,
            queues: self.queues.iter().map(queue).collect(),
        })
    }

    /// Restores the values that another process has left. Returns false, and changes nothing, if a
    /// driver that had written them would have been refused.
    pub(crate) fn restore(&mut self, state: &RegistersState) -> bool {
        let is_valid = match state.status & (STATUS_DRIVER_OK | STATUS_FEATURES_OK) {
            0 => true,
            STATUS_DRIVER_OK => false,
            _ => self.admits(state.accepted),
        };
        let mut queues = Vec::with_capacity(self.queues.len());
        for (queue, saved) in self.queues.iter().zip(&state.queues) {
            let at = Split {
                size: saved.size,
                descriptors: saved.descriptors,
                available: saved.available,
                used: saved.used,
                ..queue.at
            };
            let has_size = saved.size.is_power_of_two() && saved.size <= queue.max_size;
            if !has_size || (saved.enabled && !at.is_valid()) {
                return false;
            }
            queues.push(QueueRegisters {
                at,
                vector: self.checked_vector(saved.vector),
                enabled: saved.enabled,
                ..*queue
            });
        }
        let count = self.queues.len();
        if !is_valid || queues.len() != count || state.queues.len() != count {
            return false;
        }
        self.accepted = state.accepted;
        self.config_vector = self.checked_vector(state.config_vector);
        self.status = state.status;
        self.device_feature_select = state.device_feature_select;
        self.driver_feature_select = state.driver_feature_select;
        self.queue_select = state.queue_select;
        self.queues = queues;
        true
    }

    /// The vectors of all queues.
    pub(crate) fn queue_vectors(&self) -> Vec<u16> {
        self.queues.iter().map(|queue| queue.vector).collect()
    }

    /// The device status when a reset that is under way is done.
    pub(crate) fn coming_status(&self) -> u8 {
        match self.resetting {
            true => 0,
            false => self.status,
        }
    }

    /// Sets the vector of configuration changes, and returns it: none if it does not exist.
    pub(crate) fn set_config_vector(&mut self, vector: u16) -> u16 {
        self.config_vector = self.checked_vector(vector);
        self.config_vector
    }

    /// The registers as bytes.
    pub(crate) fn read(&self, generation: u8, needs_reset: bool) -> [u8; COMMON_LEN] {
        let mut image = [0; COMMON_LEN];
        let mut put = |offset: usize, bytes: &[u8]| {
            image[offset..offset + bytes.len()].copy_from_slice(bytes)
        };
        put(
            DEVICE_FEATURE_SELECT,
            &self.device_feature_select.to_le_bytes(),
        );
        put(
            DEVICE_FEATURE,
            &window(self.offered, self.device_feature_select).to_le_bytes(),
        );
        put(
            DRIVER_FEATURE_SELECT,
            &self.driver_feature_select.to_le_bytes(),
        );
        put(
            DRIVER_FEATURE,
            &window(self.accepted, self.driver_feature_select).to_le_bytes(),
        );
        put(CONFIG_MSIX_VECTOR, &self.config_vector.to_le_bytes());
        // A function has at most `pci::MAX_QUEUES` queues, which fits.
        put(NUM_QUEUES, &(self.queues.len() as u16).to_le_bytes());
        let needs_reset = if needs_reset { STATUS_NEEDS_RESET } else { 0 };
        put(DEVICE_STATUS, &[self.status | needs_reset]);
        put(CONFIG_GENERATION, &[generation]);
        put(QUEUE_SELECT, &self.queue_select.to_le_bytes());
        // A queue that does not exist has size 0.
        if let Some(queue) = self.queues.get(usize::from(self.queue_select)) {
            put(QUEUE_SIZE, &queue.at.size.to_le_bytes());
            put(QUEUE_MSIX_VECTOR, &queue.vector.to_le_bytes());
            put(QUEUE_ENABLE, &u16::from(queue.enabled).to_le_bytes());
            put(QUEUE_NOTIFY_OFF, &self.queue_select.to_le_bytes());
            put(QUEUE_DESC, &queue.at.descriptors.to_le_bytes());
            put(QUEUE_DRIVER, &queue.at.available.to_le_bytes());
            put(QUEUE_DEVICE, &queue.at.used.to_le_bytes());
            put(QUEUE_RESET, &u16::from(queue.resetting).to_le_bytes());
        }
        image
    }

    /// Writes `data` to the registers at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<Action, Violation> {
        let bad = Violation::Register {
            offset,
            len: data.len(),
        };
        // The end of the reset would undo the write: the driver has to wait for the reset.
        if self.resetting {
            return Ok(Action::None);
        }
        let at = usize::try_from(offset).map_err(|_| bad)?;
        match *data {
            [value] if at == DEVICE_STATUS => self.write_status(value),
            [a, b] => self
                .write_u16(at, u16::from_le_bytes([a, b]))
                .unwrap_or(Err(bad)),
            [a, b, c, d] => self
                .write_u32(at, u32::from_le_bytes([a, b, c, d]))
                .ok_or(bad)?,
            [a, b, c, d, e, f, g, h] => {
                let address = self.queue_address(at).ok_or(bad)??;
                *address = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
                Ok(Action::None)
            }
            _ => Err(bad),
        }
    }

    fn write_status(&mut self, value: u8) -> Result<Action, Violation> {
        if value == 0 {
            // Before DRIVER_OK no queue runs, so the service thread has nothing to stop.
            if self.status & STATUS_DRIVER_OK == 0 {
                self.reset();
                return Ok(Action::ResetDone);
            }
            self.resetting = true;
            return Ok(Action::Reset);
        }
        let set = value & !self.status;
        if set & STATUS_FEATURES_OK != 0 && !self.admits(self.accepted) {
            // FEATURES_OK stays clear. The driver sees from this that its features are refused.
            self.status |= value & !(STATUS_FEATURES_OK | STATUS_NEEDS_RESET | STATUS_DRIVER_OK);
            return Err(Violation::Features {
                accepted: self.accepted,
                offered: self.offered,
            });
        }
        if set & STATUS_DRIVER_OK != 0 && (self.status | value) & STATUS_FEATURES_OK == 0 {
            return Err(Violation::ReadyWithoutFeatures);
        }
        self.status |= value & !STATUS_NEEDS_RESET;
        Ok(if set & STATUS_DRIVER_OK != 0 {
            Action::Activate
        } else {
            Action::None
        })
    }

    /// Whether a driver may accept these features: no others than are offered, and all that are
    /// required.
    fn admits(&self, accepted: u64) -> bool {
        accepted & !self.offered == 0 && REQUIRED_FEATURES & self.offered & !accepted == 0
    }

    /// Writes a 16-bit register. `None` if there is no such register.
    fn write_u16(&mut self, offset: usize, value: u16) -> Option<Result<Action, Violation>> {
        Some(match offset {
            CONFIG_MSIX_VECTOR => Ok(Action::SetConfigVector(self.set_config_vector(value))),
            QUEUE_SELECT => {
                self.queue_select = value;
                Ok(Action::None)
            }
            QUEUE_SIZE => self.write_queue_size(value),
            QUEUE_MSIX_VECTOR => {
                let vector = self.checked_vector(value);
                let index = self.queue_select;
                self.queue().and_then(|queue| {
                    // Refused: the end of the queue reset would clear this register, but not the
                    // vector that the queue uses.
                    if queue.resetting {
                        return Err(Violation::QueueEnabled { queue: index });
                    }
                    queue.vector = vector;
                    Ok(Action::SetQueueVector(index, vector))
                })
            }
            QUEUE_ENABLE => self.write_queue_enable(value),
            QUEUE_RESET => self.write_queue_reset(value),
            _ => return None,
        })
    }

    /// Writes a 32-bit register. `None` if there is no such register.
    fn write_u32(&mut self, offset: usize, value: u32) -> Option<Result<Action, Violation>> {
        match offset {
            DEVICE_FEATURE_SELECT => self.device_feature_select = value,
            DRIVER_FEATURE_SELECT => self.driver_feature_select = value,
            DRIVER_FEATURE => {
                // Once FEATURES_OK is set, the features don't change before a reset.
                if self.status & STATUS_FEATURES_OK == 0 {
                    set_window(&mut self.accepted, self.driver_feature_select, value);
                }
            }
            QUEUE_DESC.. if offset % 4 == 0 => match self.queue_address(offset & !7)? {
                Ok(address) => set_window(address, u32::from(offset & 4 != 0), value),
                Err(violation) => return Some(Err(violation)),
            },
            _ => return None,
        }
        Some(Ok(Action::None))
    }

    /// The address register at `offset`, of the selected queue. `None` if there is no such
    /// register.
    fn queue_address(&mut self, offset: usize) -> Option<Result<&mut u64, Violation>> {
        let field: fn(&mut Split) -> &mut u64 = match offset {
            QUEUE_DESC => |at| &mut at.descriptors,
            QUEUE_DRIVER => |at| &mut at.available,
            QUEUE_DEVICE => |at| &mut at.used,
            _ => return None,
        };
        Some(self.idle_queue().map(|queue| field(&mut queue.at)))
    }

    fn write_queue_size(&mut self, size: u16) -> Result<Action, Violation> {
        let index = self.queue_select;
        let queue = self.idle_queue()?;
        if !size.is_power_of_two() || size > queue.max_size {
            return Err(Violation::QueueSize { queue: index, size });
        }
        queue.at.size = size;
        Ok(Action::None)
    }

    fn write_queue_enable(&mut self, value: u16) -> Result<Action, Violation> {
        let index = self.queue_select;
        let ready = self.status & STATUS_DRIVER_OK != 0;
        let queue = self.idle_queue()?;
        if value != 1 {
            return Ok(Action::None);
        }
        if !queue.at.is_valid() {
            return Err(Violation::QueueAddress {
                queue: index,
                at: queue.at,
            });
        }
        queue.enabled = true;
        Ok(if ready {
            Action::StartQueue(index)
        } else {
            Action::None
        })
    }

    fn write_queue_reset(&mut self, value: u16) -> Result<Action, Violation> {
        let index = self.queue_select;
        let ready = self.status & STATUS_DRIVER_OK != 0;
        let negotiated =
            self.status & STATUS_FEATURES_OK != 0 && self.accepted & (1 << F_RING_RESET) != 0;
        let queue = self.queue()?;
        if value != 1 || !negotiated || queue.resetting || !queue.enabled {
            return Ok(Action::None);
        }
        if !ready {
            // The service thread has not started the queue, so the queue reset is done at once. A
            // task for the service thread could be executed after a later device reset, which is
            // also done at once.
            *queue = QueueRegisters::new(queue.max_size);
            return Ok(Action::SetQueueVector(index, NO_VECTOR));
        }
        queue.resetting = true;
        Ok(Action::ResetQueue(index))
    }

    fn queue(&mut self) -> Result<&mut QueueRegisters, Violation> {
        let index = self.queue_select;
        self.queues
            .get_mut(usize::from(index))
            .ok_or(Violation::NoSuchQueue { queue: index })
    }

    /// The selected queue. Fails if the queue is enabled or being reset.
    fn idle_queue(&mut self) -> Result<&mut QueueRegisters, Violation> {
        let index = self.queue_select;
        let queue = self.queue()?;
        if queue.enabled || queue.resetting {
            return Err(Violation::QueueEnabled { queue: index });
        }
        Ok(queue)
    }

    /// `vector`, or `NO_VECTOR` if there is no such vector. The driver reads the register back to
    /// detect this.
    fn checked_vector(&self, vector: u16) -> u16 {
        if vector < self.vectors {
            vector
        } else {
            NO_VECTOR
        }
    }

    /// The negotiated features.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// The addresses of each queue; `None` for a queue that is not enabled.
    pub(crate) fn enabled_queues(&self) -> Vec<Option<Split>> {
        self.queues.iter().map(|queue| self.at(queue)).collect()
    }

    /// The addresses of a queue, if the queue is enabled.
    pub(crate) fn enabled_queue(&self, index: u16) -> Option<Split> {
        self.at(self.queues.get(usize::from(index))?)
    }

    fn at(&self, queue: &QueueRegisters) -> Option<Split> {
        queue.enabled.then_some(Split {
            indirect: self.accepted & (1 << F_INDIRECT_DESC) != 0,
            ..queue.at
        })
    }

    /// Starts a reset that PCI requests instead of the driver. Returns false if a reset is running
    /// already.
    pub(crate) fn begin_reset(&mut self) -> bool {
        !std::mem::replace(&mut self.resetting, true)
    }

    /// Ends a device reset: all registers get their initial values.
    pub(crate) fn reset(&mut self) {
        self.accepted = 0;
        self.config_vector = NO_VECTOR;
        self.status = 0;
        self.resetting = false;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.queue_select = 0;
        for queue in &mut self.queues {
            *queue = QueueRegisters::new(queue.max_size);
        }
    }

    /// Ends the reset of a queue: its registers get their initial values.
    pub(crate) fn queue_reset_done(&mut self, index: u16) {
        if let Some(queue) = self.queues.get_mut(usize::from(index)) {
            *queue = QueueRegisters::new(queue.max_size);
        }
    }
}

/// The 32 feature bits that `select` makes visible: bits 0 to 31, 32 to 63, or none.
fn window(bits: u64, select: u32) -> u32 {
    bit_range(select).map_or(0, |range| (bits >> range.start) as u32)
}

fn set_window(bits: &mut u64, select: u32, value: u32) {
    if let Some(range) = bit_range(select) {
        *bits = (*bits & !(u64::from(u32::MAX) << range.start)) | (u64::from(value) << range.start);
    }
}

fn bit_range(select: u32) -> Option<Range<u32>> {
    (select < 2).then(|| 32 * select..32 * select + 32)
}
