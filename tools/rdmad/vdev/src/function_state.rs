// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! State that a function's queues and registers share.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU8, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::interrupt::Interrupts;
use crate::limiter::Limiter;
use crate::service::Inbox;

/// ISR bit of a queue interrupt (virtio 1.3, 4.1.4.5).
const ISR_QUEUE: u8 = 1 << 0;
/// ISR bit of a configuration change.
const ISR_CONFIG: u8 = 1 << 1;
/// `VIRTIO_MSI_NO_VECTOR`.
pub(crate) const NO_VECTOR: u16 = 0xffff;

/// Whether the device works or has failed.
#[derive(Debug, Default)]
enum Health {
    #[default]
    Well,
    /// It can't, for this reason. The service thread has yet to stop it.
    Failing(String),
    /// It has stopped, and the driver can see DEVICE_NEEDS_RESET.
    Failed,
}

/// State that queues use while they hold their own lock. The lock in here is a leaf.
#[derive(Debug)]
pub(crate) struct FunctionState {
    pub(crate) interrupts: Interrupts,
    pub(crate) log: Limiter,
    pub(crate) config_vector: AtomicU16,
    generation: AtomicU8,
    isr: AtomicU8,
    health: Mutex<Health>,
    inbox: Arc<Inbox>,
}

impl FunctionState {
    pub(crate) fn new(name: &str, vectors: u16, inbox: Arc<Inbox>) -> io::Result<Self> {
        Ok(Self {
            interrupts: Interrupts::new(vectors)?,
            log: Limiter::new(name),
            config_vector: AtomicU16::new(NO_VECTOR),
            generation: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            health: Mutex::default(),
            inbox,
        })
    }

    /// Raises an interrupt vector.
    pub(crate) fn trigger(&self, vector: u16) {
        if let Err(error) = self.interrupts.trigger(vector) {
            self.log.warn(format_args!(
                "interrupt {vector} is lost, the guest may wait for it: {error}"
            ));
        }
    }

    /// Interrupts the driver for a queue.
    pub(crate) fn interrupt_queue(&self, vector: u16) {
        self.isr.fetch_or(ISR_QUEUE, Ordering::AcqRel);
        self.trigger(vector);
    }

    /// Tells the driver that the configuration, or the status, is another.
    pub(crate) fn config_changed(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.isr.fetch_or(ISR_CONFIG, Ordering::AcqRel);
        self.trigger(self.config_vector.load(Ordering::Acquire));
    }

    /// The device can't go on: the driver broke the rules, its memory is lost, or the device has a
    /// defect. The first reason counts.
    ///
    /// Never blocks. The service thread stops the device and only then shows DEVICE_NEEDS_RESET.
    pub(crate) fn fail(&self, why: fmt::Arguments<'_>) {
        let mut health = self.health.lock();
        if matches!(*health, Health::Well) {
            *health = Health::Failing(why.to_string());
            self.inbox.fail();
        }
    }

    /// Has queue `index` served later, if a change of the device's state is to come first. Returns
    /// whether that is so.
    pub(crate) fn postpone(&self, index: u16) -> bool {
        let is_early = self.inbox.has_tasks();
        if is_early {
            self.inbox.kick(index);
        }
        is_early
    }

    /// Why the device is to be stopped, if it is.
    pub(crate) fn failing(&self) -> Option<String> {
        match &*self.health.lock() {
            Health::Failing(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// The device has stopped: asks for a reset.
    pub(crate) fn ask_for_reset(&self, why: &str) {
        *self.health.lock() = Health::Failed;
        self.log.warn(format_args!("device needs reset: {why}"));
        self.config_changed();
    }

    /// Whether the device is to be stopped or has stopped.
    pub(crate) fn has_failed(&self) -> bool {
        !matches!(*self.health.lock(), Health::Well)
    }

    /// Whether the device has stopped and waits for its reset.
    pub(crate) fn needs_reset(&self) -> bool {
        matches!(*self.health.lock(), Health::Failed)
    }

    pub(crate) fn generation(&self) -> u8 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads and so clears the ISR register.
    pub(crate) fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// Device reset. Interrupts stay connected: they are PCI's, not virtio's.
    pub(crate) fn reset(&self) {
        self.config_vector.store(NO_VECTOR, Ordering::Release);
        self.isr.store(0, Ordering::Release);
        *self.health.lock() = Health::Well;
    }
}
