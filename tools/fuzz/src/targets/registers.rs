// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Configuration space and registers of a PCI function, and its queues.
//!
//! A driver writes whatever it likes, in any order with the steps of the service thread. After each
//! step the function shows what models of its registers show, and interrupts by the vectors that
//! they show.

use std::cell::RefCell;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use dma::DmaSpace;
use vdev::Stepped;

use crate::function::{eventfds, send, Call, Common, Config, Echo, Task, CONFIG, QUEUES, SHM_LEN};

const MEMORY: u64 = 0x4000_0000;
const MEMORY_LEN: usize = 0x1_0000;
/// Where the data of requests lies.
const DATA: u64 = MEMORY + 0x8000;
/// Parts of a queue, relative to its place in memory.
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

/// BARs and their lengths.
const VIRTIO: u32 = 2;
const SHM: u32 = 4;
const BARS: [u64; 6] = [0x1_0000, 0, 0x1_0000, 0, SHM_LEN, 0];
const ISR: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
const NOTIFY: u64 = 0x8000;

/// Offset and width of each register.
const REGISTERS: [(u64, usize); 14] = [
    (0x00, 4),
    (0x08, 4),
    (0x0c, 4),
    (0x10, 2),
    (0x14, 1),
    (0x16, 2),
    (0x18, 2),
    (0x1a, 2),
    (0x1c, 2),
    (0x20, 8),
    (0x28, 8),
    (0x30, 8),
    (0x3a, 2),
    (NOTIFY, 2),
];
const NO_VECTOR: u16 = 0xffff;
/// Steps of an input.
const STEPS: usize = 200;

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

/// Runs the target.
pub fn run(data: &[u8]) {
    BENCH.with_borrow_mut(|bench| {
        // One that a finding has left behind is not used again.
        let mut taken = bench.take().unwrap_or_else(Bench::new);
        let mut run = Run::new(&mut taken);
        // Bytes that run out end the input.
        let _ = run.steps(&mut Unstructured::new(data));
        run.end();
        *bench = Some(taken);
    });
}

/// A function, and what a monitor has of it.
struct Bench {
    stepped: Stepped,
    device: Arc<Echo>,
    space: Arc<DmaSpace>,
    memory: OwnedFd,
    vectors: [OwnedFd; 3],
    initial: [u8; 256],
    generation: u8,
}

impl Bench {
    fn new() -> Self {
        let (device, space) = (Arc::new(Echo::default()), Arc::<DmaSpace>::default());
        let stepped = Stepped::new(device.clone(), space.clone()).expect("a function");
        let mut initial = [0; 256];
        stepped.config_read(0, &mut initial);
        Self {
            stepped,
            device,
            space,
            memory: dma::testing::guest_memory(MEMORY_LEN as u64).expect("memfd"),
            vectors: eventfds(),
            initial,
            generation: 0,
        }
    }
}

/// One input.
struct Run<'a> {
    bench: &'a mut Bench,
    client: UnixStream,
    common: Common,
    config: Config,
    /// Interrupts by each vector: at least and at most.
    least: [u64; 3],
    most: [u64; 3],
    doorbells: Vec<Call>,
}

