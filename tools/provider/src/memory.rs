// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Memory that process and device share: rings and the doorbell page.

use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::ptr;
use std::ptr::NonNull;
use std::sync::atomic::fence;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::ring::RingLayout;
use virtio_rdma_abi::ring::CACHE_LINE;
use virtio_rdma_abi::ring::SLOT_SHIFT_RANGE;
use virtio_rdma_abi::uverbs::RingMapping;
use virtio_rdma_abi::uverbs::UserRing;
use virtio_rdma_ring::RingMemory;

use crate::allocators::Lender;

/// Pages mapped into the process, or lent by the program.
///
/// # Invariants
///
/// `base` is the page-aligned start of `len` bytes that stay mapped, readable (except a doorbell
/// page) and writable, until the value is dropped. The memory came from `lender` if there is one,
/// else from mmap.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
    lender: Option<Lender>,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access is by atomics and raw copies only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, protection: i32, flags: i32, fd: RawFd, offset: u64) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset)
            .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
        // SAFETY: the kernel chooses a free place for a new mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // INVARIANT: mmap returned the aligned start of a mapping of this length, and it is not
        // null.
        Ok(Self {
            base: NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?,
            len,
            lender: None,
        })
    }

    fn anonymous(len: usize) -> io::Result<Self> {
        Self::new(
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    }

    /// Zeroed memory from the program's allocators, if there are any and they return memory.
    fn lent(len: usize, lender: Option<&Lender>) -> io::Result<Option<Self>> {
        let lent = match lender {
            Some(lender) => lender.lend(len)?.zip(Some(lender.clone())),
            None => None,
        };
        let Some((base, lender)) = lent else {
            return Ok(None);
        };
        // SAFETY: the program has allocated `len` bytes for this mapping only.
        unsafe { base.as_ptr().write_bytes(0, len) };
        // INVARIANT: the memory came from the lender, and stays valid until it is given back.
        Ok(Some(Self {
            base,
            len,
            lender: Some(lender),
        }))
    }

    /// Excludes the mapping from children of the process.
    fn forget_at_fork(self) -> io::Result<Self> {
        let base = self.base.as_ptr().cast();
        // SAFETY: the range is this mapping.
        match unsafe { libc::madvise(base, self.len, libc::MADV_DONTFORK) } {
            0 => Ok(self),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match &self.lender {
            Some(lender) => lender.give_back(self.base),
            None => {
                // SAFETY: by the invariants this is a mapping, and nothing borrows from it any
                // more.
                unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
            }
        }
    }
}

/// A ring for a queue that will be created or moved. Its memory is lent by the program, or else
/// allocated by the kernel during the command and mapped after the command.
pub struct PlannedRing {
    layout: RingLayout,
    lent: Option<Mapping>,
}

impl PlannedRing {
    /// Plans a ring.
    ///
    /// # Errors
    ///
    /// Errors of [`Lender::lend`].
    pub fn new(layout: RingLayout, lender: Option<&Lender>) -> io::Result<Self> {
        let lent = Mapping::lent(layout.size() as usize, lender)?;
        Ok(Self { layout, lent })
    }

    pub fn layout(&self) -> RingLayout {
        self.layout
    }

    /// Whether the program lends the memory.
    pub fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// The ring's description in the request to the kernel module.
    pub fn user_ring(&self) -> UserRing {
        UserRing {
            addr: self
                .lent
                .as_ref()
                .map_or(0, |lent| lent.base.as_ptr() as u64),
            slots: self.layout.slots(),
            slot_shift: self.layout.slot_shift(),
            ..UserRing::default()
        }
    }

    /// The mapped ring. Unless the program has lent the memory, maps `mapping` of the context's
    /// file `fd`.
    ///
    /// # Errors
    ///
    /// Errors of mmap, and `EPROTO` if the module's mapping is too short.
    pub fn map(self, fd: RawFd, mapping: &RingMapping) -> io::Result<RingMap> {
        let Self { layout, lent } = self;
        let mapping = match lent {
            Some(lent) => lent,
            None => {
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let len = usize::try_from(mapping.length).unwrap_or(0);
                if len < layout.size() as usize {
                    return Err(io::Error::from_raw_os_error(libc::EPROTO));
                }
                Mapping::new(len, protection, libc::MAP_SHARED, fd, mapping.offset)?
            }
        };
        // INVARIANT: lent memory is as long as the layout, and the length of the kernel's memory
        // was checked.
        Ok(RingMap { mapping, layout })
    }

    /// The ring for a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of mmap.
    pub fn in_memory(self) -> io::Result<RingMap> {
        let Self { layout, lent } = self;
        let mapping = match lent {
            Some(lent) => lent,
            None => Mapping::anonymous(layout.size() as usize)?,
        };
        // INVARIANT: the mapping is as long as the layout.
        Ok(RingMap { mapping, layout })
    }
}

/// The bytes of one ring.
///
/// # Invariants
///
/// `mapping` is at least as long as `layout`.
pub struct RingMap {
    mapping: Mapping,
    layout: RingLayout,
}

impl RingMap {
    /// A ring for a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of mmap.
    pub fn in_memory(layout: RingLayout) -> io::Result<Self> {
        PlannedRing::new(layout, None)?.in_memory()
    }

    /// The description of this ring in a request to move a queue to it. It is empty for a ring in
    /// the kernel's memory: the module has prepared that ring itself.
    pub fn move_request(&self) -> UserRing {
        match self.mapping.lender {
            Some(_) => self.user_ring(),
            None => UserRing::default(),
        }
    }

    /// The address and the layout of the ring in this process.
    pub fn user_ring(&self) -> UserRing {
        UserRing {
            addr: self.mapping.base.as_ptr() as u64,
            slots: self.layout.slots(),
            slot_shift: self.layout.slot_shift(),
            ..UserRing::default()
        }
    }

    #[inline]
    pub fn layout(&self) -> &RingLayout {
        &self.layout
    }

    #[inline(always)]
    pub fn slot(&self, position: u32) -> RingSlot<'_> {
        self.slot_at(position, self.layout.slot_shift())
    }

    /// The slot of a position in a ring with slots of the smallest size.
    #[inline(always)]
    pub fn smallest_slot(&self, position: u32) -> RingSlot<'_> {
        debug_assert_eq!(self.layout.slot_shift(), *SLOT_SHIFT_RANGE.start());
        // With longer slots, the address would still be inside of the ring.
        self.slot_at(position, *SLOT_SHIFT_RANGE.start())
    }

    /// The slot of a position. `shift` is at most the log2 of the slot size.
    #[inline(always)]
    fn slot_at(&self, position: u32, shift: u8) -> RingSlot<'_> {
        let offset = self.layout.slot_index(position) << shift;
        // SAFETY: all slots lie in the mapping, by the invariants.
        let start = unsafe { self.mapping.base.as_ptr().add(offset) };
        // INVARIANT: the slot is a part of the layout.
        RingSlot {
            start,
            _memory: PhantomData,
        }
    }

    /// Access to the ring without bounds checks.
    ///
    /// # Safety
    ///
    /// The result is used with offsets of [this layout](Self::layout) only: the caller passes it to
    /// a queue that was made with this layout.
    #[inline(always)]
    pub unsafe fn unchecked(&self) -> &Unchecked {
        // SAFETY: `Unchecked` is a transparent wrapper of `RingMap`.
        unsafe { &*ptr::from_ref(self).cast() }
    }

    /// Checks that the ring has `len` bytes at `offset`, which is a multiple of `align`.
    ///
    /// # Panics
    ///
    /// If the ring does not have these bytes.
    fn checked(&self, offset: u32, len: usize, align: usize) -> &Unchecked {
        let offset = offset as usize;
        let is_inside = offset % align == 0
            && offset
                .checked_add(len)
                .is_some_and(|end| end <= self.layout.size() as usize);
        assert!(is_inside, "no part of the ring is at {offset}");
        // SAFETY: the result is used for the access that was checked.
        unsafe { self.unchecked() }
    }
}

