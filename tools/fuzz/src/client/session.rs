// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A client and the server under test. After each step the server is compared with its model.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use arbitrary::Unstructured;
use testkit::vfio::descriptor;
use testkit::vfio::message::{message, send, store, NO_REPLY};

use super::framing::Write;
use super::map::LIMIT;
use super::memory::Memory;
use super::message::command;
use super::server::Server;
use super::things::{Thing, Things, EVENTFDS};
use crate::function::driver::{queue_at, set_up, AVAILABLE, DATA, MEMORY, MEMORY_LEN, USED};
use crate::function::{Bench, Step, NOTIFY, VIRTIO};

/// Maximum number of steps that the service thread needs for all pending work.
const REST: usize = 200;
/// Maximum number of bytes that the kernel queues as one piece. The kernel splits longer writes,
/// and attaches the descriptors to the first piece.
const PIECE: usize = 0x8000;

/// A function, and the descriptors and memory of its clients.
pub struct Machine {
    bench: Bench,
    things: Things,
    memory: Memory,
}

impl Machine {
    pub fn new() -> Self {
        let things = Things::new();
        Self {
            bench: Bench::new(LIMIT),
            memory: Memory::new(&things),
            things,
        }
    }
}

/// A client, its server, and the server's model.
pub struct Session<'a> {
    pub bench: &'a mut Bench,
    pub things: &'a Things,
    pub memory: &'a mut Memory,
    pub server: Server,
    client: UnixStream,
    id: u16,
}

impl<'a> Session<'a> {
    /// Connects a client.
    pub fn new(machine: &'a mut Machine) -> Self {
        let Machine {
            bench,
            things,
            memory,
        } = machine;
        let server = Server::new(bench.model());
        Self {
            client: connect(bench),
            bench,
            things,
            memory,
            server,
            id: 0,
        }
    }

    /// Sends posted writes to registers. `writes` has the offset, the width in bytes and the value
    /// of each.
    pub fn write_registers(&mut self, writes: &[(u64, usize, u64)]) {
        for &(offset, width, value) in writes {
            let payload = store(VIRTIO, offset, &value.to_le_bytes()[..width]);
            let message = self.message(command::REGION_WRITE, NO_REPLY, &payload);
            self.write(message, &[]);
        }
        self.serve();
    }

    /// Writes `chain` to the descriptor table of a queue, makes the chain available, and notifies
    /// the device.
    pub fn offer(&mut self, queue: u64, chain: &[u8]) {
        let at = queue_at(queue);
        let mut index = [0; 2];
        if let Some(place) = self.server.map.find(at + AVAILABLE + 2, 2) {
            self.memory.read(self.things, place, &mut index);
        }
        let index = u16::from_le_bytes(index).wrapping_add(1);
        self.store(at, chain);
        self.store(at + AVAILABLE + 4, &[0; 32]);
        self.store(at + AVAILABLE, &[[0; 2], index.to_le_bytes()].concat());
        self.write_registers(&[(NOTIFY + 4 * queue, 2, 0)]);
    }

    /// Writes to memory as the guest, if the address is mapped.
    pub fn store(&mut self, iova: u64, bytes: &[u8]) {
        if let Some(place) = self.server.map.find(iova, bytes.len() as u64) {
            self.memory.write(self.things, place, bytes);
        }
    }

    /// A well-formed message.
    pub fn message(&mut self, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        message(self.id, command, flags, payload)
    }

    /// Writes to the socket. If the model shows no room, the server is first made to read. If there
    /// is no room even then, the bytes are dropped.
    pub fn write(&mut self, mut bytes: Vec<u8>, fds: &[Thing]) {
        if !fds.is_empty() && bytes.len() > PIECE {
            let rest = bytes.split_off(bytes.len() - PIECE);
            self.write(bytes, &[]);
            return self.write(rest, fds);
        }
        let write = Write {
            bytes,
            fds: fds.to_vec(),
        };
        if !self.server.has_room(&write) {
            self.serve();
        }
        if write.bytes.is_empty() || !self.server.has_room(&write) {
            return;
        }
        let fds: Vec<_> = fds.iter().map(|thing| self.things.get(*thing)).collect();
        send(&self.client, &write.bytes, &fds);
        self.server.write(write);
    }

    /// Lets the socket thread serve its input, and checks the replies.
    pub fn serve(&mut self) {
        let served = self.bench.stepped.serve_client();
        let expected = self.server.serve();
        self.check_served();
        match expected {
            Ok(()) => assert!(served.expect("no rule is broken"), "the client is there"),
            Err(_) => {
                served.expect_err("a rule is broken");
                self.replace();
            }
        }
    }

    fn check_served(&mut self) {
        let mut bytes = Vec::new();
        // The read ends with an error when the socket is empty.
        let _ = self.client.read_to_end(&mut bytes);
        let mut stream = &bytes[..];
        for reply in self.server.take_replies() {
            reply.take(&mut stream);
        }
        assert!(stream.is_empty(), "replies that nobody asked for");
        let calls = self.bench.device.take_calls();
        assert_eq!(calls, self.server.function.take_doorbells(), "doorbells");
        self.memory.admit(&self.server.map);
        self.check_interrupts();
        let mapped = self.bench.space.mapped().0;
        assert_eq!(mapped, self.server.map.mapped(), "mapped bytes");
    }

