// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Access to the messages of work requests in registered memory.
//!
//! Functions address a byte of a message by its offset in the message, wherever the byte is stored.
//! The last bytes of a message are stored after all others, since programs poll for them.

#[cfg(test)]
mod tests;

use std::sync::atomic::{fence, Ordering};

use dma::{DmaError, DmaSlice, DmaSliceMut, DmaView};
use roce::work::{AtomicOp, Remote, WcFault, WcReason, ATOMIC_SIZE};
use virtio_rdma_abi::ib::AccessFlags;

use super::mr::Opened;
use super::pages::{Cursor, Pieces};
use super::walk::{self, Missing, Walk, CHUNK};
use super::{KeyFault, KeyUser, Keys};
use crate::turn::{done, TurnBudget};
use crate::wqe::sge;

/// Bytes at the end of a message that are stored last.
const TAIL: usize = 8;
/// The guest memory that a QP may access by keys.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub view: &'a DmaView,
    pub keys: &'a Keys<'a>,
    /// The QP that uses the keys.
    pub by: KeyUser,
    /// The budget of the turn, to which each access is charged.
    pub budget: &'a TurnBudget<'a>,
}

/// Reason why a part of a message can't be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No key grants the access, for this reason.
    Key(WcReason),
    /// The key grants the access, but the VM has no memory at that address.
    Memory,
}

impl Fault {
    /// The message ends before the accessed bytes, or its address wraps.
    const BEYOND: Self = Self::Key(WcReason::OutOfBounds);

    /// The reason, as completions and events tell it.
    pub(crate) fn reason(self) -> WcReason {
        match self {
            Self::Key(reason) => reason,
            Self::Memory => WcReason::NoMemory,
        }
    }

    /// The fault of a work request whose SGEs name the memory.
    pub(crate) fn local(self) -> WcFault {
        KeyFault(self.reason()).local()
    }
}

impl From<KeyFault> for Fault {
    fn from(KeyFault(reason): KeyFault) -> Self {
        Self::Key(reason)
    }
}

impl From<DmaError> for Fault {
    fn from(_: DmaError) -> Self {
        Self::Memory
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// The memory that holds a message.
#[derive(Clone, Copy)]
enum Backing<'a> {
    /// The memory of the SGEs of a WQE.
    Sges(Sges<'a>),
    /// One range of addresses.
    Range(Remote),
    /// Private memory of the device.
    Private(&'a [u8]),
}

/// The SGEs of a WQE.
#[derive(Clone, Copy)]
struct Sges<'a> {
    wqe: &'a [u8],
    /// Bytes of the WQE before its first SGE.
    header: usize,
    count: u32,
}

/// The SGE at which a search for an offset continues.
#[derive(Clone, Copy, Default)]
struct NextSge {
    index: u32,
    /// Offset of the SGE's first byte in the message.
    start: u64,
}

/// A message in memory. Caches the last lookup, so sequential access is cheap.
pub(crate) struct Message<'a> {
    memory: Memory<'a>,
    access: AccessFlags,
    backing: Backing<'a>,
    /// Number of bytes at the start of `backing` that are not part of the message.
    skipped: u64,
    /// The contiguous piece of memory that was accessed last.
    run: Run,
    /// The span that contains `run`, unless the whole span is contiguous.
    span: Option<Span>,
    /// The SGE after the one that was used last.
    next: NextSge,
}

/// A range of addresses in one MR or window, whose pages may be scattered. The memory stays
/// registered while the span exists.
struct Span {
    memory: Opened,
    /// Range of offsets in the message.
    start: u64,
    end: u64,
    /// Address at `start`.
    addr: u64,
    /// Position of the last lookup in the MR's pages.
    cursor: Cursor,
}

/// A piece of a message that is contiguous in DMA space.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Offset in the message.
    start: u64,
    len: u64,
    /// DMA address at `start`.
    iova: u64,
}

