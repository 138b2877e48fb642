// SPDX-License-Identifier: GPL-2.0

//! Memory of a queue that CPU and device access concurrently.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use super::{
    while_bound::WhileBound,
    Device,
    Driver, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        compiler_fence,
        Ordering, //
    }, //
};
use kernel::{
    dma::{
        Coherent,
        DmaAddress, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*, //
};

/// Alignment of the start of a [`Span`] in bytes.
const ALIGN: usize = align_of::<u64>();

/// A word at any address, aligned or not.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<W>(W);

/// Copies bytes out by volatile loads of words. Each byte is loaded once, so data that was checked
/// in the copy can't change afterwards.
///
/// # Safety
///
/// `from` is valid for volatile reads of `len` bytes, `to` for writes.
#[inline(always)]
unsafe fn copy_out(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    ///
    /// `from` is valid for a volatile read of a word at `at`, `to` for a write.
    #[inline(always)]
    unsafe fn word<W: Copy>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: `from` is valid for a volatile read of a word at `at`, `to` for a write.
        unsafe {
            let word = from.add(at).cast::<Unaligned<W>>().read_volatile().0;
            to.add(at).cast::<W>().write_unaligned(word);
        }
    }
    // SAFETY: Each range is within `len`, and the ranges follow each other.
    unsafe {
        for index in 0..len / 8 {
            word::<u64>(from, to, index * 8);
        }
        if len & 4 != 0 {
            word::<u32>(from, to, len & !7);
        }
        if len & 2 != 0 {
            word::<u16>(from, to, len & !3);
        }
        if len & 1 != 0 {
            word::<u8>(from, to, len & !1);
        }
    }
}

/// Copies bytes in by volatile stores of words.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes, `to` for volatile writes. If `ALIGNED`, `to` is
/// aligned to [`ALIGN`].
#[inline(always)]
unsafe fn copy_in<const ALIGNED: bool>(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    ///
    /// `from` is valid for a read of a word at `at`, `to` for a volatile write. If `ALIGNED`, the
    /// word at `at` is aligned.
    #[inline(always)]
    unsafe fn word<W: Copy, const ALIGNED: bool>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: `from` is valid for a read of a word at `at`, `to` for a volatile write.
        unsafe {
            let word = from.add(at).cast::<W>().read_unaligned();
            let to = to.add(at);
            if ALIGNED {
                to.cast::<W>().write_volatile(word);
            } else {
                // This is used only for unaligned words, since the compiler copies an `Unaligned`
                // through the stack.
                to.cast::<Unaligned<W>>().write_volatile(Unaligned(word));
            }
        }
    }
    // SAFETY: The ranges follow each other, and all are within `len`. Each offset is a multiple of
    // the word's size.
    unsafe {
        for index in 0..len / 8 {
            word::<u64, ALIGNED>(from, to, index * 8);
        }
        if len & 4 != 0 {
            word::<u32, ALIGNED>(from, to, len & !7);
        }
        if len & 2 != 0 {
            word::<u16, ALIGNED>(from, to, len & !3);
        }
        if len & 1 != 0 {
            word::<u8, ALIGNED>(from, to, len & !1);
        }
    }
}

/// The barriers that order accesses with respect to a queue's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// Barriers between CPUs, for a device that is software on another CPU, even if the guest has
    /// one CPU only.
    Cpus,
    /// The platform's barriers for devices.
    Platform,
}

