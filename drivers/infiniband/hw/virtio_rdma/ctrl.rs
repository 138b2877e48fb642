// SPDX-License-Identifier: GPL-2.0

//! The control queue: commands to the device and their answers.
//!
//! Probe allocates a fixed set of slots, each with a buffer and a completion. So a command, above
//! all one that destroys an object, never fails for lack of memory. A task that runs a command
//! takes an idle slot, adds the slot's buffer to the virtqueue and sleeps. Up to [`SLOTS`] commands
//! are in flight at a time.
//!
//! A device fails if it leaves a command unanswered for [`PATIENCE_MS`], gives an answer that is
//! neither success nor an error, breaks a virtqueue, requests a reset, or is gone. From then on all
//! waiting and all later commands fail with [`Failure::NoAnswer`]. [`Lifecycle`] describes the
//! states of a device that does not work. The virtqueue keeps the buffers that the device holds,
//! and frees them once the device was reset.
//!
//! Callers that can't sleep use [`start`](ControlQueue::start): it works in any context, reports
//! the answer by a callback, and takes a buffer of the caller. The health check watches these
//! commands, since no task waits for them: it fails a device that gave one of them an invalid
//! answer, or has not answered one for [`PATIENCE_MS`], at the latest for twice as long.
//!
//! Lock order: `ControlQueue::idle`, then `CommandSlot::answer`; the virtqueue's own lock is not
//! taken within either. No other lock is taken while `ControlQueue::period_began`,
//! `ControlQueue::reset_needed` or `CommandSlot::sent` is held.

use crate::{
    abi::{
        ctrl::{
            ControlCommand,
            Empty,
            Errno,
            MAX_REQUEST,
            MAX_RESPONSE, //
        },
        feature::Features,
        wire::Wire, //
    },
    decode::answer::Answer,
    event_handlers::EventHandlers,
    lifecycle::Lifecycle,
    sent_command::SentCommand,
    sync::{
        deferred::Deferred,
        timed_completion::TimedCompletion,
        workqueue::Workqueue, //
    },
    virtio::{
        self,
        Buffer,
        Handler,
        Health,
        Recovery,
        Virtqueue,
        VirtqueueInfo, //
    },
};
use core::mem::replace;
use kernel::{
    device::{
        self,
        Bound, //
    },
    fmt,
    prelude::*,
    str::CString,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        new_condvar,
        new_mutex,
        new_spinlock_irq,
        Arc,
        ArcBorrow,
        CondVar,
        Mutex,
        SpinLockIrq, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic,
        Msecs, //
    },
};

/// Maximum number of commands in flight.
pub(crate) const SLOTS: usize = 32;

/// Time in ms that the device may take to answer a command.
const PATIENCE_MS: Msecs = 60_000;

/// Interval in ms at which a waiting task checks that the device is alive.
const LOOK_MS: Msecs = 1_000;

/// Why a command failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// The device refused the command, or a value in its answer is invalid.
    Refused(Error),
    /// The device does not answer, and may still act on the command, now or later.
    NoAnswer,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(error) => error,
            Failure::NoAnswer => EIO,
        }
    }
}

