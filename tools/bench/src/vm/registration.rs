// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Registration of 1 GiB of allocated memory: its duration, the time for pinning the pages, and the
//! time for the work that ib_core does for any driver.
//!
//! The kernel's function graph tracer measures one function at a time; nothing else is traced.

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};
use verbs_test::rdma::{access, Context, Mr, Pd};

use super::devices::Device;
use crate::event::{Event, Sink};
use crate::figure::Key;

const TRACING: &str = "/sys/kernel/tracing";
/// The function that pins pages.
const PIN: &str = "pin_user_pages_fast";
/// The function with all work of a registration except the driver's.
const CORE: &str = "ib_umem_get_attr_or_va";
const LENGTH: usize = 1 << 30;

/// Registers the memory once per round.
pub fn measure(device: &Device, configuration: &str, rounds: u32, sink: &mut Sink) -> Result<()> {
    let context = Context::open(&device.name)?;
    let pd = Pd::new(&context)?;
    // The first registration, which is not measured, allocates the pages.
    let memory = Mr::new(&pd, LENGTH, access::ALL)?;
    for _ in 0..rounds {
        let began = Instant::now();
        let again = memory.register_again(access::ALL)?;
        let whole = began.elapsed().as_secs_f64();
        drop(again);
        // Tracing itself takes time, so a traced function is compared with the traced registration.
        let (with_pinning, pinning) = traced(&memory, PIN)?;
        let (with_core, core) = traced(&memory, CORE)?;
        for (name, unit, value) in [
            ("registration of 1 GiB", "s", whole),
            ("pinning of 1 GiB, as a part of it", "s", pinning),
            ("registration over pinning", "×", with_pinning / pinning),
            ("ib_core for 1 GiB, as a part of it", "s", core),
            ("registration over ib_core", "×", with_core / core),
        ] {
            sink.tell(Event::Value(Key::new(name, configuration, unit), value))?;
        }
    }
    Ok(())
}

/// Registers `memory` once more. Returns the duration in seconds, and the time in all calls of
/// `function`.
fn traced(memory: &Mr, function: &'static str) -> Result<(f64, f64)> {
    let trace = Trace::start(function)?;
    let began = Instant::now();
    let again = memory.register_again(access::ALL)?;
    let whole = began.elapsed().as_secs_f64();
    let part = trace.seconds()?;
    drop(again);
    Ok((whole, part))
}

/// The tracer of a function, disabled on drop.
struct Trace(&'static str);

impl Trace {
    fn start(function: &'static str) -> Result<Self> {
        set("tracing_on", "0")?;
        set("buffer_size_kb", "16384")?;
        set("set_ftrace_filter", function)?;
        set("current_tracer", "function_graph")?;
        set("trace", "")?;
        set("tracing_on", "1")?;
        Ok(Self(function))
    }

    /// The time in all calls, in seconds.
    fn seconds(&self) -> Result<f64> {
        set("tracing_on", "0")?;
        let text = fs::read_to_string(Path::new(TRACING).join("trace"))?;
        let microseconds = total(&text, self.0)?;
        ensure!(microseconds > 0.0, "the tracer saw no {}", self.0);
        Ok(microseconds / 1e6)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // Errors are ignored: a tracer that stays enabled slows later measurements of this machine,
        // which belongs to the benchmark.
        let _ = set("current_tracer", "nop");
        let _ = set("set_ftrace_filter", "");
    }
}

fn set(file: &str, value: &str) -> Result<()> {
    fs::write(Path::new(TRACING).join(file), value).with_context(|| format!("can't set {file}"))
}

/// The sum of the durations in a trace, in µs. Lines look like ` 0) # 1234.5 us |
/// pin_user_pages_fast();`.
fn total(trace: &str, function: &str) -> Result<f64> {
    let mut sum = 0.0;
    for line in trace.lines().filter(|line| line.contains(function)) {
        let before = line
            .split(" us")
            .next()
            .with_context(|| format!("no duration in {line:?}"))?;
        let duration: f64 = before
            .split_whitespace()
            .last()
            .and_then(|value| value.parse().ok())
            .with_context(|| format!("no duration in {line:?}"))?;
        sum += duration;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_summed() {
        let trace =
            "# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n \
            0)   0.500 us    |  pin_user_pages_fast();\n \
            0) # 1234.500 us |  pin_user_pages_fast();\n \
            1) ! 165.000 us  |  pin_user_pages_fast [kernel]();\n";
        assert!((total(trace, PIN).unwrap() - 1400.0).abs() < 1e-9);
        assert!(total(" 0)  |  pin_user_pages_fast() {\n", PIN).is_err());
    }
}
