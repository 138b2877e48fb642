// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The directories of a run: its sockets and its logs.

use std::env;
use std::fs;
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::child::Kept;
use crate::install::Install;

/// Runs whose logs a checkout keeps.
const KEPT_LOGS: usize = 20;
/// Bytes of a path of a Unix socket, less the longest name of ours.
const LONGEST_DIR: usize = 107 - "/vm64p8.switch".len();

/// The directories of a run. Its sockets' directory is removed at the end.
pub struct Places {
    /// Logs of its processes.
    pub logs: PathBuf,
    run: Kept,
}

impl Places {
    /// Makes the run's directories. `logs` is where logs go; without it a checkout keeps them for a
    /// while, and otherwise they are removed at the end.
    pub fn new(install: &Install, logs: Option<&Path>) -> Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("virtio-rdma.{}.{count}", process::id());
        let mut run = env::temp_dir().join(&name);
        // Options of the daemon end a path at these.
        let unfit = |text: &str| text.contains([':', ',']) || text.len() > LONGEST_DIR;
        if run.to_str().is_none_or(unfit) {
            run = Path::new("/tmp").join(&name);
        }
        // The daemon refuses a directory that others may write to, as some umasks leave it. An
        // existing directory of that name is an error: another user may have made it.
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&run)
            .with_context(|| format!("can't make {}", run.display()))?;
        let run = Kept::new(run)?;
        let logs = match (logs, &install.checkout) {
            (Some(logs), _) => {
                fs::create_dir_all(logs).with_context(|| format!("no {}", logs.display()))?;
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

/// Makes a directory for a run's logs, `latest` a link to it, and removes the oldest ones.
fn new_logs(parent: &Path) -> Result<PathBuf> {
    fs::create_dir_all(parent)?;
    let mut old: Vec<_> = fs::read_dir(parent)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    old.sort();
    for dir in old.iter().rev().skip(KEPT_LOGS - 1) {
        // Another run may be removing it as well.
        let _ = fs::remove_dir_all(dir);
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    // The process's number is one of a namespace, which every run has its own of: not unique.
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