    /// Compares how often each eventfd was signalled.
    pub fn check_interrupts(&mut self) {
        for (number, expected) in self.server.vectors.take_signals().into_iter().enumerate() {
            let count = self.signals(number);
            assert!(
                expected.contains(&count),
                "eventfd {number}: {count} of {expected:?}"
            );
        }
    }

    fn signals(&self, eventfd: usize) -> u64 {
        let mut count = [0; 8];
        let _ = rustix::io::read(self.things.get(Thing::eventfd(eventfd)), &mut count);
        u64::from_ne_bytes(count)
    }

    /// Lets the service thread do a piece of work. Returns whether there was work.
    pub fn serve_device(&mut self) -> bool {
        let step = self.bench.serve_device(&mut self.server.function);
        self.server.stepped(step);
        self.check_interrupts();
        step != Step::Idle
    }

    /// Lets the service thread do all pending work.
    pub fn drain(&mut self) {
        let steps = (0..=REST).take_while(|_| self.serve_device()).count();
        assert!(steps <= REST, "work without end");
    }

    /// Disconnects the client, and connects another one. Unless `at_once`, the server first handles
    /// all messages of the first client.
    pub fn leave(&mut self, at_once: bool) {
        if at_once {
            let (gone, _) = UnixStream::pair().expect("socket");
            self.client = gone;
            // The server handles queued messages until it can't send a reply.
            let _ = self.bench.stepped.serve_client();
            for number in 0..EVENTFDS {
                self.signals(number);
            }
            self.replace();
            return;
        }
        self.client.shutdown(Shutdown::Write).expect("socket");
        let served = self.bench.stepped.serve_client();
        let expected = self.server.serve();
        self.check_served();
        assert_eq!(served.ok(), expected.ok().map(|()| false), "the end");
        self.replace();
    }

    fn replace(&mut self) {
        let next = self.bench.disconnect(&self.server.function);
        self.server = Server::new(next);
        // A disconnected client gets no interrupts.
        self.check_interrupts();
        assert_eq!(self.bench.space.mapped().0, 0, "mapped bytes");
        let left = self.client.read(&mut [0]).map_err(|error| error.kind());
        // If the server has left input unread, the connection is reset instead of closed.
        let is_closed = matches!(left, Ok(0) | Err(ErrorKind::ConnectionReset));
        assert!(is_closed, "the connection is still open");
        self.client = connect(self.bench);
    }

    /// Checks that a client and a driver are served if they follow the rules.
    fn be_honest(&mut self) {
        let version = self.message(command::VERSION, 0, &[0, 0, 1, 0]);
        self.write(version, &[]);
        let words = [32 | (3 << 32), 0, MEMORY, MEMORY_LEN as u64];
        let map = self.message(command::DMA_MAP, 0, &words.map(u64::to_ne_bytes).concat());
        self.write(map, &[Thing(0)]);
        let words = [20u32, 0x24, 2, 0, EVENTFDS as u32];
        let set = self.message(command::SET_IRQS, 0, &words.map(u32::to_ne_bytes).concat());
        let eventfds: Vec<_> = (0..EVENTFDS).map(Thing::eventfd).collect();
        self.write(set, &eventfds);
        let writes = set_up(&mut Unstructured::new(&[0, 4, 4])).unwrap_or_default();
        self.write_registers(&writes);
        self.store(MEMORY, &[0; MEMORY_LEN]);
        self.drain();
        self.store(DATA, b"request!");
        let out = descriptor(DATA, 8, 1, 1);
        self.offer(0, &[out, descriptor(DATA + 8, 8, 2, 0)].concat());
        while self.bench.serve_device(&mut self.server.function) != Step::Idle {}
        let mut answer = [0; 8];
        let place = self.server.map.find(DATA + 8, 8).expect("it is mapped");
        self.memory.read(self.things, place, &mut answer);
        assert_eq!(&answer, b"!tseuqer", "the answer");
        assert_eq!(self.signals(1), 1, "interrupts of the queue");
        self.server.function.take_raised();
        let used = self.server.map.find(queue_at(0) + USED + 2, 2);
        let mut index = [0; 2];
        self.memory
            .read(self.things, used.expect("it is mapped"), &mut index);
        assert_eq!(index, [1, 0], "used index");
    }

    /// Ends the input. Checks that an honest client is served next, and that the server then holds
    /// no descriptors and no memory of either client.
    pub fn end(mut self) {
        self.serve();
        self.drain();
        self.serve();
        self.things.check(&self.server.held());
        self.leave(false);
        self.be_honest();
        self.leave(false);
        self.bench.disconnect(&self.server.function);
        self.things.check(&[]);
        self.memory.end(self.things);
    }
}

fn connect(bench: &mut Bench) -> UnixStream {
    let client = bench.stepped.connect().expect("socket");
    client.set_nonblocking(true).expect("socket");
    client
}
