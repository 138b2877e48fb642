// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The byte stream of a vfio-user client, and the descriptors in it.
//!
//! A client sends valid and damaged messages, split at any byte, interleaved with steps of the
//! service thread and of a worker. It disconnects, and another client connects. A model reads the
//! same bytes. It predicts replies, mapped regions, interrupts and open descriptors, so it detects
//! resources that the server does not release when a client disconnects.

use std::cell::RefCell;

use arbitrary::{Result, Unstructured};
use testkit::vfio::message::{access, store, HEADER_LEN, NO_REPLY};

use crate::client::{
    command, Machine, Session, Thing, EVENTFDS, LIMIT, MAX_MESSAGE, PAGE, PAGES, THINGS,
};
use crate::function::driver::{chain, place, set_up, value, MEMORY, MEMORY_LEN, REGISTERS, STATUS};
use crate::function::{QUEUES, VIRTIO};

/// Index of the configuration space's region.
const CONFIG: u32 = 7;
/// Maximum number of steps of an input.
const STEPS: usize = 200;

thread_local! {
    static MACHINE: RefCell<Option<Machine>> = const { RefCell::new(None) };
}

/// Runs the target.
pub fn run(data: &[u8]) {
    MACHINE.with_borrow_mut(|machine| {
        // After `take`, the machine is dropped if the run panics, so it is not used again.
        let mut taken = machine.take().unwrap_or_else(Machine::new);
        let mut run = Run {
            session: Session::new(&mut taken),
            kept: Vec::new(),
        };
        // An error means that the input is used up.
        let _ = run.steps(&mut Unstructured::new(data));
        run.session.end();
        *machine = Some(taken);
    });
}

/// The run of one input.
struct Run<'a> {
    session: Session<'a>,
    /// Bytes of earlier messages that are sent together with the next message.
    kept: Vec<u8>,
}

