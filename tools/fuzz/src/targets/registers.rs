// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Configuration space, registers and queues of a PCI function.
//!
//! A driver writes arbitrary values, interleaved with steps of the service thread. After each step
//! the registers must equal those of a model, and interrupts must have the vectors that the model
//! predicts.

use std::cell::RefCell;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use arbitrary::{Result, Unstructured};
use testkit::vfio::message::{message, send};

use crate::function::driver::{
    chain, place, queue_at, set_up, value, AVAILABLE, MEMORY, MEMORY_LEN, REGISTERS, STATUS,
};
use crate::function::{eventfds, Bench, Function, Step, NOTIFY, QUEUES, VIRTIO};

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
        let mut run = Run::new(&mut taken);
        // An error means that the input is used up.
        let _ = run.steps(&mut Unstructured::new(data));
        run.end();
        *machine = Some(taken);
    });
}

/// A PCI function, and the VM's memory and eventfds.
struct Machine {
    bench: Bench,
    memory: OwnedFd,
    vectors: [OwnedFd; 3],
}

impl Machine {
    fn new() -> Self {
        Self {
            bench: Bench::new(u64::MAX),
            memory: dma::testing::guest_memory(MEMORY_LEN as u64).expect("memfd"),
            vectors: eventfds(),
        }
    }
}

/// The run of one input.
struct Run<'a> {
    bench: &'a mut Bench,
    vectors: &'a [OwnedFd; 3],
    client: UnixStream,
    model: Function,
}

impl<'a> Run<'a> {
    fn new(machine: &'a mut Machine) -> Self {
        let Machine {
            bench,
            memory,
            vectors,
        } = machine;
        let client = bench.stepped.connect().expect("socket");
        let fds: Vec<_> = vectors.iter().map(AsFd::as_fd).collect();
        let set = [20u32, 0x24, 2, 0, 3].map(u32::to_ne_bytes).concat();
        send(&client, &message(0, 8, 0, &set), &fds);
        let fd = memory.try_clone().expect("descriptor");
        let mapped = bench.space.map(MEMORY, fd, 0, MEMORY_LEN as u64, true);
        mapped.expect("memory is mapped");
        let mut run = Self {
            client,
            model: bench.model(),
            vectors,
            bench,
        };
        run.serve_client();
        run.await_reply();
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
                self.model.bar_read(bar, offset, data.len()).check(&data);
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
                self.model.config_changed();
                self.check_interrupts();
            }
            15 => {
                let queue = input.choose_index(QUEUES.len())?;
                if let Some(other) = self.bench.device.queues().get(queue) {
                    other.interrupt();
                    self.model.queue_interrupts(queue, true);
                    self.check_interrupts();
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

    /// Initializes the device up to DRIVER_OK, like a driver that follows the rules.
    fn set_up(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        self.register(STATUS.0, STATUS.1, 0);
        self.serve_tasks();
        for (offset, width, value) in set_up(input)? {
            self.register(offset, width, value);
        }
        Ok(())
    }

    fn register(&mut self, offset: u64, width: usize, value: u64) {
        self.bar_write(VIRTIO, offset, &value.to_le_bytes()[..width]);
        self.check();
    }

    /// Makes a chain of a few descriptors available and notifies the queue.
    fn offer_chain(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let queue = input.choose_index(QUEUES.len())? as u64;
        let at = queue_at(queue);
        self.put(at, &chain(input)?);
        let index = u16::from_le_bytes(self.get(at + AVAILABLE + 2));
        self.put(at + AVAILABLE + 4, &[0; 32]);
        self.put(at + AVAILABLE + 2, &index.wrapping_add(1).to_le_bytes());
        self.bar_write(VIRTIO, NOTIFY + 4 * queue, &[0; 2]);
        Ok(())
    }

    /// Accesses a BAR through configuration space.
    fn look_through_window(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let data_at = self.model.config.window_data();
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
            self.model.config_read(data_at, data.len()).check(&data);
        }
        Ok(())
    }

    fn bar_write(&mut self, bar: u32, offset: u64, data: &[u8]) {
        self.bench.stepped.bar_write(bar, offset, data);
        self.model.bar_write(bar, offset, data);
        self.check_doorbells();
    }

    fn config_write(&mut self, offset: u64, data: &[u8]) {
        self.bench.stepped.config_write(offset, data);
        self.model.config_write(offset, data);
        self.check_doorbells();
    }

    fn check_doorbells(&mut self) {
        let calls = self.bench.device.take_calls();
        assert_eq!(calls, self.model.take_doorbells(), "calls of a write");
    }

    /// Lets the service thread do a piece of work. Returns whether there was work.
    fn serve(&mut self) -> bool {
        let step = self.bench.serve_device(&mut self.model);
        self.check_interrupts();
        step != Step::Idle
    }

    fn serve_tasks(&mut self) {
        while self.bench.stepped.tasks() > 0 {
            assert!(self.serve(), "a task that nobody does");
        }
    }

    fn reset_function(&mut self) {
        send(&self.client, &message(0, 13, 0, &[]), &[]);
        self.serve_client();
        self.model.begin_reset();
        self.check();
        self.serve_tasks();
        self.serve_client();
        self.await_reply();
    }

    fn serve_client(&mut self) {
        let served = self.bench.stepped.serve_client();
        assert!(served.expect("no rule is broken"), "the client is there");
    }

    /// Receives the reply to a command whose reply has no payload.
    fn await_reply(&mut self) {
        let mut reply = [0; 16];
        self.client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[8..], [1, 0, 0, 0, 0, 0, 0, 0], "flags and error");
    }

    fn check_interrupts(&mut self) {
        let (mut least, mut most) = ([0; 3], [0; 3]);
        for raised in self.model.take_raised() {
            least[usize::from(raised.vector)] += u64::from(raised.certain);
            most[usize::from(raised.vector)] += 1;
        }
        for (vector, fd) in self.vectors.iter().enumerate() {
            let mut count = [0; 8];
            let _ = rustix::io::read(fd, &mut count);
            let count = u64::from_ne_bytes(count);
            let expected = least[vector]..=most[vector];
            assert!(
                expected.contains(&count),
                "vector {vector}: {count} of {expected:?}"
            );
        }
    }

    fn check(&self) {
        self.bench.check(&self.model);
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
        self.bench.disconnect(&self.model);
        for fd in self.vectors {
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }
}
