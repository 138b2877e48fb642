// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An open device.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{bail, Context as _, Result};

use super::{check, ffi};

/// An open device.
#[derive(Debug)]
pub struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
}

/// Limits of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    /// Number of QPs.
    pub max_qp: u32,
    /// Number of CQs.
    pub max_cq: u32,
    /// SGEs of a work request other than RDMA READ.
    pub max_sge: u32,
    /// SGEs of an RDMA READ.
    pub max_sge_rd: u32,
    /// Outstanding work requests of a queue.
    pub max_qp_wr: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Outstanding READs and atomic operations of the peer at a QP.
    pub max_qp_rd_atom: u8,
    /// Whether the device supports atomic operations.
    pub atomics: bool,
    /// Number of multicast groups.
    pub max_mcast_grp: u32,
    /// Number of memory windows.
    pub max_mw: u32,
    /// Outstanding work requests of an SRQ.
    pub max_srq_wr: u32,
    /// Capabilities, `enum ibv_device_cap_flags`.
    pub flags: u32,
}

/// State of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// State, `enum ibv_port_state`.
    pub state: u32,
    /// Largest path MTU in use, `enum ibv_mtu`.
    pub active_mtu: u32,
}

impl Context {
    /// Opens the device called `name`.
    pub fn open(name: &str) -> Result<Rc<Self>> {
        let mut count = 0;
        // SAFETY: `count` is valid for the call.
        let list = unsafe { ffi::ibv_get_device_list(&mut count) };
        if list.is_null() {
            bail!("no RDMA devices: {}", io::Error::last_os_error());
        }
        let count = usize::try_from(count).unwrap_or(0);
        let mut names = Vec::new();
        let mut raw = None;
        for index in 0..count {
            // SAFETY: The list has `count` valid entries until it is freed.
            let device = unsafe { *list.add(index) };
            // SAFETY: A listed device has a name that lives as long as the device.
            let found = unsafe { CStr::from_ptr(ffi::ibv_get_device_name(device)) };
            let found = found.to_string_lossy().into_owned();
            if found == name {
                // SAFETY: The device is on the list; an open device outlives the list.
                raw = Some(unsafe { ffi::ibv_open_device(device) });
            }
            names.push(found);
        }
        let error = io::Error::last_os_error();
        // SAFETY: `list` came from ibv_get_device_list and is freed once.
        unsafe { ffi::ibv_free_device_list(list) };
        let raw =
            raw.with_context(|| format!("no device {name}; there are: {}", names.join(" ")))?;
        let raw = NonNull::new(raw).with_context(|| format!("{name} does not open: {error}"))?;
        Ok(Rc::new(Self {
            raw,
            name: name.to_owned(),
        }))
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn limits(&self) -> Result<DeviceAttr> {
        let mut attr = MaybeUninit::<ffi::ibv_device_attr>::zeroed();
        // SAFETY: The context is open, and all-zero bytes are a valid ibv_device_attr for the call
        // to fill.
        let attr = unsafe {
            check(ffi::ibv_query_device(self.raw(), attr.as_mut_ptr())).context("query device")?;
            attr.assume_init()
        };
        Ok(DeviceAttr {
            max_sge: attr.max_sge.try_into()?,
            max_sge_rd: attr.max_sge_rd.try_into()?,
            max_qp: attr.max_qp.try_into()?,
            max_cq: attr.max_cq.try_into()?,
            max_qp_wr: attr.max_qp_wr.try_into()?,
            max_cqe: attr.max_cqe.try_into()?,
            max_qp_rd_atom: u8::try_from(attr.max_qp_rd_atom).unwrap_or(u8::MAX),
            atomics: attr.atomic_cap != ffi::IBV_ATOMIC_NONE,
            max_mcast_grp: attr.max_mcast_grp.try_into()?,
            max_mw: attr.max_mw.try_into()?,
            max_srq_wr: attr.max_srq_wr.try_into()?,
            flags: attr.device_cap_flags,
        })
    }

    /// The state of the only port.
    pub fn port(&self) -> Result<PortAttr> {
        let mut attr = MaybeUninit::<ffi::ibv_port_attr>::zeroed();
        // SAFETY: The context is open, and all-zero bytes are a valid ibv_port_attr. The call fills
        // the older structure, of which the newer one is an extension.
        let attr = unsafe {
            check(ffi::ibv_query_port(self.raw(), 1, attr.as_mut_ptr().cast()))
                .context("query port")?;
            attr.assume_init()
        };
        Ok(PortAttr {
            state: attr.state,
            active_mtu: attr.active_mtu,
        })
    }

    /// Waits for an asynchronous event and acknowledges it. Returns its `enum ibv_event_type`.
    pub fn async_event(&self, timeout: Duration) -> Result<u32> {
        // SAFETY: The context is open and so is its descriptor.
        let fd = unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().async_fd) };
        wait_readable(fd, timeout).context("asynchronous event")?;
        let mut event = MaybeUninit::<ffi::ibv_async_event>::zeroed();
        // SAFETY: The context is open; on success the call fills the event, which is acknowledged
        // once.
        let event = unsafe {
            check(ffi::ibv_get_async_event(self.raw(), event.as_mut_ptr()))
                .context("get asynchronous event")?;
            ffi::ibv_ack_async_event(event.as_mut_ptr());
            event.assume_init()
        };
        Ok(event.event_type)
    }

    /// The descriptor of the uverbs device.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: The context is open and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().cmd_fd) }
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: Each object that was created from the context holds a reference to it, so none of
        // them exists now.
        let result = check(unsafe { ffi::ibv_close_device(self.raw()) });
        if let Err(error) = result {
            println!("# close device: {error}");
        }
    }
}

/// Waits until `fd` is readable.
pub(super) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout)?;
    if poll(&mut fds, Some(&timeout))? == 0 {
        bail!("nothing arrived in time");
    }
    Ok(())
}

/// Converts a null pointer that libibverbs returned into an error with `errno`.
pub(super) fn created<T>(what: &str, raw: *mut T) -> Result<NonNull<T>> {
    NonNull::new(raw)
        .ok_or_else(|| anyhow::Error::new(io::Error::last_os_error()).context(what.to_owned()))
}

/// A null pointer for arguments that are not used.
pub(super) const fn none<T>() -> *mut T {
    ptr::null_mut()
}
