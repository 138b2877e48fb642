// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Device side of a split virtqueue (virtio 1.3, 2.7), without event indices. It reads and answers
//! whole requests.
//!
//! The driver may write anything at any time. Each access is checked against the DMA map. A ring or
//! chain that breaks the rules stops the queue and sets DEVICE_NEEDS_RESET. A device that accesses
//! the rings of a queue itself gets their addresses from [`Virtqueue::split`] instead.

use std::fmt;
use std::sync::atomic::{fence, AtomicU16, Ordering};
use std::sync::Arc;

use dma::{DmaError, DmaSpace, DmaView};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use virtqueue::{Buffer, ChainError, Split};

use crate::function_state::{FunctionState, NO_VECTOR};
use crate::later;

/// How a driver broke the rules of a ring.
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
    /// State of the ring. Each method changes its indices last, after all steps that can fail.
    ring: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The ring, while the driver has enabled the queue.
    running: Option<Ring>,
    /// Number of times that the queue was started. A request is answered only in the generation in
    /// which it was taken.
    generation: u64,
}

/// The device's positions in the ring of a queue that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RingState {
    pub(crate) next_available: u16,
    pub(crate) next_used: u16,
    pub(crate) quiet: bool,
}

#[derive(Debug)]
struct Ring {
    at: Split,
    next_available: u16,
    next_used: u16,
    /// `VIRTQ_USED_F_NO_NOTIFY` is set: the driver need not notify.
    quiet: bool,
}

/// A request that the driver made available and the device has yet to answer.
#[derive(Debug)]
pub struct AvailableBuffer {
    head: u16,
    generation: u64,
    input: Vec<u8>,
    /// DMA address and length of each writable buffer.
    output: Vec<(u64, u32)>,
}

impl AvailableBuffer {
    /// The readable bytes of the request, up to the limit that was passed to [`Virtqueue::pop`].
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Maximum length of the answer in bytes.
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

    /// Addresses and size of the queue, for a device that accesses the rings itself. `None` unless
    /// the driver has enabled the queue. The device may access the rings until
    /// [`VirtioDevice::reset_queue`](crate::VirtioDevice::reset_queue) or
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
    /// The driver notifies the device of new requests only after `pop` has returned `None`: a
    /// device that leaves requests in the queue gets no notifications until it has taken them all.
    pub fn pop(&self, max_input: usize) -> Option<AvailableBuffer> {
        self.pop_unless(max_input, || false)
    }

    /// Like [`pop`](Self::pop), for the service thread in
    /// [`VirtioDevice::serve`](crate::VirtioDevice::serve). A request may need a queue that the
    /// driver has enabled before but the service thread has not started yet. So while a change of
    /// the device's state is pending, this returns `None`, and the queue is served again after the
    /// change.
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

    /// Answers a request with `output` and returns it to the driver. `output` is truncated to the
    /// room in the request's buffers. A request from before a reset is dropped.
    pub fn push(&self, request: AvailableBuffer, output: &[u8]) {
        if self.answer(request, output) {
            self.interrupt();
        }
    }

    /// Like [`push`](Self::push), but defers the interrupt to
    /// [`send_interrupts`](crate::send_interrupts).
    pub fn push_later(self: &Arc<Self>, request: AvailableBuffer, output: &[u8]) {
        if self.answer(request, output) {
            later::interrupt(self);
        }
    }

    /// Like [`interrupt`](Self::interrupt), but defers the interrupt to
    /// [`send_interrupts`](crate::send_interrupts).
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

    /// Reports that the driver broke the rules of the device. Stops the queue at once; the service
    /// thread then [stops the device](crate::VirtioDevice::fail) and sets DEVICE_NEEDS_RESET.
    pub fn reject(&self, why: fmt::Arguments<'_>) {
        self.stop();
        self.state.fail(format_args!("queue {}: {why}", self.index));
    }