/// A sender of a command that does not wait for the answer.
pub(crate) trait AsyncCommand: Send + Sync {
    /// The device answered the command in `buffer`. Called in interrupt context. After an invalid
    /// answer, which is [`Failure::NoAnswer`], the device fails at the next check.
    fn answered(self: ArcBorrow<'_, Self>, buffer: CommandBuffer, result: Result<(), Failure>);
}

/// The sender of the command in a buffer.
pub(crate) enum Sender {
    /// The buffer holds no command.
    None,
    /// A task that waits for the answer.
    Task(Arc<CommandSlot>),
    /// A caller that does not wait: [`AsyncCommand::answered`] reports the answer.
    Async {
        sender: Arc<dyn AsyncCommand>,
        /// Parity of the period in which the command was sent.
        parity: usize,
        sent: SentCommand,
    },
}

/// A buffer for a command and its answer.
pub(crate) type CommandBuffer = KBox<Buffer<Sender>>;

/// State shared by the task that runs a command and the interrupt handler.
#[pin_data]
pub(crate) struct CommandSlot {
    #[pin]
    done: TimedCompletion,
    /// The buffer of the answered command, and the number of bytes that the device wrote to it. The
    /// interrupt handler sets this field and completes `done` without releasing the lock in
    /// between.
    #[pin]
    answer: SpinLockIrq<Option<(CommandBuffer, usize)>>,
    /// The command that waits for its answer, or has waited until the device failed.
    #[pin]
    sent: Mutex<Option<SentCommand>>,
}

/// A slot that no task uses, and its buffer.
struct Idle {
    slot: Arc<CommandSlot>,
    buffer: CommandBuffer,
}

#[pin_data]
pub(crate) struct ControlQueue {
    features: Features,
    /// The life of the device, and the work item that resets it.
    lifecycle: Deferred<Lifecycle>,
    queue: Arc<Virtqueue<Sender>>,
    slots: KVec<Arc<CommandSlot>>,
    #[pin]
    idle: Mutex<KVec<Idle>>,
    #[pin]
    idle_changed: CondVar,
    /// A configuration interrupt has arrived.
    config_changed: AtomicFlag,
    /// When the device was first seen to need a reset.
    #[pin]
    reset_needed: Mutex<Option<Instant<Monotonic>>>,
    /// An asynchronous command got an invalid answer.
    answer_invalid: AtomicFlag,
    /// Number of asynchronous commands in flight that were sent in periods of even and of odd
    /// number. A period takes [`PATIENCE_MS`] or a little longer.
    in_flight: [Atomic<usize>; 2],
    /// Parity of the present period.
    parity: Atomic<usize>,
    #[pin]
    period_began: Mutex<Instant<Monotonic>>,
}

impl ControlQueue {
    /// A control queue with all its slots, not attached to a device.
    pub(crate) fn new(
        dev: &device::Device,
        features: Features,
        event_handlers: Arc<EventHandlers>,
        recovery: Recovery,
    ) -> Result<Arc<Self>> {
        let mut slots = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        let mut idle = KVec::with_capacity(SLOTS, GFP_KERNEL)?;
        for _ in 0..SLOTS {
            let slot = Arc::pin_init(
                pin_init!(CommandSlot {
                    done <- TimedCompletion::new(),
                    answer <- new_spinlock_irq!(None, "virtio_rdma::ctrl::CommandSlot"),
                    sent <- new_mutex!(None, "virtio_rdma::ctrl::sent"),
                }),
                GFP_KERNEL,
            )?;
            slots.push(slot.clone(), GFP_KERNEL)?;
            let buffer = Self::background_buffer()?;
            idle.push(Idle { slot, buffer }, GFP_KERNEL)?;
        }
        let queue = Arc::pin_init(Virtqueue::new(), GFP_KERNEL)?;
        // The reset may block for ever.
        let resets = Workqueue::with_rescuer(c"virtio_rdma_reset")?;
        let lifecycle = Lifecycle::new(dev.into(), queue.clone(), event_handlers, recovery);
        let lifecycle = Deferred::new(
            &resets,
            lifecycle,
            c"virtio_rdma_lifecycle",
            kernel::static_lock_class!(),
        )?;
        Arc::pin_init(
            pin_init!(Self {
                features,
                lifecycle,
                queue,
                slots,
                idle <- new_mutex!(idle, "virtio_rdma::ctrl::idle"),
                idle_changed <- new_condvar!("virtio_rdma::ctrl::idle_changed"),
                config_changed: AtomicFlag::new(false),
                reset_needed <- new_mutex!(None, "virtio_rdma::ctrl::reset_needed"),
                answer_invalid: AtomicFlag::new(false),
                in_flight: [const { Atomic::new(0) }; 2],
                parity: Atomic::new(0),
                period_began <- new_mutex!(Instant::now(), "virtio_rdma::ctrl::period_began"),
            }),
            GFP_KERNEL,
        )
    }

