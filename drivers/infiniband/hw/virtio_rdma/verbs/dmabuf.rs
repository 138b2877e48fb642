// SPDX-License-Identifier: GPL-2.0

//! Memory regions over memory of other drivers.
//!
//! The exporter of a DMA buffer may revoke the buffer at any time, by a callback of the driver.
//! When the callback returns, the device must not access the memory any more. So the callback has
//! the device revoke the MR. The MR keeps its number until it is deregistered: work requests with
//! its keys fail, and no other MR gets these keys.
//!
//! No command runs with the reservation of a buffer locked, unless the exporter revokes the buffer:
//! other users of the buffer would wait for the device.
//!
//! Lock order: the reservation of a buffer, then `Revocation::access`, which is not held while
//! commands run.

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
use core::mem::replace;
use kernel::{
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        Arc,
        CondVar,
        Mutex, //
    }, //
};

/// Revokes an MR when the exporter revokes the buffer.
#[pin_data]
pub(super) struct Revocation {
    device: Arc<Device>,
    #[pin]
    access: Mutex<Access>,
    #[pin]
    access_changed: CondVar,
}

/// The device's access to the memory of a buffer.
#[derive(Clone, Copy)]
enum Access {
    /// The device does not access the memory.
    None,
    /// A command that begins or ends the access is not answered yet.
    Changing,
    /// By this MR.
    Mr(MrNumber),
    /// By an MR whose number is unknown.
    Unknown,
}

impl Revocation {
    /// For an MR that is being created.
    fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                device: device.clone(),
                access <- new_mutex!(Access::Changing, "virtio_rdma::dmabuf::access"),
                access_changed <- new_condvar!("virtio_rdma::dmabuf::access_changed"),
            }),
            GFP_KERNEL,
        )
    }

    /// Begins a command that ends the access. Returns the access until now. A revocation waits
    /// until [`set`](Self::set) is called.
    fn begin(&self) -> Access {
        let mut access = self.access.lock();
        while let Access::Changing = *access {
            self.access_changed.wait(&mut access);
        }
        replace(&mut *access, Access::Changing)
    }

    /// Sets the access that an answer has confirmed.
    fn set(&self, access: Access) {
        *self.access.lock() = access;
        self.access_changed.notify_all();
    }
}

impl Revoke for Revocation {
    fn revoke(&self) {
        let access = self.begin();
        let answer = match access {
            _ if self.device.lifecycle().is_at_rest() => Ok(()),
            Access::None | Access::Changing => Ok(()),
            Access::Mr(mrn) => self.device.ctrl().exec(&CmdRevokeMr { mrn }).map(|_| ()),
            Access::Unknown => Err(Failure::NoAnswer),
        };
        self.set(Access::None);
        let Err(failure) = answer else {
            return;
        };
        // The exporter reuses the memory after this call, whatever the device does. Only a reset
        // ends the device's accesses now.
        let dev = self.device.as_device();
        let error = Error::from(failure);
        let number = match access {
            Access::Mr(mrn) => mrn.get(),
            _ => 0,
        };
        match self.device.ctrl().stop() {
            true => dev_warn!(
                dev,
                "MR {} (0: unknown): the device was reset, \
                 because it did not revoke the access to a DMA buffer: {:?}\n",
                number,
                error
            ),
            false => dev_err!(
                dev,
                "MR {} (0: unknown): the device did not revoke the access to a DMA buffer, \
                 and may still use it: {:?}\n",
                number,
                error
            ),
        }
    }
}

/// The memory of an MR.
pub(super) type Buffer = Dmabuf<Revocation>;

/// Destroys MR `mrn` over `buffer`. Until the device answers, a revocation waits. Afterwards the
/// number may belong to another MR.
pub(super) fn destroy(device: &Device, mrn: MrNumber, buffer: Buffer) {
    let revocation = buffer.handler();
    let before = revocation.begin();
    let request = CmdDeregMr { mrn };
    let answer = device.ctrl().exec(&request);
    revocation.set(match answer {
        Ok(_) => Access::None,
        Err(_) => before,
    });
    if let Err(failure) = answer {
        super::warn_of_refusal(device, &request, failure);
        quarantine(device, buffer);
    }
}

/// Keeps a buffer that the device may still access. Its exporter may still call this module, which
/// therefore stays loaded.
fn quarantine(device: &Device, buffer: Buffer) {
    match buffer.linger::<IbDevice>() {
        Ok(lingering) => {
            dev_warn!(
                device.as_device(),
                "the module stays loaded: until a reset, the device may use a DMA buffer\n"
            );
            device.quarantine(lingering);
        }
        // The module is being removed and will reset the device. Even if the reset fails, the
        // exporter must get its memory back: otherwise the exporter would later call unloaded code.
        Err(buffer) => drop(buffer),
    }
}

/// Creates an MR over the memory that `pin` pins. Reads only the length, the access flags and the
/// IOVA of `memory`.
pub(super) fn register<'a>(
    pd: &'a Pd<IbDevice>,
    memory: &UserMemory,
    pin: impl FnOnce() -> Result<LockedDmabuf<'a>>,
) -> Result<NewMr<Mr>> {
    let ib_device = pd.device();
    let device = &ib_device.virtio;
    if !device.limits().has(Feature::Peers) {
        return Err(EOPNOTSUPP);
    }
    // Memory windows are not allowed: through them the memory would stay accessible after the MR
    // was revoked.
    let optional = mr::optional_access_flags(device.limits()).without(ib::AccessFlags::MW_BIND);
    mr::access_flags(memory.access, optional)?;
    if memory.length == 0 || memory.length > ib_device.max_mr_size() {
        return Err(EINVAL);
    }
    let mut buffer = pin()?;
    let page_shift =
        buffer.best_page_shift(ib_device.virtio.limits().mr_page_sizes(), memory.iova)?;
    let range = UserMemory {
        start: memory.iova,
        ..*memory
    };
    // All steps that can fail come before the device learns of the memory.
    let revocation = Revocation::new(device)?;
    let command = mr::RegCommand::new(pd, buffer.umem(), page_shift, &range)?;
    // The exporter may revoke the buffer during the command. It then waits for the answer, but
    // other users of the buffer do not.
    let buffer = buffer.unlock(revocation);
    match command.exec(device) {
        Ok(response) => {
            buffer.handler().set(Access::Mr(response.mrn));
            Ok(Mr::over_dmabuf(device, response, buffer, page_shift))
        }
        Err(Failure::Refused(error)) => {
            buffer.handler().set(Access::None);
            Err(error)
        }
        Err(Failure::NoAnswer) => {
            // The device may have created the MR, but its number is unknown, so no command can
            // revoke it. If the exporter revokes the buffer, the device is reset.
            buffer.handler().set(Access::Unknown);
            device.quarantine(command);
            quarantine(device, buffer);
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
