// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Protection domains and memory regions.

use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

use anyhow::{Context as _, Result};

use super::context::created;
use super::{check, ffi, Context};

/// Access flags, `enum ibv_access_flags`.
pub mod access {
    use super::ffi;

    /// Work requests of this side may write to the memory.
    pub const LOCAL_WRITE: u32 = ffi::IBV_ACCESS_LOCAL_WRITE;
    /// Peers may write to the memory.
    pub const REMOTE_WRITE: u32 = ffi::IBV_ACCESS_REMOTE_WRITE;
    /// Peers may read the memory.
    pub const REMOTE_READ: u32 = ffi::IBV_ACCESS_REMOTE_READ;
    /// Peers may execute atomic operations on the memory.
    pub const REMOTE_ATOMIC: u32 = ffi::IBV_ACCESS_REMOTE_ATOMIC;
    /// Memory windows may be bound to the memory.
    pub const MW_BIND: u32 = ffi::IBV_ACCESS_MW_BIND;
    /// Addresses in work requests count from the start of the memory.
    pub const ZERO_BASED: u32 = ffi::IBV_ACCESS_ZERO_BASED;
    /// Peers may FLUSH for global visibility.
    pub const FLUSH_GLOBAL: u32 = ffi::IBV_ACCESS_FLUSH_GLOBAL;
    /// Peers may FLUSH for persistence.
    pub const FLUSH_PERSISTENT: u32 = ffi::IBV_ACCESS_FLUSH_PERSISTENT;
    /// Local write, remote write and remote read.
    pub const ALL: u32 = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<ffi::ibv_pd>,
    context: Rc<Context>,
}

impl Pd {
    /// A new protection domain.
    pub fn new(context: &Rc<Context>) -> Result<Rc<Self>> {
        // SAFETY: The context is open.
        let raw = created("allocate PD", unsafe { ffi::ibv_alloc_pd(context.raw()) })?;
        Ok(Rc::new(Self {
            raw,
            context: Rc::clone(context),
        }))
    }

    /// The context in which the PD was allocated.
    pub fn context(&self) -> &Rc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: Each object in the PD holds a reference to it, so none of them exists now.
        if let Err(error) = check(unsafe { ffi::ibv_dealloc_pd(self.raw()) }) {
            println!("# deallocate PD: {error}");
        }
    }
}

/// An SGE of a work request. The device checks addresses and keys, so any value is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// Zeroed, page-aligned memory.
struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

impl Buffer {
    fn new(length: usize) -> Result<Self> {
        let layout = Layout::from_size_align(length.max(1), 4096)?;
        // SAFETY: The layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout);
        };
        Ok(Self { start, layout })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: The memory was allocated with this layout and is freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// A memory region and its memory.
pub struct Mr {
    raw: NonNull<ffi::ibv_mr>,
    start: NonNull<u8>,
    length: usize,
    // `Drop` deregisters the MR before this field is dropped.
    buffer: Option<Rc<Buffer>>,
    pd: Rc<Pd>,
}

impl Mr {
    /// Registers `length` bytes of new, page-aligned memory.
    pub fn new(pd: &Rc<Pd>, length: usize, access: u32) -> Result<Self> {
        Self::at(pd, 0, length, access)
    }

    /// Registers `length` bytes of new memory that starts at `offset` in a page.
    pub fn at(pd: &Rc<Pd>, offset: usize, length: usize, access: u32) -> Result<Self> {
        let buffer = Buffer::new(offset + length)?;
        // SAFETY: The buffer is at least `offset` bytes long.
        let start = unsafe { buffer.start.add(offset) };
        Self::register(pd, start, length, access, Some(Rc::new(buffer)))
    }

    /// Registers memory that is read-only for the process.
    pub fn constant(pd: &Rc<Pd>, bytes: &'static [u8], access: u32) -> Result<Self> {
        Self::register(pd, NonNull::from(bytes).cast(), bytes.len(), access, None)
    }

    /// Registers the same memory once more.
    pub fn register_again(&self, access: u32) -> Result<Self> {
        Self::register(
            &self.pd,
            self.start,
            self.length,
            access,
            self.buffer.clone(),
        )
    }

    /// Registers the `length` bytes at `offset` of the same memory once more.
    pub fn register_part(&self, offset: usize, length: usize, access: u32) -> Result<Self> {
        assert!(offset + length <= self.length);
        // SAFETY: The memory is at least `offset` bytes long.
        let start = unsafe { self.start.add(offset) };
        Self::register(&self.pd, start, length, access, self.buffer.clone())
    }

