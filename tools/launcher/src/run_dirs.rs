// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The directories of a run: its sockets and its logs.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::{symlink, DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use rustix::process::getuid;

use crate::child::Kept;
use crate::install::Install;

/// The beginning of the name of a run's directory of sockets.
const PREFIX: &str = "virtio-rdma.";
/// The place of these directories, if sockets can't be in the directory of temporary files.
const OTHERWISE: &str = "/tmp";
/// Number of runs whose logs a checkout keeps.
const KEPT_LOGS: usize = 20;
/// Maximum length of the sockets' directory in bytes: a Unix socket's path has at most 107.
const LONGEST_DIR: usize = 107 - "/vm64p8.switch".len();

/// The directories of a run. The directory of sockets is removed on drop.
pub struct RunDirs {
    /// The directory of the processes' logs.
    pub logs: PathBuf,
    run: Kept,
}

impl RunDirs {
    /// Makes the run's directories. `logs` is the directory for logs. Without it, a checkout keeps
    /// the logs of the last runs, and a bundle removes the logs at the end.
    pub fn new(install: &Install, logs: Option<&Path>) -> Result<Self> {
        // Other users can't make a directory of this name first.
        let name = format!("{PREFIX}{:08x}", random());
        let mut run = env::temp_dir().join(&name);
        // The daemon's options can't have a path with these characters.
        let unfit = |text: &str| text.contains([':', ',']) || text.len() > LONGEST_DIR;
        if run.to_str().is_none_or(unfit) {
            run = Path::new(OTHERWISE).join(&name);
        }
        // The mode is set because the daemon refuses a directory that others may write to. An
        // existing directory of this name is an error.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&run)
            .with_context(|| format!("can't make {}", run.display()))?;
        let run = Kept::new(run)?;
        let logs = match (logs, &install.checkout) {
            (Some(logs), _) => {
                fs::create_dir_all(logs)
                    .with_context(|| format!("can't make {}", logs.display()))?;
                logs.to_path_buf()
            }
            (None, Some(top)) => new_logs(&top.join("build/logs"))?,
            (None, None) => {
                let logs = run.dir().join("logs");
                fs::create_dir(&logs)?;
                logs
            }
        };
        Ok(Self { logs, run })
    }

    /// The directory of the run's sockets.
    pub fn run(&self) -> &Path {
        self.run.dir()
    }
}

/// The directories of sockets of all runs of this user that are under way.
pub fn all() -> impl Iterator<Item = PathBuf> {
    let places = BTreeSet::from([env::temp_dir(), OTHERWISE.into()]);
    let entries = places
        .into_iter()
        .filter_map(|place| fs::read_dir(place).ok());
    entries.flatten().flatten().filter_map(|entry| {
        let is_run = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let is_own = || {
            entry
                .metadata()
                .is_ok_and(|dir| dir.uid() == getuid().as_raw())
        };
        (is_run && is_own()).then(|| entry.path())
    })
}

/// A number that other processes can't predict.
pub fn random() -> u32 {
    // The keys of a `RandomState` are random. The low 32 bits suffice.
    RandomState::new().hash_one(()) as u32
}

/// Makes a directory for a run's logs and the link `latest` to it. Removes the oldest directories.
fn new_logs(parent: &Path) -> Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let mut old: Vec<_> = fs::read_dir(parent)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    old.sort();
    for dir in old.iter().rev().skip(KEPT_LOGS - 1) {
        // Another run may remove the directory at the same time.
        let _ = fs::remove_dir_all(dir);
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // The process id is not unique: each run has its own PID namespace.
    let (name, logs) = (0..100)
        .map(|count| format!("{seconds}-{count}"))
        .map(|name| (name.clone(), parent.join(name)))
        .find(|(_, logs)| fs::create_dir(logs).is_ok())
        .with_context(|| format!("can't create a directory in {}", parent.display()))?;
    let latest = parent.join("latest");
    let _ = fs::remove_file(&latest);
    let _ = symlink(&name, &latest);
    Ok(logs)
}
