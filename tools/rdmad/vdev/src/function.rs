// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The PCI function: dispatches register accesses and runs the device through its states.
//!
//! Locks: a thread that holds the lock of the registers does not take the lock of a queue, nor the
//! reverse. No lock is held during a call of the device.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use budget::CallClock;
use dma::{DmaSpace, MapError, Region};
use parking_lot::Mutex;
use sandbox::{contain, Gate};

use crate::aio::Aio;
use crate::common::{Action, CommonConfig, Violation, COMMON_LEN, STATUS_DRIVER_OK};
use crate::function_state::{FunctionState, NO_VECTOR};
use crate::interrupt::Eventfd;
use crate::pci::{self, PciConfig};
use crate::queue::Virtqueue;
use crate::record::{FormerFunction, Record};
use crate::resets::Resets;
use crate::saved::FunctionSaved;
use crate::service::{Inbox, ServiceWork, Task};
use crate::VirtioDevice;

/// A function with its device.
pub(crate) struct PciFunction {
    pub(crate) device: Arc<dyn VirtioDevice>,
    pub(crate) space: Arc<DmaSpace>,
    pub(crate) state: Arc<FunctionState>,
    queues: Vec<Arc<Virtqueue>>,
    registers: Mutex<CommonConfig>,
    config: Mutex<PciConfig>,
    shm_len: u64,
    inbox: Arc<Inbox>,
    resets: Resets,
    /// Whether a driver has set the function up since its client connected.
    used: AtomicBool,
}

impl PciFunction {
    pub(crate) fn new(
        name: &str,
        device: Arc<dyn VirtioDevice>,
        space: Arc<DmaSpace>,
        aio: Arc<Aio>,
        record: Record,
        clock: CallClock,
    ) -> Self {
        let mut sizes = device.queue_sizes();
        sizes.truncate(pci::MAX_QUEUES);
        // A vector for each queue and one for configuration changes, up to the limit of MSI-X.
        let vectors =
            u16::try_from(sizes.len() + 1).map_or(pci::MAX_VECTORS, |n| n.min(pci::MAX_VECTORS));
        let inbox = Arc::new(Inbox::new(sizes.len()));
        let state = FunctionState::new(name, vectors, inbox.clone(), aio, Arc::new(record), clock);
        let state = Arc::new(state);
        let queues = (0u16..)
            .take(sizes.len())
            .map(|index| Arc::new(Virtqueue::new(index, space.clone(), state.clone())))
            .collect();
        let shm = device.shared_memory();
        Self {
            registers: Mutex::new(CommonConfig::new(device.features(), &sizes, vectors)),
            config: Mutex::new(PciConfig::new(
                device.device_id(),
                device.pci_class(),
                vectors,
                shm,
            )),
            shm_len: shm.map_or(0, |shm| shm.len),
            inbox,
            resets: Resets::default(),
            used: AtomicBool::new(false),
            device,
            space,
            state,
            queues,
        }
    }

    /// Length of a BAR in bytes, 0 if there is no such BAR.
    pub(crate) fn bar_len(&self, bar: u32) -> u64 {
        match bar {
            pci::MSIX_BAR => pci::MSIX_BAR_LEN,
            pci::VIRTIO_BAR => pci::VIRTIO_BAR_LEN,
            pci::SHM_BAR => self.shm_len,
            _ => 0,
        }
    }

    pub(crate) fn config_read(&self, offset: u64, data: &mut [u8]) {
        let window = {
            let config = self.config.lock();
            config.read(offset, data);
            config.window(offset, data.len())
        };
        if let Some(access) = window {
            self.bar_read(access.bar, access.offset, data);
        }
    }

    pub(crate) fn config_write(&self, offset: u64, data: &[u8]) {
        let (initiates_reset, window) = {
            let mut config = self.config.lock();
            let initiates_reset = config.write(offset, data);
            self.state.record.set_config(config.bytes());
            (initiates_reset, config.window(offset, data.len()))
        };
        if initiates_reset {
            self.post_function_reset();
        } else if let Some(access) = window {
            self.bar_write(access.bar, access.offset, data);
        }
    }

