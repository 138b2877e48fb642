// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The time from insmod until the port is ACTIVE.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};

use super::devices::is_active;
use super::modules;
use crate::event::{Event, Sink};
use crate::figure::Key;

const MODULE: &str = "virtio_rdma";
/// Time limit for the port.
const LIMIT: Duration = Duration::from_secs(60);

/// Removes the driver and loads it again, once per round.
pub fn measure(configuration: &str, rounds: u32, sink: &mut Sink) -> Result<()> {
    let file = modules::built(MODULE, "module")?;
    for _ in 0..rounds {
        modules::command("rmmod", &[MODULE.into()])?;
        let began = Instant::now();
        modules::command("insmod", &[file.display().to_string()])?;
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
