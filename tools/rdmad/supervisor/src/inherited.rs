// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptors that an engine has left open, or that the service manager has kept.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// The descriptors that the last engine has left open. Dropping this value closes those that were
/// not taken.
///
/// # Invariants
///
/// The descriptors of `open` are open, and no other value of this process owns them.
#[derive(Debug, Default)]
pub struct Inherited {
    open: BTreeSet<RawFd>,
    /// Their names in the [store](crate::Store), if they come from the service manager. Their
    /// numbers are not those by which earlier engines knew them.
    names: Option<BTreeMap<u32, RawFd>>,
    /// Whether nobody knows which of them have the recorded numbers.
    are_unknown: bool,
}

impl Inherited {
    /// The descriptors that the last engine has left. To be called before the process opens others.
    ///
    /// With `names`, they come from the service manager. They `are_unknown` if an engine has died
    /// while it recorded those that came from there.
    pub(crate) fn of(
        left: BTreeSet<RawFd>,
        names: Option<BTreeMap<u32, RawFd>>,
        are_unknown: bool,
    ) -> Self {
        // The invariant holds: the last engine has opened these descriptors, and was dead or shared
        // them no longer when the supervisor listed them; or the process was started with them.
        // This process is a copy of the supervisor, which owns others.
        Self {
            open: left,
            names,
            are_unknown,
        }
    }

    /// Whether the descriptors come from the service manager, which has kept them when a supervisor
    /// has ended.
    pub fn were_stored(&self) -> bool {
        self.names.is_some()
    }

    /// The descriptor that was recorded with this number and name. One name may be recorded with
    /// several numbers.
    pub(crate) fn take_recorded(&mut self, number: RawFd, name: u32) -> Option<OwnedFd> {
        let Some(names) = &self.names else {
            return self.take(number).filter(|_| !self.are_unknown);
        };
        let number = *names.get(&name)?;
        if !self.open.contains(&number) {
            return None;
        }
        // SAFETY: By the type invariant, the descriptor is open, and only `self` could close it.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        file.try_clone_to_owned().ok()
    }

    /// The descriptor with this number, if it is one of these and was not taken yet.
    pub fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        self.open.remove(&number).then(|| {
            // SAFETY: By the type invariant, and the number was removed.
            unsafe { OwnedFd::from_raw_fd(number) }
        })
    }

    /// All descriptors that were not taken yet.
    pub fn take_all(&mut self) -> Vec<OwnedFd> {
        let numbers = self.open.clone().into_iter();
        numbers.filter_map(|number| self.take(number)).collect()
    }
}

impl FromIterator<OwnedFd> for Inherited {
    fn from_iter<I: IntoIterator<Item = OwnedFd>>(files: I) -> Self {
        Self {
            open: files.into_iter().map(OwnedFd::into_raw_fd).collect(),
            names: None,
            are_unknown: false,
        }
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

/// Keeps these descriptors open when the process executes another program, or closes them then. An
/// engine that ends may close some of them meanwhile.
pub(crate) fn set_kept_over_exec(numbers: &BTreeSet<RawFd>, kept: bool) -> io::Result<()> {
    let flags = if kept { 0 } else { libc::FD_CLOEXEC };
    for number in numbers {
        // SAFETY: This command accesses no memory, and refuses a number that is not open.
        if unsafe { libc::fcntl(*number, libc::F_SETFD, flags) } < 0 {
            match io::Error::last_os_error() {
                closed if closed.raw_os_error() == Some(libc::EBADF) => {}
                error => return Err(error),
            }
        }
    }
    Ok(())
}

/// A descriptor that the program before this one has left open. `None` if it is not open.
pub(crate) fn take_over(number: RawFd) -> Option<OwnedFd> {
    if number <= 2 || !open_files().ok()?.contains(&number) {
        return None;
    }
    // SAFETY: The descriptor is open, and no other value of this process owns it: the process has
    // just begun, has one thread, and has opened no file that it still owns.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}