/// Contiguous bytes of a message.
enum Piece<'a> {
    Guest(DmaSlice<'a>),
    Private(&'a [u8]),
}

impl<'a> Message<'a> {
    /// A message in the memory of the SGEs in `wqe`, whose header has `header` bytes.
    pub(crate) fn in_sges(
        memory: Memory<'a>,
        wqe: &'a [u8],
        header: usize,
        num_sge: u32,
        access: AccessFlags,
    ) -> Self {
        let sges = Sges {
            wqe,
            header,
            count: num_sge,
        };
        Self::new(memory, Backing::Sges(sges), access)
    }

    /// A message in the range of addresses `at`, which the peer names in its request.
    pub(crate) fn in_range(memory: Memory<'a>, at: Remote, access: AccessFlags) -> Self {
        Self::new(memory, Backing::Range(at), access)
    }

    /// A read-only message in private memory.
    pub(crate) fn private(memory: Memory<'a>, bytes: &'a [u8]) -> Self {
        Self::new(memory, Backing::Private(bytes), AccessFlags::NONE)
    }

    fn new(memory: Memory<'a>, backing: Backing<'a>, access: AccessFlags) -> Self {
        Self {
            memory,
            access,
            backing,
            skipped: 0,
            run: Run::default(),
            span: None,
            next: NextSge::default(),
        }
    }

    /// The message without its first `bytes` bytes.
    pub(crate) fn skip(mut self, bytes: u64) -> Self {
        self.skipped += bytes;
        self
    }

    /// Fills `out` with the message's bytes at `offset`.
    pub(crate) fn read(&mut self, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let len = match self.piece(offset, out.len())? {
                Piece::Guest(slice) => {
                    slice.read(0, &mut out[..slice.len()])?;
                    done::copied(1, slice.len());
                    slice.len()
                }
                Piece::Private(bytes) => {
                    out[..bytes.len()].copy_from_slice(bytes);
                    bytes.len()
                }
            };
            offset += len as u64;
            out = &mut out[len..];
        }
        Ok(())
    }

    /// Stores `data` at `offset` of the message. `last` is true if `data` is the end of the
    /// message.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], last: bool) -> Result<()> {
        let body = if last {
            data.len().saturating_sub(TAIL)
        } else {
            data.len()
        };
        self.store(offset, &data[..body])?;
        if last {
            self.store_tail(offset + body as u64, &data[body..])?;
        }
        Ok(())
    }

    fn store(&mut self, mut offset: u64, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let slice = self.room(offset, data.len())?;
            let (now, rest) = data.split_at(slice.len());
            slice.write(0, now)?;
            done::copied(1, now.len());
            offset += now.len() as u64;
            data = rest;
        }
        Ok(())
    }

    /// Stores the end of a message after all earlier bytes, in a single store if possible.
    fn store_tail(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        fence(Ordering::Release);
        if let Ok(word) = <[u8; TAIL]>::try_from(data) {
            let slice = self.room(offset, TAIL)?;
            if slice.len() == TAIL && store_word(&slice, 0, word).is_ok() {
                done::copied(1, TAIL);
                return Ok(());
            }
        }
        self.store(offset, data)
    }

    /// Executes an atomic operation on the aligned 64-bit word at the start of the message, in the
    /// byte order of the guest's CPUs. Returns the original value.
    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result<u64> {
        let word = self.word()?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => {
                word.compare_exchange_u64(0, compare, swap)?
            }
            AtomicOp::FetchAdd { add } => word.fetch_add_u64(0, add)?,
        })
    }

    /// Writes the aligned 64-bit word at the start of the message in a single store, after all
    /// earlier stores.
    pub(crate) fn write_word(&mut self, data: [u8; ATOMIC_SIZE as usize]) -> Result<()> {
        Ok(store_word(&self.word()?, 0, data)?)
    }

    /// The 64-bit word at the start of the message.
    fn word(&mut self) -> Result<DmaSliceMut<'a>> {
        const SIZE: usize = ATOMIC_SIZE as usize;
        let word = self.room(0, SIZE)?;
        done::copied(1, SIZE);
        (word.len() == SIZE).then_some(word).ok_or(Fault::BEYOND)
    }

    /// Up to `max` contiguous bytes of the message from `offset` on, for loads.
    #[inline(always)]
    fn piece(&mut self, offset: u64, max: usize) -> Result<Piece<'a>> {
        if let Backing::Private(bytes) = self.backing {
            let rest = usize::try_from(offset + self.skipped)
                .ok()
                .and_then(|offset| bytes.get(offset..))
                .ok_or(Fault::BEYOND)?;
            let piece = &rest[..rest.len().min(max)];
            return if piece.is_empty() {
                Err(Fault::BEYOND)
            } else {
                Ok(Piece::Private(piece))
            };
        }
        let (iova, len) = self.find(offset, max)?;
        self.memory.budget.charge_piece();
        Ok(Piece::Guest(self.memory.view.piece(iova, len)?))
    }

    /// Like [`piece`](Self::piece), for stores.
    #[inline(always)]
    fn room(&mut self, offset: u64, max: usize) -> Result<DmaSliceMut<'a>> {
        if let Backing::Private(_) = self.backing {
            return Err(Fault::BEYOND);
        }
        let (iova, len) = self.find(offset, max)?;
        self.memory.budget.charge_piece();
        Ok(self.memory.view.piece_mut(iova, len)?)
    }

    /// The DMA address of the byte at `offset`, and the number of contiguous bytes there, at most
    /// `max`.
    #[inline(always)]
    fn find(&mut self, offset: u64, max: usize) -> Result<(u64, usize)> {
        // No overflow: messages and skipped bytes are each shorter than 4 GiB.
        let offset = offset + self.skipped;
        let mut into = offset.wrapping_sub(self.run.start);
        if into >= self.run.len {
            self.run = self.run_at(offset)?;
            into = offset.wrapping_sub(self.run.start);
        }
        let len = (max as u64).min(self.run.len - into);
        // `len` is at most `max`, so the cast can't truncate.
        Ok((self.run.iova + into, len as usize))
    }

    /// A contiguous piece that contains `offset`. The piece may lack bytes before `offset`, even if
    /// these bytes are contiguous with it.
    #[inline(always)]
    fn run_at(&mut self, offset: u64) -> Result<Run> {
        let is_there = |span: &Span| (span.start..span.end).contains(&offset);
        if !self.span.as_ref().is_some_and(is_there) {
            if let Some(run) = self.look_up(offset)? {
                return Ok(run);
            }
        }
        let span = self.span.as_mut().ok_or(Fault::BEYOND)?;
        let addr = span.addr + (offset - span.start);
        let region = span.memory.region().ok_or(Fault::BEYOND)?;
        let (iova, contiguous) = region.find(addr, &mut span.cursor);
        Ok(Run {
            start: offset,
            len: contiguous.min(span.end - offset),
            iova,
        })
    }

    /// A walk over the memory from `offset` on, which was looked up last. `None` if another look-up
    /// is needed.
    fn walk(&self, offset: u64) -> Option<Result<Walk<'_, 'a>>> {
        let offset = offset + self.skipped;
        let view = self.memory.view;
        let has = |span: &&Span| (span.start..span.end).contains(&offset);
        let walk = match self.span.as_ref().filter(has) {
            Some(span) => {
                let region = span.memory.region()?;
                let mut pieces = region.pieces_from(span.addr + (offset - span.start));
                Walk::new(view, pieces.next()?, pieces, span.end - offset)
            }
            None => {
                let into = offset.checked_sub(self.run.start)?;
                let left = self.run.len.checked_sub(into).filter(|left| *left > 0)?;
                let piece = (self.run.iova + into, left);
                Walk::new(view, piece, Pieces::default(), left)
            }
        };
        Some(walk.map_err(Fault::from))
    }

    /// The next bytes of a walk that has reached `offset`.
    fn run_of(&self, walk: &Walk<'_, 'a>, offset: u64) -> Run {
        let (iova, len) = walk.next();
        Run {
            start: offset + self.skipped,
            len,
            iova,
        }
    }

    /// Finds the memory that contains `offset`. Returns it if it is contiguous; otherwise stores it
    /// in `self.span`.
    ///
    /// Only the byte at `offset` is checked, and the memory ends with its MR or window: how much of
    /// it the message occupies is not known here. An SGE of a receive may be longer than the rest
    /// of its MR, as long as the message ends inside the MR.
    #[inline(never)]
    fn look_up(&mut self, offset: u64) -> Result<Option<Run>> {
        let (key, addr, end) = match self.backing {
            Backing::Sges(sges) => self.sge_at(sges, offset)?,
            Backing::Range(at) => {
                let addr = at.va.checked_add(offset).ok_or(Fault::BEYOND)?;
                (at.rkey, addr, u64::MAX)
            }
            Backing::Private(_) => return Err(Fault::BEYOND),
        };
        let most = end - offset;
        let Memory { keys, by, .. } = self.memory;
        if let Some(flat) = keys.flat(key) {
            if !flat.allows(by.pdn, addr, 1, self.access) {
                return Err(keys.fault(key, by, addr, self.access).into());
            }
            let (iova, len) = flat.find(addr);
            return Ok(Some(Run {
                start: offset,
                len: len.min(most),
                iova,
            }));
        }
        let memory = match self.backing {
            Backing::Range(_) => keys.region_remote(key, by, addr, 1, self.access)?,
            _ => keys.region(key, by, addr, 1, self.access)?,
        };
        let len = memory.region().ok_or(Fault::BEYOND)?.rest(addr).min(most);
        self.span = Some(Span {
            memory,
            start: offset,
            end: offset + len,
            addr,
            cursor: Cursor::default(),
        });
        Ok(None)
    }

    /// Key and address of the byte at `offset`, and the offset at which its SGE ends.
    #[inline]
    fn sge_at(&mut self, sges: Sges<'_>, offset: u64) -> Result<(u32, u64, u64)> {
        if offset < self.next.start {
            self.next = NextSge::default();
        }
        loop {
            let NextSge { index, start } = self.next;
            if index == sges.count {
                return Err(Fault::BEYOND);
            }
            let sge = sge(sges.wqe, sges.header, index);
            let end = start + u64::from(sge.length);
            self.next = NextSge {
                index: index + 1,
                start: end,
            };
            if offset < end {
                let addr = sge.addr.checked_add(offset - start).ok_or(Fault::BEYOND)?;
                return Ok((sge.lkey, addr, end));
            }
        }
    }
}