    /// Reports that the device has failed, for the reason `why`. The service thread then [stops the
    /// device](crate::VirtioDevice::fail) and sets DEVICE_NEEDS_RESET.
    pub fn needs_reset(&self, why: &str) {
        self.state.fail(format_args!("{why}"));
    }

    /// Starts the queue, whose rings are at `at`.
    pub(crate) fn start(&self, at: Split) {
        let unused = RingState {
            next_available: 0,
            next_used: 0,
            quiet: false,
        };
        self.resume(at, unused);
    }

    /// Starts the queue, whose rings are at `at`, where another process has stopped it.
    pub(crate) fn resume(&self, at: Split, positions: RingState) {
        let mut state = self.ring.lock();
        state.generation += 1;
        state.running = Some(Ring {
            at,
            next_available: positions.next_available,
            next_used: positions.next_used,
            quiet: positions.quiet,
        });
    }

    /// The device's positions in the ring, if the queue runs. No request may be unanswered.
    pub(crate) fn save(&self) -> Option<RingState> {
        let state = self.ring.lock();
        let ring = state.running.as_ref()?;
        Some(RingState {
            next_available: ring.next_available,
            next_used: ring.next_used,
            quiet: ring.quiet,
        })
    }

    /// Stops the queue. When this returns, the queue does not access guest memory any more.
    pub(crate) fn stop(&self) {
        self.ring.lock().running = None;
    }

    pub(crate) fn set_vector(&self, vector: u16) {
        self.vector.store(vector, Ordering::Release);
    }

    fn fail(&self, state: &mut Inner, error: &QueueError) {
        state.running = None;
        self.state
            .fail(format_args!("queue {}: {error}", self.index));
    }
}

impl Ring {
    /// Takes the next request. If there is one, this first calls `postpone`, and leaves the request
    /// in the queue if `postpone` returns true.
    fn pop(
        &mut self,
        view: &DmaView,
        max_input: usize,
        postpone: impl FnOnce() -> bool,
    ) -> Result<Option<AvailableBuffer>, QueueError> {
        let mut waiting = self.waiting(view)?;
        if waiting == 0 && self.quiet {
            self.set_quiet(view, false)?;
            // The driver writes the index and then reads the flag. The device clears the flag and
            // then reads the index. With a full barrier between the two steps on both sides, at
            // least one side sees the write of the other side.
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

    /// Number of available requests that the device has not taken.
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

    /// Sets or clears `VIRTQ_USED_F_NO_NOTIFY`.
    fn set_quiet(&mut self, view: &DmaView, quiet: bool) -> Result<(), QueueError> {
        self.at.set_quiet(view, quiet)?;
        self.quiet = quiet;
        Ok(())
    }

    /// Reads the input of the chain at `head`, and collects its writable buffers.
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

    /// Writes an answer and the used entry. Returns whether the driver wants an interrupt.
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
        // The lengths of the buffers are u32, but their sum may exceed u32.
        let written = u32::try_from(output.len() - rest.len()).unwrap_or(u32::MAX);

        let at = self.at;
        at.store_used_entry(view, self.next_used, request.head, written)?;
        let next = self.next_used.wrapping_add(1);
        // Release: a driver that sees the index also sees the answer and the used entry.
        at.store_used_index(view, next)?;
        self.next_used = next;
        // The driver clears the flag and then reads the index. The device writes the index and then
        // reads the flag. With a full barrier between the two steps on both sides, at least one
        // side sees the write of the other side.
        fence(Ordering::SeqCst);
        Ok(at.wants_interrupts(view)?)
    }
}

/// Appends the bytes of `buffer` to `input`, until `input` has `max` bytes.
fn append(view: &DmaView, buffer: Buffer, max: usize, input: &mut Vec<u8>) -> Result<(), DmaError> {
    let start = input.len();
    let len = usize::try_from(buffer.len)
        .unwrap_or(usize::MAX)
        .min(max.saturating_sub(start));
    input.resize(start + len, 0);
    virtqueue::read(view, buffer.address, &mut input[start..])
}
