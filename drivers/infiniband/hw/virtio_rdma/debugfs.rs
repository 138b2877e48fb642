// SPDX-License-Identifier: GPL-2.0

//! The file of a device in debugfs.

use crate::ctrl::ControlQueue;
use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    device::Device,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// A file that is removed when this is dropped.
pub(crate) type CommandsFile = Pin<KBox<File<Arc<ControlQueue>>>>;

/// Creates the file `commands` in a folder for `dev`, for example `virtio_rdma-virtio1`. It tells
/// the state of the device, and what the device has not answered. Reading it does not wait for the
/// device.
pub(crate) fn commands(dev: &Device, ctrl: Arc<ControlQueue>) -> Result<CommandsFile> {
    let name = dev.name().to_str()?;
    let folder = Dir::new(&CString::try_from_fmt(fmt!("virtio_rdma-{name}"))?);
    let file = folder.read_callback_file(c"commands", ctrl, &|ctrl, f| ctrl.show(f));
    KBox::pin_init(file, GFP_KERNEL)
}
