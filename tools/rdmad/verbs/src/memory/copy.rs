// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Messages in registered memory.
//!
//! Wherever the bytes of a message lie, they are named by their offset in the message. The last bytes of a message are
//! stored after all others, since programs poll for them.

use std::sync::atomic::{fence, Ordering};
use std::sync::Arc;

use dma::{DmaError, DmaView};
use roce::work::{AtomicOp, Remote, ATOMIC_SIZE};
use virtio_rdma_abi::ib::AccessFlags;

use super::{KeyFault, MrTable, Reached, Region};
use crate::wqe::sge;

/// Bytes at the end of a message that are stored last.
const TAIL: usize = 8;

/// Memory that keys open to work at a QP.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pub view: &'a DmaView,
    pub mrs: &'a MrTable,
    /// The QP whose work it is.
    pub by: Reached,
}

/// Why a part of a message can't be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No MR allows it.
    Key,
    /// An MR does, but the VM has no memory there.
    Memory,
}

impl From<KeyFault> for Fault {
    fn from(_: KeyFault) -> Self {
        Self::Key
    }
}

impl From<DmaError> for Fault {
    fn from(_: DmaError) -> Self {
        Self::Memory
    }
}

type Result<T> = std::result::Result<T, Fault>;

/// Where a message lies.
#[derive(Clone, Copy)]
enum Place<'a> {
    /// In the memory that SGEs name: the WQE, the size of its header, the number of SGEs.
    Sges(&'a [u8], usize, u32),
    /// In one range.
    Range(Remote),
    /// In private memory.
    Private(&'a [u8]),
}

/// A message in memory. Remembers where it was accessed last, so that going through it is cheap.
pub(crate) struct Message<'a> {
    memory: Memory<'a>,
    access: AccessFlags,
    place: Place<'a>,
    /// Bytes at the start of the place that are not the message's.
    skipped: u64,
    /// The part that was accessed last.
    part: Option<Part>,
    /// The SGE behind that part, and its offset in the message.
    next: (u32, u64),
}

/// A contiguous piece of address space in one MR. While it is open the MR is in use.
struct Part {
    region: Arc<Region>,
    /// Offsets in the message.
    start: u64,
    end: u64,
    /// Address at `start`.
    addr: u64,
}

/// What is at an offset of a message.
enum Piece<'a> {
    /// DMA address and length.
    Guest(u64, usize),
    Private(&'a [u8]),
}

impl<'a> Message<'a> {
    /// A message in the memory that the SGEs in `wqe` name, behind its header of `header` bytes.
    pub(crate) fn in_sges(
        memory: Memory<'a>,
        wqe: &'a [u8],
        header: usize,
        num_sge: u32,
        access: AccessFlags,
    ) -> Self {
        Self::new(memory, Place::Sges(wqe, header, num_sge), access)
    }

    /// A message in one range of addresses, which the peer names.
    pub(crate) fn in_range(memory: Memory<'a>, at: Remote, access: AccessFlags) -> Self {
        Self::new(memory, Place::Range(at), access)
    }

    /// A message in private memory, to be read only.
    pub(crate) fn private(memory: Memory<'a>, bytes: &'a [u8]) -> Self {
        Self::new(memory, Place::Private(bytes), AccessFlags::NONE)
    }

    fn new(memory: Memory<'a>, place: Place<'a>, access: AccessFlags) -> Self {
        Self {
            memory,
            access,
            place,
            skipped: 0,
            part: None,
            next: (0, 0),
        }
    }

    /// The message without its first `bytes` bytes.
    pub(crate) fn skip(mut self, bytes: u64) -> Self {
        self.skipped += bytes;
        self
    }

