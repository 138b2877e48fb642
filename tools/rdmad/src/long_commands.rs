// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Threads that execute commands that may take long: the client of a port can delay the end of the
//! port, and a new program its answer. The thread of the control socket does not wait for them.

use std::time::Duration;

use anyhow::{Context, Result};
use sandbox::{Kind, Reserve, Task};

/// Maximum number of such commands at a time.
const THREADS: usize = 4;

/// The threads, and their tasks. Dropping this value waits until all tasks are
/// done.
pub struct LongCommands {
    threads: Reserve,
    tasks: Vec<Task>,
}

impl LongCommands {
    pub fn new() -> Self {
        Self {
            threads: Reserve::new(Kind::Control, THREADS),
            tasks: Vec::new(),
        }
    }

    /// Has one of the threads do `work`.
    ///
    /// # Errors
    ///
    /// All threads have work.
    pub fn run(&mut self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.tasks.retain(|task| !task.wait_for(Duration::ZERO));
        let task = self.threads.run("long-command", work);
        let busy = || format!("{THREADS} commands take long already; try again later");
        self.tasks.push(task.with_context(busy)?);
        Ok(())
    }
}

impl Drop for LongCommands {
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
    fn long_commands_are_bounded_and_waited_for() {
        let mut long_commands = LongCommands::new();
        let (ended, ends) = channel();
        let begin = |long_commands: &mut LongCommands, go: Receiver<()>| {
            let ended = ended.clone();
            long_commands.run(move || {
                // The sender is dropped.
                go.recv().unwrap_err();
                ended.send(()).unwrap();
            })
        };
        let (go, gates): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        for gate in gates {
            begin(&mut long_commands, gate).unwrap();
        }
        let error = begin(&mut long_commands, channel().1).unwrap_err();
        assert!(error.to_string().contains("try again"), "{error:#}");
        drop(go);
        // A thread that has ended its work can be given new work.
        for _ in 0..THREADS {
            ends.recv().unwrap();
        }
        long_commands.tasks[0].wait();
        begin(&mut long_commands, channel().1).unwrap();
        drop(long_commands);
        assert!(ends.try_recv().is_ok(), "the drop waits");
    }
}
