// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Landlock: no file can be opened or made any more, no TCP port and no process reached. Files can be
//! removed: the sockets are, at the end.
//!
//! The filter of system calls refuses the same already, by their numbers. Landlock refuses the
//! effect, whatever system call has it.

use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::CompatLevel;
use landlock::Compatible;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetStatus;
use landlock::Scope;
use landlock::ABI;

use crate::Error;

/// The newest version of Landlock whose access rights are known here. Older kernels enforce fewer.
const KNOWN: ABI = ABI::V6;

/// From now on the calling thread reaches nothing new. Returns whether the kernel has Landlock.
pub(crate) fn allow_nothing() -> Result<bool, Error> {
    // No rule is added, so whatever is handled is refused.
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(KNOWN) & !AccessFs::RemoveFile)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
        .and_then(|rules| rules.restrict_self())
        .map_err(Error::Landlock)?;
    Ok(restricted.ruleset != RulesetStatus::NotEnforced)
}