/// Copies `len` bytes at `offset` of `from` to the same offset of `to`, and charges them to the
/// turn. The messages may be in memory of different VMs. `last` is true if the messages end with
/// these bytes. Returns the number of bytes copied, which is less than `len` if the turn's budget
/// is overdrawn. On failure returns the side at fault.
pub(crate) fn transfer(
    from: &mut Message<'_>,
    to: &mut Message<'_>,
    offset: u64,
    len: usize,
    last: bool,
) -> std::result::Result<usize, Side> {
    let budget = from.memory.budget;
    let body = if last { len.saturating_sub(TAIL) } else { len };
    let (end_of_body, end) = (offset + body as u64, offset + len as u64);
    let mut at = offset;
    while at < end_of_body {
        if at > offset && budget.is_overdrawn() {
            // The difference is at most `len`, so the cast can't truncate.
            return Ok((at - offset) as usize);
        }
        // Both differences are at most `len`, so the casts can't truncate.
        let left = (end - at) as usize;
        let body_left = (end_of_body - at) as usize;
        let most = left.min(CHUNK).min(budget.until_look());
        let moved = match from.piece(at, most).map_err(Side::Source)? {
            Piece::Private(bytes) => {
                let bytes = &bytes[..bytes.len().min(body_left)];
                to.store(at, bytes).map_err(Side::Target)?;
                bytes.len()
            }
            Piece::Guest(source) => {
                let target = to.room(at, source.len()).map_err(Side::Target)?;
                if target.len() == left {
                    // Both pieces hold the rest of the message.
                    budget.charge_bytes(left);
                    copy_end(&source, &target, body_left)?;
                    return Ok(len);
                }
                let target = if target.len() > body_left {
                    first(&target, body_left)?
                } else {
                    target
                };
                let copied = source.copy_to(&target);
                done::copied(2, copied);
                copied
            }
        };
        budget.charge_bytes(moved);
        at += moved as u64;
        // `end_of_body - at` is at most `len`, so the cast can't truncate.
        at += transfer_pages(from, to, at, (end_of_body - at) as usize)? as u64;
    }
    if at < end {
        let mut tail = [0; TAIL];
        let tail = &mut tail[..len - body];
        from.read(at, tail).map_err(Side::Source)?;
        to.store_tail(at, tail).map_err(Side::Target)?;
        budget.charge_bytes(tail.len());
    }
    Ok(len)
}

