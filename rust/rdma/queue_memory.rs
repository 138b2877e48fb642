// SPDX-License-Identifier: GPL-2.0

//! Memory of a queue that the CPU and a device use at the same time.
//!
//! C header: [`include/linux/dma-mapping.h`](srctree/include/linux/dma-mapping.h)

use core::{
    marker::PhantomData,
    ptr::{
        self,
        NonNull, //
    }, //
};
use kernel::{
    device::{
        self,
        Bound, //
    },
    dma::{
        Coherent,
        DmaAddress, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Acquire,
            Atomic,
            Relaxed,
            Release, //
        },
        barrier::{
            smp_mb,
            Full, //
        }, //
    }, //
};

/// Zeroed DMA memory in pages of equal size, which together are as one piece for the CPU through the methods below and
/// for a device that has the list of their addresses. No piece is large, so that a queue of any size can be had when
/// memory is fragmented.
///
/// The device writes at any moment, so words are accessed atomically and byte ranges by copies of which nothing is
/// assumed. Offsets beyond the end, of words that are not aligned, and ranges that reach beyond a page, are a mistake of
/// the driver: reading gives zeroes there and writing does nothing.
///
/// # Invariants
///
/// - Each page has `1 << page_shift` bytes, of which the CPU address is in `addresses`, aligned to its size or that of
///   the kernel's pages, whichever is smaller.
/// - `page_mask` is `(1 << page_shift) - 1`.
/// - The memory is accessed by raw pointers only.
pub struct QueueMemory {
    addresses: KVec<NonNull<u8>>,
    pages: KVec<Coherent<[u8]>>,
    page_shift: u32,
    page_mask: usize,
}

impl QueueMemory {
    /// Greatest number of pages: a list of their addresses fits a page of the kernel.
    const MAX_PAGES: usize = PAGE_SIZE / size_of::<u64>();

