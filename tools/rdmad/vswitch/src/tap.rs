// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Tap interfaces. No other module of the crate needs `unsafe`; this one does for one ioctl.
//!
//! C header: `include/uapi/linux/if_tun.h`
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Ioctl, IoctlOutput, Opcode};
use rustix::net::{netdevice, socket, AddressFamily, SocketType};

/// A tap interface, which may be deleted and created again.
#[derive(Debug)]
pub(crate) struct Tap {
    name: String,
    /// The file that is attached to the interface. All calls fail if the interface was deleted.
    file: File,
    /// A socket to look up interfaces. It is opened early, since the sandbox allows no new sockets.
    lookup: OwnedFd,
}

impl Tap {
    /// Attaches to the interface `name`, creating it if the caller may.
    pub(crate) fn open(name: &str) -> io::Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            file: open(name)?,
            lookup: socket(AddressFamily::INET, SocketType::DGRAM, None)?,
        })
    }

    /// Attaches to a new interface of the same name. Its owner must have created the interface.
    ///
    /// The TUN driver detaches the file when it deletes the interface, so the file can be attached
    /// again.
    pub(crate) fn attach_again(&self) -> io::Result<()> {
        netdevice::name_to_index(&self.lookup, &self.name)?;
        attach(&self.file, &self.name)
    }

    /// Reads the next frame. Returns its length, which exceeds that of `into` if the frame did not
    /// fit.
    pub(crate) fn receive(&self, into: &mut [u8]) -> Result<usize, Errno> {
        // The driver truncates a frame without an error. The MTU of the interface may exceed the
        // longest frame of the switch, so one more byte is read to detect longer frames.
        let mut beyond = [0];
        let mut parts = [IoSliceMut::new(into), IoSliceMut::new(&mut beyond)];
        rustix::io::readv(&self.file, &mut parts)
    }

    pub(crate) fn send(&self, frame: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&self.file, frame).map(drop)
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Longest name of an interface in bytes, without the terminating NUL.
const NAME_MAX: usize = 15;

const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;

/// The part of `struct ifreq` that TUNSETIFF reads, padded to the size of `struct ifreq`.
#[repr(C)]
struct IfReq {
    name: [u8; NAME_MAX + 1],
    flags: u16,
    rest: [u8; 22],
}

/// The ioctl TUNSETIFF.
struct SetInterface(IfReq);

// SAFETY: the argument of TUNSETIFF is a pointer to a `struct ifreq`. The kernel reads this
// structure and writes its name back. (The ioctl's number, `_IOW('T', 202, int)`, has another
// size.) The pointer is to an `IfReq`, which is as large as `struct ifreq` (asserted below) and is
// borrowed mutably during the call. Any bytes are valid values of its fields.
unsafe impl Ioctl for SetInterface {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::write::<i32>(b'T', 202)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

const _: () = assert!(size_of::<IfReq>() == 40, "struct ifreq on 64-bit hosts");

/// Attaches to the tap interface `name`, creating it if the caller may. Reads and writes transfer
/// whole frames without an additional header, and do not block.
fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open("/dev/net/tun")?;
    sockets::while_busy(Errno::BUSY, || attach(&file, name))?;
    Ok(file)
}

fn attach(file: &File, name: &str) -> io::Result<()> {
    let mut request = IfReq {
        name: [0; NAME_MAX + 1],
        flags: IFF_TAP | IFF_NO_PI,
        rest: [0; 22],
    };
    if name.is_empty() || name.len() > NAME_MAX || name.bytes().any(|byte| byte == 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the name of the interface is too long or empty",
        ));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: `SetInterface` describes TUNSETIFF as the TUN driver, which is behind this file,
    // defines it.
    unsafe { ioctl(file, SetInterface(request)) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_are_refused() {
        for name in ["", "a-name-that-is-too-long", "a\0b"] {
            assert_eq!(open(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }
}
