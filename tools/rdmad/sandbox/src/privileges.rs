// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Privileges of threads.

use rustix::io::Errno;
use rustix::thread::{
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs, CapabilitySet, CapabilitySets,
};

use crate::Error;

/// Prevents this thread, and the threads that it starts, from gaining privileges.
pub(crate) fn refuse_new() -> Result<(), Error> {
    set_no_new_privs(true).map_err(failure)
}

/// Drops all capabilities of the calling thread.
pub(crate) fn drop_all() -> Result<(), Error> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no capability with this number or a higher one.
            Err(Errno::INVAL) => break,
            // Without CAP_SETPCAP the bounding set can't be changed, but `refuse_new` prevents that
            // the thread gains capabilities.
            Err(Errno::PERM) => break,
            Err(error) => return Err(failure(error)),
        }
    }
    match clear_ambient_capability_set() {
        // Linux before 4.3 has no ambient capabilities.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(failure(error)),
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).map_err(failure)
}

fn failure(error: Errno) -> Error {
    Error::Privileges(error.into())
}
