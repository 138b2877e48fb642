// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client's session: its messages are executed in order, each answered before the next begins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use crate::client::Client;
use crate::client_stream::{ClientStream, StreamRead};
use crate::function::PciFunction;
use crate::message::Header;
use crate::server::Signals;

/// A connected client and the state of its requests.
pub(crate) struct Session {
    stream: ClientStream,
    client: Client,
    signals: Arc<Signals>,
    replies: Vec<u8>,
}

/// The result of serving a session once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// Input was served.
    Input,
    /// There was no input.
    Nothing,
    /// The client has disconnected.
    Closed,
}

impl Session {
    pub(crate) fn new(
        stream: UnixStream,
        function: Arc<PciFunction>,
        signals: Arc<Signals>,
    ) -> io::Result<Self> {
        Ok(Self {
            stream: ClientStream::new(stream)?,
            client: Client::new(function, signals.clone()),
            signals,
            replies: Vec::new(),
        })
    }

    /// Goes on serving a client whose engine has died, maybe while it reset the function by
    /// `reset`.
    pub(crate) fn resume(&mut self, reset: Option<Header>) -> io::Result<()> {
        self.client.resume(reset);
        self.reset_done()
    }

    /// Reads input once and executes each complete message. Fails if the client broke the protocol.
    pub(crate) fn serve(&mut self) -> io::Result<Served> {
        match self.stream.receive()? {
            StreamRead::Closed => return Ok(Served::Closed),
            StreamRead::Nothing => return Ok(Served::Nothing),
            StreamRead::Data => {}
        }
        while let Some(message) = self.stream.next().map_err(io::Error::other)? {
            self.client.handle(message, &mut self.replies)?;
            // Each reply is sent at once: a vCPU may wait for it, and the output stays bounded.
            self.send()?;
        }
        self.stream.take()?;
        Ok(Served::Input)
    }

    /// Answers the pending DEVICE_RESET, if there is one.
    pub(crate) fn reset_done(&mut self) -> io::Result<()> {
        self.client.reset_done(&mut self.replies);
        self.send()
    }

    fn send(&mut self) -> io::Result<()> {
        if !self.replies.is_empty() {
            self.stream.take()?;
            let sent = self.stream.send(&self.replies, self.signals.stop.as_fd());
            self.replies.clear();
            sent?;
        }
        Ok(())
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