    /// Reads from a BAR. Addresses without a register read as zero. The client itself emulates the
    /// MSI-X table.
    pub(crate) fn bar_read(&self, bar: u32, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if bar != pci::VIRTIO_BAR {
            return;
        }
        match offset {
            pci::ISR_OFFSET => {
                if let Some(first) = data.first_mut() {
                    *first = self.state.take_isr();
                }
            }
            0..pci::ISR_OFFSET => {
                let image = self
                    .registers
                    .lock()
                    .read(self.state.generation(), self.state.needs_reset());
                // The offset is below `ISR_OFFSET`, so it fits.
                let start = (offset as usize).min(COMMON_LEN);
                for (byte, value) in data.iter_mut().zip(&image[start..]) {
                    *byte = *value;
                }
            }
            _ if (pci::DEVICE_OFFSET..pci::DEVICE_OFFSET + pci::DEVICE_LEN).contains(&offset) => {
                self.device
                    .config_read((offset - pci::DEVICE_OFFSET) as usize, data);
            }
            _ => {}
        }
    }

    pub(crate) fn bar_write(&self, bar: u32, offset: u64, data: &[u8]) {
        match bar {
            pci::SHM_BAR if offset < self.shm_len => match *data {
                [a, b, c, d] if offset % 4 == 0 => {
                    self.device
                        .shm_write(offset, u32::from_le_bytes([a, b, c, d]));
                }
                _ => self.state.log.warn(format_args!(
                    "write of {} bytes to shared memory at {offset:#x}",
                    data.len()
                )),
            },
            pci::VIRTIO_BAR if offset >= pci::NOTIFY_OFFSET => {
                let queue = (offset - pci::NOTIFY_OFFSET) / u64::from(pci::NOTIFY_MULTIPLIER);
                match u16::try_from(queue) {
                    Ok(queue) if usize::from(queue) < self.queues.len() => {
                        if self.used.load(Ordering::Relaxed) {
                            self.kick(queue);
                        } else {
                            self.state.log.warn(format_args!(
                                "a driver uses the function that it has not set up: the VM was migrated or \
                                 restored from a snapshot, which is not supported; the driver \
                                 must be loaded anew"
                            ));
                        }
                    }
                    _ => self.state.log.warn(format_args!(
                        "notification of queue {queue}, which does not exist"
                    )),
                }
            }
            pci::VIRTIO_BAR if offset < pci::ISR_OFFSET => self.common_write(offset, data),
            pci::VIRTIO_BAR
                if (pci::DEVICE_OFFSET..pci::DEVICE_OFFSET + pci::DEVICE_LEN).contains(&offset) =>
            {
                self.state.log.warn(format_args!(
                    "write of {} bytes to the device configuration at {:#x}, which is read-only",
                    data.len(),
                    offset - pci::DEVICE_OFFSET
                ));
            }
            // All other registers are read-only too.
            _ => {}
        }
    }

    fn kick(&self, queue: u16) {
        if !self.device.kick(queue) {
            self.inbox.kick(queue);
        }
    }

    fn common_write(&self, offset: u64, data: &[u8]) {
        let result = self.registers.lock().write(offset, data);
        self.act(result);
        self.record_function();
    }

    fn act(&self, result: Result<Action, Violation>) {
        match result {
            Ok(Action::None) => {}
            Ok(Action::Activate) => {
                self.used.store(true, Ordering::Relaxed);
                self.inbox.task(Task::Activate);
            }
            Ok(Action::Reset) => self.post_reset(),
            Ok(Action::ResetDone) => self.reset_shared(),
            Ok(Action::StartQueue(queue)) => self.inbox.task(Task::StartQueue(queue)),
            Ok(Action::ResetQueue(queue)) => self.inbox.task(Task::ResetQueue(queue)),
            Ok(Action::SetQueueVector(queue, vector)) => {
                if let Some(queue) = self.queues.get(usize::from(queue)) {
                    queue.set_vector(vector);
                }
            }
            Ok(Action::SetConfigVector(vector)) => {
                self.state.config_vector.store(vector, Ordering::Release);
            }
            Err(violation) => self.state.log.warn(format_args!("{violation}")),
        }
    }

    /// Starts a function-level reset. `observer` is called when the reset is done, possibly before
    /// this function returns.
    pub(crate) fn begin_function_reset(&self, observer: Box<dyn Fn() + Send>) {
        self.post_function_reset();
        self.resets.observe(observer);
    }

