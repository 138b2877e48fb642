// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Split virtqueue, device side (virtio 1.3, 2.7), without indirect descriptors and event indices.
//!
//! The driver may write anything at any time. Each access is checked against the DMA map; a ring or chain that breaks
//! the rules stops the queue and asks for a reset.

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

use crate::shared::Shared;
use crate::shared::NO_VECTOR;

/// Size of a descriptor.
const DESCRIPTOR: u64 = 16;
/// Offset of a ring's index and of its entries.
const RING_INDEX: u64 = 2;
const RING_ENTRIES: u64 = 4;
/// Size of an entry of the available and of the used ring.
const AVAIL_ENTRY: u64 = 2;
const USED_ENTRY: u64 = 8;
/// `VIRTQ_DESC_F_NEXT`, `VIRTQ_DESC_F_WRITE`, `VIRTQ_DESC_F_INDIRECT`.
const F_NEXT: u16 = 1 << 0;
const F_WRITE: u16 = 1 << 1;
const F_INDIRECT: u16 = 1 << 2;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const F_NO_INTERRUPT: u16 = 1 << 0;

/// Where a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingAddress {
    pub(crate) size: u16,
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

impl RingAddress {
    /// Whether the parts are aligned and end inside the address space.
    pub(crate) fn is_valid(&self) -> bool {
        let size = u64::from(self.size);
        let fits = |start: u64, len: u64| start.checked_add(len).is_some();
        self.size.is_power_of_two()
            && self.descriptors % 16 == 0
            && self.available % 2 == 0
            && self.used % 4 == 0
            && fits(self.descriptors, DESCRIPTOR * size)
            && fits(self.available, RING_ENTRIES + AVAIL_ENTRY * size)
            && fits(self.used, RING_ENTRIES + USED_ENTRY * size)
    }
}

/// Rules that a driver broke.
#[derive(Debug, thiserror::Error)]
enum QueueError {
    #[error("{0}")]
    Dma(#[from] DmaError),
    #[error("available index jumps from {from} to {to}")]
    IndexJump { from: u16, to: u16 },
    #[error("descriptor {0} does not exist")]
    BadDescriptor(u16),
    #[error("descriptor chain longer than the queue")]
    LongChain,
    #[error("indirect descriptor, which was not negotiated")]
    Indirect,
    #[error("readable descriptor behind a writable one")]
    ReadAfterWrite,
}

/// A queue of a device.
#[derive(Debug)]
pub struct Queue {
    index: u16,
    space: Arc<DmaSpace>,
    shared: Arc<Shared>,
    vector: AtomicU16,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ring: Option<Ring>,
    /// Counts the rings that this queue had: a request belongs to one.
    generation: u64,
}

#[derive(Debug)]
struct Ring {
    at: RingAddress,
    next_available: u16,
    next_used: u16,
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
    /// What the driver wrote, up to the limit that was given to [`Queue::pop`].
    pub fn input(&self) -> &[u8] {
        &self.input
    }

    /// Bytes that may be answered.
    pub fn output_len(&self) -> u64 {
        self.output.iter().map(|&(_, len)| u64::from(len)).sum()
    }
}

impl Queue {
    pub(crate) fn new(index: u16, space: Arc<DmaSpace>, shared: Arc<Shared>) -> Self {
        Self {
            index,
            space,
            shared,
            vector: AtomicU16::new(NO_VECTOR),
            state: Mutex::default(),
        }
    }

    /// The queue's number.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Whether the driver has enabled the queue.
    pub fn is_enabled(&self) -> bool {
        self.state().ring.is_some()
    }

