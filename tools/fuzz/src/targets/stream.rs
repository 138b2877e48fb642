// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The byte stream of a vfio-user client, and the descriptors in it.
//!
//! A client sends messages, good and damaged, cut wherever it likes, in any order with the steps of
//! the service thread and of a worker; it goes, and another comes. A model reads the same bytes. It
//! says what is answered, mapped, interrupted and held open, so nothing is to be left of a client.

use std::cell::RefCell;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use arbitrary::{Result, Unstructured};

use crate::client::{
    command, Header, Memory, Server, Thing, Things, Write, EVENTFDS, HEADER_LEN, LIMIT,
    MAX_MESSAGE, NO_REPLY, PAGE, PAGES, THINGS,
};
use crate::function::driver::{
    chain, descriptor, place, queue_at, set_up, value, AVAILABLE, DATA, MEMORY, MEMORY_LEN,
    REGISTERS, STATUS, USED,
};
use crate::function::{send_bytes, Bench, Step, NOTIFY, QUEUES, VIRTIO};

/// Region of the configuration space.
const CONFIG: u32 = 7;
/// Steps of an input.
const STEPS: usize = 200;
/// Steps in which the service thread does all that an input left to it.
const REST: usize = 200;

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Runs the target.
pub fn run(data: &[u8]) {
    MACHINE.with_borrow_mut(|machine| {
        // One that a finding has left behind is not used again.
        let mut taken = machine.take().unwrap_or_else(Machine::new);
        let mut run = Run::new(&mut taken);
        // Bytes that run out end the input.
        let _ = run.steps(&mut Unstructured::new(data));
        run.end();
        *machine = Some(taken);
    });
}

/// A function, and what its clients have.
struct Machine {
    bench: Bench,
    things: Things,
    memory: Memory,
}

impl Machine {
    fn new() -> Self {
        let things = Things::new();
        Self {
            bench: Bench::new(LIMIT),
            memory: Memory::new(&things),
            things,
        }
    }
}

/// One input.
struct Run<'a> {
    bench: &'a mut Bench,
    things: &'a Things,
    memory: &'a mut Memory,
    client: UnixStream,
    server: Server,
    id: u16,
    /// Bytes that go out with the next message.
    kept: Vec<u8>,
}