/// A ring whose accesses are not checked. The caller of [`RingMap::unchecked`] has promised to
/// access only parts of the layout.
#[repr(transparent)]
pub struct Unchecked(RingMap);

impl Unchecked {
    /// The address of `len` bytes at `offset`. They lie in the ring.
    #[inline(always)]
    fn at(&self, offset: u32, len: usize) -> *mut u8 {
        debug_assert!(offset as usize + len <= self.0.mapping.len);
        // SAFETY: by the promise to `RingMap::unchecked` this is a part of the layout, which lies
        // in the mapping by the invariants.
        unsafe { self.0.mapping.base.as_ptr().add(offset as usize) }
    }

    #[inline(always)]
    fn u16(&self, offset: u32) -> &AtomicU16 {
        debug_assert!(offset % 2 == 0);
        // SAFETY: the word is in the mapping, and aligned, since every 16-bit part of a layout is
        // aligned; the word is only ever accessed atomically.
        unsafe { AtomicU16::from_ptr(self.at(offset, 2).cast()) }
    }

    #[inline(always)]
    fn u32(&self, offset: u32) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0);
        // SAFETY: as in `u16`, the word is in the mapping, aligned and only accessed atomically.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The position that the device writes.
    #[inline(always)]
    fn device(&self, layout: &RingLayout) -> &AtomicU32 {
        debug_assert_eq!(layout.device(), layout.owner() + CACHE_LINE);
        // SAFETY: the device's position lies a cache line after the owner's, and is aligned. The
        // distance is added to the pointer, where it becomes part of the addressing mode; added to
        // the 32-bit offset, it would cost an instruction.
        unsafe { AtomicU32::from_ptr(self.at(layout.owner(), 4).add(CACHE_LINE as usize).cast()) }
    }

    #[inline(always)]
    fn u64(&self, offset: u32) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0);
        // SAFETY: as in `u16`, the word is in the mapping, aligned and only accessed atomically.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

