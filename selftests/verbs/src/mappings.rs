// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Mappings of this process that the provider shares with the device: rings and doorbell pages.
//!
//! This module finds them in `/proc/self/smaps`, as any program could. Both are mappings of the
//! uverbs device: a ring consists of memory pages, a doorbell page of device registers.

use std::fs::{self, File};
use std::marker::PhantomData;
use std::os::unix::fs::FileExt;

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::Endpoint;
use crate::rdma::Context;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::ring::Doorbell;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A mapping of the uverbs device in this process.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    start: usize,
    length: usize,
    offset: u64,
    _queues: PhantomData<&'a ()>,
}

impl Mapping<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Address of the first byte.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Numbers of the page frames of the mapping. Only root can read them.
    pub fn frames(&self) -> Result<Vec<u64>> {
        // An entry of /proc/self/pagemap has the frame in bits 0 to 54 and the flag "present" in
        // bit 63.
        const FRAME: u64 = (1 << 55) - 1;
        const PRESENT: u64 = 1 << 63;
        let mut entries = vec![0; self.length / PAGE * 8];
        File::open("/proc/self/pagemap")?
            .read_exact_at(&mut entries, (self.start / PAGE * 8) as u64)?;
        let entries = entries.chunks_exact(8).map(|bytes| {
            let entry = bytes
                .iter()
                .rev()
                .fold(0, |entry, byte| (entry << 8) | u64::from(*byte));
            ensure!(
                entry & PRESENT != 0 && entry & FRAME != 0,
                "no frame: {entry:#x}"
            );
            Ok(entry & FRAME)
        });
        entries.collect()
    }

    /// Offset of the mapping in the uverbs device, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Replaces the mapping by zeroed private memory, which the device does not share.
    pub fn replace(&self) -> Result<()> {
        use rustix::mm::{mmap_anonymous, MapFlags, ProtFlags};
        // SAFETY: The new mapping has the same address and length and is readable and writable, so
        // accesses of the provider stay valid until it unmaps the range. No Rust object is at this
        // address.
        unsafe {
            mmap_anonymous(
                self.start as *mut _,
                self.length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        }?;
        Ok(())
    }

    /// Loads the 32 bits at `offset`, which must be a multiple of 4.
    pub fn load(&self, offset: usize) -> u32 {
        assert!(offset % 4 == 0 && offset + 4 <= self.length);
        let source = (self.start + offset) as *const u32;
        // SAFETY: As in `store`.
        unsafe { source.read_volatile() }
    }

    /// Stores 32 bits at `offset`, which must be a multiple of 4.
    pub fn store(&self, offset: usize, value: u32) {
        assert!(offset % 4 == 0 && offset + 4 <= self.length);
        let target = (self.start + offset) as *mut u32;
        // SAFETY: The mapping is writable and exists as long as the queues, which `self` borrows.
        // It is no Rust object: the provider accesses it as memory that the device may change at
        // any time.
        unsafe { target.write_volatile(value) };
    }
}

/// Whether the driver allows a mapping with these attributes. The mapping is removed at once.
pub fn can_map(context: &Context, offset: u64, length: usize, shared: bool, execute: bool) -> bool {
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
    let flags = match shared {
        true => MapFlags::SHARED,
        false => MapFlags::PRIVATE,
    };
    let protection = match execute {
        true => ProtFlags::READ | ProtFlags::WRITE | ProtFlags::EXEC,
        false => ProtFlags::WRITE,
    };
    // SAFETY: The kernel chooses an unused address, and the mapping is not accessed.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            length,
            protection,
            flags,
            context.descriptor(),
            offset,
        )
    };
    match mapped {
        Ok(start) => {
            // SAFETY: The mapping was just created, and nothing refers to it.
            let _ = unsafe { munmap(start, length) };
            true
        }
        Err(_) => false,
    }
}

/// Rings and doorbell pages of this process.
pub struct Mappings<'a> {
    rings: Vec<Mapping<'a>>,
    doorbells: Vec<Mapping<'a>>,
}

impl<'a> Mappings<'a> {
    /// Finds the mappings of all queues of this process. The result borrows `queues`, so the
    /// mappings of `queues` exist as long as the result.
    pub fn find<T>(_queues: &'a T) -> Result<Self> {
        let mut found = Self {
            rings: Vec::new(),
            doorbells: Vec::new(),
        };
        let smaps = fs::read_to_string("/proc/self/smaps")?;
        let mut current = None;
        for line in smaps.lines() {
            let first = line.split(' ').next().unwrap_or_default();
            if let Some((start, end)) = first.split_once('-') {
                let start = usize::from_str_radix(start, 16).context("start of a mapping")?;
                let end = usize::from_str_radix(end, 16).context("end of a mapping")?;
                let mapping = Mapping {
                    start,
                    length: end - start,
                    offset: line
                        .split(' ')
                        .nth(2)
                        .and_then(|offset| u64::from_str_radix(offset, 16).ok())
                        .context("offset of a mapping")?,
                    _queues: PhantomData,
                };
                let writable = line
                    .split(' ')
                    .nth(1)
                    .is_some_and(|mode| mode.contains('w'));
                current = writable.then_some((mapping, line.contains("/dev/infiniband/uverbs")));
            } else if let (Some(flags), Some((mapping, device))) =
                (line.strip_prefix("VmFlags:"), current)
            {
                let has = |name| flags.split(' ').any(|flag| flag == name);
                match device {
                    // Flag "pf": page frames without a struct page, so device registers.
                    true if has("pf") => found.doorbells.push(mapping),
                    true if has("mm") => found.rings.push(mapping),
                    _ => (),
                }
            }
        }
        // Other providers have longer mappings of device registers.
        found.doorbells.retain(|mapping| mapping.length == PAGE);
        Ok(found)
    }

    pub fn rings(&self) -> &[Mapping<'a>] {
        &self.rings
    }

    /// The doorbell pages.
    pub fn doorbells(&self) -> &[Mapping<'a>] {
        &self.doorbells
    }

    /// Rings the doorbells of both queues of `end`, so that the device reads their rings.
    pub fn ring_all(&self, end: &Endpoint) {
        let qpn = Qpn::new(end.qp.qpn());
        for doorbell in [Doorbell::Sq(qpn), Doorbell::Rq(qpn)] {
            for page in &self.doorbells {
                page.store(0, doorbell.to_u32());
            }
        }
    }
}