    fn register(
        pd: &Rc<Pd>,
        start: NonNull<u8>,
        length: usize,
        access: u32,
        buffer: Option<Rc<Buffer>>,
    ) -> Result<Self> {
        // SAFETY: The memory exists until the MR is deregistered.
        let raw =
            unsafe { ffi::ibv_reg_mr(pd.raw(), start.as_ptr().cast(), length, access.try_into()?) };
        Ok(Self {
            raw: created("register MR", raw)?,
            start,
            length,
            buffer,
            pd: Rc::clone(pd),
        })
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        self.start.as_ptr().addr() as u64
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: The MR is registered.
        unsafe { self.raw.as_ref().lkey }
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: The MR is registered.
        unsafe { self.raw.as_ref().rkey }
    }

    /// An SGE of `length` bytes from `offset` on.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        assert!(offset + length <= self.length);
        Sge {
            addr: self.addr() + offset as u64,
            length: u32::try_from(length).expect("an SGE is shorter than 4 GiB"),
            lkey: self.lkey(),
        }
    }

    /// The word at `offset`, a multiple of 8, for atomic operations of the CPU at the same time as
    /// those of the device. Only for regions that the process may write.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(self.buffer.is_some() && offset % 8 == 0 && offset + 8 <= self.length);
        // SAFETY: The word is in the buffer and aligned, since the buffer is page-aligned. Process
        // and device access the word only atomically.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast().as_ptr()) }
    }

    /// Copies `bytes` into the memory. Only for regions that the process may write.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.buffer.is_some() && offset + bytes.len() <= self.length);
        // SAFETY: The range is in the buffer, to which no Rust reference exists. The device may
        // write to the range at the same time; each byte then has either value.
        unsafe {
            self.start
                .add(offset)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
        };
    }

    /// Copies `length` bytes out of the memory.
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.length);
        let mut bytes = vec![0; length];
        // SAFETY: As in `write`; a constant region is valid for reads too.
        unsafe {
            self.start
                .add(offset)
                .copy_to_nonoverlapping(NonNull::from(&mut bytes[..]).cast(), length)
        };
        bytes
    }

    pub(super) fn raw(&self) -> *mut ffi::ibv_mr {
        self.raw.as_ptr()
    }

    /// Changes the PD, the memory and the access flags, each only if its argument is `Some`. The
    /// new memory has `length` bytes. After an error, nothing is changed unless the error says
    /// otherwise.
    pub fn change(
        &mut self,
        pd: Option<&Rc<Pd>>,
        length: Option<usize>,
        access: Option<u32>,
    ) -> Result<()> {
        let buffer = length.map(Buffer::new).transpose()?;
        let flags = [
            (pd.is_some(), ffi::IBV_REREG_MR_CHANGE_PD),
            (length.is_some(), ffi::IBV_REREG_MR_CHANGE_TRANSLATION),
            (access.is_some(), ffi::IBV_REREG_MR_CHANGE_ACCESS),
        ];
        let flags: u32 = flags.iter().filter(|flag| flag.0).map(|flag| flag.1).sum();
        // SAFETY: The MR is registered, and the new memory exists until the MR is deregistered.
        let code = unsafe {
            ffi::ibv_rereg_mr(
                self.raw.as_ptr(),
                flags.try_into()?,
                pd.map_or(std::ptr::null_mut(), |pd| pd.raw()),
                buffer
                    .as_ref()
                    .map_or(std::ptr::null_mut(), |buffer| buffer.start.as_ptr().cast()),
                length.unwrap_or(0),
                access.unwrap_or(0).try_into()?,
            )
        };
        if code != 0 {
            return Err(io::Error::last_os_error()).context("register MR again");
        }
        if let (Some(buffer), Some(length)) = (buffer, length) {
            self.start = buffer.start;
            self.length = length;
            self.buffer = Some(Rc::new(buffer));
        }
        if let Some(pd) = pd {
            self.pd = Rc::clone(pd);
        }
        Ok(())
    }

    /// Tries to deregister the MR while it is in use, and returns the error.
    pub fn try_deregister(&self) -> io::Error {
        // SAFETY: The MR is registered.
        let code = unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) };
        match check(code) {
            Err(error) => error,
            // `Drop` would deregister the MR a second time.
            Ok(()) => panic!("an MR that is in use was deregistered"),
        }
    }

    /// Deregisters the MR and returns the result.
    pub fn deregister(self) -> Result<()> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: The MR is registered, and `ManuallyDrop` prevents a second deregistration by
        // `Drop`.
        let code = unsafe { ffi::ibv_dereg_mr(this.raw.as_ptr()) };
        let result = check(code).context("deregister MR");
        if result.is_ok() {
            // SAFETY: The fields are read once and the original is not used again.
            unsafe {
                drop(std::ptr::read(&this.buffer));
                drop(std::ptr::read(&this.pd));
            }
        }
        result
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: The MR is registered.
        if let Err(error) = check(unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) }) {
            println!("# deregister MR: {error}");
            // The device may still use the memory, so it is leaked.
            std::mem::forget(self.buffer.take());
        }
    }
}
