// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Landlock: no file, TCP port or process outside can be reached any more.
//!
//! The filter of system calls refuses the same already, by their numbers. Landlock refuses the
//! effect, whatever system call has it.

use std::path::Path;

use landlock::{
    path_beneath_rules, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, ABI,
};

use crate::Error;

/// The newest version of Landlock whose access rights are known here. Older kernels enforce fewer.
const KNOWN: ABI = ABI::V9;

/// From now on the calling thread reaches nothing new. Returns whether the kernel has Landlock.
pub(crate) fn allow_nothing() -> Result<bool, Error> {
    handle(AccessFs::from_all(KNOWN))
        .and_then(RulesetCreated::restrict_self)
        .map(|restricted| restricted.ruleset != RulesetStatus::NotEnforced)
        .map_err(Error::Landlock)
}

/// From now on the calling thread only removes files in these directories, and connects to Unix
/// sockets.
pub(crate) fn allow_removing<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Error> {
    let rules = path_beneath_rules(directories, AccessFs::RemoveFile);
    handle(AccessFs::from_all(KNOWN) & !AccessFs::ResolveUnix)
        .and_then(|ruleset| ruleset.add_rules(rules))
        .and_then(RulesetCreated::restrict_self)
        .map(drop)
        .map_err(Error::Landlock)
}

/// Rules by which none of these accesses is allowed, nor any to the network or to processes.
fn handle(files: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
}