/// A slot of a ring, for one thread to use.
///
/// # Invariants
///
/// `start` is the start of a slot that is mapped for `'a`.
#[derive(Clone, Copy)]
pub struct RingSlot<'a> {
    start: *mut u8,
    _memory: PhantomData<&'a RingMap>,
}

impl RingSlot<'_> {
    /// The first `N` bytes of the slot. `N` is at most the smallest slot size.
    #[inline(always)]
    pub fn read<const N: usize>(self) -> [u8; N] {
        const { assert!(N <= 1 << *SLOT_SHIFT_RANGE.start()) };
        // SAFETY: the source is part of the slot, by the invariants. The ring's positions determine
        // which side owns a slot: this slot is the driver's, so no other thread writes it.
        unsafe { self.start.cast::<[u8; N]>().read() }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    ///
    /// The slot has at least `offset + bytes.len()` bytes.
    #[inline(always)]
    pub unsafe fn write(self, offset: usize, bytes: &[u8]) {
        // SAFETY: the destination is part of the slot, by the invariants and the caller's promise.
        // The ring's positions determine which side owns a slot: this slot is the driver's, and no
        // reference to it exists.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
    }
}

/// Checks the bounds of each access. For control verbs and tests.
impl RingMemory for RingMap {
    fn load_u32(&self, offset: u32) -> u32 {
        self.checked(offset, 4, 4).load_u32(offset)
    }

    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.checked(offset, 4, 4).load_u32_acquire(offset)
    }

    fn store_u32(&self, offset: u32, value: u32) {
        self.checked(offset, 4, 4).store_u32(offset, value);
    }

    fn store_u32_release(&self, offset: u32, value: u32) {
        self.checked(offset, 4, 4).store_u32_release(offset, value);
    }

    fn load_u64(&self, offset: u32) -> u64 {
        self.checked(offset, 8, 8).load_u64(offset)
    }

    fn store_u64(&self, offset: u32, value: u64) {
        self.checked(offset, 8, 8).store_u64(offset, value);
    }

    fn load_u16(&self, offset: u32) -> u16 {
        self.checked(offset, 2, 2).load_u16(offset)
    }

    fn store_u16(&self, offset: u32, value: u16) {
        self.checked(offset, 2, 2).store_u16(offset, value);
    }

    fn read(&self, offset: u32, bytes: &mut [u8]) {
        self.checked(offset, bytes.len(), 1).read(offset, bytes);
    }

    fn write(&self, offset: u32, bytes: &[u8]) {
        self.checked(offset, bytes.len(), 1).write(offset, bytes);
    }

    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