/// Copies up to `max` bytes at `offset` of `from` to the same offset of `to`, as far as the memory
/// of both was looked up, and charges them to the turn. Stops if the turn's budget is overdrawn.
/// Returns the number of bytes copied; 0 if both messages are contiguous.
fn transfer_pages(
    from: &mut Message<'_>,
    to: &mut Message<'_>,
    offset: u64,
    max: usize,
) -> std::result::Result<usize, Side> {
    if max == 0 || (from.span.is_none() && to.span.is_none()) {
        return Ok(0);
    }
    let (Some(source), Some(target)) = (from.walk(offset), to.walk(offset)) else {
        return Ok(0);
    };
    let mut source = source.map_err(Side::Source)?;
    let mut target = target.map_err(Side::Target)?;
    let budget = from.memory.budget;
    let copied = walk::copy(&mut source, &mut target, max, budget);
    let copied = copied.map_err(|missing| match missing {
        Missing::Source => Side::Source(Fault::Memory),
        Missing::Target => Side::Target(Fault::Memory),
    })?;
    // The end of a message is mostly in the page of the bytes before it.
    let next = offset + copied as u64;
    let runs = (from.run_of(&source, next), to.run_of(&target, next));
    (from.run, to.run) = runs;
    Ok(copied)
}

/// The first `len` bytes of `target`, which is at least that long.
#[inline]
fn first<'a>(target: &DmaSliceMut<'a>, len: usize) -> std::result::Result<DmaSliceMut<'a>, Side> {
    target
        .subslice(0, len)
        .map_err(|error| Side::Target(error.into()))
}