    fn post_function_reset(&self) {
        let mut config = self.config.lock();
        config.reset();
        self.state.record.set_config(config.bytes());
        drop(config);
        if self.registers.lock().begin_reset() {
            self.post_reset();
        }
        self.record_function();
    }

    /// Resets the function after its client has disconnected. Returns when nothing accesses guest
    /// memory any more.
    pub(crate) fn disconnect(&self) {
        self.begin_disconnect();
        self.end_disconnect();
    }

    pub(crate) fn begin_disconnect(&self) {
        self.state.record.disconnected();
        self.state.interrupts.reset();
        self.begin_function_reset(Box::new(|| {}));
    }

    pub(crate) fn end_disconnect(&self) {
        self.resets.wait();
        self.used.store(false, Ordering::Relaxed);
        self.state.interrupts.reset();
        self.space.clear();
    }

    /// Stops the device and unmaps its memory, after the socket thread has failed. On return
    /// nothing accesses guest memory.
    pub(crate) fn abandon(&self, why: &str) {
        self.state.fail(format_args!("{why}"));
        self.state.record.disconnected();
        self.space.clear();
    }

    fn record_function(&self) {
        let status = self.registers.lock().coming_status();
        let vector = self.state.config_vector.load(Ordering::Acquire);
        let is_used = self.used.load(Ordering::Relaxed);
        self.state.record.set_function(vector, status, is_used);
    }

    /// Maps a region of the client's memory.
    pub(crate) fn map(&self, region: Region, file: OwnedFd) -> Result<(), MapError> {
        let Region {
            iova,
            offset,
            len,
            writable,
        } = region;
        self.space.map(iova, file, offset, len, writable)?;
        // It was checked, and the map keeps it open.
        if let Some(file) = self.space.file(region.iova) {
            self.state.record.add_region(region, file.as_fd());
        }
        Ok(())
    }

    /// Unmaps the regions in the `len` bytes at `iova`. Returns their number.
    pub(crate) fn unmap(&self, iova: u64, len: u64) -> Result<usize, MapError> {
        self.state.record.remove_regions(iova, len);
        self.space.unmap(iova, len)
    }

    pub(crate) fn unmap_all(&self) {
        self.state.record.remove_regions(0, u64::MAX);
        self.space.clear();
    }

    /// Goes on serving a client whose engine has died. If a driver uses the device, it is asked for
    /// a reset.
    ///
    /// # Errors
    ///
    /// The client's memory can't be mapped.
    pub(crate) fn restore(&self, former: FormerFunction) -> io::Result<()> {
        for (region, file) in former.regions {
            self.space
                .map_again(region, file)
                .map_err(io::Error::other)?;
        }
        for (vector, eventfd) in former.vectors {
            let eventfd = Eventfd::new(eventfd)?;
            self.state.interrupts.connect(vector, Some(eventfd))?;
        }
        let mut config = self.config.lock();
        config.set(&former.config);
        self.state.record.set_config(config.bytes());
        drop(config);
        self.used.store(former.is_used, Ordering::Relaxed);
        let mut registers = self.registers.lock();
        let vector = registers.set_config_vector(former.config_vector);
        drop(registers);
        self.state.config_vector.store(vector, Ordering::Release);
        let record = &self.state.record;
        record.set_function(vector, former.status, former.is_used);
        let taken = match &former.saved {
            None if former.status == 0 => return Ok(()),
            None => Err("the daemon has started another engine".to_owned()),
            Some(saved) => self.take_over(saved),
        };
        if let Err(why) = taken {
            let why = format!("{why}, and all objects are lost");
            self.state.ask_for_reset(&why);
        }
        Ok(())
    }

    /// The state of the function and its device. Called while the function's threads, and all that
    /// use the device, rest.
    ///
    /// # Errors
    ///
    /// The state can't be saved, for this reason.
    pub(crate) fn save(&self) -> Result<FunctionSaved, String> {
        if self.state.has_failed() {
            return Err("the device has failed".to_owned());
        }
        let registers = self.registers.lock();
        let is_active = registers.coming_status() & STATUS_DRIVER_OK != 0;
        let registers = registers.save().ok_or("a reset is under way")?;
        let (generation, isr) = self.state.save();
        Ok(FunctionSaved {
            registers,
            rings: self.queues.iter().map(|queue| queue.save()).collect(),
            generation,
            isr,
            device: is_active.then(|| self.device.save()).transpose()?,
        })
    }

