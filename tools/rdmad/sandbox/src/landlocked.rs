// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Landlock: denies access to files, TCP ports and processes outside of the sandbox.
//!
//! The seccomp filter already refuses system calls for such accesses by their numbers. Landlock
//! refuses the access itself, whichever system call makes it.

use std::os::fd::BorrowedFd;
use std::path::Path;

use landlock::{
    path_beneath_rules, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible,
    PathBeneath, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, ABI,
};

use crate::Error;

/// The newest version of Landlock whose access rights are known here. Older kernels enforce fewer.
const KNOWN: ABI = ABI::V9;

/// Denies the calling thread access to files, the network and processes. Open descriptors remain
/// usable. Returns whether the kernel has Landlock.
pub(crate) fn allow_nothing() -> Result<bool, Error> {
    handle(AccessFs::from_all(KNOWN))
        .and_then(RulesetCreated::restrict_self)
        .map(|restricted| restricted.ruleset != RulesetStatus::NotEnforced)
        .map_err(Error::Landlock)
}

/// Restricts the calling thread to removing files in `directories` and replacing files in
/// `folders`. If `folders` is empty, the thread may also connect to Unix sockets.
pub(crate) fn allow_broker<'a>(
    directories: impl IntoIterator<Item = &'a Path>,
    folders: &[BorrowedFd<'_>],
) -> Result<(), Error> {
    let removing = path_beneath_rules(directories, AccessFs::RemoveFile);
    let replace = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::RemoveFile;
    let replacing = folders
        .iter()
        .map(|folder| Ok::<_, RulesetError>(PathBeneath::new(folder, replace)));
    let mut files = AccessFs::from_all(KNOWN);
    if folders.is_empty() {
        files.remove(AccessFs::ResolveUnix);
    }
    handle(files)
        .and_then(|ruleset| ruleset.add_rules(removing))
        .and_then(|ruleset| ruleset.add_rules(replacing))
        .and_then(RulesetCreated::restrict_self)
        .map(drop)
        .map_err(Error::Landlock)
}

/// Rules that deny these accesses to files, and all access to the network and to processes.
fn handle(files: BitFlags<AccessFs>) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(KNOWN)))
        .and_then(|rules| rules.scope(Scope::from_all(KNOWN)))
        .and_then(Ruleset::create)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;
    use std::ptr::null;
    use std::thread;

    use rustix::io::Errno;
    use rustix::process::{test_kill_process, Pid};
    use testkit::skipped;

    use super::*;

    /// The first version of Landlock with scopes.
    const SCOPES: i64 = 6;

    fn version() -> i64 {
        const VERSION: u32 = 1;
        let none = null::<u8>();
        // SAFETY: With this flag, the call has no attributes and only returns a number.
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, VERSION) }
    }

    /// Landlock by itself, without filters of system calls: sockets without a path, and signals.
    #[test]
    fn processes_outside_are_out_of_reach() {
        let name = format!("landlocked-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = Pid::from_child(&child);
        let reach = move || {
            let connected = UnixStream::connect_addr(&address).map(drop);
            (
                connected.map_err(|error| error.kind()),
                test_kill_process(id),
            )
        };
        let free = thread::spawn(reach.clone()).join().unwrap();
        let confined = thread::spawn(move || {
            allow_nothing().unwrap();
            reach()
        });
        let confined = confined.join().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(free, (Ok(()), Ok(())));
        if version() < SCOPES {
            skipped("Landlock of this kernel has no scopes");
            return;
        }
        assert_eq!(
            confined,
            (Err(ErrorKind::PermissionDenied), Err(Errno::PERM))
        );
    }
}
