// SPDX-License-Identifier: GPL-2.0

//! An exporter as an example, and for tests: each context that is attached to it has a few pages,
//! at addresses below those of processes.
//!
//! Byte `n` of the pages is initially `n + id`, modulo 256, where `id` is the number from the
//! process. Numbers from 1 to 255 are valid. The file `rdma_peer_sample/contexts` of debugfs counts
//! the contexts that were attached and detached.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
#[path = "../rust/kbuild/bindings/mod.rs"]
mod bindings;
#[allow(dead_code, unreachable_pub, unsafe_code)]
#[path = "../rust/kernel/dma_buf/mod.rs"]
mod dma_buf;
#[allow(unreachable_pub, unsafe_code)]
#[path = "../rust/kernel/peer_memory/exporter.rs"]
mod exporter;

use crate::{
    dma_buf::{
        pages::Pages,
        DmaBuf, //
    },
    exporter::{
        Exporter,
        Range,
        Registration, //
    }, //
};
use kernel::{
    debugfs::{
        Dir,
        File, //
    },
    page::PAGE_SIZE,
    prelude::*,
    sync::atomic::{
        Atomic,
        Relaxed, //
    }, //
};

/// Address of the first byte: processes have nothing below 64 KiB.
const START: u64 = 0x1000;
/// Pages of a context.
const COUNT: usize = 8;

/// Contexts that were attached.
static GOTTEN: Atomic<u32> = Atomic::new(0);
/// Contexts that were detached.
static PUT: Atomic<u32> = Atomic::new(0);

/// The memory of a context.
struct Memory(DmaBuf);

#[vtable]
impl Exporter for Memory {
    type OwnerModule = crate::LocalModule;

    const NAME: &'static CStr = c"sample";

    fn get_context(peer_id: u64) -> Result<KBox<Self>> {
        let id = u8::try_from(peer_id)?;
        if id == 0 {
            return Err(EINVAL);
        }
        let pages = Pages::new(COUNT, |at| id.wrapping_add((at % 256) as u8))?;
        let buffer = pages.export::<crate::LocalModule>(c"rdma_peer_sample")?;
        let context = KBox::new(Self(buffer), GFP_KERNEL)?;
        GOTTEN.fetch_add(1, Relaxed);
        Ok(context)
    }

    fn get_range(&self, address: u64, length: u64) -> Result<Option<Range>> {
        let size = (COUNT * PAGE_SIZE) as u64;
        let Some(offset) = address.checked_sub(START).filter(|offset| *offset < size) else {
            return Ok(None);
        };
        if length > size - offset {
            return Err(EFAULT);
        }
        Ok(Some(Range {
            buffer: self.0.clone(),
            offset,
        }))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        PUT.fetch_add(1, Relaxed);
    }
}

/// The module.
#[pin_data]
struct Sample {
    _registration: Registration<Memory>,
    #[pin]
    _contexts: File<()>,
    _directory: Dir,
}

impl kernel::InPlaceModule for Sample {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let directory = Dir::new(c"rdma_peer_sample");
        try_pin_init!(Self {
            _registration: Registration::new()?,
            _contexts <- directory.read_callback_file(c"contexts", (), &|(), f| {
                writeln!(f, "{} {}", GOTTEN.load(Relaxed), PUT.load(Relaxed))
            }),
            _directory: directory.clone(),
        })
    }
}

module! {
    type: Sample,
    name: "rdma_peer_sample",
    authors: ["The virtio-rdma authors"],
    description: "An exporter whose memory is pages of the kernel",
    license: "GPL",
    imports_ns: ["DMA_BUF"],
}
