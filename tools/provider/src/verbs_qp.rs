// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! libibverbs' structure of a QP, to which releases have added members in the middle.
//!
//! In `struct verbs_qp`, `comp_mask` follows the functions of `struct ibv_qp_ex`. Functions were
//! added before `comp_mask` without a new private ABI. The provider therefore finds the offset of
//! `comp_mask` at run time: it checks which word libibverbs has written.

use std::io;
use std::mem::offset_of;
use std::mem::size_of;

use crate::builder;
use crate::ffi;
use crate::ffi::Zeroed;

/// Offset in bytes of the first function that a release has added.
const ADDED: usize = offset_of!(ffi::ibv_qp_ex, wr_abort) + size_of::<usize>();
/// Number of words from [`ADDED`] on: functions, `comp_mask`, a pointer, and room for future
/// functions.
const WORDS: usize = 16;
/// Initial value of a word: libibverbs has not written it.
const UNTOUCHED: u64 = u64::MAX;

/// `struct verbs_qp` of any release.
#[repr(C, align(8))]
pub struct VerbsQp {
    /// An `ibv_qp`, and the functions of `ibv_qp_ex` that every release has.
    head: [u8; ADDED],
    added: [u64; WORDS],
}

const _: () = assert!(size_of::<ffi::verbs_qp>() <= size_of::<VerbsQp>());
const _: () = assert!(ADDED % align_of::<VerbsQp>() == 0);

// SAFETY: the structure consists of bytes and integers.
unsafe impl Zeroed for VerbsQp {}

impl VerbsQp {
    /// Prepares the structure for a command that creates the QP.
    ///
    /// # Safety
    ///
    /// `this` is valid and has no other user.
    pub unsafe fn prepare(this: *mut Self) {
        // SAFETY: `this` is valid and has no other user.
        unsafe { (*this).added = [UNTOUCHED; WORDS] };
    }

    /// Finishes the structure after the command. With `send_ops`, the QP gets the functions of
    /// extended QPs.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if libibverbs is too old for an operation, `EPROTONOSUPPORT` if it has written
    /// `comp_mask` to none of these words.
    ///
    /// # Safety
    ///
    /// `this` was prepared for a command that succeeded, and has no other user.
    pub unsafe fn created(this: *mut Self, send_ops: Option<u64>) -> io::Result<()> {
        // SAFETY: `this` was prepared, and has no other user.
        let added = unsafe { &mut (*this).added };
        // libibverbs has set comp_mask, which has 32 bits, to zero.
        let mask = added.iter().position(|word| *word as u32 == 0);
        *added = [0; WORDS];
        let mask = mask.ok_or_else(|| io::Error::from_raw_os_error(libc::EPROTONOSUPPORT))?;
        let Some(send_ops) = send_ops else {
            return Ok(());
        };
        // The functions in the order in which they were added.
        let functions = [
            (
                ffi::IBV_QP_EX_WITH_ATOMIC_WRITE,
                builder::atomic_write as *const (),
            ),
            (ffi::IBV_QP_EX_WITH_FLUSH, builder::flush as *const ()),
        ];
        for (index, (operation, function)) in functions.into_iter().enumerate() {
            if index < mask {
                added[index] = function.expose_provenance() as u64;
            } else if send_ops & u64::from(operation) != 0 {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
        }
        added[mask] = u64::from(ffi::VERBS_QP_EX);
        // SAFETY: the functions that `install` sets are in `head`.
        builder::install(unsafe { &mut *this.cast() });
        Ok(())
    }
}