impl Run<'_> {
    fn steps(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            self.step(input)?;
            self.session.bench.check(&self.session.server.function);
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
            21 => self.session.leave(input.arbitrary::<u8>()? % 4 == 3),
            22 => self.fill(input)?,
            _ => {
                for _ in 0..input.int_in_range(1..=8)? {
                    self.session.serve_device();
                }
                self.session.serve();
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
        let regions = &self.session.server.map.regions;
        let (iova, len) = match regions.get(usize::from(flags) % (regions.len() + 1)) {
            Some(region) => (region.iova, region.len),
            None => (page(input)?, page(input)?),
        };
        // The majority of messages request neither dirty pages nor the unmapping of all regions.
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

    /// Initializes the device up to DRIVER_OK, like a driver that follows the rules.
    fn set_up(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let reset = [(STATUS.0, STATUS.1, 0)];
        self.session.write_registers(&reset);
        self.session.drain();
        let writes = set_up(input)?;
        self.session.write_registers(&writes);
        Ok(())
    }

    /// Makes a chain of a few descriptors available and notifies the queue.
    fn offer_chain(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let queue = input.choose_index(QUEUES.len())? as u64;
        let chain = chain(input)?;
        self.session.offer(queue, &chain);
        Ok(())
    }

    /// Reads or writes guest memory, like a worker.
    fn work(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let (flags, at) = (input.arbitrary::<u8>()?, page(input)?);
        let regions = &self.session.server.map.regions;
        let iova = match regions.get(usize::from(flags >> 1) % (regions.len() + 1)) {
            Some(region) => region.iova.wrapping_add(at % (2 * region.len)),
            None => at,
        };
        let iova = iova.wrapping_sub(u64::from(input.arbitrary::<u8>()? & 0xf));
        let expected = self.session.server.map.find(iova, 8);
        let view = self.session.bench.space.enter();
        let mut bytes = input.arbitrary::<u64>()?.to_ne_bytes();
        if flags & 1 != 0 {
            let written = view.slice_mut(iova, 8).and_then(|to| to.write(0, &bytes));
            let expected = expected.filter(|place| place.writable);
            assert_eq!(written.is_ok(), expected.is_some(), "write to {iova:#x}");
            if let Some(place) = expected {
                let mut shown = [0; 8];
                self.session
                    .memory
                    .read(self.session.things, place, &mut shown);
                assert_eq!(shown, bytes, "written to {iova:#x}");
            }
        } else {
            let read = view
                .slice(iova, 8)
                .and_then(|from| from.read(0, &mut bytes));
            assert_eq!(read.is_ok(), expected.is_some(), "read of {iova:#x}");
            if let Some(place) = expected {
                let mut shown = [0; 8];
                self.session
                    .memory
                    .read(self.session.things, place, &mut shown);
                assert_eq!(shown, bytes, "read of {iova:#x}");
            }
        }
        Ok(())
    }

    /// Raises an interrupt of the device, or writes to the queues as the guest.
    fn disturb(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.arbitrary::<u8>()? % 3 {
            0 => {
                self.session.bench.stepped.config_changed();
                self.session.server.function.config_changed();
            }
            1 => {
                let queue = input.choose_index(QUEUES.len())?;
                if let Some(other) = self.session.bench.device.queues().get(queue) {
                    other.interrupt();
                    self.session.server.function.queue_interrupts(queue, true);
                }
            }
            _ => {
                let at = MEMORY + u64::from(input.arbitrary::<u16>()?);
                let value = value(input)?.to_le_bytes();
                self.session.store(at, &value);
            }
        }
        self.session.server.signal_vectors();
        self.session.check_interrupts();
        Ok(())
    }

    /// Maps many regions, or sends a long message.
    fn fill(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if input.arbitrary()? {
            let (at, count) = (page(input)?, input.arbitrary::<u8>()?);
            for number in 0..u64::from(count) {
                let iova = at.wrapping_add(2 * number * PAGE as u64);
                let words = [32 | (3 << 32), 0, iova, PAGE as u64];
                let message = self.session.message(
                    command::DMA_MAP,
                    NO_REPLY,
                    &words.map(u64::to_ne_bytes).concat(),
                );
                self.session
                    .write(message, &[Thing(usize::from(count) % 2)]);
            }
            self.session.serve();
        } else {
            let len = input.int_in_range(0..=MAX_MESSAGE - HEADER_LEN + 1)?;
            let region = input.int_in_range(0..=9)?;
            let mut payload = store(region, place(input)?, &vec![0x11; len]);
            payload.truncate(len);
            self.command(input, command::REGION_WRITE, &payload, &[])?;
        }
        Ok(())
    }

    /// Sends a command, possibly damaged or in pieces.
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
        let mut message = self.session.message(command, flags, &payload);
        if way >> 5 == 7 {
            let at = input.choose_index(HEADER_LEN)?;
            message[at] = input.arbitrary()?;
        }
        self.kept.append(&mut message);
        let mut whole = std::mem::take(&mut self.kept);
        match way & 0xf {
            0..=8 => self.session.write(whole, fds),
            9 => {
                self.session.write(whole, fds);
                return Ok(());
            }
            way @ 10..=13 => {
                let at = usize::from(input.arbitrary::<u8>()?) % whole.len();
                let rest = whole.split_off(at);
                self.session
                    .write(whole, if way & 1 == 0 { fds } else { &[] });
                if way & 2 == 0 {
                    self.session.serve();
                }
                self.session
                    .write(rest, if way & 1 != 0 { fds } else { &[] });
            }
            _ => {
                self.kept = whole;
                return Ok(());
            }
        }
        self.session.serve();
        Ok(())
    }
}

/// A few descriptors, or sometimes more than a message may have.
fn things(input: &mut Unstructured<'_>) -> Result<Vec<Thing>> {
    let count = input.arbitrary::<u8>()?;
    let count = if count < 0xf0 { count % 4 } else { count % 20 };
    let one = |_| Ok(Thing(input.choose_index(THINGS)?));
    (0..count).map(one).collect()
}

/// An address or length, mostly a multiple of the page size.
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
