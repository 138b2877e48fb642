// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The log: a separate thread writes lines to standard error.
//!
//! If standard error is a pipe that no process reads, a write blocks. Only the log's thread is
//! blocked: other threads put lines into a queue. When the queue is full, the oldest lines are
//! dropped and counted. So the last lines, which say why the daemon ends, are retained.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::{Condvar, Mutex};
use sandbox::Kind;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::reload;

/// Maximum number of bytes in the queue.
const CAPACITY: usize = 1 << 20;
/// How long to wait until all lines are written, at the end of the process: no process may read
/// standard error.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// Changes the level of the log.
pub struct Level(Box<dyn Fn(LevelFilter) -> Result<(), reload::Error> + Send>);

impl Level {
    /// A `Level` that changes the level by a call of `set`.
    pub fn new(set: impl Fn(LevelFilter) -> Result<(), reload::Error> + Send + 'static) -> Self {
        Self(Box::new(set))
    }

    /// Restricts the log to lines of this level and above.
    ///
    /// # Errors
    ///
    /// The log does not exist any more.
    pub fn set(&self, level: LevelFilter) -> Result<(), reload::Error> {
        (self.0)(level)
    }
}

/// Parses a level of the log.
pub fn parse_level(text: &str) -> Result<LevelFilter> {
    let level = text.parse().ok();
    level.with_context(|| {
        format!("{text:?} is not a log level: off, error, warn, info, debug or trace")
    })
}

/// A writer of lines to the log, which never waits. Clones write to the same log.
#[derive(Clone)]
pub struct Log(Arc<Channel>);

#[derive(Default)]
struct Channel {
    queue: Mutex<Lines>,
    /// Signals that a line was queued or written.
    changed: Condvar,
}

#[derive(Default)]
struct Lines {
    lines: VecDeque<Vec<u8>>,
    /// Total length of `lines` in bytes.
    bytes: usize,
    /// Number of dropped lines that the log has yet to report. All of them are older than `lines`.
    dropped: u64,
    /// Whether a line was taken from the queue and is not written yet.
    is_writing: bool,
}

impl Log {
    /// Starts a log whose thread writes to `out`.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let channel = Arc::<Channel>::default();
        let of_thread = Arc::clone(&channel);
        sandbox::spawn(Kind::Log, "log", move || of_thread.write_to(out))?;
        Ok(Self(channel))
    }

    /// Waits until all lines are written, for at most `patience`. Returns whether they are.
    pub fn flush_within(&self, patience: Duration) -> bool {
        let is_busy = |queue: &mut Lines| queue.is_writing || !queue.lines.is_empty();
        let mut queue = self.0.queue.lock();
        self.0.changed.wait_while_for(&mut queue, is_busy, patience);
        !is_busy(&mut queue)
    }
}

impl Write for Log {
    /// Queues a line. `line` must be a whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.queue.lock();
        queue.bytes += line.len();
        queue.lines.push_back(line.to_vec());
        while queue.bytes > CAPACITY {
            queue.take();
            queue.dropped += 1;
        }
        drop(queue);
        self.0.changed.notify_all();
        Ok(line.len())
    }

    /// Waits until all lines are written, for at most [`PATIENCE`].
    fn flush(&mut self) -> io::Result<()> {
        match self.flush_within(PATIENCE) {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl Channel {
    /// Writes lines to `out` for ever.
    fn write_to(&self, mut out: impl Write) {
        let mut queue = self.queue.lock();
        loop {
            let line = queue.take();
            queue.is_writing = line.is_some();
            self.changed.notify_all();
            let Some(line) = line else {
                self.changed.wait(&mut queue);
                continue;
            };
            let dropped = mem::take(&mut queue.dropped);
            drop(queue);
            // An error of the log can't be reported.
            if dropped > 0 {
                let _ = writeln!(
                    out,
                    "{dropped} lines of the log were dropped: standard error was not read"
                );
            }
            let _ = out.write_all(&line);
            queue = self.queue.lock();
        }
    }
}

impl Lines {
    /// Takes the oldest line.
    fn take(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.pop_front()?;
        self.bytes -= line.len();
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;
    use std::thread;

    /// An output that writes only after both barriers were passed.
    struct Gate {
        out: UnixStream,
        passed: Option<[Arc<Barrier>; 2]>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            for barrier in self.passed.take().iter().flatten() {
                barrier.wait();
            }
            self.out.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.out.flush()
        }
    }

    #[test]
    fn the_oldest_lines_are_dropped_and_counted() {
        const LINES: usize = 3 * CAPACITY / 100;
        let (reader, out) = UnixStream::pair().unwrap();
        let [begun, read] = [(); 2].map(|()| Arc::new(Barrier::new(2)));
        let passed = Some([Arc::clone(&begun), Arc::clone(&read)]);
        let mut log = Log::start(Gate { out, passed }).unwrap();
        log.write_all(b"first\n").unwrap();
        begun.wait();
        for number in 0..LINES {
            log.write_all(format!("{number:99}\n").as_bytes()).unwrap();
        }
        assert!(log.0.queue.lock().bytes <= CAPACITY);
        let at_once = Duration::from_millis(10);
        assert!(!log.flush_within(at_once), "nobody reads");
        let reader = thread::spawn(|| {
            let mut lines = Vec::new();
            for line in io::BufRead::lines(io::BufReader::new(reader)) {
                let line = line.unwrap().trim().to_owned();
                let is_last = line == "last";
                lines.push(line);
                if is_last {
                    break;
                }
            }
            lines
        });
        read.wait();
        log.write_all(b"last\n").unwrap();
        let lines = reader.join().unwrap();
        assert!(log.flush_within(PATIENCE));
        let kept = CAPACITY / 100;
        let [first, told, rest @ .., _] = &lines[..] else {
            panic!("{lines:?}");
        };
        assert_eq!(first, "first");
        let dropped = LINES - kept;
        assert!(told.starts_with(&format!("{dropped} lines of the log were dropped")));
        assert!(rest
            .iter()
            .map(|line| line.parse::<usize>().unwrap())
            .eq(dropped..LINES));
    }
}
