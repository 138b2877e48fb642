// SPDX-License-Identifier: GPL-2.0

//! Memory regions over memory of other drivers.
//!
//! The exporter of a DMA buffer may take it back at any time, and when its callback returns the
//! device must not use the memory any more. So the device is told to close the MR, which keeps its
//! number until it is deregistered: what uses its keys meanwhile fails, and no other MR gets them.

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
    },
    virtio::Reset, //
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

/// Closes an MR when its memory is taken back.
pub(super) struct Revocation {
    device: Arc<Device>,
    mrn: Atomic<u32>,
    /// Whether the device has an MR of that number over the memory. Written with the reservation of
    /// the buffer locked.
    is_open: AtomicFlag,
}

impl Revoke for Revocation {
    fn revoke(&self) {
        if !self.is_open.load(Relaxed) || self.device.is_at_rest() {
            return;
        }
        self.is_open.store(false, Relaxed);
        let request = CmdRevokeMr {
            mrn: MrNumber::new(self.mrn.load(Relaxed)),
        };
        let Err(failure) = self.device.ctrl().exec(&request) else {
            return;
        };
        // The exporter does not wait, and may give the memory to others.
        let dev = self.device.as_device();
        let error = Error::from(failure);
        match self.device.stop() {
            Reset::Done => dev_warn!(
                dev,
                "the device did not let go of memory that was taken back ({:?}), and was reset\n",
                error
            ),
            Reset::Unreachable => dev_err!(
                dev,
                "the device may still use memory that was taken back: {:?}\n",
                error
            ),
        }
    }
}

/// The memory of an MR.
pub(super) type Buffer = Dmabuf<Revocation>;

/// Destroys MR `mrn` over `buffer`. The exporter waits meanwhile: from the answer on the number may
/// be another MR's.
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

/// Keeps a buffer that the device may still use. Its exporter goes on calling this module, which
/// stays loaded for that.
fn bury(device: &Device, buffer: Buffer) {
    match buffer.linger::<IbDevice>() {
        Ok(lingering) => {
            dev_warn!(
                device.as_device(),
                "the device may use a DMA buffer until it is reset, and the module stays loaded\n"
            );
            device.bury(lingering);
        }
        // The driver is about to reset the device. If that fails too, the exporter gets its memory
        // back nevertheless: it would otherwise call code that is gone.
        Err(buffer) => drop(buffer),
    }
}

/// Makes an MR for `memory`, whose address in work requests counts only: what `pin` pins is what it
/// lies over.
pub(super) fn register(
    pd: &Pd<IbDevice>,
    memory: &UserMemory,
    pin: impl FnOnce() -> Result<LockedDmabuf>,
) -> Result<NewMr<Mr>> {
    let ib_device = pd.device();
    let device = &ib_device.device;
    if !device.limits().has(Feature::Peers) {
        return Err(EOPNOTSUPP);
    }
    // Windows would keep the memory open when it is taken back.
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
    // All that can fail comes before the device knows the memory.
    let revocation = Revocation {
        device: device.clone(),
        mrn: Atomic::new(0),
        is_open: AtomicFlag::new(false),
    };
    let revocation = Arc::new(revocation, GFP_KERNEL)?;
    let registration = mr::Registration::new(pd, buffer.umem(), page_shift, &range)?;
    match registration.exec(device) {
        Ok(response) => {
            revocation.mrn.store(response.mrn.get(), Relaxed);
            revocation.is_open.store(true, Relaxed);
            let buffer = buffer.unlock(revocation);
            Ok(Mr::over_dmabuf(device, response, buffer, page_shift))
        }
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::Dead) => {
            // The number that the device may have given the MR is not known. An exporter that takes
            // the memory back has the device reset, since no command revokes it any more.
            revocation.is_open.store(true, Relaxed);
            device.bury(registration);
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
