// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptors that an engine has left open.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// The descriptors that the last engine has left open. Dropping this value closes those that were
/// not taken.
///
/// # Invariants
///
/// The descriptors are open, and no other value of this process owns them.
#[derive(Debug, Default)]
pub struct Inherited(BTreeSet<RawFd>);

impl Inherited {
    /// All descriptors but `own`, those that the supervisor had before it started the first engine.
    /// To be called before the process opens others.
    pub(crate) fn new(own: &BTreeSet<RawFd>) -> io::Result<Self> {
        // The invariant holds: the last engine has opened these descriptors. It is dead, and this
        // process is a copy of the supervisor, which opens none between two engines.
        Ok(Self(open_files()?.difference(own).copied().collect()))
    }

    /// Whether there are no descriptors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The descriptor with this number, if it is one of these and was not taken yet.
    pub fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        self.0.remove(&number).then(|| {
            // SAFETY: By the type invariant, and the number was removed.
            unsafe { OwnedFd::from_raw_fd(number) }
        })
    }

    /// All descriptors that were not taken yet.
    pub fn take_all(&mut self) -> Vec<OwnedFd> {
        let numbers = self.0.clone().into_iter();
        numbers.filter_map(|number| self.take(number)).collect()
    }
}

impl FromIterator<OwnedFd> for Inherited {
    fn from_iter<I: IntoIterator<Item = OwnedFd>>(files: I) -> Self {
        Self(files.into_iter().map(OwnedFd::into_raw_fd).collect())
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}

/// The numbers of all open descriptors of this process.
pub(crate) fn open_files() -> io::Result<BTreeSet<RawFd>> {
    let mut numbers = BTreeSet::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        numbers.extend(number);
    }
    // Without the descriptor by which the directory was read, which is closed now.
    numbers.retain(|number| fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok());
    Ok(numbers)
}
