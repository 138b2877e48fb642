// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The memory that outlives engines and, if a service manager keeps it, the supervisor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::{fcntl_add_seals, fcntl_get_seals, memfd_create, MemfdFlags, SealFlags};
use vm_memory::{FileOffset, MmapRegion};

use crate::inherited;
use crate::manager::{self, Manager};
use crate::supervision;
use crate::tell;

/// The format of memory of `len` bytes for engines, whose content has this `format`, as the program
/// that takes over is asked for it. The first number is the version of the supervisor's own part.
pub fn format(format: &str, len: usize) -> String {
    let len = len.next_multiple_of(4096);
    format!("3.{format}.{len}")
}

/// The memory that supervisor and engines share, which outlives the program: a file.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: File,
    /// Bytes of the engines, after those of the [`Supervision`].
    pub(crate) len: usize,
    identity: (u64, u64),
}

/// The memory has always the same size, so that no access to it fails.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Device and inode of a file.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Memory {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("virtio-rdmad", flags)?);
        let len = len.next_multiple_of(4096);
        file.set_len((supervision::LEN + len) as u64)?;
        fcntl_add_seals(&file, SEALS)?;
        let identity = identity(&file)?;
        Ok(Self {
            file,
            len,
            identity,
        })
    }

    /// The memory of the program before this one.
    pub(crate) fn take_over(file: File, len: usize) -> io::Result<Self> {
        let len = len.next_multiple_of(4096);
        let is_whole = file.metadata()?.len() == (supervision::LEN + len) as u64;
        // A file of another kind has no seals.
        if !is_whole || !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::Error::other("the old program has left other memory"));
        }
        let identity = identity(&file)?;
        Ok(Self {
            file,
            len,
            identity,
        })
    }

    /// Lets the service manager keep the memory, if it has a store. It is not full yet.
    pub(crate) fn store(&self, format: &str) {
        if manager::capacity() > 0 {
            let manager = Manager::connect().ok().flatten();
            let name = memory_name(format, self.len);
            let kept = manager.map(|manager| manager.keep(&name, self.file.as_fd()));
            if let Some(Err(error)) = kept {
                tell(&format!(
                    "the service manager does not keep the memory: {error}"
                ));
            }
        }
    }

    /// Checks that the descriptor is still that of the memory: an engine can replace it.
    pub(crate) fn check(&self) -> io::Result<()> {
        match identity(&self.file)? == self.identity {
            true => Ok(()),
            false => Err(io::Error::other("an engine has replaced the memory")),
        }
    }

    pub(crate) fn of_engines(&self) -> io::Result<Arc<MmapRegion>> {
        let at = FileOffset::new(self.file.try_clone()?, supervision::LEN as u64);
        let memory = MmapRegion::from_file(at, self.len);
        Ok(Arc::new(memory.map_err(io::Error::other)?))
    }
}

/// The first part of the name of the memory in the service manager's store.
const NAME: &str = "memory-";

/// The name of memory of `len` bytes for engines in the service manager's store.
fn memory_name(of_content: &str, len: usize) -> String {
    format!("{NAME}{}", format(of_content, len))
}

/// The memory and descriptors that the service manager has kept of a supervisor that has ended.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) memory: Memory,
    /// Slots and their descriptors.
    pub(crate) slots: BTreeMap<u32, RawFd>,
}

impl Stored {
    /// Takes what the service manager has kept. If this program does not understand it, it is lost.
    pub(crate) fn take(format: &str, len: usize) -> io::Result<Option<Self>> {
        let passed = manager::passed();
        let name = memory_name(format, len);
        let (slots, memory): (Vec<_>, Vec<_>) = passed
            .into_iter()
            .filter(|(name, _)| name.starts_with(NAME) || name.parse::<u32>().is_ok())
            .partition(|(name, _)| name.parse::<u32>().is_ok());
        let numbers = slots.iter().chain(&memory).map(|(_, number)| *number);
        inherited::set_kept_over_exec(&numbers.collect(), false)?;
        let memory_is = |found: &&(String, RawFd)| found.0 == name;
        let own = memory.iter().find(memory_is).and_then(|(_, number)| {
            let file = inherited::take_over(*number)?.into();
            Memory::take_over(file, len).ok()
        });
        if let Some(own) = own {
            let slot = |(name, number): (String, RawFd)| Some((name.parse().ok()?, number));
            let slots: BTreeMap<_, _> = slots.into_iter().filter_map(slot).collect();
            tell(&format!(
                "the last supervisor has ended: {} descriptors come from the service manager",
                slots.len()
            ));
            return Ok(Some(Self { memory: own, slots }));
        }
        if let Some((of, _)) = memory.first() {
            tell(&format!(
                "the service manager has kept {of}, and this program takes over {name}: \
                 VMs have lost their devices"
            ));
        }
        let manager = Manager::connect()?;
        for (name, number) in slots.iter().chain(&memory) {
            drop(inherited::take_over(*number));
            if let Some(manager) = &manager {
                manager.forget(name)?;
            }
        }
        Ok(None)
    }
}