impl<'a> Run<'a> {
    fn new(machine: &'a mut Machine) -> Self {
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
            kept: Vec::new(),
        }
    }

    fn steps(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            self.step(input)?;
            self.bench.check(&self.server.function);
        }
        Ok(())
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.arbitrary::<u8>()? % 24 {
            0..=2 => {
                let (offset, width) = *input.choose(&REGISTERS)?;
                let value = value(input)?.to_le_bytes();
                let write = store(VIRTIO, offset, &value[..width]);
                self.command(input, command::REGION_WRITE, &write, &[])?;
            }
            3 => {
                let (region, offset) = (input.int_in_range(0..=9)?, place(input)?);
                let value = value(input)?.to_le_bytes();
                let len = input.int_in_range(0..=8)?;
                let write = store(region, offset, &value[..len]);
                self.command(input, command::REGION_WRITE, &write, &[])?;
            }
            4 => {
                let (region, offset) = (input.int_in_range(0..=9)?, place(input)?);
                let len = match input.arbitrary::<u8>()? {
                    len @ 0..=239 => u32::from(len),
                    _ => value(input)? as u32,
                };
                let read = access(region, offset, len);
                self.command(input, command::REGION_READ, &read, &[])?;
            }
            5 => {
                let offset = u64::from(input.arbitrary::<u16>()? & 0x1ff);
                let value = value(input)?.to_le_bytes();
                let len = input.int_in_range(0..=8)?;
                if input.arbitrary()? {
                    let write = store(CONFIG, offset, &value[..len]);
                    self.command(input, command::REGION_WRITE, &write, &[])?;
                } else {
                    let read = access(CONFIG, offset, len as u32);
                    self.command(input, command::REGION_READ, &read, &[])?;
                }
            }
            6..=8 => self.map(input)?,
            9 | 10 => self.unmap(input)?,
            11 | 12 => self.set_irqs(input)?,
            13 => {
                let numbers = [
                    command::VERSION,
                    command::DEVICE_INFO,
                    command::REGION_INFO,
                    command::IRQ_INFO,
                ];
                let number = *input.choose(&numbers)?;
                let words = [32, 0, input.arbitrary::<u8>()? % 12].map(u32::from);
                let mut payload = words.map(u32::to_ne_bytes).concat();
                if number == command::VERSION {
                    let (major, minor) = (input.arbitrary::<u8>()? & 1, input.arbitrary()?);
                    payload = vec![major, 0, minor, 0];
                }
                self.command(input, number, &payload, &[])?;
            }
            14 => {
                let (number, len) = (input.arbitrary::<u8>()? % 20, input.arbitrary::<u8>()?);
                let payload = bytes(input, len.into())?;
                let fds = things(input)?;
                self.command(input, number.into(), &payload, &fds)?;
            }
            15 => self.command(input, command::RESET, &[], &[])?,
            16 => self.set_up(input)?,
            17 => self.offer_chain(input)?,
            18 | 19 => self.work(input)?,
            20 => self.disturb(input)?,
            21 => self.leave(input.arbitrary::<u8>()? % 4 == 3),
            22 => self.fill(input)?,
            _ => {
                for _ in 0..input.int_in_range(1..=8)? {
                    self.serve_device();
                }
                self.serve();
            }
        }
        Ok(())
    }

    fn map(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let flags = input.arbitrary::<u8>()?;
        let mut words = [0, 0, MEMORY, MEMORY_LEN as u64];
        let mut fds = vec![Thing(0)];
        if flags & 0x80 != 0 {
            fds = things(input)?;
            words[1] = page(input)? % (PAGES as u64 * PAGE as u64 * 2);
            words[2] = page(input)?;
            words[3] = page(input)? % (LIMIT + PAGE as u64);
        }
        words[0] = 32 | (u64::from(flags & 7) << 32);
        let payload = words.map(u64::to_ne_bytes).concat();
        self.command(input, command::DMA_MAP, &payload, &fds)
    }

    fn unmap(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let flags = input.arbitrary::<u8>()?;
        let regions = &self.server.map.regions;
        let (iova, len) = match regions.get(usize::from(flags) % (regions.len() + 1)) {
            Some(region) => (region.iova, region.len),
            None => (page(input)?, page(input)?),
        };
        // Most messages ask for neither dirty pages nor all regions.
        let flags = if flags < 0xe0 {
            0
        } else {
            u64::from(flags & 7)
        };
        let payload = [24 | (flags << 32), iova, len]
            .map(u64::to_ne_bytes)
            .concat();
        self.command(input, command::DMA_UNMAP, &payload, &[])
    }

    fn set_irqs(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let flags = input.arbitrary::<u8>()?;
        let (start, count) = (u32::from(flags & 3), u32::from((flags >> 2) & 3));
        let mut words = [20, 0x24, 2, start, count];
        let mut fds = Vec::new();
        if flags & 0x80 != 0 {
            fds = things(input)?;
        } else if flags & 0x40 == 0 {
            for _ in 0..count {
                fds.push(Thing::eventfd(input.choose_index(EVENTFDS)?));
            }
        }
        if flags & 0x30 == 0x30 {
            words[1] = input.arbitrary::<u8>()?.into();
            words[input.choose_index(5)?] = value(input)? as u32;
        } else if flags & 0x40 != 0 {
            words[1] = 0x21;
        }
        let payload = words.map(u32::to_ne_bytes).concat();
        self.command(input, command::SET_IRQS, &payload, &fds)
    }

    /// A driver that follows the rules, up to DRIVER_OK.
    fn set_up(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let reset = [(STATUS.0, STATUS.1, 0)];
        self.write_registers(&reset);
        self.drain();
        let writes = set_up(input)?;
        self.write_registers(&writes);
        Ok(())
    }

    /// Posted writes.
    fn write_registers(&mut self, writes: &[(u64, usize, u64)]) {
        for &(offset, width, value) in writes {
            let payload = store(VIRTIO, offset, &value.to_le_bytes()[..width]);
            let message = self.message(command::REGION_WRITE, NO_REPLY, &payload);
            self.write(message, &[]);
        }
        self.serve();
    }

    /// Makes a chain of a few descriptors available, and rings.
    fn offer_chain(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let queue = input.choose_index(QUEUES.len())? as u64;
        let chain = chain(input)?;
        self.offer(queue, &chain);
        Ok(())
    }

    fn offer(&mut self, queue: u64, chain: &[u8]) {
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

    /// The guest writes to its memory, if there is any.
    fn store(&mut self, iova: u64, bytes: &[u8]) {
        if let Some(place) = self.server.map.find(iova, bytes.len() as u64) {
            self.memory.write(self.things, place, bytes);
        }
    }

    /// A worker reads or writes guest memory.
    fn work(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (flags, at) = (input.arbitrary::<u8>()?, page(input)?);
        let regions = &self.server.map.regions;
        let iova = match regions.get(usize::from(flags >> 1) % (regions.len() + 1)) {
            Some(region) => region.iova.wrapping_add(at % (2 * region.len)),
            None => at,
        };
        let iova = iova.wrapping_sub(u64::from(input.arbitrary::<u8>()? & 0xf));
        let expected = self.server.map.find(iova, 8);
        let view = self.bench.space.enter();
        let mut bytes = input.arbitrary::<u64>()?.to_ne_bytes();
        if flags & 1 != 0 {
            let written = view.slice_mut(iova, 8).and_then(|to| to.write(0, &bytes));
            let expected = expected.filter(|place| place.writable);
            assert_eq!(written.is_ok(), expected.is_some(), "write to {iova:#x}");
            if let Some(place) = expected {
                let mut shown = [0; 8];
                self.memory.read(self.things, place, &mut shown);
                assert_eq!(shown, bytes, "written to {iova:#x}");
            }
        } else {
            let read = view
                .slice(iova, 8)
                .and_then(|from| from.read(0, &mut bytes));
            assert_eq!(read.is_ok(), expected.is_some(), "read of {iova:#x}");
            if let Some(place) = expected {
                let mut shown = [0; 8];
                self.memory.read(self.things, place, &mut shown);
                assert_eq!(shown, bytes, "read of {iova:#x}");
            }
        }
        Ok(())
    }

    /// The device interrupts, or the guest writes to its queues.
    fn disturb(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.arbitrary::<u8>()? % 3 {
            0 => {
                self.bench.stepped.config_changed();
                self.server.function.config_changed();
            }
            1 => {
                let queue = input.choose_index(QUEUES.len())?;
                if let Some(other) = self.bench.device.queues().get(queue) {
                    other.interrupt();
                    self.server.function.queue_interrupts(queue, true);
                }
            }
            _ => {
                let at = MEMORY + u64::from(input.arbitrary::<u16>()?);
                let value = value(input)?.to_le_bytes();
                self.store(at, &value);
            }
        }
        self.server.settle();
        self.check_interrupts();
        Ok(())
    }

    /// Many regions, or a long message.
    fn fill(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if input.arbitrary()? {
            let (at, count) = (page(input)?, input.arbitrary::<u8>()?);
            for number in 0..u64::from(count) {
                let iova = at.wrapping_add(2 * number * PAGE as u64);
                let words = [32 | (3 << 32), 0, iova, PAGE as u64];
                let message = self.message(
                    command::DMA_MAP,
                    NO_REPLY,
                    &words.map(u64::to_ne_bytes).concat(),
                );
                self.write(message, &[Thing(usize::from(count) % 2)]);
            }
            self.serve();
        } else {
            let len = input.int_in_range(0..=MAX_MESSAGE - HEADER_LEN + 1)?;
            let region = input.int_in_range(0..=9)?;
            let mut payload = store(region, place(input)?, &vec![0x11; len]);
            payload.truncate(len);
            self.command(input, command::REGION_WRITE, &payload, &[])?;
        }
        Ok(())
    }

    fn message(&mut self, command: u16, flags: u32, payload: &[u8]) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let header = Header {
            id: self.id,
            command,
            size: (HEADER_LEN + payload.len()) as u32,
            flags,
        };
        [&header.encode(), payload].concat()
    }

    /// Sends a command, perhaps damaged and in pieces.
    fn command(
        &mut self,
        input: &mut Unstructured<'_>,
        command: u16,
        payload: &[u8],
        fds: &[Thing],
    ) -> Result<()> {
        let way = input.arbitrary::<u8>()?;
        let flags = if way & 0x10 != 0 { NO_REPLY } else { 0 };
        let mut payload = payload.to_vec();
        match way >> 5 {
            5 => {
                let len = input.arbitrary::<u8>()?;
                payload.truncate(len.into());
            }
            6 => payload.extend(bytes(input, 24)?),
            _ => {}
        }
        let mut message = self.message(command, flags, &payload);
        if way >> 5 == 7 {
            let at = input.choose_index(HEADER_LEN)?;
            message[at] = input.arbitrary()?;
        }
        self.kept.append(&mut message);
        let mut whole = std::mem::take(&mut self.kept);
        match way & 0xf {
            0..=8 => self.write(whole, fds),
            9 => {
                self.write(whole, fds);
                return Ok(());
            }
            way @ 10..=13 => {
                let at = usize::from(input.arbitrary::<u8>()?) % whole.len();
                let rest = whole.split_off(at);
                self.write(whole, if way & 1 == 0 { fds } else { &[] });
                if way & 2 == 0 {
                    self.serve();
                }
                self.write(rest, if way & 1 != 0 { fds } else { &[] });
            }
            _ => {
                self.kept = whole;
                return Ok(());
            }
        }
        self.serve();
        Ok(())
    }

    /// Writes to the socket as soon as that has room. What it never has room for is dropped.
    fn write(&mut self, bytes: Vec<u8>, fds: &[Thing]) {
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
        send_bytes(&self.client, &write.bytes, &fds);
        self.server.write(write);
    }

    /// The socket thread serves what has come, and the client takes the replies.
    fn serve(&mut self) {
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
        // Ends where the socket is empty.
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

    fn check_interrupts(&mut self) {
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

    /// The service thread does a piece of work. Returns whether there was any.
    fn serve_device(&mut self) -> bool {
        let step = self.bench.serve_device(&mut self.server.function);
        self.server.stepped(step);
        self.check_interrupts();
        step != Step::Idle
    }

    /// The service thread does all that is to be done.
    fn drain(&mut self) {
        let steps = (0..=REST).take_while(|_| self.serve_device()).count();
        assert!(steps <= REST, "work without end");
    }

    /// The client goes, at once or after its last message, and another comes.
    fn leave(&mut self, at_once: bool) {
        self.kept.clear();
        if at_once {
            let (gone, _) = UnixStream::pair().expect("socket");
            self.client = gone;
            // What was on its way is served until an answer finds nobody.
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
        self.kept.clear();
        let next = self.bench.disconnect(&self.server.function);
        self.server = Server::new(next);
        // A client that has gone is not interrupted.
        self.check_interrupts();
        assert_eq!(self.bench.space.mapped().0, 0, "mapped bytes");
        let left = self.client.read(&mut [0]).map_err(|error| error.kind());
        // A server that leaves input unread resets the connection.
        let is_closed = matches!(left, Ok(0) | Err(ErrorKind::ConnectionReset));
        assert!(is_closed, "the connection is still open");
        self.client = connect(self.bench);
    }

    /// A client and a driver that follow the rules are served.
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

    fn end(mut self) {
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

/// The payload of a register access, without data.
fn access(region: u32, offset: u64, len: u32) -> Vec<u8> {
    let words = [offset, u64::from(region) | (u64::from(len) << 32)];
    words.map(u64::to_ne_bytes).concat()
}

/// The payload of a register write.
fn store(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    [&access(region, offset, data.len() as u32), data].concat()
}

/// A few descriptors, and sometimes more than fit.
fn things(input: &mut Unstructured<'_>) -> Result<Vec<Thing>> {
    let count = input.arbitrary::<u8>()?;
    let count = if count < 0xf0 { count % 4 } else { count % 20 };
    let one = |_| Ok(Thing(input.choose_index(THINGS)?));
    (0..count).map(one).collect()
}

/// An address or length, mostly of pages.
fn page(input: &mut Unstructured<'_>) -> Result<u64> {
    let page = PAGE as u64;
    Ok(match input.arbitrary::<u8>()? {
        few @ 0..=127 => page * u64::from(few % 32),
        near @ 128..=223 => MEMORY + page * u64::from(near % 32),
        top @ 224..=239 => 0u64.wrapping_sub(page * u64::from(top - 223)),
        _ => input.arbitrary()?,
    })
}

fn bytes(input: &mut Unstructured<'_>, len: usize) -> Result<Vec<u8>> {
    let len = len.min(input.len());
    input.bytes(len).map(<[u8]>::to_vec)
}