    /// The queue, its `name` and its handler, as `find_vqs()` takes them.
    pub(crate) fn info(self: &Arc<Self>, name: CString) -> VirtqueueInfo {
        VirtqueueInfo::new(name, &self.queue, Some(self.clone()))
    }

    /// Runs a command and waits for the answer; signals don't interrupt it. Fails with
    /// [`EOPNOTSUPP`] if the command belongs to a feature that is not in use.
    pub(crate) fn exec<R: ControlCommand>(&self, request: &R) -> Result<R::Response, Failure> {
        if !self.features.know(R::COMMAND) {
            return Err(Failure::Refused(EOPNOTSUPP));
        }
        let Idle { slot, mut buffer } = self.take_idle()?;
        if let Err(error) = encode(&mut buffer, request) {
            self.put_idle(slot, buffer);
            return Err(Failure::Refused(error));
        }

        slot.done.reinit();
        buffer.context = Sender::Task(slot.clone());
        let sent = SentCommand::new(self.dev(), request);
        let mut tries = PATIENCE_MS;
        while let Err((error, back)) = self.queue.add(buffer) {
            buffer = back;
            // Both errors are temporary: DMA mapping may lack memory, and a small ring may be full.
            // When commands are answered, memory and ring entries become free.
            if !self.is_working() || tries == 0 || (error != ENOMEM && error != ENOSPC) {
                buffer.context = Sender::None;
                self.put_idle(slot, buffer);
                sent.unanswered(self.dev());
                self.fail(fmt!("does not take {sent}"));
                return Err(Failure::NoAnswer);
            }
            tries -= 1;
            fsleep(Delta::from_millis(1));
        }
        self.queue.kick();

        *slot.sent.lock() = Some(sent);
        let (buffer, written) = self
            .wait(&slot, &sent)
            .inspect_err(|_| sent.unanswered(self.dev()))?;
        let answer = Answer::decode(buffer.writable(), written);
        *slot.sent.lock() = None;
        sent.answered::<R>(self.dev(), &answer);
        self.put_idle(slot, buffer);
        match answer {
            Answer::Success(response) => Ok(response),
            Answer::Refused(errno) => Err(Failure::Refused(error_of(errno))),
            Answer::Invalid => {
                // The device may already use the memory that the command names.
                self.fail(fmt!("gave an invalid answer to {sent}"));
                Err(Failure::NoAnswer)
            }
        }
    }

    /// A buffer for [`start`](Self::start).
    pub(crate) fn background_buffer() -> Result<CommandBuffer> {
        Buffer::new(MAX_REQUEST, MAX_RESPONSE, Sender::None, GFP_KERNEL)
    }

    /// Starts a command and returns immediately. `sender` later receives `buffer` with the answer.
    /// The command is sent later if the ring is full or memory is short. Can be called in any
    /// context.
    ///
    /// # Errors
    ///
    /// Returns `buffer` if the device accepts no commands.
    pub(crate) fn start<R: ControlCommand>(
        &self,
        request: &R,
        mut buffer: CommandBuffer,
        sender: Arc<dyn AsyncCommand>,
    ) -> Result<(), CommandBuffer> {
        if !self.is_working() || encode(&mut buffer, request).is_err() {
            return Err(buffer);
        }
        let parity = self.parity.load(Relaxed);
        self.in_flight[parity & 1].fetch_add(1, Relaxed);
        let sent = SentCommand::new(self.dev(), request);
        buffer.context = Sender::Async {
            sender,
            parity,
            sent,
        };
        self.queue.add_or_keep(buffer).map_err(|(_, mut buffer)| {
            self.in_flight[parity & 1].fetch_sub(1, Relaxed);
            sent.unanswered(self.dev());
            // Removes `sender`: a sender that keeps the returned buffer would hold a reference to
            // itself.
            buffer.context = Sender::None;
            buffer
        })?;
        self.queue.kick();
        Ok(())
    }

    /// The device, for messages and traces.
    fn dev(&self) -> &device::Device {
        self.lifecycle.dev()
    }

