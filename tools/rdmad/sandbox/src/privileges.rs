// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Privileges of threads.

use rustix::io::Errno;
use rustix::thread::{
    capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, CapabilitySet, CapabilitySets,
};

use crate::Error;

/// Neither this thread nor those that it starts get a privilege that it does not have now.
pub(crate) fn refuse_new() -> Result<(), Error> {
    set_no_new_privs(true).map_err(failure)
}

/// Gives up all capabilities of the calling thread but those in `kept`, of which it need not have
/// any.
pub(crate) fn drop_but(kept: CapabilitySet) -> Result<(), Error> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no more of them.
            Err(Errno::INVAL) => break,
            // A thread that may not remove them can't acquire them: it gets no new privileges.
            Err(Errno::PERM) => break,
            Err(error) => return Err(failure(error)),
        }
    }
    match clear_ambient_capability_set() {
        // Linux before 4.3 has none.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(failure(error)),
    }
    let had = capabilities(None).map_err(failure)?;
    let left = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, left).map_err(failure)
}

fn failure(error: Errno) -> Error {
    Error::Privileges(error.into())
}