/// Zeroed DMA memory in pages of equal size. The methods below present the pages to the CPU as one
/// piece, and to the device as a list of addresses. The pages are small, so a queue of any size can
/// be allocated when memory is fragmented.
///
/// The device may write at any time, and so may other CPUs, since the methods take `&self`. So all
/// accesses are volatile accesses to words, by this module only; ranges of bytes are copied word by
/// word. An offset beyond the end, a misaligned word and a range that crosses the end of a page are
/// mistakes of the driver: reads of these return zeroes, and writes do nothing.
///
/// Accesses are ordered by `virt_` barriers, or with [`Barriers::Platform`] by `mb()` and `dma_`
/// barriers.
///
/// Memory that is dropped after the driver was unbound from its device is leaked.
///
/// `WORDS` words of 32 bits are fixed: their addresses are computed once, and methods refer to them
/// by index.
///
/// # Examples
///
/// ```
/// use crate::rdma::{
///     queue_memory::{Barriers, QueueMemory, Span},
///     Device, Driver,
/// };
///
/// /// Writes a work request of eight bytes and publishes its position.
/// fn post<T: Driver>(device: &Device<T>) -> Result<QueueMemory<1>> {
///     // The position is the word at offset 0.
///     let ring = QueueMemory::new(device, 4096, [0], Barriers::Cpus)?;
///     let mut slot: Span<'_> = ring.span(64);
///     slot.put(0, &[1; 8]);
///     ring.store_fixed_release::<0>(1);
///     ring.full_barrier();
///     Ok(ring)
/// }
/// ```
///
/// # Invariants
///
/// - Each page has `1 << page_shift` bytes. Its CPU address is in `addresses`, and is aligned to
///   the size of the page or of the kernel's pages, whichever is smaller.
/// - `page_mask` is `(1 << page_shift) - 1`.
/// - `words` are aligned, and within pages.
/// - The memory is accessed by volatile operations on raw pointers only.
pub struct QueueMemory<const WORDS: usize> {
    words: [NonNull<u32>; WORDS],
    addresses: KVec<NonNull<u8>>,
    pages: WhileBound<KVec<Coherent<[u8]>>>,
    page_shift: u32,
    page_mask: usize,
    barriers: Barriers,
}

impl<const WORDS: usize> QueueMemory<WORDS> {
    /// Maximum number of pages: the number of page addresses that fit into one page of the kernel.
    const MAX_PAGES: usize = PAGE_SIZE / size_of::<u64>();