/// Copies the end of a message from `source` to `target`. The bytes from `at` on, at most [`TAIL`],
/// are stored after all others.
#[inline]
fn copy_end(
    source: &DmaSlice<'_>,
    target: &DmaSliceMut<'_>,
    at: usize,
) -> std::result::Result<(), Side> {
    source.copy_to(&first(target, at)?);
    done::copied(2, target.len());
    let mut tail = [0; TAIL];
    let rest = &mut tail[..target.len() - at];
    source
        .read(at, rest)
        .map_err(|error| Side::Source(error.into()))?;
    fence(Ordering::Release);
    if rest.len() < TAIL || store_word(target, at, tail).is_err() {
        let rest = &tail[..target.len() - at];
        return target
            .write(at, rest)
            .map_err(|error| Side::Target(error.into()));
    }
    Ok(())
}

/// Stores the 8 bytes of `word` in a single store, after all earlier stores. Fails if the target
/// address is not aligned to 8 bytes.
#[inline]
fn store_word(
    target: &DmaSliceMut<'_>,
    at: usize,
    word: [u8; TAIL],
) -> std::result::Result<(), DmaError> {
    target.store_u64(at, u64::from_ne_bytes(word), Ordering::Release)
}

/// The side of a transfer that is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source(Fault),
    Target(Fault),
}
