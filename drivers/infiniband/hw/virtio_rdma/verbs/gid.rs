// SPDX-License-Identifier: GPL-2.0

//! Commands that add GIDs.
//!
//! The core adds GIDs with the RTNL held, when a device is registered and when its network device
//! appears. All network configuration of the guest waits for the RTNL. So an addition waits for the
//! device only for [`PATIENCE_MS`]. After that the command stays in flight and counts as a success:
//! - If the device adds the GID later, nothing is left to do. Until then it refuses the QPs and AHs
//!   that use the GID. It still does so if it refuses the GID; the log then has a warning.
//! - An invalid answer fails the device, however late the answer comes.
//! - The deletion of the GID waits for the answer.
//!
//! Lock order: `GidCommands::unanswered`, then `Addition::state`.

use crate::{
    abi::ctrl::ControlCommand,
    ctrl::{
        AsyncCommand,
        CommandBuffer,
        ControlQueue,
        Failure, //
    },
    device::Device,
    sync::timed_completion::TimedCompletion, //
};
use core::mem::replace;
use kernel::{
    device,
    prelude::*,
    sync::{
        aref::ARef,
        new_mutex,
        new_spinlock_irq,
        Arc,
        ArcBorrow,
        Mutex,
        SpinLockIrq, //
    },
    time::Msecs, //
};

/// Time in ms that an addition waits for the device.
const PATIENCE_MS: Msecs = 1_000;

/// Maximum number of times that a deletion waits this long for the answer to the addition.
const DELETION_WAITS: usize = 60;

/// State of a command that adds a GID.
#[derive(Clone, Copy)]
enum State {
    /// The task that added the GID waits for the answer.
    Awaited,
    /// The task has given up waiting.
    GivenUp,
    /// The device has answered.
    Answered(Result<(), Failure>),
}

/// A command that adds a GID.
#[pin_data]
struct Addition {
    /// The device that log messages name.
    dev: ARef<device::Device>,
    index: u16,
    #[pin]
    done: TimedCompletion,
    #[pin]
    state: SpinLockIrq<State>,
}

impl Addition {
    fn new(dev: &device::Device, index: u16) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                index,
                done <- TimedCompletion::new(),
                state <- new_spinlock_irq!(State::Awaited, "virtio_rdma::gid::state"),
            }),
            GFP_KERNEL,
        )
    }

    /// The answer of the device, if it has answered.
    fn answer(&self) -> Option<Result<(), Failure>> {
        match *self.state.lock() {
            State::Answered(result) => Some(result),
            State::Awaited | State::GivenUp => None,
        }
    }

    /// Gives up waiting, unless the device has answered. Returns its answer.
    fn give_up(&self) -> Option<Result<(), Failure>> {
        let mut state = self.state.lock();
        if let State::Answered(result) = *state {
            return Some(result);
        }
        *state = State::GivenUp;
        None
    }
}

impl AsyncCommand for Addition {
    /// Logs a refusal that no task waits for.
    fn answered(self: ArcBorrow<'_, Self>, _buffer: CommandBuffer, result: Result<(), Failure>) {
        let former = replace(&mut *self.state.lock(), State::Answered(result));
        match (former, result) {
            (State::GivenUp, Err(Failure::Refused(error))) => dev_warn!(
                self.dev,
                "the device has refused GID {}, packets with this address stay lost: {:?}\n",
                self.index,
                error
            ),
            (State::GivenUp, Err(Failure::NoAnswer)) => dev_warn!(
                self.dev,
                "the device has not added GID {}: its answer is invalid\n",
                self.index
            ),
            _ => (),
        }
        self.done.complete();
    }
}

/// The additions that the device has not answered, or has refused later.
#[pin_data]
pub(super) struct GidCommands {
    #[pin]
    unanswered: Mutex<KVec<Arc<Addition>>>,
}

impl GidCommands {
    pub(super) fn new() -> Result<Pin<KBox<Self>>> {
        KBox::pin_init(
            pin_init!(Self {
                unanswered <- new_mutex!(KVec::new(), "virtio_rdma::gid::unanswered"),
            }),
            GFP_KERNEL,
        )
    }

    /// Adds the GID `index` by the command `request`.
    pub(super) fn add<R: ControlCommand>(
        &self,
        device: &Device,
        index: u16,
        request: &R,
    ) -> Result {
        let addition = Addition::new(device.as_device(), index)?;
        let buffer = ControlQueue::background_buffer()?;
        let is_stuck = {
            let mut unanswered = self.unanswered.lock();
            // A refusal is kept until the core deletes the GID.
            unanswered.retain(|earlier| !matches!(earlier.answer(), Some(Ok(()))));
            let is_stuck = unanswered.iter().any(|earlier| earlier.answer().is_none());
            unanswered.push(addition.clone(), GFP_KERNEL)?;
            is_stuck
        };
        if device
            .ctrl()
            .start(request, buffer, addition.clone())
            .is_err()
        {
            self.take(index);
            return Err(EIO);
        }
        // The core may add many GIDs under one RTNL. Only the first one waits for a stuck device.
        let patience = if is_stuck { 0 } else { PATIENCE_MS };
        addition.done.wait_timeout(patience);
        let Some(result) = addition.give_up() else {
            dev_warn!(
                device.as_device(),
                "the device has not added GID {} within {} ms: \
                 packets with this address are lost\n",
                index,
                patience
            );
            return Ok(());
        };
        self.take(index);
        Ok(result?)
    }

    /// Takes out the addition of GID `index`, if it is kept.
    fn take(&self, index: u16) -> Option<Arc<Addition>> {
        let mut unanswered = self.unanswered.lock();
        let position = unanswered
            .iter()
            .position(|earlier| earlier.index == index)?;
        unanswered.remove(position).ok()
    }

    /// Waits until the device has answered the command that adds GID `index`, so that the GID can
    /// be deleted. Returns false if the device has refused the GID.
    pub(super) fn await_answer(&self, device: &Device, index: u16) -> bool {
        let Some(addition) = self.take(index) else {
            return true;
        };
        for _ in 0..DELETION_WAITS {
            if let Some(result) = addition.answer() {
                return !matches!(result, Err(Failure::Refused(_)));
            }
            if !device.lifecycle().is_working() {
                break;
            }
            addition.done.wait_timeout(PATIENCE_MS);
        }
        true
    }
}
