// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! What a function's queues and registers share.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering;

use crate::interrupt::Interrupts;
use crate::limiter::Limiter;

/// ISR bit of a queue interrupt (virtio 1.3, 4.1.4.5).
const ISR_QUEUE: u8 = 1 << 0;
/// ISR bit of a configuration change.
const ISR_CONFIG: u8 = 1 << 1;
/// `VIRTIO_MSI_NO_VECTOR`.
pub(crate) const NO_VECTOR: u16 = 0xffff;

/// State that no lock protects: queues use it while they hold their own.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) interrupts: Interrupts,
    pub(crate) log: Limiter,
    pub(crate) config_vector: AtomicU16,
    generation: AtomicU8,
    isr: AtomicU8,
    needs_reset: AtomicBool,
}

impl Shared {
    pub(crate) fn new(name: &str, vectors: u16) -> io::Result<Self> {
        Ok(Self {
            interrupts: Interrupts::new(vectors)?,
            log: Limiter::new(name),
            config_vector: AtomicU16::new(NO_VECTOR),
            generation: AtomicU8::new(0),
            isr: AtomicU8::new(0),
            needs_reset: AtomicBool::new(false),
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

    /// The device can't go on (DEVICE_NEEDS_RESET): the driver broke the rules, or the device has a defect.
    pub(crate) fn fail(&self, why: fmt::Arguments<'_>) {
        if !self.needs_reset.swap(true, Ordering::AcqRel) {
            self.log.warn(format_args!("device needs reset: {why}"));
            self.config_changed();
        }
    }

    pub(crate) fn needs_reset(&self) -> bool {
        self.needs_reset.load(Ordering::Acquire)
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
        self.needs_reset.store(false, Ordering::Release);
    }
}