    /// Takes over registers, queues and device. On failure the driver must be asked for a reset.
    fn take_over(&self, saved: &FunctionSaved) -> Result<(), String> {
        let mut registers = self.registers.lock();
        if !registers.restore(&saved.registers) || saved.rings.len() != self.queues.len() {
            return Err("the saved registers are invalid".to_owned());
        }
        let (features, enabled) = (registers.accepted(), registers.enabled_queues());
        let vectors = registers.queue_vectors();
        let is_active = registers.coming_status() & STATUS_DRIVER_OK != 0;
        drop(registers);
        self.state.restore((saved.generation, saved.isr));
        for (queue, vector) in self.queues.iter().zip(vectors) {
            queue.set_vector(vector);
        }
        if !is_active {
            return Ok(());
        }
        let device = saved.device.as_ref();
        let device = device.ok_or("the state of the device is missing")?;
        for ((queue, ring), at) in self.queues.iter().zip(&saved.rings).zip(enabled) {
            if let (Some(at), Some(ring)) = (at, ring) {
                queue.resume(at, *ring);
            }
        }
        let taken = contain(|| self.device.restore(features, &self.queues, device));
        let taken = taken.unwrap_or_else(|panicked| Err(panicked.to_string()));
        match &taken {
            Ok(()) => self.inbox.task(Task::Resume),
            // Some of its objects may be there.
            Err(why) => self.stop_device(why),
        }
        taken
    }

    /// Requests a reset from the service thread. The registers admit one reset at a time, so the
    /// inbox stays bounded.
    fn post_reset(&self) {
        self.resets.request();
        self.inbox.task(Task::Reset);
    }

    /// Makes the service thread stop the device, because guest memory was lost.
    pub(crate) fn memory_lost(&self) {
        self.inbox.fail();
    }

    /// Notifies the driver of a change of the device configuration.
    pub(crate) fn config_changed(&self) {
        self.state.config_changed();
    }

    /// Makes the service thread look at its gate.
    pub(crate) fn wake_service(&self) {
        self.inbox.signal();
    }

    /// Ends [`serve`](Self::serve).
    pub(crate) fn stop(&self) {
        self.inbox.stop();
    }

    /// The body of the service thread.
    pub(crate) fn serve(&self, gate: &Arc<Gate>) {
        let passer = gate.enter();
        // Whether the driver has set DRIVER_OK. Notifications are ignored before.
        let mut active = false;
        loop {
            // A change that is under way is completed first.
            if !self.inbox.has_tasks() {
                passer.pass();
            }
            let work = self.inbox.wait();
            if work == ServiceWork::Stop {
                return;
            }
            self.execute_contained(work, &mut active);
        }
    }