    /// Takes the next request. At most `max_input` bytes of its input are read.
    pub fn pop(&self, max_input: usize) -> Option<Request> {
        let mut state = self.state();
        let generation = state.generation;
        let ring = state.ring.as_mut()?;
        match ring.pop(&self.space.enter(), max_input) {
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

    /// Answers a request with the part of `output` that it has room for and gives it back to the driver. A request from
    /// before a reset is void and dropped.
    pub fn push(&self, request: Request, output: &[u8]) {
        let mut state = self.state();
        if state.generation != request.generation {
            return;
        }
        let Some(ring) = state.ring.as_mut() else {
            return;
        };
        match ring.push(&self.space.enter(), &request, output) {
            Ok(true) => self
                .shared
                .interrupt_queue(self.vector.load(Ordering::Acquire)),
            Ok(false) => {}
            Err(error) => self.fail(&mut state, &error),
        }
    }

    /// Stops the queue and asks for a reset, since the driver broke the rules of the device.
    pub fn reject(&self, why: fmt::Arguments<'_>) {
        self.stop();
        self.shared
            .fail(format_args!("queue {}: {why}", self.index));
    }

    /// Starts the queue at its ring.
    pub(crate) fn start(&self, at: RingAddress) {
        let mut state = self.state();
        state.generation += 1;
        state.ring = Some(Ring {
            at,
            next_available: 0,
            next_used: 0,
        });
    }

    /// Stops the queue. When this returns, it accesses guest memory no more.
    pub(crate) fn stop(&self) {
        self.state().ring = None;
    }

    pub(crate) fn set_vector(&self, vector: u16) {
        self.vector.store(vector, Ordering::Release);
    }

    fn fail(&self, state: &mut State, error: &QueueError) {
        state.ring = None;
        self.shared
            .fail(format_args!("queue {}: {error}", self.index));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A ring's indices change last, after all that can fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn pop(&mut self, view: &DmaView, max_input: usize) -> Result<Option<Request>, QueueError> {
        let at = self.at;
        // Acquire: what the index announces was written before it.
        let index = load_u16(view, at.available + RING_INDEX, Ordering::Acquire)?;
        let waiting = index.wrapping_sub(self.next_available);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > at.size {
            return Err(QueueError::IndexJump {
                from: self.next_available,
                to: index,
            });
        }
        let entry = u64::from(self.next_available % at.size);
        let head = load_u16(
            view,
            at.available + RING_ENTRIES + AVAIL_ENTRY * entry,
            Ordering::Relaxed,
        )?;
        let request = self.walk(view, head, max_input)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(request))
    }

    /// Collects a chain.
    fn walk(&self, view: &DmaView, head: u16, max_input: usize) -> Result<Request, QueueError> {
        let mut request = Request {
            head,
            generation: 0,
            input: Vec::new(),
            output: Vec::new(),
        };
        let mut next = head;
        for _ in 0..self.at.size {
            if next >= self.at.size {
                return Err(QueueError::BadDescriptor(next));
            }
            let mut bytes = [0; DESCRIPTOR as usize];
            view.slice(
                self.at.descriptors + DESCRIPTOR * u64::from(next),
                bytes.len(),
            )?
            .read(0, &mut bytes)?;
            let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
            let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
            let len = u32::from_le_bytes([l0, l1, l2, l3]);
            let flags = u16::from_le_bytes([f0, f1]);
            next = u16::from_le_bytes([n0, n1]);

            if flags & F_INDIRECT != 0 {
                return Err(QueueError::Indirect);
            }
            if flags & F_WRITE != 0 {
                request.output.push((address, len));
            } else if request.output.is_empty() {
                append(view, address, len, max_input, &mut request.input)?;
            } else {
                return Err(QueueError::ReadAfterWrite);
            }
            if flags & F_NEXT == 0 {
                return Ok(request);
            }
        }
        Err(QueueError::LongChain)
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
            let mut address = address;
            let mut room = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
            while room > 0 {
                let piece = view.contiguous(address, room)?;
                let (now, later) = rest.split_at(piece);
                view.slice_mut(address, piece)?.write(0, now)?;
                rest = later;
                room -= piece;
                address = address.wrapping_add(piece as u64);
            }
        }
        // No longer than the chain, whose parts are u32, but their sum may be more.
        let written = u32::try_from(output.len() - rest.len()).unwrap_or(u32::MAX);

        let at = self.at;
        let mut element = [0; USED_ENTRY as usize];
        element[..4].copy_from_slice(&u32::from(request.head).to_le_bytes());
        element[4..].copy_from_slice(&written.to_le_bytes());
        let entry = u64::from(self.next_used % at.size);
        view.slice_mut(at.used + RING_ENTRIES + USED_ENTRY * entry, element.len())?
            .write(0, &element)?;
        let next = self.next_used.wrapping_add(1);
        // Release: the driver sees the answer and the element when it sees the index.
        view.slice_mut(at.used + RING_INDEX, 2)?
            .store_u16(0, next.to_le(), Ordering::Release)?;
        self.next_used = next;
        // The driver clears the flag and reads the index; this writes the index and reads the flag. With a full barrier
        // on both sides at least one of them sees the other's write.
        fence(Ordering::SeqCst);
        Ok(load_u16(view, at.available, Ordering::Relaxed)? & F_NO_INTERRUPT == 0)
    }
}

fn load_u16(view: &DmaView, address: u64, order: Ordering) -> Result<u16, DmaError> {
    Ok(u16::from_le(view.slice(address, 2)?.load_u16(0, order)?))
}

/// Appends guest memory to `input` until that is `max` long.
fn append(
    view: &DmaView,
    address: u64,
    len: u32,
    max: usize,
    input: &mut Vec<u8>,
) -> Result<(), DmaError> {
    let mut address = address;
    let mut left = usize::try_from(len)
        .unwrap_or(usize::MAX)
        .min(max.saturating_sub(input.len()));
    while left > 0 {
        let piece = view.contiguous(address, left)?;
        let start = input.len();
        input.resize(start + piece, 0);
        view.slice(address, piece)?.read(0, &mut input[start..])?;
        left -= piece;
        address = address.wrapping_add(piece as u64);
    }
    Ok(())
}
