// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Split virtqueue of whole requests, device side (virtio 1.3, 2.7), without event indices.
//!
//! The driver may write anything at any time. Each access is checked against the DMA map; a ring or
//! chain that breaks the rules stops the queue and asks for a reset. A device that serves a queue
//! by itself asks where it is instead.

use std::fmt;
use std::sync::atomic::{fence, AtomicU16, Ordering};
use std::sync::Arc;

use dma::{DmaError, DmaSpace, DmaView};
use parking_lot::Mutex;
use virtqueue::{Buffer, ChainError, Split};

use crate::function_state::{FunctionState, NO_VECTOR};
use crate::later;

/// Rules that a driver broke.
#[derive(Debug, thiserror::Error)]
enum QueueError {
    #[error("{0}")]
    Dma(#[from] DmaError),
    #[error("available index jumps from {from} to {to}")]
    IndexJump { from: u16, to: u16 },
    #[error("{0}")]
    Chain(#[from] ChainError),
}

/// A queue of a device.
#[derive(Debug)]
pub struct Virtqueue {
    index: u16,
    space: Arc<DmaSpace>,
    state: Arc<FunctionState>,
    vector: AtomicU16,
    /// A ring's indices change last, after all that can fail.
    ring: Mutex<RingState>,
}

#[derive(Debug, Default)]
struct RingState {
    /// The ring, while the driver has enabled the queue.
    running: Option<Ring>,
    /// Counts the rings that this queue had: a request belongs to one.
    generation: u64,
}

#[derive(Debug)]
struct Ring {
    at: Split,
    next_available: u16,
    next_used: u16,
    /// The driver was told not to notify.
    quiet: bool,
}

/// A request that the driver made available.
#[derive(Debug)]
pub struct AvailableBuffer {
    head: u16,
    generation: u64,
    input: Vec<u8>,
    /// Address and length of the writable parts.
    output: Vec<(u64, u32)>,
}

impl AvailableBuffer {
    /// The driver's bytes, up to the limit that was given to [`Virtqueue::pop`].
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Bytes that may be answered.
    pub fn output_len(&self) -> u64 {
        self.output.iter().map(|&(_, len)| u64::from(len)).sum()
    }
}

impl Virtqueue {
    pub(crate) fn new(index: u16, space: Arc<DmaSpace>, state: Arc<FunctionState>) -> Self {
        Self {
            index,
            space,
            state,
            vector: AtomicU16::new(NO_VECTOR),
            ring: Mutex::default(),
        }
    }

    /// The queue's number.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Whether the driver has enabled the queue.
    pub fn is_enabled(&self) -> bool {
        self.ring.lock().running.is_some()
    }

    /// Where the queue is, if the driver has enabled it: for a device that serves it by itself. It
    /// may until [`VirtioDevice::reset_queue`](crate::VirtioDevice::reset_queue) or
    /// [`VirtioDevice::reset`](crate::VirtioDevice::reset) returns.
    pub fn split(&self) -> Option<Split> {
        Some(self.ring.lock().running.as_ref()?.at)
    }

    /// Interrupts the driver for this queue.
    pub fn interrupt(&self) {
        self.state
            .interrupt_queue(self.vector.load(Ordering::Acquire));
    }

    /// Takes the next request. At most `max_input` bytes of its input are read.
    ///
    /// The driver notifies of new requests only after there was none: a device that keeps requests
    /// for later is not told of more as long as it has not run out of them.
    pub fn pop(&self, max_input: usize) -> Option<AvailableBuffer> {
        self.pop_unless(max_input, || false)
    }

    /// As [`pop`](Self::pop), for the service thread in
    /// [`VirtioDevice::serve`](crate::VirtioDevice::serve): a request may need a queue that the
    /// driver has enabled before. While the service thread has such a change to make, there is no
    /// request, and the queue is served again after the change.
    pub fn pop_in_order(&self, max_input: usize) -> Option<AvailableBuffer> {
        self.pop_unless(max_input, || self.state.postpone(self.index))
    }

    fn pop_unless(
        &self,
        max_input: usize,
        postpone: impl FnOnce() -> bool,
    ) -> Option<AvailableBuffer> {
        let mut state = self.ring.lock();
        let generation = state.generation;
        let ring = state.running.as_mut()?;
        match ring.pop(&self.space.enter(), max_input, postpone) {
            Ok(request) => request.map(|request| AvailableBuffer {
                generation,
                ..request
            }),
            Err(error) => {
                self.fail(&mut state, &error);
                None
            }
        }
    }

    /// Answers a request with the part of `output` that it has room for and gives it back to the
    /// driver. A request from before a reset is void and dropped.
    pub fn push(&self, request: AvailableBuffer, output: &[u8]) {
        if self.answer(request, output) {
            self.interrupt();
        }
    }

    /// As [`push`](Self::push), but leaves the interrupt to
    /// [`send_interrupts`](crate::send_interrupts).
    pub fn push_later(self: &Arc<Self>, request: AvailableBuffer, output: &[u8]) {
        if self.answer(request, output) {
            later::interrupt(self);
        }
    }

    /// As [`interrupt`](Self::interrupt), when [`send_interrupts`](crate::send_interrupts) is
    /// called.
    pub fn interrupt_later(self: &Arc<Self>) {
        later::interrupt(self);
    }

    /// Answers a request. Returns whether the driver wants an interrupt.
    fn answer(&self, request: AvailableBuffer, output: &[u8]) -> bool {
        let mut state = self.ring.lock();
        if state.generation != request.generation {
            return false;
        }
        let Some(ring) = state.running.as_mut() else {
            return false;
        };
        match ring.push(&self.space.enter(), &request, output) {
            Ok(wanted) => wanted,
            Err(error) => {
                self.fail(&mut state, &error);
                false
            }
        }
    }

    /// The driver broke the rules of the device: stops the queue at once, has the device
    /// [stopped](crate::VirtioDevice::fail) and asks for its reset.
    pub fn reject(&self, why: fmt::Arguments<'_>) {
        self.stop();
        self.state.fail(format_args!("queue {}: {why}", self.index));
    }

    /// The device can't go on, as `why` tells: has it [stopped](crate::VirtioDevice::fail) and asks
    /// for its reset.
    pub fn needs_reset(&self, why: &str) {
        self.state.fail(format_args!("{why}"));
    }

    /// Starts the queue at its ring.
    pub(crate) fn start(&self, at: Split) {
        let mut state = self.ring.lock();
        state.generation += 1;
        state.running = Some(Ring {
            at,
            next_available: 0,
            next_used: 0,
            quiet: false,
        });
    }

    /// Stops the queue. When this returns, it accesses guest memory no more.
    pub(crate) fn stop(&self) {
        self.ring.lock().running = None;
    }

    pub(crate) fn set_vector(&self, vector: u16) {
        self.vector.store(vector, Ordering::Release);
    }

    fn fail(&self, state: &mut RingState, error: &QueueError) {
        state.running = None;
        self.state
            .fail(format_args!("queue {}: {error}", self.index));
    }
}

impl Ring {
    /// Takes the next request. `postpone` is asked when there is one, and may leave it there.
    fn pop(
        &mut self,
        view: &DmaView,
        max_input: usize,
        postpone: impl FnOnce() -> bool,
    ) -> Result<Option<AvailableBuffer>, QueueError> {
        let mut waiting = self.waiting(view)?;
        if waiting == 0 && self.quiet {
            self.set_quiet(view, false)?;
            // The driver writes the index and reads the flag; this clears the flag and reads the
            // index. With a full barrier on both sides at least one of them sees the other's write.
            fence(Ordering::SeqCst);
            waiting = self.waiting(view)?;
        }
        if waiting == 0 || postpone() {
            return Ok(None);
        }
        if !self.quiet {
            self.set_quiet(view, true)?;
        }
        let head = self.at.load_available_entry(view, self.next_available)?;
        let request = self.walk(view, head, max_input)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(request))
    }

    /// Number of requests that the driver made available and that were not taken.
    fn waiting(&self, view: &DmaView) -> Result<u16, QueueError> {
        let index = self.at.load_available_index(view)?;
        let waiting = index.wrapping_sub(self.next_available);
        if waiting > self.at.size {
            return Err(QueueError::IndexJump {
                from: self.next_available,
                to: index,
            });
        }
        Ok(waiting)
    }

    /// Tells the driver whether it may do without notifications.
    fn set_quiet(&mut self, view: &DmaView, quiet: bool) -> Result<(), QueueError> {
        self.at.set_quiet(view, quiet)?;
        self.quiet = quiet;
        Ok(())
    }

    /// Collects a chain.
    fn walk(
        &self,
        view: &DmaView,
        head: u16,
        max_input: usize,
    ) -> Result<AvailableBuffer, QueueError> {
        let mut request = AvailableBuffer {
            head,
            generation: 0,
            input: Vec::new(),
            output: Vec::new(),
        };
        for buffer in self.at.chain(view, head) {
            let buffer = buffer?;
            if buffer.writable {
                request.output.push((buffer.address, buffer.len));
            } else {
                append(view, buffer, max_input, &mut request.input)?;
            }
        }
        Ok(request)
    }

    /// Returns whether the driver wants an interrupt.
    fn push(
        &mut self,
        view: &DmaView,
        request: &AvailableBuffer,
        output: &[u8],
    ) -> Result<bool, QueueError> {
        let mut rest = output;
        for &(address, len) in &request.output {
            let room = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at(room);
            virtqueue::write(view, address, now)?;
            rest = later;
        }
        // No longer than the chain, whose parts are u32, but their sum may be more.
        let written = u32::try_from(output.len() - rest.len()).unwrap_or(u32::MAX);

        let at = self.at;
        at.store_used_entry(view, self.next_used, request.head, written)?;
        let next = self.next_used.wrapping_add(1);
        // The driver sees the answer and the entry when it sees the index.
        at.store_used_index(view, next)?;
        self.next_used = next;
        // The driver clears the flag and reads the index; this writes the index and reads the flag.
        // With a full barrier on both sides at least one of them sees the other's write.
        fence(Ordering::SeqCst);
        Ok(at.wants_interrupts(view)?)
    }
}

/// Appends guest memory to `input` until that is `max` long.
fn append(view: &DmaView, buffer: Buffer, max: usize, input: &mut Vec<u8>) -> Result<(), DmaError> {
    let start = input.len();
    let len = usize::try_from(buffer.len)
        .unwrap_or(usize::MAX)
        .min(max.saturating_sub(start));
    input.resize(start + len, 0);
    virtqueue::read(view, buffer.address, &mut input[start..])
}
