// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of a running daemon: a socket that tells it, and the command that asks for it.
//!
//! Who asks writes one word, `text` or `json`, and gets the answer until the end of the stream. The daemon has one thread
//! for this, which serves one client after the other and gives each little time. It looks at devices without holding
//! their workers up.

use std::io;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::bail;
use anyhow::Context;
use anyhow::Result;
use vdev::listen;
use vdev::SocketPath;

use crate::report::Report;

/// How long a client may take for each read and write.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long who asks waits: the daemon may serve others first.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a request at most.
const MAX_REQUEST: usize = 16;

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables.
    Text,
    /// JSON.
    Json,
}

impl Form {
    const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    fn of(word: &[u8]) -> Option<Self> {
        [Self::Text, Self::Json]
            .into_iter()
            .find(|form| form.word().as_bytes() == word)
    }
}

/// The thread that tells the status. Dropping it ends the thread and removes the socket.
pub struct Server {
    socket: SocketPath,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `path`, where the socket of a daemon that was killed may lie, and answers with what `look` sees.
    pub fn start(path: &Path, look: impl Fn() -> Report + Send + 'static) -> Result<Self> {
        let (listener, socket) = listen(path).context("status")?;
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = stopped.clone();
        let thread = thread::Builder::new()
            .name("status".into())
            .spawn(move || {
                for client in listener.incoming() {
                    if flag.load(Ordering::Acquire) {
                        break;
                    }
                    if let Err(error) = client.and_then(|client| answer(client, &look)) {
                        tracing::debug!(%error, "status not told");
                    }
                }
            })
            .context("can't start the thread of the status")?;
        Ok(Self {
            socket,
            stopped,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        // The thread waits for a client.
        let woken = UnixStream::connect(self.socket.as_path()).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // It ends by itself; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}

fn answer(mut client: UnixStream, look: impl Fn() -> Report) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut request = Vec::new();
    let mut byte = [0];
    // One that never ends its line has as many turns as there are bytes.
    while request.len() < MAX_REQUEST && client.read(&mut byte)? == 1 && byte != *b"\n" {
        request.extend(byte);
    }
    let text = match Form::of(&request) {
        Some(Form::Text) => look().to_string(),
        Some(Form::Json) => serde_json::to_string(&look())? + "\n",
        None => return Err(io::Error::other("unknown request")),
    };
    client.write_all(text.as_bytes())
}

/// Asks the daemon that listens at `socket` and copies its answer to `to`.
pub fn show(socket: &Path, form: Form, to: &mut impl Write) -> Result<()> {
    let context = || format!("no status from {}", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(context)?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
    writeln!(stream, "{}", form.word()).with_context(context)?;
    let copied = io::copy(&mut stream, to).with_context(context)?;
    if copied == 0 {
        bail!("{}: it does not know the question", context());
    }
    Ok(())
}
