// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads that remove ports.
//!
//! The client of a port can delay the end of the port. The thread of the control socket does not
//! wait for it.

use std::time::Duration;

use anyhow::{Context, Result};
use sandbox::{Kind, Reserve, Task};

/// Maximum number of ports that are being removed at a time.
const THREADS: usize = 4;

/// The threads that remove ports, and their tasks. Dropping this value waits until all tasks are
/// done.
pub struct Removals {
    threads: Reserve,
    tasks: Vec<Task>,
}

impl Removals {
    /// Starts the threads.
    pub fn start() -> Result<Self> {
        let threads = Reserve::start(Kind::Control, THREADS);
        Ok(Self {
            threads: threads.context("can't start the threads that remove ports")?,
            tasks: Vec::new(),
        })
    }

    /// Has one of the threads do `work`.
    ///
    /// # Errors
    ///
    /// All threads have work.
    pub fn run(&mut self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.tasks.retain(|task| !task.wait_for(Duration::ZERO));
        let task = self.threads.run("removal", work);
        let busy = || format!("{THREADS} ports are being removed already; try again later");
        self.tasks.push(task.with_context(busy)?);
        Ok(())
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{channel, Receiver};

    #[test]
    fn removals_are_bounded_and_waited_for() {
        let mut removals = Removals::start().unwrap();
        let (ended, ends) = channel();
        let begin = |removals: &mut Removals, go: Receiver<()>| {
            let ended = ended.clone();
            removals.run(move || {
                // The sender is dropped.
                go.recv().unwrap_err();
                ended.send(()).unwrap();
            })
        };
        let (go, gates): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        for gate in gates {
            begin(&mut removals, gate).unwrap();
        }
        let error = begin(&mut removals, channel().1).unwrap_err();
        assert!(error.to_string().contains("try again"), "{error:#}");
        drop(go);
        // A thread that has ended its work can be given new work.
        for _ in 0..THREADS {
            ends.recv().unwrap();
        }
        removals.tasks[0].wait();
        begin(&mut removals, channel().1).unwrap();
        drop(removals);
        assert!(ends.try_recv().is_ok(), "the drop waits");
    }
}
