// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `bench kernel`: the instructions of a post and a poll by a kernel client, in a machine whose
//! time stamp counter counts instructions. The test module for kernel verbs measures both, and
//! writes the results to the kernel's log.

use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use super::devices::Devices;
use super::modules;
use crate::event::{Event, Sink};
use crate::figure::{Key, Report};
use crate::program::output;

const MODULE: &str = "kverbs";
/// The name of the figure.
pub const KERNEL: &str = "kernel, post and poll of one WRITE";

/// Options of `bench kernel`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Write events as lines of JSON, for `bench run`
    #[arg(long, hide = true)]
    pub stream: bool,
}

/// Measures. With `stream` the report is empty: the host makes the report from the events.
pub fn run(options: &Options) -> Result<Report> {
    let mut sink = Sink::new(options.stream);
    sink.tell(Event::Plan(1))?;
    sink.tell(Event::Step(KERNEL.into()))?;
    for (name, count) in count()? {
        let key = Key::new(name, "direct", "instructions");
        sink.tell(Event::Value(key, count))?;
    }
    Ok(sink.into_report())
}

/// Instructions of a post, of a poll, and their sum.
fn count() -> Result<[(&'static str, f64); 3]> {
    let device = Devices::find()?.own;
    let file = modules::built(MODULE, MODULE)?;
    let arguments = [
        file.display().to_string(),
        format!("device={}", device.name),
        format!("gid_index={}", device.gid_index),
        "cost=1".into(),
    ];
    modules::command("insmod", &arguments)?;
    modules::command("rmmod", &[MODULE.into()])?;
    let log = output(&mut Command::new("dmesg"))?;
    let post = ticks(&log, "post_send")?;
    let poll = ticks(&log, "poll_cq")?;
    Ok([
        ("kernel, post_send of one WRITE", post),
        ("kernel, poll_cq of its completion", poll),
        (KERNEL, post + poll),
    ])
}

/// The number in the last line like `kverbs: # ticks of a poll_cq: 612`.
fn ticks(log: &str, what: &str) -> Result<f64> {
    let said = format!("kverbs: # ticks of a {what}: ");
    let (_, number) = log
        .lines()
        .rev()
        .find_map(|line| line.split_once(&said))
        .with_context(|| format!("{MODULE} has not logged the cost of a {what}"))?;
    number
        .trim()
        .parse()
        .with_context(|| format!("{number:?} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_count_is_read() {
        let log = "[1.0] kverbs: # ticks of a post_send: 700\n\
            [1.0] kverbs: # ticks of a poll_cq: 612\n\
            [9.0] kverbs: # ticks of a post_send: 635\n";
        assert_eq!(ticks(log, "post_send").unwrap(), 635.0);
        assert_eq!(ticks(log, "poll_cq").unwrap(), 612.0);
        assert!(ticks(log, "post_recv").is_err());
        assert!(ticks("kverbs: # ticks of a poll_cq: many\n", "poll_cq").is_err());
    }
}