impl RingMemory for Unchecked {
    #[inline(always)]
    fn publish_owner(&self, layout: &RingLayout, value: u32) -> u32 {
        // An exchange in place of store and fence would be faster. But QEMU's translator leaves out
        // the barrier of an exchange in a guest with a single processor.
        let device = self.device(layout);
        self.u32(layout.owner()).store(value, Ordering::Release);
        fence(Ordering::SeqCst);
        device.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_device_acquire(&self, layout: &RingLayout) -> u32 {
        self.device(layout).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn load_u32(&self, offset: u32) -> u32 {
        self.u32(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.u32(offset).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store_u32(&self, offset: u32, value: u32) {
        self.u32(offset).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn store_u32_release(&self, offset: u32, value: u32) {
        self.u32(offset).store(value, Ordering::Release);
    }

    #[inline(always)]
    fn load_u64(&self, offset: u32) -> u64 {
        self.u64(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn store_u64(&self, offset: u32, value: u64) {
        self.u64(offset).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn load_u16(&self, offset: u32) -> u16 {
        self.u16(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn store_u16(&self, offset: u32, value: u16) {
        self.u16(offset).store(value, Ordering::Relaxed);
    }

    #[inline(always)]
    fn read(&self, offset: u32, bytes: &mut [u8]) {
        // SAFETY: the source is part of a slot, so it is in the mapping. The ring's positions
        // determine which side owns a slot: this slot is the driver's, so no other thread writes
        // it, and no reference to it exists.
        unsafe {
            ptr::copy_nonoverlapping(
                self.at(offset, bytes.len()),
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        };
    }

    #[inline(always)]
    fn write(&self, offset: u32, bytes: &[u8]) {
        // SAFETY: as in `read`, for the destination.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len())
        };
    }

    #[inline(always)]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A doorbell page of the device.
pub struct DoorbellPage(Mapping);

impl DoorbellPage {
    /// Maps the doorbell page of `size` bytes, a page of the kernel, at `offset` of the context's
    /// file.
    ///
    /// # Errors
    ///
    /// Errors of mmap and madvise.
    pub fn map(fd: RawFd, offset: u64, size: u32) -> io::Result<Self> {
        let len = size as usize;
        let mapping = Mapping::new(len, libc::PROT_WRITE, libc::MAP_SHARED, fd, offset)?;
        // A child process has no queues whose doorbells it could ring.
        mapping.forget_at_fork().map(Self)
    }

    /// A page of memory that replaces a doorbell page, for a device in the same process.
    ///
    /// # Errors
    ///
    /// Errors of mmap.
    pub fn in_memory() -> io::Result<Self> {
        Mapping::anonymous(size_of::<u32>()).map(Self)
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the page is mapped and aligned, and only accessed through this word.
        unsafe { AtomicU32::from_ptr(self.0.base.as_ptr().cast()) }
    }

    /// Rings a doorbell: writes its value to the page.
    #[inline]
    pub fn ring(&self, doorbell: u32) {
        self.word().store(doorbell.to_le(), Ordering::Release);
    }

    /// The doorbell that was rung last, on a page [`in_memory`](Self::in_memory).
    pub fn last(&self) -> Option<Doorbell> {
        Doorbell::from_u32(u32::from_le(self.word().load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use std::panic;
    use std::panic::AssertUnwindSafe;

    use virtio_rdma_abi::ring::RingKind;

    use super::*;

    #[test]
    fn accesses_outside_of_a_ring_are_refused() {
        let layout = RingLayout::new(RingKind::Shared, 4, 6).unwrap();
        let ring = RingMap::in_memory(layout).unwrap();
        let refused = |access: &dyn Fn()| panic::catch_unwind(AssertUnwindSafe(access)).is_err();
        let end = layout.size();
        assert!(!refused(&|| _ = ring.load_u16(end - 2)));
        assert!(!refused(&|| ring.write(end - 4, &[0; 4])));
        for offset in [end, end - 1, 1, !1, u32::MAX] {
            assert!(refused(&|| _ = ring.load_u16(offset)));
            assert!(refused(&|| ring.store_u16(offset, 0)));
        }
        for offset in [end, end - 2, 2, !3] {
            assert!(refused(&|| _ = ring.load_u32_acquire(offset)));
            assert!(refused(&|| ring.store_u32_release(offset, 0)));
        }
        for offset in [end, end - 4, 4, !7] {
            assert!(refused(&|| _ = ring.load_u64(offset)));
            assert!(refused(&|| ring.store_u64(offset, 0)));
        }
        assert!(refused(&|| ring.read(end - 4, &mut [0; 5])));
        assert!(refused(&|| ring.write(u32::MAX, &[0])));
    }
}
