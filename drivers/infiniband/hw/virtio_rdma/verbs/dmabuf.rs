// SPDX-License-Identifier: GPL-2.0

//! Memory regions over memory of other drivers.
//!
//! The exporter of a DMA buffer may revoke the buffer at any time, by a callback of the driver.
//! When the callback returns, the device must not access the memory any more. So the callback has
//! the device revoke the MR. The MR keeps its number until it is deregistered: work requests with
//! its keys fail, and no other MR gets these keys.

use super::{
    device::IbDevice,
    mr::{
        self,
        Mr, //
    }, //
};
use crate::{
    abi::{
        ctrl::{
            CmdDeregMr,
            CmdRevokeMr, //
        },
        feature::Feature,
        ib,
        number::MrNumber, //
    },
    ctrl::Failure,
    device::Device,
    rdma::{
        dmabuf::{
            Dmabuf,
            LockedDmabuf,
            Revoke, //
        },
        mr::{
            DmabufMemory,
            DmabufRegions,
            NewMr,
            UserMemory, //
        },
        pd::Pd, //
    }, //
};
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            AtomicFlag,
            Relaxed, //
        },
        Arc, //
    }, //
};

/// Revokes an MR when the exporter revokes the buffer.
pub(super) struct Revocation {
    device: Arc<Device>,
    mrn: Atomic<u32>,
    /// Whether the device may access the memory by MR `mrn`. Written with the reservation of the
    /// buffer locked.
    is_open: AtomicFlag,
}

impl Revoke for Revocation {
    fn revoke(&self) {
        if !self.is_open.load(Relaxed) || self.device.lifecycle().is_at_rest() {
            return;
        }
        self.is_open.store(false, Relaxed);
        let request = CmdRevokeMr {
            mrn: MrNumber::new(self.mrn.load(Relaxed)),
        };
        let Err(failure) = self.device.ctrl().exec(&request) else {
            return;
        };
        // The exporter reuses the memory after this call, whatever the device does. Only a reset
        // ends the device's accesses now.
        let dev = self.device.as_device();
        let error = Error::from(failure);
        match self.device.ctrl().stop() {
            true => dev_warn!(
                dev,
                "the device was reset: it did not stop using a revoked DMA buffer ({:?})\n",
                error
            ),
            false => dev_err!(
                dev,
                "the device may still use a revoked DMA buffer: {:?}\n",
                error
            ),
        }
    }
}

/// The memory of an MR.
pub(super) type Buffer = Dmabuf<Revocation>;

/// Destroys MR `mrn` over `buffer`. The exporter can't revoke meanwhile: once the device answers,
/// the number may belong to another MR.
pub(super) fn destroy(device: &Device, mrn: MrNumber, buffer: Buffer) {
    let answer = buffer.locked(|| {
        let answer = device.ctrl().exec(&CmdDeregMr { mrn });
        if answer.is_ok() {
            buffer.handler().is_open.store(false, Relaxed);
        }
        answer
    });
    if let Err(failure) = answer {
        super::warn_unless_dead(device, failure);
        bury(device, buffer);
    }
}

/// Keeps a buffer that the device may still access. Its exporter may still call this module, which
/// therefore stays loaded.
fn bury(device: &Device, buffer: Buffer) {
    match buffer.linger::<IbDevice>() {
        Ok(lingering) => {
            dev_warn!(
                device.as_device(),
                "the module stays loaded: until a reset, the device may use a DMA buffer\n"
            );
            device.bury(lingering);
        }
        // The module is being removed and will reset the device. Even if the reset fails, the
        // exporter must get its memory back: otherwise the exporter would later call unloaded code.
        Err(buffer) => drop(buffer),
    }
}

/// Creates an MR over the memory that `pin` pins. Of `memory`, only the length, the access flags
/// and the address that work requests use are read.
pub(super) fn register<'a>(
    pd: &'a Pd<IbDevice>,
    memory: &UserMemory,
    pin: impl FnOnce() -> Result<LockedDmabuf<'a>>,
) -> Result<NewMr<Mr>> {
    let ib_device = pd.device();
    let device = &ib_device.device;
    if !device.limits().has(Feature::Peers) {
        return Err(EOPNOTSUPP);
    }
    // Memory windows are not allowed: through them the memory would stay accessible after the MR
    // was revoked.
    let optional = mr::optional_rights(device.limits()).without(ib::AccessFlags::MW_BIND);
    mr::access_flags(memory.access, optional)?;
    if memory.length == 0 || memory.length > ib_device.max_mr_size() {
        return Err(EINVAL);
    }
    let mut buffer = pin()?;
    let page_shift =
        buffer.best_page_shift(ib_device.device.limits().mr_page_sizes(), memory.iova)?;
    let range = UserMemory {
        start: memory.iova,
        ..*memory
    };
    // All steps that can fail come before the device learns of the memory.
    let revocation = Revocation {
        device: device.clone(),
        mrn: Atomic::new(0),
        is_open: AtomicFlag::new(false),
    };
    let revocation = Arc::new(revocation, GFP_KERNEL)?;
    let command = mr::RegCommand::new(pd, buffer.umem(), page_shift, &range)?;
    match command.exec(device) {
        Ok(response) => {
            revocation.mrn.store(response.mrn.get(), Relaxed);
            revocation.is_open.store(true, Relaxed);
            let buffer = buffer.unlock(revocation);
            Ok(Mr::over_dmabuf(device, response, buffer, page_shift))
        }
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::Dead) => {
            // The device may have created the MR, but its number is unknown, so no command can
            // revoke it. If the exporter revokes the buffer, the device is reset.
            revocation.is_open.store(true, Relaxed);
            device.bury(command);
            bury(device, buffer.unlock(revocation));
            Err(ENODEV)
        }
    }
}

impl DmabufRegions for IbDevice {
    fn reg_dmabuf_mr(pd: &Pd<Self>, memory: &DmabufMemory) -> Result<NewMr<Mr>> {
        let range = UserMemory {
            start: memory.iova,
            length: memory.length,
            iova: memory.iova,
            access: memory.access,
        };
        register(pd, &range, || {
            LockedDmabuf::pin(
                pd.device(),
                memory.fd,
                memory.offset,
                memory.length,
                memory.access,
            )
        })
    }
}