    /// Fills `out` from the message's bytes from `offset` on.
    pub(crate) fn read(&mut self, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let len = match self.piece(offset, out.len())? {
                Piece::Guest(iova, len) => {
                    self.memory
                        .view
                        .slice(iova, len)?
                        .read(0, &mut out[..len])?;
                    len
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

    /// Stores `data` to the message's bytes from `offset` on. `last` says that the message ends with them.
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
            let Piece::Guest(iova, len) = self.piece(offset, data.len())? else {
                return Err(Fault::Key);
            };
            self.memory
                .view
                .slice_mut(iova, len)?
                .write(0, &data[..len])?;
            offset += len as u64;
            data = &data[len..];
        }
        Ok(())
    }

    /// Stores the end of a message after everything before it, in one store where that is possible.
    fn store_tail(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        fence(Ordering::Release);
        if let &[a, b, c, d, e, f, g, h] = data {
            if let Piece::Guest(iova, TAIL) = self.piece(offset, TAIL)? {
                if iova % TAIL as u64 == 0 {
                    let word = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
                    self.memory.view.slice_mut(iova, TAIL)?.store_u64(
                        0,
                        word,
                        Ordering::Release,
                    )?;
                    return Ok(());
                }
            }
        }
        self.store(offset, data)
    }

    /// Executes an atomic operation on the aligned 64-bit word at the start of the message, in the byte order of the
    /// guest's CPUs. Returns what it was.
    pub(crate) fn atomic(&mut self, op: AtomicOp) -> Result<u64> {
        const SIZE: usize = ATOMIC_SIZE as usize;
        let Piece::Guest(iova, SIZE) = self.piece(0, SIZE)? else {
            return Err(Fault::Key);
        };
        let word = self.memory.view.slice_mut(iova, SIZE)?;
        Ok(match op {
            AtomicOp::CompareSwap { compare, swap } => {
                word.compare_exchange_u64(0, compare, swap)?
            }
            AtomicOp::FetchAdd { add } => word.fetch_add_u64(0, add)?,
        })
    }

    /// Writes the aligned 64-bit word at the start of the message, in one store that comes after all earlier ones.
    pub(crate) fn write_word(&mut self, data: [u8; ATOMIC_SIZE as usize]) -> Result<()> {
        const SIZE: usize = ATOMIC_SIZE as usize;
        let Piece::Guest(iova, SIZE) = self.piece(0, SIZE)? else {
            return Err(Fault::Key);
        };
        let word = self.memory.view.slice_mut(iova, SIZE)?;
        Ok(word.store_u64(0, u64::from_ne_bytes(data), Ordering::Release)?)
    }

    /// The piece at `offset`, up to `max` bytes of it.
    fn piece(&mut self, offset: u64, max: usize) -> Result<Piece<'a>> {
        // Messages are shorter than 4 GiB, and so is what is skipped.
        let offset = offset + self.skipped;
        if let Place::Private(bytes) = self.place {
            let rest = usize::try_from(offset)
                .ok()
                .and_then(|offset| bytes.get(offset..))
                .ok_or(Fault::Key)?;
            let piece = &rest[..rest.len().min(max)];
            return if piece.is_empty() {
                Err(Fault::Key)
            } else {
                Ok(Piece::Private(piece))
            };
        }
        let part = match &self.part {
            Some(part) if (part.start..part.end).contains(&offset) => part,
            _ => self.look_up(offset)?,
        };
        let (iova, contiguous) = part.region.find(part.addr + (offset - part.start));
        let len = (max as u64).min(part.end - offset).min(contiguous);
        // At most `max`.
        let len = self.memory.view.contiguous(iova, len as usize)?;
        Ok(Piece::Guest(iova, len))
    }

    /// Opens the part that `offset` is in.
    fn look_up(&mut self, offset: u64) -> Result<&Part> {
        let Memory { mrs, by, .. } = self.memory;
        let part = match self.place {
            Place::Sges(wqe, header, num_sge) => {
                if offset < self.next.1 {
                    self.next = (0, 0);
                }
                loop {
                    let (index, start) = self.next;
                    if index == num_sge {
                        return Err(Fault::Key);
                    }
                    let sge = sge(wqe, header, index);
                    let end = start + u64::from(sge.length);
                    self.next = (index + 1, end);
                    if offset < end {
                        let region =
                            mrs.open(sge.lkey, by.pdn, sge.addr, sge.length.into(), self.access)?;
                        break Part {
                            region,
                            start,
                            end,
                            addr: sge.addr,
                        };
                    }
                }
            }
            Place::Range(at) => {
                // How far the range goes is not known here; every byte is checked against the MR.
                let addr = at.va.checked_add(offset).ok_or(Fault::Key)?;
                let region = mrs.open_remote(at.rkey, by, addr, 1, self.access)?;
                let end = offset + region.rest(addr);
                Part {
                    region,
                    start: offset,
                    end,
                    addr,
                }
            }
            Place::Private(_) => return Err(Fault::Key),
        };
        Ok(self.part.insert(part))
    }
}

/// Copies `len` bytes from `offset` on from one message to another, in guest memory of one VM or two. `last` says that
/// the message ends with them. Fails with the side whose fault it is.
pub(crate) fn transfer(
    from: &mut Message<'_>,
    to: &mut Message<'_>,
    offset: u64,
    len: usize,
    last: bool,
) -> std::result::Result<(), Side> {
    let body = if last { len.saturating_sub(TAIL) } else { len };
    let end = offset + body as u64;
    let mut at = offset;
    while at < end {
        // The difference is at most `len`.
        let max = (end - at) as usize;
        let moved = match from.piece(at, max).map_err(Side::Source)? {
            Piece::Private(bytes) => {
                to.store(at, bytes).map_err(Side::Target)?;
                bytes.len()
            }
            Piece::Guest(source, max) => {
                let Piece::Guest(target, len) = to.piece(at, max).map_err(Side::Target)? else {
                    return Err(Side::Target(Fault::Key));
                };
                let source = from
                    .memory
                    .view
                    .slice(source, len)
                    .map_err(|error| Side::Source(error.into()))?;
                let target = to
                    .memory
                    .view
                    .slice_mut(target, len)
                    .map_err(|error| Side::Target(error.into()))?;
                source
                    .copy_to(&target)
                    .map_err(|error| Side::Target(error.into()))?;
                len
            }
        };
        at += moved as u64;
    }
    if last && body < len {
        let mut tail = [0; TAIL];
        let tail = &mut tail[..len - body];
        from.read(end, tail).map_err(Side::Source)?;
        to.store_tail(end, tail).map_err(Side::Target)?;
    }
    Ok(())
}

/// Which side of a transfer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source(Fault),
    Target(Fault),
}