    /// The life of the device.
    pub(crate) fn lifecycle(&self) -> &Deferred<Lifecycle> {
        &self.lifecycle
    }

    /// Writes the state of the device, and the commands that it has not answered.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "state={}", self.lifecycle.state_name())?;
        let in_flight = self.in_flight.each_ref().map(|count| count.load(Relaxed));
        writeln!(f, "asynchronous={}", in_flight.iter().sum::<usize>())?;
        for slot in &self.slots {
            if let Some(sent) = *slot.sent.lock() {
                f.write_fmt(fmt!("{sent}\n"))?;
            }
        }
        Ok(())
    }

    #[inline]
    fn is_working(&self) -> bool {
        self.lifecycle.is_working()
    }

    /// Fails all waiting commands. The device does not work any more, so later ones fail too.
    fn end_commands(&self) {
        for slot in &self.slots {
            slot.done.complete();
        }
        // A task that has found the device working holds the lock of `idle` until it waits. So once
        // this function has had the lock, that task waits and is notified below.
        drop(self.idle.lock());
        self.idle_changed.notify_all();
    }

    /// Records that a configuration interrupt arrived.
    pub(crate) fn note_config_change(&self) {
        self.config_changed.store(true, Relaxed);
    }

    /// Checks the device periodically. Returns whether the checks have to continue.
    pub(crate) fn check(&self) -> bool {
        if self.is_working() && self.is_overdue() {
            self.fail(fmt!("does not answer an asynchronous command"));
        }
        self.check_alive() || self.lifecycle.check_stopping()
    }

    /// Whether the answer to an asynchronous command is overdue. Begins the next period if the
    /// present one is over.
    fn is_overdue(&self) -> bool {
        let mut began = self.period_began.lock();
        if began.elapsed() < Delta::from_millis(PATIENCE_MS.into()) {
            return false;
        }
        // The last period ended when the present one began.
        let last = self.parity.load(Relaxed) ^ 1;
        if self.in_flight[last & 1].load(Relaxed) != 0 {
            return true;
        }
        self.parity.store(last, Relaxed);
        *began = Instant::now();
        false
    }

    /// Checks whether the device works, and ends its use if it does not.
    fn check_alive(&self) -> bool {
        if !self.is_working() {
            return false;
        }
        let health = self.queue.poll_health();
        self.lifecycle.tell_silence(health == Health::Silent);
        let why = match health {
            Health::Good | Health::Silent if self.answer_invalid.load(Relaxed) => {
                "gave an invalid answer to an asynchronous command"
            }
            // Commands have a time limit.
            Health::Good | Health::Silent => return true,
            Health::Broken => "broke a queue",
            Health::NeedsReset if self.config_changed.load(Relaxed) => "needs a reset",
            Health::NeedsReset if self.is_interrupt_under_way() => return true,
            Health::NeedsReset => "needs a reset, but sent no configuration interrupt",
            Health::Gone => "is gone",
        };
        self.fail_with(fmt!("{why}"), health);
        false
    }

    /// Whether the configuration interrupt of a device that needs a reset may still arrive: the
    /// device sets the status first.
    fn is_interrupt_under_way(&self) -> bool {
        let mut since = self.reset_needed.lock();
        let since = since.get_or_insert_with(Instant::now);
        since.elapsed() < Delta::from_millis(LOOK_MS.into())
    }

    /// Ends the use of the device because of `why`.
    fn fail(&self, why: fmt::Arguments<'_>) {
        self.fail_with(why, self.queue.poll_health());
    }

    /// Ends the use of the device, and resets it unless it is gone by its `health`.
    fn fail_with(&self, why: fmt::Arguments<'_>, health: Health) {
        if self.lifecycle.fail(why, health) {
            self.lifecycle.queue();
        }
        self.end_commands();
    }

    /// Resets a device that broke a promise on which memory safety depends, and waits for the end
    /// of the reset. Returns whether the device is at rest.
    pub(crate) fn stop(&self) -> bool {
        self.fail(fmt!("is stopped"));
        self.lifecycle.await_end()
    }

