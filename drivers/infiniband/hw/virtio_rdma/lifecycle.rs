// SPDX-License-Identifier: GPL-2.0

//! The life of a device: one state machine, which only moves forward.
//!
//! | State | Entered when | Memory accesses of the device |
//! |---|---|---|
//! | [working](State::Working) | the driver is bound | yes |
//! | [failing](State::Failing) | no answer, an invalid answer, a broken queue | until its reset |
//! | [unbinding](State::Unbinding) | the driver of a working device is unbound | until its reset |
//! | [needs reset](State::NeedsReset) | DEVICE_NEEDS_RESET is set | none (abi: R-1141) |
//! | [gone](State::Gone) | its status reads as all ones at once | none: it was removed |
//! | [at rest](State::AtRest) | its status read as 0 after a reset | none |
//!
//! Commands run only in the first state. A device that fails or asks for a reset is reset. Until it
//! has *stopped*, i.e. is in one of the last three states, it may still write to buffers of kernel
//! clients. So until then no work request is flushed, no consumer is woken, and no verb returns
//! that lets a kernel client free its buffers.
//!
//! The reset may take for ever, since the transport waits for the confirmation without a limit. So
//! the reset runs on a workqueue of its own, without a lock that an unbinding or a shutdown takes.
//! Work requests of a failing device that never confirms its reset are never flushed, on purpose.
//!
//! A device at rest is recovered: the driver is unbound from it, which takes longer than the reset,
//! since clients have to release their objects, and probes it again.

use crate::{
    abi::ib::AsyncEvent,
    ctrl::Sender,
    decode::event::Cookie,
    event_handlers::EventHandlers,
    sync::deferred::Call,
    virtio::{
        Health,
        Recovery,
        Reset,
        Virtqueue, //
    },
};
use kernel::{
    device,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            AtomicFlag,
            Full,
            Relaxed, //
        },
        Arc,
        Completion, //
    },
    time::{
        delay::fsleep,
        Delta,
        Msecs, //
    },
};

/// Interval in ms at which an unbinding or a retry checks whether the device has stopped.
const POLL_MS: Msecs = 100;

/// State of a device. Its order is that of the possible changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
enum State {
    /// The device works.
    Working,
    /// The device is not used any more, but still accesses memory. It is being reset.
    Failing,
    /// The device worked until its driver was unbound. The unbinding resets it.
    Unbinding,
    /// The device asks for a reset and has stopped.
    NeedsReset,
    /// The device can't be reached.
    Gone,
    /// The device has confirmed a reset.
    AtRest,
}

/// The life of a device. As a deferred call, it resets the device.
#[pin_data]
pub(crate) struct Lifecycle {
    /// The device that log messages name.
    dev: ARef<device::Device>,
    /// The control queue, by which the device is reached.
    queue: Arc<Virtqueue<Sender>>,
    event_handlers: Arc<EventHandlers>,
    recovery: Recovery,
    state: Atomic<u32>,
    /// Whether the log says that the device is silent.
    is_silent: AtomicFlag,
    /// Whether the log says that the recovery waits.
    is_recovery_late: AtomicFlag,
    /// Completed when the device has stopped.
    #[pin]
    stopped: Completion,
    /// Completed when the device is at rest or gone.
    #[pin]
    ended: Completion,
}

impl Lifecycle {
    /// The life of a working device.
    pub(crate) fn new(
        dev: ARef<device::Device>,
        queue: Arc<Virtqueue<Sender>>,
        event_handlers: Arc<EventHandlers>,
        recovery: Recovery,
    ) -> impl PinInit<Self> {
        pin_init!(Self {
            dev,
            queue,
            event_handlers,
            recovery,
            state: Atomic::new(State::Working as u32),
            is_silent: AtomicFlag::new(false),
            is_recovery_late: AtomicFlag::new(false),
            stopped <- Completion::new(),
            ended <- Completion::new(),
        })
    }

    /// The device that log messages and traces name.
    pub(crate) fn dev(&self) -> &device::Device {
        &self.dev
    }

    /// Whether the device is in `state` or a later one.
    #[inline]
    fn has_reached(&self, state: State) -> bool {
        self.state.load(Acquire) >= state as u32
    }

