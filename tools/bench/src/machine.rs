// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The machine of a run, without its name.

use std::fs;
use std::thread;

use serde::{Deserialize, Serialize};

/// A class of machines. Only figures of the same class are compared.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Machine {
    /// Model name of the processor.
    pub processor: String,
    /// Number of processors that this program may use.
    pub cores: usize,
    /// Whether virtual machines run on KVM; else they are emulated.
    pub kvm: bool,
}

impl Machine {
    /// The class of this machine; `kvm` tells whether its virtual machines run on KVM.
    pub fn here(kvm: bool) -> Self {
        let table = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            processor: model(&table).unwrap_or("unknown processor").to_owned(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get()),
            kvm,
        }
    }

    /// A description: number and model of the processors, and KVM or emulation.
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
