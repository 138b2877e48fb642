// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work requests as C programs pass them: linked lists with unions, seen through references.

use std::marker::PhantomData;
use std::slice;

use virtio_rdma_abi::wqe::Rdma;
use virtio_rdma_abi::wqe::Sge;

use crate::ffi;

/// A list of work requests of type `W`.
pub struct List<'a, W> {
    next: *mut W,
    lifetime: PhantomData<&'a W>,
}

impl<W> List<'_, W> {
    /// The list that starts with `first`.
    ///
    /// # Safety
    ///
    /// `first` and each `next` are valid work requests or null, for as long as `'a` is, and so are the SGEs that they
    /// name and, if they are inline, the bytes that those name.
    pub unsafe fn new(first: *mut W) -> Self {
        Self {
            next: first,
            lifetime: PhantomData,
        }
    }

    /// The work request that [`next`](Iterator::next) returns next, or null.
    pub fn peek(&self) -> *mut W {
        self.next
    }
}

/// A send work request.
#[derive(Clone, Copy)]
pub struct Send<'a>(&'a ffi::ibv_send_wr);

/// A receive work request.
#[derive(Clone, Copy)]
pub struct Recv<'a>(&'a ffi::ibv_recv_wr);

impl<'a> Iterator for List<'a, ffi::ibv_send_wr> {
    type Item = Send<'a>;

    #[inline]
    fn next(&mut self) -> Option<Send<'a>> {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        let wr = unsafe { self.next.as_ref()? };
        self.next = wr.next;
        Some(Send(wr))
    }
}

impl<'a> Iterator for List<'a, ffi::ibv_recv_wr> {
    type Item = Recv<'a>;

    #[inline]
    fn next(&mut self) -> Option<Recv<'a>> {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        let wr = unsafe { self.next.as_ref()? };
        self.next = wr.next;
        Some(Recv(wr))
    }
}

/// `num_sge` SGEs at `list`, or `None` if they are negative or more than `max`.
///
/// # Safety
///
/// They are valid for `'a`.
#[inline]
unsafe fn sges<'a>(
    list: *const ffi::ibv_sge,
    num_sge: i32,
    max: u32,
) -> Option<&'a [ffi::ibv_sge]> {
    let count = u32::try_from(num_sge).ok().filter(|&count| count <= max)?;
    if count == 0 {
        return Some(&[]);
    }
    // SAFETY: not empty, so the caller's list is valid.
    Some(unsafe { slice::from_raw_parts(list, count as usize) })
}

impl<'a> Send<'a> {
    /// The application's id.
    #[inline]
    pub fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// Opcode, `enum ibv_wr_opcode`.
    #[inline]
    pub fn opcode(self) -> u32 {
        self.0.opcode
    }

    /// Flags, `enum ibv_send_flags`.
    #[inline]
    pub fn flags(self) -> u32 {
        self.0.send_flags
    }

    /// The SGEs, or `None` if there are more than `max`.
    #[inline]
    pub fn sges(self, max: u32) -> Option<&'a [ffi::ibv_sge]> {
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }

    /// Immediate data, in network byte order, of opcodes that have it.
    #[inline]
    pub fn imm_data(self) -> [u8; 4] {
        // SAFETY: both members of the union are 32-bit integers.
        unsafe { self.0.__bindgen_anon_1.imm_data }.to_ne_bytes()
    }

    /// The remote memory of RDMA opcodes.
    #[inline]
    pub fn rdma(self) -> Rdma {
        // SAFETY: every member of the union starts with a 64-bit integer or is one; RDMA work requests have this one.
        let rdma = unsafe { self.0.wr.rdma };
        Rdma {
            remote_addr: rdma.remote_addr,
            rkey: rdma.rkey,
        }
    }

    /// The bytes that an SGE of this inline work request names.
    #[inline]
    pub fn inline_bytes(self, sge: &ffi::ibv_sge) -> &'a [u8] {
        if sge.length == 0 {
            return &[];
        }
        // SAFETY: an inline work request on a list names valid memory.
        unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) }
    }
}

impl<'a> Recv<'a> {
    /// The application's id.
    #[inline]
    pub fn wr_id(self) -> u64 {
        self.0.wr_id
    }

    /// The SGEs, or `None` if there are more than `max`.
    #[inline]
    pub fn sges(self, max: u32) -> Option<&'a [ffi::ibv_sge]> {
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge, max) }
    }
}

impl From<&ffi::ibv_sge> for Sge {
    #[inline]
    fn from(sge: &ffi::ibv_sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        }
    }
}
