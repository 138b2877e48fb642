// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! DMA buffers, and memory regions over them.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use rustix::fs::{fcntl_add_seals, ftruncate, memfd_create, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Ioctl, IoctlOutput, Opcode};

use super::context::created;
use super::{check, ffi, Pd, Sge};

/// A memory region over a part of a DMA buffer.
pub struct DmabufMr {
    raw: NonNull<ffi::ibv_mr>,
    iova: u64,
    _pd: Rc<Pd>,
}

impl DmabufMr {
    /// Registers `length` bytes from `offset` on of `buffer` under the address `iova`.
    pub fn new(
        pd: &Rc<Pd>,
        buffer: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: u32,
    ) -> Result<Self> {
        // SAFETY: The PD exists; the kernel checks the rest.
        let raw = unsafe {
            ffi::ibv_reg_dmabuf_mr(
                pd.raw(),
                offset,
                length,
                iova,
                buffer.as_raw_fd(),
                access.try_into()?,
            )
        };
        Ok(Self {
            raw: created("register DMA buffer", raw)?,
            iova,
            _pd: Rc::clone(pd),
        })
    }

    /// Address of the first byte in work requests.
    pub fn addr(&self) -> u64 {
        self.iova
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The MR is registered.
        unsafe { self.raw.as_ref().rkey }
    }

    /// An SGE of `length` bytes from `offset` on.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.iova + offset as u64,
            length: u32::try_from(length).expect("an SGE is shorter than 4 GiB"),
            // SAFETY: The MR is registered.
            lkey: unsafe { self.raw.as_ref().lkey },
        }
    }
}

impl Drop for DmabufMr {
    fn drop(&mut self) {
        // SAFETY: The MR is registered and is deregistered once.
        if let Err(error) = check(unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }) {
            println!("# deregister DMA buffer: {error}");
        }
    }
}

/// A DMA buffer over the memory of a memfd, created by the kernel's udmabuf driver.
pub struct Udmabuf {
    memory: File,
    buffer: OwnedFd,
}

#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

// SAFETY: UDMABUF_CREATE, `_IOW('u', 0x42, struct udmabuf_create)`, reads the structure, which
// lives as long as the call, and returns a new file descriptor.
unsafe impl Ioctl for UdmabufCreate {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(b'u', 0x42)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(fd: IoctlOutput, _: *mut c_void) -> Result<OwnedFd, Errno> {
        // SAFETY: The ioctl succeeded, so it returned a new descriptor, which has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Udmabuf {
    /// A buffer of `size` bytes, a multiple of the page size.
    pub fn new(size: u64) -> Result<Self> {
        let driver = open("/dev/udmabuf")?;
        let memory = memfd_create(
            "verbs-test",
            MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC,
        )?;
        ftruncate(&memory, size)?;
        fcntl_add_seals(&memory, SealFlags::SHRINK)?;
        let create = UdmabufCreate {
            memfd: u32::try_from(memory.as_raw_fd())?,
            flags: 1,
            offset: 0,
            size,
        };
        // SAFETY: `/dev/udmabuf` is the udmabuf driver, and `UdmabufCreate` describes its ioctl.
        let buffer = unsafe { ioctl(&driver, create) }.context("UDMABUF_CREATE")?;
        Ok(Self {
            memory: memory.into(),
            buffer,
        })
    }

    /// Writes into the memory.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(bytes, offset)?)
    }

    /// Reads from the memory.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    /// The memfd with the memory.
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl AsFd for Udmabuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.buffer.as_fd()
    }
}

/// A DMA buffer of the kernel module in selftests/kverbs/exporter.c.
pub struct Exporter {
    control: File,
    buffer: OwnedFd,
}

impl Exporter {
    /// A buffer of `size` bytes.
    pub fn new(size: usize) -> Result<Self> {
        let mut control = open("/dev/test_exporter")?;
        control.write_all(format!("export {size}").as_bytes())?;
        let (fd, _) = status(&mut control)?;
        // SAFETY: The write above created the descriptor for this process, and it has no other
        // owner.
        let buffer = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { control, buffer })
    }

    /// Makes the exporter move the contents (`move`) or revoke the memory (`die`).
    pub fn command(&mut self, command: &str) -> Result<()> {
        self.control
            .write_all(command.as_bytes())
            .with_context(|| command.to_owned())
    }

    /// Bytes of revoked memory that the device has written since.
    pub fn touched(&mut self) -> Result<usize> {
        Ok(status(&mut self.control)?.1)
    }
}

impl AsFd for Exporter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.buffer.as_fd()
    }
}

fn open(file: &str) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(file);
    opened.with_context(|| file.to_owned())
}

fn status(control: &mut File) -> Result<(i32, usize)> {
    let mut text = [0; 64];
    let length = control.read(&mut text)?;
    let text = std::str::from_utf8(&text[..length])?;
    let (fd, touched) = text.trim().split_once(' ').context("no status")?;
    Ok((fd.parse()?, touched.parse()?))
}