    /// Allocates at least `size` bytes, with fixed words at the offsets `words`.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a word that is misaligned or beyond the end.
    pub fn new<T: Driver>(
        device: &Device<T>,
        size: usize,
        words: [u32; WORDS],
        barriers: Barriers,
    ) -> Result<Self> {
        let mut page_shift = PAGE_SHIFT;
        while size.div_ceil(1 << page_shift) > Self::MAX_PAGES {
            page_shift += 1;
        }
        let count = size.div_ceil(1 << page_shift);
        let mut addresses = KVec::with_capacity(count, GFP_KERNEL)?;
        let dma_device = device.dma_device();
        let mut pages = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let page = Coherent::<u8>::zeroed_slice(dma_device, 1 << page_shift, GFP_KERNEL)?;
            addresses.push(
                NonNull::new(page.as_mut_ptr().cast()).ok_or(ENOMEM)?,
                GFP_KERNEL,
            )?;
            pages.push(page, GFP_KERNEL)?;
        }
        // INVARIANT: DMA memory is at least aligned to the kernel's pages. The fixed words are not
        // used before their addresses are set.
        let mut this = Self {
            words: [NonNull::dangling(); WORDS],
            addresses,
            pages: WhileBound::new(device, pages),
            page_shift: u32::try_from(page_shift)?,
            page_mask: (1 << page_shift) - 1,
            barriers,
        };
        let mut fixed = this.words;
        for (word, offset) in fixed.iter_mut().zip(words) {
            *word = this.word(offset).and_then(NonNull::new).ok_or(EINVAL)?;
        }
        // INVARIANT: `word` returned valid addresses.
        this.words = fixed;
        Ok(this)
    }

    /// Binary logarithm of the page size.
    pub fn page_shift(&self) -> u8 {
        // CAST: The exponent is less than the number of bits of an address.
        self.page_shift as u8
    }

    /// Number of pages.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// DMA addresses of the pages.
    pub fn pages(&self) -> impl Iterator<Item = DmaAddress> + '_ {
        self.pages.iter().map(Coherent::dma_address)
    }

    /// The address of byte `offset`, and the number of bytes from there to the end of its page.
    #[inline]
    fn at(&self, offset: u32) -> Option<(*mut u8, usize)> {
        let offset = offset as usize;
        // By the type invariants the shift does not wrap. `wrapping_shr` saves a check in each post
        // and poll.
        let page = self.addresses.get(offset.wrapping_shr(self.page_shift))?;
        let within = offset & self.page_mask;
        let left = (self.page_mask ^ within).wrapping_add(1);
        // SAFETY: By the type invariants the page has more bytes than `within`, which is at most
        // the mask.
        Some((unsafe { page.as_ptr().add(within) }, left))
    }

    /// The address of the word at `offset`.
    #[inline]
    fn word<W>(&self, offset: u32) -> Option<*mut W> {
        let (address, _) = self.at(offset)?;
        let address = address.cast::<W>();
        // An aligned word does not cross the end of a page.
        address.is_aligned().then_some(address)
    }

    /// Loads a word of 16 bits.
    #[inline]
    pub fn load_u16(&self, offset: u32) -> u16 {
        self.word(offset).map_or(0, |word: *mut u16| {
            // SAFETY: The word is valid and aligned.
            unsafe { word.read_volatile() }
        })
    }

    /// Stores a word of 16 bits.
    #[inline]
    pub fn store_u16(&self, offset: u32, value: u16) {
        if let Some(word) = self.word::<u16>(offset) {
            // SAFETY: The word is valid and aligned.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Loads a word of 32 bits.
    #[inline]
    pub fn load_u32(&self, offset: u32) -> u32 {
        self.word(offset).map_or(0, |word: *mut u32| {
            // SAFETY: The word is valid and aligned.
            unsafe { word.read_volatile() }
        })
    }

    /// Loads fixed word `INDEX`.
    #[inline]
    pub fn load_fixed<const INDEX: usize>(&self) -> u32 {
        // SAFETY: By the type invariants the word is valid and aligned.
        unsafe { self.fixed::<INDEX>().read_volatile() }
    }

    /// Loads fixed word `INDEX` with acquire ordering.
    #[inline]
    pub fn load_fixed_acquire<const INDEX: usize>(&self) -> u32 {
        // SAFETY: By the type invariants the word is valid and aligned.
        unsafe { self.acquire(self.fixed::<INDEX>()) }
    }

    /// Stores fixed word `INDEX` with release ordering.
    #[inline]
    pub fn store_fixed_release<const INDEX: usize>(&self, value: u32) {
        // SAFETY: By the type invariants the word is valid and aligned.
        unsafe { self.release(self.fixed::<INDEX>(), value) };
    }

    #[inline]
    fn fixed<const INDEX: usize>(&self) -> *mut u32 {
        const { assert!(INDEX < WORDS) };
        self.words[INDEX].as_ptr()
    }

    /// # Safety
    ///
    /// `word` is aligned, and valid for a volatile read.
    #[inline]
    unsafe fn acquire(&self, word: *mut u32) -> u32 {
        // SAFETY: `word` is aligned, and valid for a volatile read.
        unsafe {
            if cfg!(CONFIG_X86_64) {
                let value = word.read_volatile();
                // An x86 processor reorders neither loads with loads nor stores with stores, and
                // devices see the same order. Only the compiler may reorder them.
                compiler_fence(Ordering::Acquire);
                return value;
            }
            match self.barriers {
                Barriers::Cpus => bindings::virt_load_acquire_u32(word),
                Barriers::Platform => bindings::dma_load_acquire_u32(word),
            }
        }
    }

    /// # Safety
    ///
    /// `word` is aligned, and valid for a volatile write.
    #[inline]
    unsafe fn release(&self, word: *mut u32, value: u32) {
        // SAFETY: `word` is aligned, and valid for a volatile write.
        unsafe {
            if cfg!(CONFIG_X86_64) {
                // Only the compiler may reorder, as in `acquire`.
                compiler_fence(Ordering::Release);
                word.write_volatile(value);
                return;
            }
            match self.barriers {
                Barriers::Cpus => bindings::virt_store_release_u32(word, value),
                Barriers::Platform => bindings::dma_store_release_u32(word, value),
            }
        }
    }

    /// Loads a word of 32 bits with acquire ordering.
    #[inline]
    pub fn load_u32_acquire(&self, offset: u32) -> u32 {
        self.word(offset).map_or(0, |word| {
            // SAFETY: The word is valid and aligned.
            unsafe { self.acquire(word) }
        })
    }

    /// Stores a word of 32 bits.
    #[inline]
    pub fn store_u32(&self, offset: u32, value: u32) {
        if let Some(word) = self.word::<u32>(offset) {
            // SAFETY: The word is valid and aligned.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Stores a word of 32 bits with release ordering.
    #[inline]
    pub fn store_u32_release(&self, offset: u32, value: u32) {
        if let Some(word) = self.word(offset) {
            // SAFETY: The word is valid and aligned.
            unsafe { self.release(word, value) };
        }
    }

    /// Loads a word of 64 bits.
    #[inline]
    pub fn load_u64(&self, offset: u32) -> u64 {
        self.word(offset).map_or(0, |word: *mut u64| {
            // SAFETY: The word is valid and aligned.
            unsafe { word.read_volatile() }
        })
    }

    /// Stores a word of 64 bits.
    #[inline]
    pub fn store_u64(&self, offset: u32, value: u64) {
        if let Some(word) = self.word::<u64>(offset) {
            // SAFETY: The word is valid and aligned.
            unsafe { word.write_volatile(value) };
        }
    }

    /// Copies bytes out. They must lie in one page.
    #[inline]
    pub fn read(&self, offset: u32, bytes: &mut [u8]) {
        match self.at(offset) {
            Some((start, left)) if bytes.len() <= left => {
                // SAFETY: `at` returned the number of bytes up to the end of the page, which was
                // compared.
                unsafe { copy_out(start, bytes.as_mut_ptr(), bytes.len()) };
            }
            _ => bytes.fill(0),
        }
    }

    /// Copies an array out. It must lie in one page.
    #[inline]
    pub fn array<const N: usize>(&self, offset: u32) -> [u8; N] {
        let mut array = [0; N];
        if let Some((start, left)) = self.at(offset) {
            if N <= left {
                // SAFETY: `at` returned the number of bytes up to the end of the page, which was
                // compared.
                unsafe { copy_out(start, array.as_mut_ptr(), N) };
            }
        }
        array
    }

    /// The bytes from `offset`, a multiple of 8, to the end of its page, for writing.
    #[inline]
    pub fn span(&self, offset: u32) -> Span<'_> {
        match self.at(offset) {
            // INVARIANT: `at` returned the number of bytes.
            Some((start, size)) if start.cast::<u64>().is_aligned() => Span {
                start,
                size,
                _memory: PhantomData,
            },
            _ => Span::empty(),
        }
    }

    /// Orders all earlier accesses before all later ones.
    #[inline]
    pub fn full_barrier(&self) {
        // SAFETY: Barriers have no requirements.
        unsafe {
            match self.barriers {
                Barriers::Cpus => bindings::virt_mb(),
                Barriers::Platform => bindings::mb(),
            }
        }
    }
}

/// Bytes of a page of a queue, or of a slice, for writing.
///
/// Several spans may contain the same bytes, since all writes are volatile accesses.
///
/// # Invariants
///
/// `start` is valid for volatile writes of `size` bytes during `'a`, and aligned to `ALIGN`.
pub struct Span<'a> {
    start: *mut u8,
    size: usize,
    _memory: PhantomData<&'a mut [u8]>,
}

impl Span<'_> {
    /// No bytes.
    #[cold]
    fn empty() -> Self {
        // INVARIANT: The span has no bytes, and its pointer is aligned.
        Self {
            start: ptr::dangling_mut::<u64>().cast(),
            size: 0,
            _memory: PhantomData,
        }
    }

    /// Writes `bytes` at `offset`. Does nothing if they do not fit, which is a mistake of the
    /// driver.
    #[inline]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset.saturating_add(bytes.len()) > self.size {
            return;
        }
        let (from, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: By the check above the bytes fit the span; by the type invariants its start is
        // aligned.
        unsafe {
            let to = self.start.add(offset);
            if offset % ALIGN == 0 {
                copy_in::<true>(from, to, len);
            } else {
                copy_in::<false>(from, to, len);
            }
        }
    }
}

impl<'a> From<&'a mut [u8]> for Span<'a> {
    /// The bytes of a slice. An empty span if the slice is not aligned to 8 bytes; memory of
    /// `kmalloc` is always aligned.
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        let (start, size) = (bytes.as_mut_ptr(), bytes.len());
        if !start.cast::<u64>().is_aligned() {
            return Self::empty();
        }
        // INVARIANT: By the reference and the check above.
        Self {
            start,
            size,
            _memory: PhantomData,
        }
    }
}

// SAFETY: Any thread may access and free the memory.
unsafe impl<const WORDS: usize> Send for QueueMemory<WORDS> {}

// SAFETY: By the type invariants all accesses are volatile; the kernel's memory model allows these
// to race.
unsafe impl<const WORDS: usize> Sync for QueueMemory<WORDS> {}
