// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Commands to a QEMU by its machine protocol, QMP.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

/// The link to a QEMU.
pub struct Qmp {
    from: BufReader<UnixStream>,
    to: UnixStream,
}

impl Qmp {
    /// Greets QEMU.
    pub fn new(link: UnixStream) -> Result<Self> {
        let mut qmp = Self {
            from: BufReader::new(link.try_clone()?),
            to: link,
        };
        // QEMU speaks first.
        qmp.message()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command. Returns what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({"execute": command, "arguments": arguments});
        self.to
            .write_all(format!("{request}\n").as_bytes())
            .context("QEMU has ended")?;
        loop {
            let mut message = self.message()?;
            if let Some(error) = message.get("error") {
                bail!("QEMU's {command}: {error}");
            }
            if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            }
            // Others are events.
        }
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            bail!("QEMU has ended");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