    /// Ends the use of a device that is being unbound. Waits until a failing device has stopped.
    /// Afterwards only the caller resets the device.
    pub(crate) fn unbind(&self) {
        if self.lifecycle.unbind() {
            self.end_commands();
        } else {
            self.lifecycle.await_stop_to_unbind();
        }
        self.lifecycle.disable();
    }

    fn take_idle(&self) -> Result<Idle, Failure> {
        let mut idle = self.idle.lock();
        loop {
            if !self.is_working() {
                return Err(Failure::NoAnswer);
            }
            if let Some(taken) = idle.pop() {
                return Ok(taken);
            }
            self.idle_changed.wait(&mut idle);
        }
    }

    fn put_idle(&self, slot: Arc<CommandSlot>, buffer: CommandBuffer) {
        // The vector has room for all slots.
        let _ = self.idle.lock().push_within_capacity(Idle { slot, buffer });
        self.idle_changed.notify_one();
    }

    /// Waits for the answer of the command in `slot`.
    fn wait(
        &self,
        slot: &CommandSlot,
        sent: &SentCommand,
    ) -> Result<(CommandBuffer, usize), Failure> {
        let mut waited = 0;
        loop {
            let completed = slot.done.wait_timeout(LOOK_MS);
            if let Some(answer) = slot.answer.lock().take() {
                return Ok(answer);
            }
            if completed && self.is_working() {
                continue;
            }
            waited += LOOK_MS;
            if !self.check_alive() {
                return Err(Failure::NoAnswer);
            }
            if waited >= PATIENCE_MS {
                self.fail(fmt!("does not answer {sent}"));
                return Err(Failure::NoAnswer);
            }
        }
    }
}

/// Writes a command.
fn encode<R: ControlCommand>(buffer: &mut CommandBuffer, request: &R) -> Result {
    buffer.reset(1 + R::SIZE, 1 + R::Response::SIZE)?;
    if let [command, body @ ..] = buffer.readable_mut() {
        *command = R::COMMAND.value();
        request.put(body);
    }
    Ok(())
}

/// The kernel's error for an errno of the device.
fn error_of(errno: Errno) -> Error {
    match errno {
        Errno::Eperm => EPERM,
        Errno::Eio => EIO,
        Errno::Eagain => EAGAIN,
        Errno::Enomem => ENOMEM,
        Errno::Efault => EFAULT,
        Errno::Ebusy => EBUSY,
        Errno::Eexist => EEXIST,
        Errno::Einval => EINVAL,
        Errno::Enospc => ENOSPC,
        Errno::Eopnotsupp => EOPNOTSUPP,
        Errno::Eaddrinuse => EADDRINUSE,
        Errno::Etimedout => ETIMEDOUT,
    }
}

impl Handler for ControlQueue {
    fn vq_callback(self: ArcBorrow<'_, Self>, _dev: &virtio::Device<Bound>) {
        // The loop is finite, since each buffer belongs to a command in flight.
        while let Some((mut buffer, written)) = self.queue.get_buf() {
            match replace(&mut buffer.context, Sender::None) {
                Sender::None => (),
                Sender::Task(slot) => {
                    let mut answer = slot.answer.lock();
                    *answer = Some((buffer, written));
                    slot.done.complete();
                }
                Sender::Async {
                    sender,
                    parity,
                    sent,
                } => {
                    self.in_flight[parity & 1].fetch_sub(1, Relaxed);
                    let answer = Answer::<Empty>::decode(buffer.writable(), written);
                    sent.answered_empty(self.dev(), &answer);
                    let result = match answer {
                        Answer::Success(_) => Ok(()),
                        Answer::Refused(errno) => Err(Failure::Refused(error_of(errno))),
                        Answer::Invalid => {
                            // Failing the device may sleep, so the next check does it.
                            self.answer_invalid.store(true, Relaxed);
                            Err(Failure::NoAnswer)
                        }
                    };
                    sender.as_arc_borrow().answered(buffer, result);
                }
            }
        }
    }
}
