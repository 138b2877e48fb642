// SPDX-License-Identifier: GPL-2.0

//! Lengths of requests and responses of processes.

use crate::{
    bindings,
    host::ProcessMemory,
    rdma::{
        udata::expect_none,
        Udata, //
    },
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

/// Where the response is.
const RESPONSE: usize = 64;

/// A verb of a process, and the data for the driver with it.
struct Verb {
    memory: ProcessMemory,
    /// Without a context: only messages for debugging ask for that.
    bundle: bindings::uverbs_attr_bundle,
}

impl Verb {
    /// With this request, and a response of so many bytes, which are not zero.
    fn new(request: &[u8], response: usize) -> Result<Self> {
        let memory = ProcessMemory::new(PAGE_SIZE)?;
        UserSlice::new(UserPtr::from_addr(memory.address), request.len())
            .writer()
            .write_slice(request)?;
        UserSlice::new(UserPtr::from_addr(memory.address + RESPONSE), 32)
            .writer()
            .write_slice(&[0xff; 32])?;
        let mut bundle = bindings::uverbs_attr_bundle::default();
        // CAST: Addresses of the process.
        let driver_udata = bindings::ib_udata {
            inbuf: memory.address as *const c_void,
            outbuf: (memory.address + RESPONSE) as *mut c_void,
            inlen: request.len(),
            outlen: response,
        };
        bundle.__bindgen_anon_1.__bindgen_anon_1.driver_udata = driver_udata;
        Ok(Self { memory, bundle })
    }

    fn raw(&mut self) -> *mut bindings::ib_udata {
        // SAFETY: The bundle was initialized.
        unsafe { &raw mut self.bundle.__bindgen_anon_1.__bindgen_anon_1.driver_udata }
    }

    /// The driver data, as a verb gets it.
    fn udata(&mut self) -> Result<Udata<'_>> {
        // SAFETY: The structure is valid as long as this is borrowed.
        unsafe { Udata::of_process(self.raw()) }
    }

    /// The response, and what lies behind it.
    fn response(&self) -> Result<[u8; 32]> {
        let mut bytes = [0; 32];
        UserSlice::new(UserPtr::from_addr(self.memory.address + RESPONSE), 32)
            .reader()
            .read_slice(&mut bytes)?;
        Ok(bytes)
    }
}

/// A response of `written` and then zeroes, `len` bytes in all, and what was there before.
fn expected(written: &[u8], len: usize) -> [u8; 32] {
    core::array::from_fn(|at| match at {
        at if at >= len => 0xff,
        at => written.get(at).copied().unwrap_or(0),
    })
}

suite! { rust_rdma_udata {
    fn a_kernel_client_has_none() {
        // SAFETY: Null is allowed.
        check!(unsafe { Udata::from_raw(core::ptr::null_mut()) }?.is_none());
        // SAFETY: As above.
        check!(unsafe { Udata::of_process(core::ptr::null_mut()) }.is_err_and(|e| e == EINVAL));
        // SAFETY: As above.
        check!(unsafe { expect_none(core::ptr::null_mut()) } == Ok(()));
    }

    fn a_request_is_long_enough() {
        check!(Verb::new(&[1, 2, 3, 4], 0)?.udata()?.read::<4>() == Ok([1, 2, 3, 4]));
        check!(Verb::new(&[1, 2, 3], 0)?.udata()?.read::<4>() == Err(EINVAL));
        check!(Verb::new(&[], 0)?.udata()?.read::<1>() == Err(EINVAL));
        check!(Verb::new(&[], 0)?.udata()?.read::<0>() == Ok([]));
    }

    /// A later provider asks for what this driver does not know.
    fn what_is_not_known_is_zero() {
        check!(Verb::new(&[1, 2, 0, 0], 0)?.udata()?.read::<2>() == Ok([1, 2]));
        check!(Verb::new(&[1, 2, 0, 1], 0)?.udata()?.read::<2>() == Err(EOPNOTSUPP));
        check!(Verb::new(&[1], 0)?.udata()?.read::<0>() == Err(EOPNOTSUPP));
    }

    fn an_optional_request_is_filled_up() {
        check!(Verb::new(&[], 0)?.udata()?.read_optional::<2>() == Ok([0, 0]));
        check!(Verb::new(&[1], 0)?.udata()?.read_optional::<2>() == Ok([1, 0]));
        check!(Verb::new(&[1, 2, 0], 0)?.udata()?.read_optional::<2>() == Ok([1, 2]));
        check!(Verb::new(&[1, 2, 3], 0)?.udata()?.read_optional::<2>() == Err(EOPNOTSUPP));
    }

    fn a_response_is_zeroed_first() {
        let mut verb = Verb::new(&[], 8)?;
        verb.udata()?;
        check!(verb.response()? == expected(&[], 8));
    }

    fn a_response_is_as_long_as_the_process_says() {
        for len in [0, 1, 3, 4, 9] {
            let mut verb = Verb::new(&[], len)?;
            verb.udata()?.respond(&[1, 2, 3, 4])?;
            check!(verb.response()? == expected(&[1, 2, 3, 4], len));
        }
    }

    fn a_verb_without_data_is_given_none() {
        // SAFETY: The structures are valid.
        unsafe {
            check!(expect_none(Verb::new(&[], 0)?.raw()) == Ok(()));
            check!(expect_none(Verb::new(&[0, 0], 0)?.raw()) == Ok(()));
            check!(expect_none(Verb::new(&[0, 1], 0)?.raw()).is_err());
        }
        let mut verb = Verb::new(&[], 8)?;
        // SAFETY: As above.
        check!(unsafe { expect_none(verb.raw()) } == Ok(()));
        check!(verb.response()? == expected(&[], 8));
    }
} }