    pub(crate) fn state_name(&self) -> &'static str {
        let state = self.state.load(Acquire);
        let names = [
            (State::AtRest, "at rest"),
            (State::Gone, "gone"),
            (State::NeedsReset, "needs reset"),
            (State::Unbinding, "unbinding"),
            (State::Failing, "failing"),
        ];
        let reached = names.into_iter().find(|(least, _)| state >= *least as u32);
        reached.map_or("working", |(_, name)| name)
    }

    /// Whether the device runs commands.
    #[inline]
    pub(crate) fn is_working(&self) -> bool {
        !self.has_reached(State::Failing)
    }

    /// Whether the device accesses no memory any more and completes nothing.
    #[inline]
    pub(crate) fn has_stopped(&self) -> bool {
        self.has_reached(State::NeedsReset)
    }

    /// Whether the device has confirmed a reset.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.has_reached(State::AtRest)
    }

    /// Moves the device to `to`. Returns the former state, or `None` if it had reached `to`.
    fn advance(&self, to: State) -> Option<u32> {
        let mut from = self.state.load(Relaxed);
        while from < to as u32 {
            match self.state.cmpxchg(from, to as u32, Full) {
                Ok(_) => return Some(from),
                Err(now) => from = now,
            }
        }
        None
    }

    /// Moves the device to `to`, one of the states in which it has stopped. Wakes the consumers,
    /// whose polls then flush their work requests, and all waiting tasks. Returns `false`
    /// if the device had reached `to` before.
    fn stop(&self, to: State) -> bool {
        let Some(from) = self.advance(to) else {
            return false;
        };
        if from < State::NeedsReset as u32 {
            self.event_handlers.stopped();
            self.stopped.complete_all();
        }
        if from < State::Gone as u32 && to >= State::Gone {
            self.ended.complete_all();
        }
        true
    }

    /// Ends the use of a working device without a message: it is being unbound. Returns whether the
    /// device was working.
    pub(crate) fn unbind(&self) -> bool {
        let (from, to) = (State::Working as u32, State::Unbinding as u32);
        self.state.cmpxchg(from, to, Full).is_ok()
    }

    /// Ends the use of a device whose health is `health`, because of `why`. Does nothing if the
    /// device does not work. Returns whether the caller has to queue the reset.
    pub(crate) fn fail(&self, why: kernel::fmt::Arguments<'_>, health: Health) -> bool {
        if self.advance(State::Failing).is_none() {
            return false;
        }
        let stopped = match health {
            Health::Good | Health::Broken | Health::Silent => None,
            Health::NeedsReset => Some(State::NeedsReset),
            Health::Gone => Some(State::Gone),
        };
        let is_gone = stopped == Some(State::Gone);
        let reset = if is_gone { "" } else { ", but reset" };
        dev_err!(
            self.dev,
            "the device {}: it is not used any more{}\n",
            why,
            reset
        );
        self.event_handlers.with(Cookie::DEVICE, |handler| {
            handler.async_event(AsyncEvent::DeviceFatal);
            handler.async_event(AsyncEvent::PortErr);
        });
        if let Some(state) = stopped {
            let _ = self.stop(state);
        }
        !is_gone
    }

    /// Logs that a working device has become silent, or answers again.
    pub(crate) fn tell_silence(&self, is_silent: bool) {
        if self.is_silent.load(Relaxed) == is_silent {
            return;
        }
        self.is_silent.store(is_silent, Relaxed);
        if is_silent {
            dev_warn!(self.dev, "the device does not answer: it is waited for\n");
        } else {
            dev_info!(self.dev, "the device answers again\n");
        }
    }

    /// The device was reset, or can't be reached, since its driver is being unbound.
    pub(crate) fn unbound(&self, reset: Reset) {
        let _ = self.stop(match reset {
            Reset::Done => State::AtRest,
            Reset::Unreachable => State::Gone,
        });
    }

    /// Checks a device that does not work. Returns whether to check it again: until it is gone, its
    /// driver is unbound, or its recovery begins.
    pub(crate) fn check_stopping(&self) -> bool {
        let state = self.state.load(Acquire);
        if state == State::AtRest as u32 {
            return !self.recover();
        }
        if state != State::Failing as u32 && state != State::NeedsReset as u32 {
            return false;
        }
        // A device that is being reset may have any other status: only the end of the reset tells
        // that the device has stopped.
        let is_gone = self.queue.poll_health() == Health::Gone;
        if is_gone && self.stop(State::Gone) {
            dev_err!(
                self.dev,
                "the device is gone before it confirmed its reset\n"
            );
        }
        !is_gone
    }

    /// Requests the recovery of a device at rest. Returns whether it begins.
    fn recover(&self) -> bool {
        let Err(pause) = self.recovery.request() else {
            return true;
        };
        if !self.is_recovery_late.load(Relaxed) {
            self.is_recovery_late.store(true, Relaxed);
            dev_err!(
                self.dev,
                "the device fails again and again: its recovery waits for {} ms\n",
                pause.as_millis()
            );
        }
        false
    }

    /// Waits until the device has stopped, unless it is working. Called before a verb returns after
    /// which a kernel client may free buffers that the device could access.
    pub(crate) fn await_stop(&self) {
        if !self.is_working() {
            self.stopped.wait_for_completion();
        }
    }

    /// Waits until a device that does not work is at rest or gone. Returns whether it is at rest.
    pub(crate) fn await_end(&self) -> bool {
        self.ended.wait_for_completion();
        self.is_at_rest()
    }

    /// Waits until a failing device has stopped. Polls, since the kernel complains about a task
    /// that sleeps for minutes.
    pub(crate) fn await_stop_to_unbind(&self) {
        while self.state.load(Acquire) == State::Failing as u32 {
            fsleep(Delta::from_millis(POLL_MS.into()));
        }
    }
}

impl Call for Lifecycle {
    /// Resets the device.
    fn call(&self) {
        while !self.has_reached(State::Gone) {
            if self.queue.reset_device() == Reset::Done {
                dev_info!(self.dev, "the device was reset: it is at rest\n");
                let _ = self.stop(State::AtRest);
                // The check of the device repeats a request that comes too early.
                let _ = self.recover();
            } else if self.queue.poll_health() == Health::Gone {
                let _ = self.stop(State::Gone);
            } else {
                // Not all transports wait for the confirmation.
                fsleep(Delta::from_millis(POLL_MS.into()));
            }
        }
    }
}
