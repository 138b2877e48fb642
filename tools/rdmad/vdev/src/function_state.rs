// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State that a function's queues and registers share.

use std::fmt;
use std::sync::atomic::{AtomicU16, AtomicU8, Ordering};
use std::sync::Arc;

use budget::CallClock;
use parking_lot::Mutex;

use crate::aio::Aio;
use crate::interrupt::Interrupts;
use crate::limiter::Limiter;
use crate::record::Record;
use crate::service::Inbox;

/// ISR bit of a queue interrupt (virtio 1.3, 4.1.4.5).
const ISR_QUEUE: u8 = 1 << 0;
/// ISR bit of a configuration change.
const ISR_CONFIG: u8 = 1 << 1;
/// `VIRTIO_MSI_NO_VECTOR`: no interrupt vector.
pub(crate) const NO_VECTOR: u16 = 0xffff;

/// Whether the device works or has failed.
#[derive(Debug, Default)]
enum Health {
    #[default]
    Well,
    /// The device has failed for this reason. The service thread has yet to stop it.
    Failing(String),
    /// The device has stopped, and the driver can see DEVICE_NEEDS_RESET.
    Failed,
}

/// State that queues use while they hold their own locks. The lock of the inbox is the only lock
/// that is taken under the lock of `health`.
#[derive(Debug)]
pub(crate) struct FunctionState {
    pub(crate) interrupts: Interrupts,
    pub(crate) log: Limiter,
    pub(crate) record: Arc<Record>,
    pub(crate) config_vector: AtomicU16,
    generation: AtomicU8,
    isr: AtomicU8,
    health: Mutex<Health>,
    inbox: Arc<Inbox>,
}

impl FunctionState {
    pub(crate) fn new(
        name: &str,
        vectors: u16,
        inbox: Arc<Inbox>,
        aio: Arc<Aio>,
        record: Arc<Record>,
        clock: CallClock,
    ) -> Self {
        Self {
            interrupts: Interrupts::new(vectors, aio, inbox.clone(), record.clone(), clock),
            log: Limiter::new(name),
            record,
            config_vector: AtomicU16::new(NO_VECTOR),
            generation: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            health: Mutex::default(),
            inbox,
        }
    }

    /// Raises an interrupt vector.
    pub(crate) fn trigger(&self, vector: u16) {
        if let Err(error) = self.interrupts.trigger(vector) {
            self.log.warn(format_args!(
                "interrupt {vector} is lost, the guest may wait for it: {error}"
            ));
        }
    }

    /// Signals the eventfds that other threads have left to the service thread.
    pub(crate) fn signal_deferred(&self) {
        if let Err(error) = self.interrupts.signal_deferred() {
            self.log.warn(format_args!(
                "an interrupt is lost, the guest may wait for it: {error}"
            ));
        }
    }

    /// Interrupts the driver for a queue.
    pub(crate) fn interrupt_queue(&self, vector: u16) {
        self.isr.fetch_or(ISR_QUEUE, Ordering::AcqRel);
        self.trigger(vector);
    }

    /// Notifies the driver of a change of the configuration or the status.
    pub(crate) fn config_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
        self.trigger(self.config_vector.load(Ordering::Acquire));
    }

    /// Marks the device as failed: the driver broke the rules, guest memory is lost, or the device
    /// has a defect. Only the first reason is recorded.
    ///
    /// Never blocks. The service thread stops the device and only then sets DEVICE_NEEDS_RESET.
    pub(crate) fn fail(&self, why: fmt::Arguments<'_>) {
        let mut health = self.health.lock();
        if matches!(*health, Health::Well) {
            *health = Health::Failing(why.to_string());
            self.inbox.fail();
        }
    }

    /// If a change of the device's state is pending, returns true and makes the service thread
    /// serve queue `index` after the change.
    pub(crate) fn postpone(&self, index: u16) -> bool {
        let is_early = self.inbox.has_tasks();
        if is_early {
            self.inbox.kick(index);
        }
        is_early
    }

    /// Why the device has failed, if the service thread has yet to stop it.
    pub(crate) fn failing(&self) -> Option<String> {
        match &*self.health.lock() {
            Health::Failing(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Sets DEVICE_NEEDS_RESET and notifies the driver. To be called after the device has stopped.
    pub(crate) fn ask_for_reset(&self, why: &str) {
        *self.health.lock() = Health::Failed;
        self.log.warn(format_args!("device needs reset: {why}"));
        self.config_changed();
    }

    /// Whether the device has failed, stopped or not.
    pub(crate) fn has_failed(&self) -> bool {
        !matches!(*self.health.lock(), Health::Well)
    }

    /// Whether the device has stopped after a failure and waits for its reset.
    pub(crate) fn needs_reset(&self) -> bool {
        matches!(*self.health.lock(), Health::Failed)
    }

    pub(crate) fn generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads the ISR register, which clears it.
    pub(crate) fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// Configuration generation and ISR register, which is not cleared.
    pub(crate) fn save(&self) -> (u8, u8) {
        (self.generation(), self.isr.load(Ordering::Acquire))
    }

    /// Restores what another process has [saved](Self::save).
    pub(crate) fn restore(&self, (generation, isr): (u8, u8)) {
        self.generation.store(generation, Ordering::Release);
        self.isr.store(isr, Ordering::Release);
    }

    /// Resets the state for a device reset. Interrupts stay connected: they belong to PCI, not to
    /// virtio.
    pub(crate) fn reset(&self) {
        self.config_vector.store(NO_VECTOR, Ordering::Release);
        self.isr.store(0, Ordering::Release);
        *self.health.lock() = Health::Well;
    }
}
