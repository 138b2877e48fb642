// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Where things are: the checkout, what was built in it, a run's sockets and logs.

use std::env;
use std::fs;
use std::os::unix::fs::{symlink, DirBuilderExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// Runs whose logs are kept.
const KEPT_LOGS: usize = 20;

/// The directories of a run. Its sockets' directory is removed at the end.
pub struct Places {
    /// The checkout.
    pub top: PathBuf,
    /// This program.
    pub program: PathBuf,
    /// The run's sockets.
    pub run: PathBuf,
    /// Logs of its processes.
    pub logs: PathBuf,
}

impl Places {
    /// Finds the checkout from where this program is, build/target/PROFILE, and makes the run's
    /// directories.
    pub fn new() -> Result<Self> {
        let program = env::current_exe()?;
        let top = program
            .ancestors()
            .nth(4)
            .filter(|top| top.join("tools/testbed/guest/init").is_file())
            .with_context(|| {
                format!(
                    "{} is not in the build/target of a checkout",
                    program.display()
                )
            })?
            .to_path_buf();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let run = env::temp_dir().join(format!("testbed.{}.{count}", process::id()));
        // The daemon refuses a directory that others may write to, as some umasks leave it.
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&run)?;
        let logs = new_logs(&top.join("build/logs"))?;
        Ok(Self {
            top,
            program,
            run,
            logs,
        })
    }

    /// Another program of the same build.
    pub fn sibling(&self, name: &str) -> PathBuf {
        self.program.with_file_name(name)
    }

    /// The image of the sysroot's kernel.
    pub fn kernel(&self) -> Result<PathBuf> {
        let release = self.top.join("build/kernel.release");
        let release = fs::read_to_string(&release)
            .with_context(|| format!("no {}: run `make setup`", release.display()))?;
        let dir = Path::new("/usr/lib/modules").join(release.trim());
        Ok(dir.join("vmlinuz.unsigned"))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.run);
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
