// SPDX-License-Identifier: GPL-2.0

//! Commands that add GIDs.
//!
//! The core adds GIDs with the RTNL held, when a device is registered and when its network device
//! appears. All network configuration of the guest waits for the RTNL. So an addition waits for the
//! device only for [`PATIENCE_MS`]. After that the command stays in flight and counts as a success:
//! - If the device answers later, nothing is left to do. Until then, and if the device refuses, it
//!   refuses the QPs and AHs that use the GID.
//! - The deletion of the GID waits for the answer.
//!
//! Lock order: `GidCommands::unanswered`, then `Addition::answer`.

use crate::{
    abi::ctrl::ControlCommand,
    ctrl::{
        Background,
        CommandBuffer,
        ControlQueue, //
    },
    device::Device,
    sync::timed_completion::TimedCompletion, //
};
use kernel::{
    prelude::*,
    sync::{
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

/// A command that adds a GID.
#[pin_data]
struct Addition {
    index: u16,
    #[pin]
    done: TimedCompletion,
    /// The device's answer, once there is one.
    #[pin]
    answer: SpinLockIrq<Option<Result>>,
}

impl Background for Addition {
    fn answered(self: ArcBorrow<'_, Self>, _buffer: CommandBuffer, result: Result) {
        *self.answer.lock() = Some(result);
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
        let addition = Arc::pin_init(
            pin_init!(Addition {
                index,
                done <- TimedCompletion::new(),
                answer <- new_spinlock_irq!(None, "virtio_rdma::gid::answer"),
            }),
            GFP_KERNEL,
        )?;
        let buffer = ControlQueue::background_buffer()?;
        let is_stuck = {
            let mut unanswered = self.unanswered.lock();
            // A refusal is kept until the core deletes the GID.
            unanswered.retain(|earlier| *earlier.answer.lock() != Some(Ok(())));
            let is_stuck = unanswered
                .iter()
                .any(|earlier| earlier.answer.lock().is_none());
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
        addition
            .done
            .wait_timeout(if is_stuck { 0 } else { PATIENCE_MS });
        let Some(result) = *addition.answer.lock() else {
            dev_warn!(
                device.as_device(),
                "the device has not yet added GID {}: packets with this address are lost\n",
                index
            );
            return Ok(());
        };
        self.take(index);
        result
    }

    /// Takes out the addition of GID `index`, if it is kept.
    fn take(&self, index: u16) -> Option<Arc<Addition>> {
        let mut unanswered = self.unanswered.lock();
        let position = unanswered
            .iter()
            .position(|earlier| earlier.index == index)?;
        unanswered.remove(position).ok()
    }

    /// Waits for the answer to the addition of GID `index`, before its deletion. Returns whether
    /// the device may have the GID.
    pub(super) fn settle(&self, device: &Device, index: u16) -> bool {
        let Some(addition) = self.take(index) else {
            return true;
        };
        for _ in 0..DELETION_WAITS {
            if let Some(result) = *addition.answer.lock() {
                return result.is_ok();
            }
            if !device.lifecycle().is_working() {
                break;
            }
            addition.done.wait_timeout(PATIENCE_MS);
        }
        true
    }
}