impl<'a> Run<'a> {
    fn new(bench: &'a mut Bench) -> Self {
        let mut client = bench.stepped.connect().expect("socket");
        let fds: Vec<_> = bench.vectors.iter().map(AsFd::as_fd).collect();
        let set = [20u32, 0x24, 2, 0, 3].map(u32::to_ne_bytes).concat();
        send(&client, 8, 0, &set, &fds);
        assert!(bench.stepped.serve_client().expect("no rule is broken"));
        let mut reply = [0; 16];
        client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[8..], [1, 0, 0, 0, 0, 0, 0, 0], "SET_IRQS");
        let fd = bench.memory.try_clone().expect("descriptor");
        let mapped = bench.space.map(MEMORY, fd, 0, MEMORY_LEN as u64, true);
        mapped.expect("memory is mapped");
        let run = Self {
            client,
            common: Common::new(bench.generation),
            config: Config::new(bench.initial, BARS),
            least: [0; 3],
            most: [0; 3],
            doorbells: Vec::new(),
            bench,
        };
        run.put(MEMORY, &[0; MEMORY_LEN]);
        run.check();
        run
    }

    fn steps(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        for _ in 0..STEPS {
            if input.is_empty() {
                break;
            }
            self.step(input)?;
            self.check();
        }
        Ok(())
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        match input.arbitrary::<u8>()? % 20 {
            0..=6 => {
                let (offset, width) = *input.choose(&REGISTERS)?;
                let value = value(input)?.to_le_bytes();
                self.bar_write(VIRTIO, offset, &value[..width]);
            }
            7 => {
                let (bar, offset) = (input.int_in_range(0..=5)?, place(input)?);
                let value = value(input)?.to_le_bytes();
                let len = input.int_in_range(0..=8)?;
                self.bar_write(bar, offset, &value[..len]);
            }
            8 => {
                let (bar, offset) = (input.int_in_range(0..=5)?, place(input)?);
                let mut data = vec![0xaa; input.int_in_range(0..=16)?];
                self.bench.stepped.bar_read(bar, offset, &mut data);
                self.check_read(bar, offset, &data);
            }
            9 => {
                let offset = u64::from(input.arbitrary::<u8>()?);
                let value = value(input)?.to_le_bytes();
                let len = input.int_in_range(0..=8)?;
                self.config_write(offset, &value[..len]);
            }
            10 => self.look_through_window(input)?,
            11 => self.set_up(input)?,
            12 => {
                let at = MEMORY + u64::from(input.arbitrary::<u16>()?);
                let value = value(input)?.to_le_bytes();
                let room = (MEMORY + MEMORY_LEN as u64 - at).min(8) as usize;
                self.put(at, &value[..room]);
            }
            13 => self.offer_chain(input)?,
            14 => {
                self.bench.stepped.config_changed();
                self.config_changed();
            }
            15 => {
                let queue = input.choose_index(QUEUES.len())?;
                if let Some(other) = self.bench.device.queues().get(queue) {
                    other.interrupt();
                    self.expect(self.common.queues[queue].vector, 1);
                }
            }
            16 => self.reset_function(),
            _ => {
                for _ in 0..input.int_in_range(1..=8)? {
                    self.serve();
                }
            }
        }
        Ok(())
    }

    /// A driver that follows the rules, up to DRIVER_OK.
    fn set_up(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        self.register(0x14, 1, 0);
        self.serve_tasks();
        self.register(0x14, 1, 3);
        let features =
            (1 << 32) | (1 << 33) | (1 << 40) | (u64::from(input.arbitrary::<bool>()?) << 28);
        for select in 0..2 {
            self.register(0x08, 4, select);
            self.register(0x0c, 4, features >> (32 * select));
        }
        self.register(0x14, 1, 11);
        self.register(0x10, 2, 0);
        for queue in 0..QUEUES.len() as u64 {
            let at = queue_at(queue);
            self.register(0x16, 2, queue);
            self.register(0x18, 2, 1 << input.int_in_range(0..=4)?);
            self.register(0x1a, 2, queue + 1);
            for (offset, address) in [(0x20, at), (0x28, at + AVAILABLE), (0x30, at + USED)] {
                self.register(offset, 8, address);
            }
            self.register(0x1c, 2, 1);
        }
        self.register(0x14, 1, 15);
        Ok(())
    }

    fn register(&mut self, offset: u64, width: usize, value: u64) {
        self.bar_write(VIRTIO, offset, &value.to_le_bytes()[..width]);
        self.check();
    }

    /// Makes a chain of a few descriptors available, and rings.
    fn offer_chain(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let queue = input.choose_index(QUEUES.len())? as u64;
        let at = queue_at(queue);
        let len = input.int_in_range(1..=4u16)?;
        for index in 0..len {
            let address = DATA + u64::from(input.arbitrary::<u16>()? & 0x8fff);
            let mut flags = input.arbitrary::<u16>()? & 0x7;
            if index + 1 < len {
                flags |= 1;
            }
            let mut descriptor = address.to_le_bytes().to_vec();
            let bytes = u32::from(input.arbitrary::<u8>()?) * 16;
            descriptor.extend_from_slice(&bytes.to_le_bytes());
            descriptor.extend_from_slice(&flags.to_le_bytes());
            descriptor.extend_from_slice(&(index + 1).to_le_bytes());
            self.put(at + 16 * u64::from(index), &descriptor);
        }
        let index = u16::from_le_bytes(self.get(at + AVAILABLE + 2));
        self.put(at + AVAILABLE + 4, &[0; 32]);
        self.put(at + AVAILABLE + 2, &index.wrapping_add(1).to_le_bytes());
        self.bar_write(VIRTIO, NOTIFY + 4 * queue, &[0; 2]);
        Ok(())
    }

    /// An access to a BAR by the window in the configuration space.
    fn look_through_window(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let data_at = self.config.window_data();
        let (bar, offset) = (input.arbitrary::<u8>()? % 6, place(input)? as u32);
        let width = *input.choose(&[1u32, 2, 4, 3])?;
        self.config_write(data_at - 12, &[bar]);
        self.config_write(data_at - 8, &offset.to_le_bytes());
        self.config_write(data_at - 4, &width.to_le_bytes());
        if input.arbitrary()? {
            let value = value(input)?.to_le_bytes();
            self.config_write(data_at, &value[..width as usize]);
        } else {
            let mut data = vec![0xaa; width as usize];
            self.bench.stepped.config_read(data_at, &mut data);
            match self.config.reaches(data_at, data.len()) {
                Some((bar, offset)) => self.check_read(bar, offset, &data),
                None => assert_eq!(data, vec![0; data.len()]),
            }
        }
        Ok(())
    }

    fn bar_write(&mut self, bar: u32, offset: u64, data: &[u8]) {
        self.bench.stepped.bar_write(bar, offset, data);
        self.bar_written(bar, offset, data);
    }

    fn bar_written(&mut self, bar: u32, offset: u64, data: &[u8]) {
        match (bar, data) {
            (VIRTIO, _) if offset < ISR => self.common.write(offset, data),
            (SHM, &[a, b, c, d]) if offset < SHM_LEN && offset % 4 == 0 => {
                let value = u32::from_le_bytes([a, b, c, d]);
                self.doorbells.push(Call::Doorbell(offset, value));
            }
            _ => {}
        }
        let calls = self.bench.device.take_calls();
        assert_eq!(
            calls,
            std::mem::take(&mut self.doorbells),
            "calls of a write"
        );
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) {
        self.bench.stepped.config_write(offset, data);
        self.config.write(offset, data);
        if let Some((bar, at)) = self.config.reaches(offset, data.len()) {
            self.bar_written(bar, at, data);
        }
    }

    /// Checks the bytes that a read of a BAR gave.
    fn check_read(&mut self, bar: u32, offset: u64, data: &[u8]) {
        let mut expected = vec![0; data.len()];
        if bar == VIRTIO && offset == ISR {
            if let (Some(shown), Some(first)) = (data.first(), expected.first_mut()) {
                // Whether a queue interrupted depends on the ring.
                *first = (u8::from(std::mem::take(&mut self.common.isr_config)) << 1) | (shown & 1);
            }
        } else if bar == VIRTIO && offset < ISR {
            let image = self.common.image();
            let rest = image.get(offset as usize..).unwrap_or_default();
            expected
                .iter_mut()
                .zip(rest)
                .for_each(|(to, from)| *to = *from);
        } else if bar == VIRTIO && (DEVICE..DEVICE + 0x1000).contains(&offset) {
            let rest = CONFIG.get((offset - DEVICE) as usize..).unwrap_or_default();
            expected
                .iter_mut()
                .zip(rest)
                .for_each(|(to, from)| *to = *from);
        }
        assert_eq!(data, expected, "BAR {bar} at {offset:#x}");
    }

    /// The service thread does a piece of work. Returns whether there was any.
    fn serve(&mut self) -> bool {
        let tasks = self.bench.stepped.tasks();
        let worked = self.bench.stepped.serve_device();
        let mut calls = self.bench.device.take_calls();
        if calls.first() == Some(&Call::Fail) {
            calls.remove(0);
            assert!(!self.common.failed, "stopped twice");
            self.common.failed = true;
            for queue in &mut self.common.queues {
                queue.started = false;
            }
            self.config_changed();
        }
        if self.bench.stepped.tasks() < tasks {
            let task = self.common.tasks.pop_front().expect("a task of the model");
            let expected = match task {
                Task::Activate if !self.common.failed => Some(Call::Activate(self.common.accepted)),
                Task::Reset => Some(Call::Reset),
                Task::ResetQueue(queue) => Some(Call::ResetQueue(queue as u16)),
                _ => None,
            };
            assert_eq!(calls, Vec::from_iter(expected), "calls of {task:?}");
            self.common.done(task);
        } else {
            for call in calls {
                let Call::Answer(queue) = call else {
                    panic!("{call:?} out of place");
                };
                let queue = &self.common.queues[usize::from(queue)];
                assert!(queue.started, "a request of a queue that is not in use");
                let vector = queue.vector;
                if let Some(most) = self.most.get_mut(usize::from(vector)) {
                    *most += 1;
                }
            }
        }
        self.check_interrupts();
        worked
    }

    fn serve_tasks(&mut self) {
        while self.bench.stepped.tasks() > 0 {
            assert!(self.serve(), "a task that nobody does");
        }
    }

    fn reset_function(&mut self) {
        send(&self.client, 13, 0, &[], &[]);
        assert!(self
            .bench
            .stepped
            .serve_client()
            .expect("no rule is broken"));
        self.config.reset();
        self.common.begin_reset();
        self.check();
        self.serve_tasks();
        assert!(self
            .bench
            .stepped
            .serve_client()
            .expect("no rule is broken"));
        let mut reply = [0; 16];
        self.client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[8..], [1, 0, 0, 0, 0, 0, 0, 0], "DEVICE_RESET");
    }

    fn config_changed(&mut self) {
        self.common.changed();
        self.expect(self.common.config_vector, 1);
    }

    fn expect(&mut self, vector: u16, times: u64) {
        if vector != NO_VECTOR {
            self.least[usize::from(vector)] += times;
            self.most[usize::from(vector)] += times;
        }
        self.check_interrupts();
    }

    fn check_interrupts(&mut self) {
        for (vector, fd) in self.bench.vectors.iter().enumerate() {
            let mut count = [0; 8];
            let _ = rustix::io::read(fd, &mut count);
            let count = u64::from_ne_bytes(count);
            let expected = self.least[vector]..=self.most[vector];
            assert!(
                expected.contains(&count),
                "vector {vector}: {count} of {expected:?}"
            );
        }
        (self.least, self.most) = ([0; 3], [0; 3]);
    }

    fn check(&self) {
        let mut image = [0; 0x3c];
        self.bench.stepped.bar_read(VIRTIO, 0, &mut image);
        assert_eq!(image, self.common.image(), "registers");
        let mut config = [0; 256];
        self.bench.stepped.config_read(0, &mut config);
        assert_eq!(config, self.config.bytes, "configuration space");
        assert_eq!(self.bench.stepped.tasks(), self.common.tasks.len(), "tasks");
        // A task for each queue of each kind, one to activate and one to reset.
        assert!(
            self.common.tasks.len() <= 2 * QUEUES.len() + 2,
            "tasks grow"
        );
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let view = self.bench.space.enter();
        let slice = view.slice_mut(at, bytes.len());
        slice
            .and_then(|slice| slice.write(0, bytes))
            .expect("in memory");
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let view = self.bench.space.enter();
        let slice = view.slice(at, N);
        slice
            .and_then(|slice| slice.read(0, &mut bytes))
            .expect("in memory");
        bytes
    }

    fn end(mut self) {
        self.serve_tasks();
        self.check();
        self.bench.stepped.disconnect();
        // A queue that was still to be served may have broken the rules.
        let calls = self.bench.device.take_calls();
        let failures = calls.iter().filter(|&call| *call == Call::Fail).count();
        let generation = self.common.generation.wrapping_add(failures as u8);
        (self.common, self.config) = (
            Common::new(generation),
            Config::new(self.bench.initial, BARS),
        );
        self.bench.generation = generation;
        self.check();
        assert!(self.bench.space.enter().is_empty(), "memory is left");
        for fd in &self.bench.vectors {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}

fn queue_at(queue: u64) -> u64 {
    MEMORY + 0x4000 * queue
}

/// A value that means something somewhere, or any.
fn value(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.arbitrary::<u8>()? {
        small @ 0..=95 => u64::from(small & 0x1f),
        power @ 96..=159 => 1 << (power - 96),
        page @ 160..=223 => MEMORY + 0x400 * u64::from(page - 160),
        224..=231 => u64::from(u16::MAX),
        232..=239 => u64::MAX,
        _ => input.arbitrary()?,
    })
}

/// An offset in a BAR, most in a structure.
fn place(input: &mut Unstructured<'_>) -> Result<u64> {
    let base = *input.choose(&[0, ISR, DEVICE, NOTIFY, 0xfff0, 0x1_0000])?;
    Ok(base + u64::from(input.arbitrary::<u8>()?) % 0x44)
}
