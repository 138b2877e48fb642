// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client's session: its messages are executed in order, each answered before the next begins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use sandbox::Passer;

use crate::client::Client;
use crate::client_stream::{ClientStream, StreamRead};
use crate::function::PciFunction;
use crate::message::Header;
use crate::reply_pipe::ReplyPipe;
use crate::server::Signals;

/// A connected client and the state of its requests.
pub(crate) struct Session {
    stream: ClientStream,
    client: Client,
    signals: Arc<Signals>,
    /// The reply to the message that is being executed.
    reply: Vec<u8>,
    pipe: ReplyPipe,
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
        pipe: ReplyPipe,
        function: Arc<PciFunction>,
        signals: Arc<Signals>,
    ) -> io::Result<Self> {
        Ok(Self {
            stream: ClientStream::new(stream)?,
            client: Client::new(function, signals.clone()),
            signals,
            reply: Vec::new(),
            pipe,
        })
    }

    /// Whether a part of a message was taken out of the socket, and the rest may be there.
    pub(crate) fn is_cut(&self) -> bool {
        let mut input = [PollFd::new(&self.stream, PollFlags::IN)];
        !self.stream.is_in_socket() && poll(&mut input, Some(&Timespec::default())) == Ok(1)
    }

    pub(crate) fn replies(&self) -> &ReplyPipe {
        &self.pipe
    }

    /// Goes on serving a client whose engine has died, maybe while it reset the function by
    /// `reset`, which is done now.
    pub(crate) fn resume(&mut self, reset: Option<Header>, passer: &Passer) -> io::Result<()> {
        let is_answered = !self.pipe.is_empty()?;
        if is_answered {
            self.stream.take_executed(|it| self.client.is_last(it))?;
            self.client.forget_reset();
            self.send(passer)?;
        }
        // While a reset is answered later, the client sends no other command that is answered.
        let reset = reset.filter(|_| !is_answered);
        if let Some(reset) = &reset {
            // It is in the socket yet if the engine has died right after it began the reset.
            self.stream.take_executed(|it| it == reset)?;
        }
        self.client.resume(reset);
        self.reset_done(passer)
    }

    /// Reads input once and executes each complete message. Fails if the client broke the protocol.
    pub(crate) fn serve(&mut self, passer: &Passer) -> io::Result<Served> {
        match self.stream.receive()? {
            StreamRead::Closed => return Ok(Served::Closed),
            StreamRead::Nothing => return Ok(Served::Nothing),
            StreamRead::Data => {}
        }
        while let Some(message) = self.stream.next().map_err(io::Error::other)? {
            self.client.handle(message, &mut self.reply)?;
            // Each reply is sent at once: a vCPU may wait for it, and the output stays bounded.
            if self.put_reply()? {
                self.stream.take()?;
                self.send(passer)?;
            }
            if passer.is_closed() && self.stream.is_in_socket() {
                self.stream.take()?;
                passer.pass();
            }
        }
        self.stream.take()?;
        Ok(Served::Input)
    }

    /// Answers the pending DEVICE_RESET, if there is one.
    pub(crate) fn reset_done(&mut self, passer: &Passer) -> io::Result<()> {
        self.client.reset_done(&mut self.reply);
        self.put_reply()?;
        self.client.forget_reset();
        self.send(passer)
    }

    /// Puts the reply into the pipe. Returns whether there was one.
    fn put_reply(&mut self) -> io::Result<bool> {
        let is_any = !self.reply.is_empty();
        if is_any {
            self.pipe.put(&self.reply)?;
            self.reply.clear();
        }
        Ok(is_any)
    }

    fn send(&self, passer: &Passer) -> io::Result<()> {
        let client = self.stream.as_fd();
        self.pipe.send(client, self.signals.stop.as_fd(), passer)
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::time::Instant;

    use budget::CallClock;
    use sandbox::Gate;

    use super::*;
    use crate::aio::Aio;
    use crate::message::{Structure, VfioUserCommand};
    use crate::record::Record;
    use crate::testing::Nothing;

    /// One engine after the other, at the same descriptors.
    struct Engines {
        function: Arc<PciFunction>,
        signals: Arc<Signals>,
        connection: UnixStream,
        pipe: ReplyPipe,
    }

    impl Engines {
        fn new(connection: UnixStream) -> Self {
            let space = Arc::default();
            let signals = Arc::new(Signals::new(&space).unwrap());
            let clock = CallClock::manual(Instant::now());
            let (aio, record) = (Arc::new(Aio::new().unwrap()), Record::for_tests());
            let function = PciFunction::new("test", Arc::new(Nothing), space, aio, record, clock);
            Self {
                function: Arc::new(function),
                signals,
                connection,
                pipe: ReplyPipe::new().unwrap(),
            }
        }

        fn session(&self) -> Session {
            let ends = [&self.pipe.output, &self.pipe.input];
            let pipe = ends.map(|end| end.try_clone().unwrap()).into();
            let connection = self.connection.try_clone().unwrap();
            let (function, signals) = (self.function.clone(), self.signals.clone());
            Session::new(connection, pipe, function, signals).unwrap()
        }
    }

    fn passer() -> Passer {
        Arc::new(Gate::default()).enter()
    }

    /// The steps in which a message is executed. An engine can die after each of them.
    const STEPS: [fn(&mut Session); 4] = [
        |session| {
            assert_eq!(session.stream.receive().unwrap(), StreamRead::Data);
            for _ in 0..2 {
                let message = session.stream.next().unwrap().unwrap();
                session.client.handle(message, &mut session.reply).unwrap();
            }
        },
        |session| session.pipe.put(&session.reply).unwrap(),
        |session| session.stream.take().unwrap(),
        |session| session.send(&passer()).unwrap(),
    ];

    fn command(id: u16, command: VfioUserCommand, flags: u32) -> Header {
        Header {
            id,
            command: command as u16,
            // LOSSLESS: A header is short.
            size: Header::LEN as u32,
            flags,
            error: 0,
        }
    }

    #[test]
    fn a_command_is_answered_once_wherever_its_engine_dies() {
        for count in 0..=STEPS.len() {
            let (mut client, connection) = UnixStream::pair().unwrap();
            let engines = Engines::new(connection);
            let mut messages = Vec::new();
            // The first command wants no reply.
            command(1, VfioUserCommand::DeviceGetInfo, 1 << 4).encode(&mut messages);
            command(2, VfioUserCommand::DeviceGetInfo, 0).encode(&mut messages);
            command(3, VfioUserCommand::DeviceGetInfo, 0).encode(&mut messages);
            client.write_all(&messages).unwrap();
            let mut session = engines.session();
            for step in &STEPS[..count] {
                step(&mut session);
            }
            drop(session);
            let mut next = engines.session();
            next.resume(None, &passer()).unwrap();
            while next.serve(&passer()).unwrap() == Served::Input {}
            drop((next, engines));
            let mut replies = Vec::new();
            client.read_to_end(&mut replies).unwrap();
            let ids = replies
                .chunks(32)
                .map(|it| u16::from_ne_bytes([it[0], it[1]]));
            assert_eq!(Vec::from_iter(ids), [2, 3], "after {count} steps");
        }
    }

    /// The engine dies after it has begun the reset, with the command in the socket or not.
    #[test]
    fn a_reset_is_answered_once() {
        for is_taken in [false, true] {
            let (mut client, connection) = UnixStream::pair().unwrap();
            let engines = Engines::new(connection);
            let reset = command(7, VfioUserCommand::DeviceReset, 0);
            let mut message = Vec::new();
            reset.encode(&mut message);
            client.write_all(&message).unwrap();
            let mut session = engines.session();
            assert_eq!(session.stream.receive().unwrap(), StreamRead::Data);
            let message = session.stream.next().unwrap().unwrap();
            session.client.handle(message, &mut session.reply).unwrap();
            if is_taken {
                session.stream.take().unwrap();
            }
            drop(session);
            let mut next = engines.session();
            next.resume(Some(reset), &passer()).unwrap();
            while next.serve(&passer()).unwrap() == Served::Input {}
            next.reset_done(&passer()).unwrap();
            drop((next, engines));
            let mut replies = Vec::new();
            client.read_to_end(&mut replies).unwrap();
            assert_eq!(replies.len(), Header::LEN, "one answer");
        }
    }
}