    /// Allocates `size` bytes at least.
    pub fn new(device: &device::Device<Bound>, size: usize) -> Result<Self> {
        let mut page_shift = PAGE_SHIFT;
        while size.div_ceil(1 << page_shift) > Self::MAX_PAGES {
            page_shift += 1;
        }
        let count = size.div_ceil(1 << page_shift);
        let mut addresses = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut pages = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let page = Coherent::<u8>::zeroed_slice(device, 1 << page_shift, GFP_KERNEL)?;
            addresses.push(
                NonNull::new(page.as_mut_ptr().cast()).ok_or(ENOMEM)?,
                GFP_KERNEL,
            )?;
            pages.push(page, GFP_KERNEL)?;
        }
        // INVARIANT: DMA memory is aligned to the kernel's pages at least.
        Ok(Self {
            addresses,
            pages,
            page_shift: u32::try_from(page_shift)?,
            page_mask: (1 << page_shift) - 1,
        })
    }

    /// Pages have 2ⁿ bytes.
    pub fn page_shift(&self) -> u8 {
        // LOSSY: Less than the number of bits of an address.
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

    /// The address of byte `offset`, and how many bytes there are from there to the end of its page.
    #[inline]
    fn at(&self, offset: u32) -> Option<(*mut u8, usize)> {
        let offset = offset as usize;
        // Nothing wraps here, by the type invariants. Said so, it is not checked: this is in the way of each post and poll.
        let page = self.addresses.get(offset.wrapping_shr(self.page_shift))?;
        let within = offset & self.page_mask;
        let left = (self.page_mask ^ within).wrapping_add(1);
        // SAFETY: By the type invariants the page has more bytes than `within`, which is at most the mask.
        Some((unsafe { page.as_ptr().add(within) }, left))
    }

    /// The word at `offset`.
    #[inline]
    fn word<W>(&self, offset: u32) -> Option<&Atomic<W>>
    where
        W: kernel::sync::atomic::AtomicType,
    {
        let (address, _) = self.at(offset)?;
        let address = address.cast::<W>();
        if !address.is_aligned() {
            return None;
        }
        // SAFETY: An aligned word does not reach beyond its page. By the type invariants it is valid as long as `self`,
        // and the CPU accesses it by atomic operations and raw copies only.
        Some(unsafe { Atomic::from_ptr(address) })
    }

    /// Loads a word.
    #[inline]
    pub fn load_u16(&self, offset: u32) -> u16 {
        self.word::<i16>(offset).map_or(0, |word| {
            u16::from_ne_bytes(word.load(Relaxed).to_ne_bytes())
        })
    }

    /// Loads a word; accesses after it stay after it.
    #[inline]
    pub fn load_u16_acquire(&self, offset: u32) -> u16 {
        self.word::<i16>(offset).map_or(0, |word| {
            u16::from_ne_bytes(word.load(Acquire).to_ne_bytes())
        })
    }

    /// Stores a word.
    #[inline]
    pub fn store_u16(&self, offset: u32, value: u16) {
        if let Some(word) = self.word::<i16>(offset) {
            word.store(i16::from_ne_bytes(value.to_ne_bytes()), Relaxed);
        }
    }

    /// Stores a word; accesses before it stay before it.
    #[inline]
    pub fn store_u16_release(&self, offset: u32, value: u16) {
        if let Some(word) = self.word::<i16>(offset) {
            word.store(i16::from_ne_bytes(value.to_ne_bytes()), Release);
        }
    }

    /// Loads a double word.
    #[inline]
    pub fn load_u32(&self, offset: u32) -> u32 {
        self.word::<u32>(offset)
            .map_or(0, |word| word.load(Relaxed))
    }

    /// Stores a double word.
    #[inline]
    pub fn store_u32(&self, offset: u32, value: u32) {
        if let Some(word) = self.word::<u32>(offset) {
            word.store(value, Relaxed);
        }
    }

    /// Copies bytes out that lie within one page.
    #[inline]
    pub fn read(&self, offset: u32, bytes: &mut [u8]) {
        match self.at(offset) {
            Some((address, left)) if bytes.len() <= left => {
                // SAFETY: `at` says how many bytes there are. What a device writes meanwhile may or may not be seen: any
                // bytes are valid.
                unsafe { ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), bytes.len()) };
            }
            _ => bytes.fill(0),
        }
    }

    /// Copies out an array that lies within one page.
    #[inline]
    pub fn array<const N: usize>(&self, offset: u32) -> [u8; N] {
        match self.at(offset) {
            // SAFETY: `at` says how many bytes there are. What a device writes meanwhile may or may not be seen: any bytes
            // are valid.
            Some((address, left)) if N <= left => unsafe { address.cast::<[u8; N]>().read() },
            _ => [0; N],
        }
    }

    /// The bytes of a page from `offset` on, up to its end, to be written.
    #[inline]
    pub fn span(&self, offset: u32) -> Span<'_> {
        let (start, size) = self.at(offset).unwrap_or((ptr::dangling_mut(), 0));
        // INVARIANT: `at` says how many bytes there are, to which the CPU has no references.
        Span {
            start,
            size,
            _memory: PhantomData,
        }
    }

    /// Orders every access before it against every access after it.
    #[inline]
    pub fn full_barrier(&self) {
        smp_mb(Full);
    }
}

/// Bytes to be written, of a page of a queue or of a slice.
///
/// # Invariants
///
/// `start` is valid for writes of `size` bytes during `'a`.
pub struct Span<'a> {
    start: *mut u8,
    size: usize,
    _memory: PhantomData<&'a mut [u8]>,
}

impl Span<'_> {
    /// Writes `bytes` from `offset` on. What reaches beyond the end is a mistake of the driver, and is not written.
    #[inline]
    pub fn put(&mut self, offset: usize, bytes: &[u8]) {
        if offset.saturating_add(bytes.len()) <= self.size {
            // SAFETY: By the type invariants there are as many bytes. They are no part of `bytes`, to which there is a
            // reference.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(offset), bytes.len());
            }
        }
    }
}

impl<'a> From<&'a mut [u8]> for Span<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        // INVARIANT: By the reference.
        Self {
            start: bytes.as_mut_ptr(),
            size: bytes.len(),
            _memory: PhantomData,
        }
    }
}

// SAFETY: The memory may be used by any thread.
unsafe impl Send for QueueMemory {}

// SAFETY: Concurrent access to words is atomic, and to ranges of bytes what the driver's locks make of it; the bytes are
// plain data all the same.
unsafe impl Sync for QueueMemory {}
