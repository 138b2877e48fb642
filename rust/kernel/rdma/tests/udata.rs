// SPDX-License-Identifier: GPL-2.0

//! Lengths of requests and responses of processes.

use super::host::ProcessMemory;
use crate::{
    bindings,
    rdma::{
        udata::{
            expect_none,
            DriverData, //
        },
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

/// Offset of the response in the memory of the process.
const RESPONSE: usize = 64;

/// A verb of a process, with the data that the process passes for the driver.
struct Verb {
    memory: ProcessMemory,
    /// The bundle has no context: only messages for debugging need it.
    bundle: bindings::uverbs_attr_bundle,
}

impl Verb {
    /// A verb with `request`, and with room for a response of `response` bytes, which are not zero
    /// at first.
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

    /// The driver data that the verb passes to the driver.
    fn udata(&mut self) -> Result<Udata<'_>> {
        // SAFETY: The structure is valid as long as this is borrowed.
        unsafe { Udata::of_process(self.raw()) }
    }

    /// The bytes of the response and the bytes after them.
    fn response(&self) -> Result<[u8; 32]> {
        let mut bytes = [0; 32];
        UserSlice::new(UserPtr::from_addr(self.memory.address + RESPONSE), 32)
            .reader()
            .read_slice(&mut bytes)?;
        Ok(bytes)
    }
}

/// Whether the tests can send requests that are refused. For each refused request the core logs a
/// debug message, which names the device of the request's file; there is no file in these tests. A
/// kernel with dynamic debugging formats the message only if the message is enabled.
const REFUSES: bool = cfg!(CONFIG_DYNAMIC_DEBUG);

/// Driver data of `N` bytes, of which each process passes at least `MIN`.
struct Data<const N: usize, const MIN: usize>([u8; N]);

impl<const N: usize, const MIN: usize> DriverData for Data<N, MIN> {
    type Bytes = [u8; N];
    const ZEROES: Self::Bytes = [0; N];
    const MIN_SIZE: usize = MIN;

    fn from_driver_data(bytes: &Self::Bytes) -> Self {
        Self(*bytes)
    }

    fn to_driver_data(&self) -> Self::Bytes {
        self.0
    }
}

/// Bytes of which the first `len` are 1, and the others 0.
fn ones<const N: usize>(len: usize) -> [u8; N] {
    core::array::from_fn(|at| u8::from(at < len))
}

/// The request that the driver reads if a process passes the bytes `given`.
fn request<const N: usize, const MIN: usize>(given: &[u8]) -> Result<[u8; N]> {
    Ok(Verb::new(given, 0)?.udata()?.request::<Data<N, MIN>>()?.0)
}

/// The expected bytes: a response of `len` bytes, which are `written` and then zeroes, and after
/// it the initial bytes.
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
        check!(request::<4, 4>(&[1, 2, 3, 4]) == Ok([1, 2, 3, 4]));
        if REFUSES {
            check!(request::<4, 4>(&[1, 2, 3]) == Err(EINVAL));
            check!(request::<4, 2>(&[1]) == Err(EINVAL));
            check!(request::<1, 1>(&[]) == Err(EINVAL));
        }
    }

    /// A newer process sets fields that this driver does not know.
    fn what_is_not_known_is_zero() {
        check!(request::<2, 2>(&[1, 2, 0, 0]) == Ok([1, 2]));
        if REFUSES {
            check!(request::<2, 2>(&[1, 2, 0, 1]) == Err(EOPNOTSUPP));
        }
    }

    /// An older process does not know the last fields, or the request at all.
    fn a_shorter_request_is_filled_up() {
        check!(request::<4, 2>(&[1, 2]) == Ok([1, 2, 0, 0]));
        check!(request::<4, 2>(&[1, 2, 3]) == Ok([1, 2, 3, 0]));
        check!(request::<2, 0>(&[]) == Ok([0, 0]));
        check!(request::<2, 0>(&[1]) == Ok([1, 0]));
    }

    /// Requests of all lengths are read by the same rules.
    fn a_request_is_read_by_its_length() {
        let given = ones::<24>(12);
        for len in 0..=given.len() {
            let expected = match len {
                0..=3 => Err(EINVAL),
                _ => Ok(ones(len)),
            };
            if REFUSES || expected.is_ok() {
                check!(request::<12, 4>(&given[..len]) == expected);
            }
            let expected = match len {
                0..=8 => Ok(ones(len)),
                _ => Err(EOPNOTSUPP),
            };
            if REFUSES || expected.is_ok() {
                check!(request::<8, 0>(&given[..len]) == expected);
            }
        }
    }

    fn no_request_asks_for_nothing() {
        check!(Verb::new(&[], 0)?.udata()?.no_request() == Ok(()));
        check!(Verb::new(&[0, 0, 0], 0)?.udata()?.no_request() == Ok(()));
        if REFUSES {
            check!(Verb::new(&[1], 0)?.udata()?.no_request() == Err(EOPNOTSUPP));
            check!(Verb::new(&[0, 0, 1], 0)?.udata()?.no_request() == Err(EOPNOTSUPP));
        }
    }

    fn a_response_is_zeroed_first() {
        let mut verb = Verb::new(&[], 8)?;
        verb.udata()?;
        check!(verb.response()? == expected(&[], 8));
    }

    fn a_response_is_as_long_as_the_process_says() {
        for len in [0, 1, 3, 4, 9] {
            let mut verb = Verb::new(&[], len)?;
            verb.udata()?.respond(&Data::<4, 0>([1, 2, 3, 4]))?;
            check!(verb.response()? == expected(&[1, 2, 3, 4], len));
        }
    }

    fn a_verb_without_data_is_given_none() {
        // SAFETY: The structures are valid.
        unsafe {
            check!(expect_none(Verb::new(&[], 0)?.raw()) == Ok(()));
            check!(expect_none(Verb::new(&[0, 0], 0)?.raw()) == Ok(()));
            check!(!REFUSES || expect_none(Verb::new(&[0, 1], 0)?.raw()).is_err());
        }
        let mut verb = Verb::new(&[], 8)?;
        // SAFETY: As above.
        check!(unsafe { expect_none(verb.raw()) } == Ok(()));
        check!(verb.response()? == expected(&[], 8));
    }
} }
