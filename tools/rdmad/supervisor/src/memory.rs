// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The memory that outlives engines and, if a service manager keeps it, the supervisor.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
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
pub(crate) fn memory_name(of_content: &str, len: usize) -> String {
    format!("{NAME}{}", format(of_content, len))
}

/// The memory and descriptors that the service manager has kept of a supervisor that has ended.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) memory: Memory,
    /// Names and their descriptors.
    pub(crate) names: BTreeMap<u32, RawFd>,
}

impl Stored {
    /// Takes what the service manager has kept. It is lost if this program does not understand it,
    /// or if the last supervisor has ended in an orderly way.
    pub(crate) fn take(format: &str, len: usize) -> io::Result<Option<Self>> {
        let passed = manager::passed().into_iter();
        let passed: Vec<_> = passed
            .filter(|(name, _)| name.starts_with(NAME) || name.parse::<u32>().is_ok())
            .collect();
        let numbers = passed.iter().map(|(_, number)| *number);
        inherited::set_kept_over_exec(&numbers.collect(), false)?;
        let wanted = memory_name(format, len);
        let (memory, files): (Vec<_>, Vec<_>) = passed
            .into_iter()
            .partition(|(name, _)| name.starts_with(NAME));
        match &*memory {
            [(name, number)] if *name == wanted => {
                let file = inherited::take_over(*number).map(File::from);
                let memory = file.and_then(|file| Memory::take_over(file, len).ok());
                if let Some(memory) = memory {
                    return Ok(Some(Self::of(memory, files)));
                }
            }
            [(name, _), ..] => tell(&format!(
                "the service manager has kept {name}, and this program takes over {wanted}: VMs \
                 have lost their devices"
            )),
            [] => {}
        }
        let all = memory.iter().chain(&files);
        forget(all.clone().map(|(name, _)| name.as_str()));
        for (_, number) in all {
            drop(inherited::take_over(*number));
        }
        Ok(None)
    }

    fn of(memory: Memory, files: Vec<(String, RawFd)>) -> Self {
        let mut named = BTreeMap::<u32, Vec<RawFd>>::new();
        for (name, number) in files {
            if let Ok(name) = name.parse() {
                named.entry(name).or_default().push(number);
            }
        }
        let mut names = BTreeMap::new();
        for (name, numbers) in named {
            match *numbers {
                [number] => drop(names.insert(name, number)),
                // Nobody knows which of them was recorded.
                _ => numbers
                    .into_iter()
                    .for_each(|number| drop(inherited::take_over(number))),
            }
        }
        tell(&format!(
            "the last supervisor has ended: {} descriptors come from the service manager",
            names.len()
        ));
        Self { memory, names }
    }
}

/// Lets the service manager forget files that it may keep. It is not needed for anything else: if
/// that fails, they stay with the manager until the service is stopped.
pub(crate) fn forget<'a>(names: impl IntoIterator<Item = &'a str>) {
    let mut names = names.into_iter().peekable();
    if names.peek().is_none() {
        return;
    }
    if let Ok(Some(manager)) = Manager::connect() {
        for name in names {
            let _ = manager.forget(name);
        }
    }
}
