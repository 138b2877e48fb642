// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! How long it takes from insmod until the port is ACTIVE.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};

use super::devices::own;
use crate::event::{Event, Sink};
use crate::figure::Key;

const MODULE: &str = "virtio_rdma";
/// How long a port may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Removes the driver and loads it again, once for each round.
pub fn measure(configuration: &str, rounds: u32, sink: &mut Sink) -> Result<()> {
    let file = module()?;
    for _ in 0..rounds {
        command("rmmod", MODULE)?;
        let began = Instant::now();
        command("insmod", &file.display().to_string())?;
        while !is_active() {
            if began.elapsed() > LIMIT {
                bail!("the port is not ACTIVE after {} s", LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let key = Key::new("insmod to port ACTIVE", configuration, "s");
        sink.tell(Event::Value(key, began.elapsed().as_secs_f64()))?;
    }
    Ok(())
}

/// The driver of this checkout: this program is in its build/target/release.
fn module() -> Result<PathBuf> {
    let program = env::current_exe()?;
    let build = program
        .ancestors()
        .nth(3)
        .context("not in a build folder")?;
    Ok(build.join("module").join(MODULE).with_extension("ko"))
}

fn command(program: &str, argument: &str) -> Result<()> {
    let output = Command::new(program)
        .arg(argument)
        .output()
        .with_context(|| format!("can't start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim());
    Ok(())
}

fn is_active() -> bool {
    own().is_some_and(|device| {
        fs::read_to_string(device.join("ports/1/state"))
            .is_ok_and(|state| state.trim().ends_with("ACTIVE"))
    })
}
