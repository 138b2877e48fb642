// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work requests as C programs pass them: linked lists with unions, seen through references.

use std::marker::PhantomData;
use std::slice;

use libc::c_int;
use virtio_rdma_abi::wqe::Rdma;
use virtio_rdma_abi::wqe::Sge;

use crate::ffi;

/// A list of work requests of type `W`.
pub struct List<'a, W> {
    first: *mut W,
    lifetime: PhantomData<&'a W>,
}

impl<'a, W: WorkRequest + 'a> List<'a, W> {
    /// The list that starts with `first`.
    ///
    /// # Safety
    ///
    /// `first` and each `next` are valid work requests or null, for as long as `'a` is, and so are the SGEs that they
    /// name and, if they are inline, the bytes that those name.
    pub unsafe fn new(first: *mut W) -> Self {
        Self {
            first,
            lifetime: PhantomData,
        }
    }

    /// The first work request that is still on the list, or null.
    #[inline]
    pub fn first(&self) -> *mut W {
        self.first
    }

    /// Takes the work requests off the list, one by one, as long as `post` succeeds. Returns its error, or 0.
    #[inline]
    pub fn try_each(&mut self, mut post: impl FnMut(W::View<'a>) -> Result<(), c_int>) -> c_int {
        // SAFETY: by the contract of new(), this is null or a valid work request.
        while let Some(wr) = unsafe { self.first.as_ref() } {
            if let Err(errno) = post(wr.view()) {
                return errno;
            }
            self.first = wr.next();
        }
        0
    }
}

/// A work request as C has it.
pub trait WorkRequest: Sized {
    /// What the provider sees of it.
    type View<'a>
    where
        Self: 'a;
    /// Looks at it.
    fn view(&self) -> Self::View<'_>;
    /// The next on its list, or null.
    fn next(&self) -> *mut Self;
}

impl WorkRequest for ffi::ibv_send_wr {
    type View<'a> = Send<'a>;
    #[inline]
    fn view(&self) -> Send<'_> {
        Send(self)
    }
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl WorkRequest for ffi::ibv_recv_wr {
    type View<'a> = Recv<'a>;
    #[inline]
    fn view(&self) -> Recv<'_> {
        Recv(self)
    }
    #[inline]
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// A send work request.
#[derive(Clone, Copy)]
pub struct Send<'a>(&'a ffi::ibv_send_wr);

/// A receive work request.
#[derive(Clone, Copy)]
pub struct Recv<'a>(&'a ffi::ibv_recv_wr);

/// `num_sge` SGEs at `list`; a negative number counts as none.
///
/// # Safety
///
/// They are valid for `'a`.
#[inline]
unsafe fn sges<'a>(list: *const ffi::ibv_sge, num_sge: i32) -> &'a [ffi::ibv_sge] {
    if num_sge <= 0 {
        return &[];
    }
    // SAFETY: not empty, so the caller's list is valid.
    unsafe { slice::from_raw_parts(list, num_sge as usize) }
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

    /// Whether it has at most `max` SGEs.
    #[inline]
    pub fn has_at_most(self, max: u32) -> bool {
        u32::try_from(self.0.num_sge).is_ok_and(|count| count <= max)
    }

    /// The SGEs.
    #[inline]
    pub fn sges(self) -> &'a [ffi::ibv_sge] {
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge) }
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

    /// Whether it has at most `max` SGEs.
    #[inline]
    pub fn has_at_most(self, max: u32) -> bool {
        u32::try_from(self.0.num_sge).is_ok_and(|count| count <= max)
    }

    /// The SGEs.
    #[inline]
    pub fn sges(self) -> &'a [ffi::ibv_sge] {
        // SAFETY: the SGEs of a work request on a list are valid.
        unsafe { sges(self.0.sg_list, self.0.num_sge) }
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
