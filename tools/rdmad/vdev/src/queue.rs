// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Split virtqueue of whole requests, device side (virtio 1.3, 2.7), without event indices.
//!
//! The driver may write anything at any time. Each access is checked against the DMA map; a ring or
//! chain that breaks the rules stops the queue and asks for a reset. A device that serves a queue
//! by itself asks where it is instead.

use std::fmt;
use std::sync::atomic::fence;
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use dma::DmaError;
use dma::DmaSpace;
use dma::DmaView;
use virtqueue::Buffer;
use virtqueue::ChainError;
use virtqueue::Split;
use virtqueue::F_NO_NOTIFY;
use virtqueue::USED_ENTRY;

use crate::function_state::FunctionState;
use crate::function_state::NO_VECTOR;
use crate::later;

/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const F_NO_INTERRUPT: u16 = 1 << 0;

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
pub struct Request {
    head: u16,
    generation: u64,
    input: Vec<u8>,
    /// Address and length of the writable parts.
    output: Vec<(u64, u32)>,
}

impl Request {
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
        self.ring().running.is_some()
    }

    /// Where the queue is, if the driver has enabled it: for a device that serves it by itself. It
    /// may until [`VirtioDevice::reset_queue`](crate::VirtioDevice::reset_queue) or
    /// [`VirtioDevice::reset`](crate::VirtioDevice::reset) returns.
    pub fn split(&self) -> Option<Split> {
        Some(self.ring().running.as_ref()?.at)
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
    pub fn pop(&self, max_input: usize) -> Option<Request> {
        self.pop_unless(max_input, || false)
    }

    /// As [`pop`](Self::pop), for the service thread in
    /// [`VirtioDevice::serve`](crate::VirtioDevice::serve): a request may need a queue that the
    /// driver has enabled before. While the service thread has such a change to make, there is no
    /// request, and the queue is served again after the change.
    pub fn pop_in_order(&self, max_input: usize) -> Option<Request> {
        self.pop_unless(max_input, || self.state.postpone(self.index))
    }

    fn pop_unless(&self, max_input: usize, postpone: impl FnOnce() -> bool) -> Option<Request> {
        let mut state = self.ring();
        let generation = state.generation;
        let ring = state.running.as_mut()?;
        match ring.pop(&self.space.enter(), max_input, postpone) {
            Ok(request) => request.map(|request| Request {
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
    pub fn push(&self, request: Request, output: &[u8]) {
        if self.answer(request, output) {
            self.interrupt();
        }
    }

    /// As [`push`](Self::push), but leaves the interrupt to
    /// [`send_interrupts`](crate::send_interrupts).
    pub fn push_later(self: &Arc<Self>, request: Request, output: &[u8]) {
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
    fn answer(&self, request: Request, output: &[u8]) -> bool {
        let mut state = self.ring();
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
        let mut state = self.ring();
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
        self.ring().running = None;
    }

    pub(crate) fn set_vector(&self, vector: u16) {
        self.vector.store(vector, Ordering::Release);
    }

    fn fail(&self, state: &mut RingState, error: &QueueError) {
        state.running = None;
        self.state
            .fail(format_args!("queue {}: {error}", self.index));
    }

    fn ring(&self) -> MutexGuard<'_, RingState> {
        // A ring's indices change last, after all that can fail.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    /// Takes the next request. `postpone` is asked when there is one, and may leave it there.
    fn pop(
        &mut self,
        view: &DmaView,
        max_input: usize,
        postpone: impl FnOnce() -> bool,
    ) -> Result<Option<Request>, QueueError> {
        let at = self.at;
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
        let entry = at.available_entry(self.next_available);
        let head = load_u16(view, entry, Ordering::Relaxed)?;
        let request = self.walk(view, head, max_input)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(request))
    }

    /// Number of requests that the driver made available and that were not taken.
    fn waiting(&self, view: &DmaView) -> Result<u16, QueueError> {
        // Acquire: what the index announces was written before it.
        let index = load_u16(view, self.at.available_index(), Ordering::Acquire)?;
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
        let flags = if quiet { F_NO_NOTIFY } else { 0 };
        view.slice_mut(self.at.used, 2)?
            .store_u16(0, flags.to_le(), Ordering::Relaxed)?;
        self.quiet = quiet;
        Ok(())
    }

    /// Collects a chain.
    fn walk(&self, view: &DmaView, head: u16, max_input: usize) -> Result<Request, QueueError> {
        let mut request = Request {
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
        request: &Request,
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
        let mut element = [0; USED_ENTRY as usize];
        element[..4].copy_from_slice(&u32::from(request.head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        view.slice_mut(at.used_entry(self.next_used), element.len())?
            .write(0, &element)?;
        let next = self.next_used.wrapping_add(1);
        // Release: the driver sees the answer and the element when it sees the index.
        view.slice_mut(at.used_index(), 2)?
            .store_u16(0, next.to_le(), Ordering::Release)?;
        self.next_used = next;
        // The driver clears the flag and reads the index; this writes the index and reads the flag.
        // With a full barrier on both sides at least one of them sees the other's write.
        fence(Ordering::SeqCst);
        Ok(load_u16(view, at.available, Ordering::Relaxed)? & F_NO_INTERRUPT == 0)
    }
}

fn load_u16(view: &DmaView, address: u64, order: Ordering) -> Result<u16, DmaError> {
    Ok(u16::from_le(view.slice(address, 2)?.load_u16(0, order)?))
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