    /// One step of [`serve`](Self::serve). Returns whether there was any work.
    #[cfg(feature = "testing")]
    pub(crate) fn serve_waiting(&self, active: &mut bool) -> bool {
        let work = self.inbox.waiting();
        if let Some(work) = work {
            self.execute_contained(work, active);
        }
        work.is_some()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn tasks(&self) -> usize {
        self.inbox.tasks()
    }

    fn execute_contained(&self, work: ServiceWork, active: &mut bool) {
        if let Err(panicked) = contain(|| self.execute(work, active)) {
            self.end_panicked(work, &panicked.to_string());
        }
    }

    fn execute(&self, work: ServiceWork, active: &mut bool) {
        match work {
            ServiceWork::Stop => {}
            ServiceWork::Fail => self.fail(),
            ServiceWork::Signal => self.state.signal_deferred(),
            // A failed device starts no queue before its reset.
            ServiceWork::Task(Task::StartQueue(_)) if self.state.has_failed() => {}
            ServiceWork::Task(Task::Resume) => {
                self.resume();
                *active = true;
            }
            ServiceWork::Task(Task::Activate) => {
                self.activate();
                *active = true;
            }
            ServiceWork::Task(Task::Reset) => {
                *active = false;
                self.reset();
            }
            ServiceWork::Task(Task::StartQueue(index)) => self.start_queue(index),
            ServiceWork::Task(Task::ResetQueue(index)) => self.reset_queue(index),
            ServiceWork::Serve(index) => {
                let queue = &self.queues[usize::from(index)];
                if *active && queue.is_enabled() && self.device.serve(queue) {
                    self.inbox.kick(index);
                }
            }
        }
    }

    /// Completes work that panicked, so that the client does not wait for it. Marks the device
    /// failed unless the work was a reset.
    fn end_panicked(&self, work: ServiceWork, why: &str) {
        match work {
            // The device is not marked failed: the end of the reset would clear the mark.
            ServiceWork::Task(Task::Reset) => {
                self.stop_device(why);
                self.end_reset();
            }
            ServiceWork::Task(Task::ResetQueue(index)) => {
                self.state.fail(format_args!("{why}"));
                self.fail();
                self.registers.lock().queue_reset_done(index);
            }
            // Stopping the device panicked.
            ServiceWork::Fail => self.state.ask_for_reset(why),
            _ => self.state.fail(format_args!("{why}")),
        }
    }

    /// Stops the device, if it has failed, and then sets DEVICE_NEEDS_RESET.
    fn fail(&self) {
        let lost = self.space.lost().map(|lost| lost.to_string());
        if let Some(lost) = &lost {
            self.state.fail(format_args!("{lost}"));
        }
        if let Some(why) = self.state.failing() {
            // The device may have failed first, because it read the spare page that replaces lost
            // memory. The reason to report is then the loss.
            let why = lost.unwrap_or(why);
            self.stop_device(&why);
            self.state.ask_for_reset(&why);
        }
    }

    fn stop_device(&self, why: &str) {
        for queue in &self.queues {
            queue.stop();
        }
        self.device.fail(why);
    }

    fn activate(&self) {
        // A reset does not restore lost guest memory. If memory is still lost, the device fails
        // again.
        self.fail();
        if self.state.has_failed() {
            return;
        }
        let (features, enabled) = {
            let registers = self.registers.lock();
            (registers.accepted(), registers.enabled_queues())
        };
        for (queue, at) in self.queues.iter().zip(&enabled) {
            if let Some(at) = at {
                queue.start(*at);
            }
        }
        tracing::debug!(
            port = self.state.log.name(),
            "driver ready, features {features:#x}"
        );
        self.device.activate(features, &self.queues);
        // The driver may have notified a queue before it was started.
        for (index, _) in (0u16..).zip(&enabled).filter(|(_, at)| at.is_some()) {
            self.kick(index);
        }
    }

    /// Goes on with a device that was taken over. Doorbells and interrupts may have been lost, so
    /// each queue is served, and the driver looks at each.
    fn resume(&self) {
        self.device.resume();
        for queue in self.queues.iter().filter(|queue| queue.is_enabled()) {
            self.kick(queue.index());
            queue.interrupt();
        }
    }

    fn reset(&self) {
        for queue in &self.queues {
            queue.stop();
        }
        self.device.reset();
        if let Err(error) = self.space.restore() {
            self.state.log.warn(format_args!(
                "lost guest memory can't be mapped again: {error}"
            ));
        }
        self.end_reset();
    }

    fn end_reset(&self) {
        self.reset_shared();
        self.registers.lock().reset();
        tracing::debug!(port = self.state.log.name(), "device reset");
        self.resets.finish();
    }

    fn reset_shared(&self) {
        for queue in &self.queues {
            queue.set_vector(NO_VECTOR);
        }
        self.state.reset();
    }

    fn start_queue(&self, index: u16) {
        let at = self.registers.lock().enabled_queue(index);
        if let (Some(at), Some(queue)) = (at, self.queues.get(usize::from(index))) {
            queue.start(at);
            self.kick(index);
        }
    }

    fn reset_queue(&self, index: u16) {
        if let Some(queue) = self.queues.get(usize::from(index)) {
            queue.stop();
            self.device.reset_queue(index);
            queue.set_vector(NO_VECTOR);
            self.registers.lock().queue_reset_done(index);
        }
    }
}
