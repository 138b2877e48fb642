// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Shows the consoles of guests while they run.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::reaper::Log;
use crate::untrusted::printable;

/// Interval at which a console's file is read.
const POLL: Duration = Duration::from_millis(50);

/// A thread that prints the lines of a console to standard error. On drop, it prints those that are
/// there and ends.
pub struct Shown {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Shown {
    /// Shows the console in a file, each line behind the name of the guest.
    pub fn start(number: usize, file: PathBuf) -> Self {
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            let mut log = Log::new(file);
            loop {
                let last = ended.recv_timeout(POLL) != Err(RecvTimeoutError::Timeout);
                for piece in log.new_lines() {
                    for line in printable(&piece).lines() {
                        eprintln!("vm{number}: {line}");
                    }
                }
                if last {
                    return;
                }
            }
        });
        Self {
            end: Some(end),
            thread: Some(thread),
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it occurred.
            let _ = thread.join();
        }
    }
}
