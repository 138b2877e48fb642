// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine of a run, without its name.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// A machine. Figures are compared with those of machines of the same class only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Processors that this program may use.
    pub cores: usize,
    /// Whether virtual machines run on KVM; else they are emulated.
    pub kvm: bool,
}

impl Machine {
    /// This one, whose virtual machines run on KVM or not.
    pub fn here(kvm: bool) -> Self {
        let table = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            processor: model(&table).unwrap_or("unknown processor").to_owned(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
            kvm,
        }
    }

    /// Processors, their model, and how virtual machines run.
    pub fn describe(&self) -> String {
        let way = if self.kvm { "KVM" } else { "emulation" };
        format!("{} processors ({}), {way}", self.cores, self.processor)
    }
}

fn model(table: &str) -> Option<&str> {
    let line = table.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(": ")?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read() {
        let table = "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n";
        assert_eq!(model(table), Some("Some CPU @ 2 GHz"));
        assert_eq!(model(""), None);
    }
}
