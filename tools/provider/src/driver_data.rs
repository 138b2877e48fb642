// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands of uverbs and their responses: the common part, followed by the driver's part.
//!
//! Module and provider may know different lengths of the driver's part. The provider sends its
//! whole request, and the module accepts fields that it does not know if they are zero. The module
//! pads or truncates a response to the provider's length, so fields that the module does not know
//! are zero. Only these types access the driver's part.

use std::mem::offset_of;
use std::mem::size_of;

use virtio_rdma_abi::versions::Extensible;

use crate::ffi::Zeroed;

/// A command: the common part `C`, and the request `T` to the module.
#[repr(C)]
pub struct UverbsCommand<C, T: Extensible> {
    /// The common part, which libibverbs fills in.
    pub core: C,
    driver: T::Bytes,
}

impl<C: Zeroed, T: Extensible> UverbsCommand<C, T> {
    /// Length of both parts in bytes.
    pub const SIZE: usize = {
        let size = size_of::<Self>();
        assert!(offset_of!(Self, driver) == size_of::<C>());
        assert!(size == size_of::<C>() + T::SIZE);
        size
    };

    /// A command with `request` as its driver's part.
    pub fn new(request: &T) -> Self {
        Self {
            core: C::zeroed(),
            driver: request.encode(),
        }
    }
}

/// Room for the response to a command: the common part `C`, and the module's response `T`.
#[repr(C)]
pub struct Response<C, T: Extensible> {
    /// The common part.
    pub core: C,
    driver: T::Bytes,
}

impl<C: Zeroed, T: Extensible> Response<C, T> {
    /// Length of both parts in bytes.
    pub const SIZE: usize = {
        let size = size_of::<Self>();
        assert!(offset_of!(Self, driver) == size_of::<C>());
        assert!(size == size_of::<C>() + T::SIZE);
        size
    };

    /// An empty response, all zeroes: fields that the module does not know stay zero.
    pub fn empty() -> Self {
        Self {
            core: C::zeroed(),
            driver: T::ZEROES,
        }
    }

    /// The module's response.
    pub fn get(&self) -> T {
        T::decode_whole(&self.driver)
    }
}

#[cfg(test)]
mod tests {
    use virtio_rdma_abi::uverbs::*;

    use super::*;
    use crate::ffi;

    /// Writes `answer` as the kernel does: truncated, or padded with zeroes.
    fn respond(room: &mut [u8], answer: &[u8]) {
        let common = room.len().min(answer.len());
        room[..common].copy_from_slice(&answer[..common]);
        room[common..].fill(0);
    }

    /// `length` bytes, none of them zero.
    fn answer(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index % 255) as u8 + 1).collect()
    }

    fn takes_answers_of_any_length<C: Zeroed, T: Extensible>() {
        let mut response = Response::<C, T>::empty();
        assert_eq!(Response::<C, T>::SIZE, size_of::<C>() + T::SIZE);
        // No response was written.
        assert!(response
            .get()
            .encode()
            .as_ref()
            .iter()
            .all(|&byte| byte == 0));
        for length in 0..T::SIZE + 16 {
            // No byte of an earlier answer may remain.
            response.driver.as_mut().fill(0xa5);
            respond(response.driver.as_mut(), &answer(length));
            let value = response.get().encode();
            let known = length.min(T::SIZE);
            assert_eq!(value.as_ref()[..known], answer(known), "{length}");
            assert!(
                value.as_ref()[known..].iter().all(|&byte| byte == 0),
                "{length}"
            );
        }
    }

    // abi: R-935
    #[test]
    fn fields_that_the_module_does_not_know_are_zero() {
        takes_answers_of_any_length::<ffi::ib_uverbs_get_context_resp, AllocContextResp>();
        takes_answers_of_any_length::<ffi::ib_uverbs_create_ah_resp, CreateAhResp>();
        takes_answers_of_any_length::<ffi::ib_uverbs_ex_create_cq_resp, CreateCqResp>();
        takes_answers_of_any_length::<ffi::ib_uverbs_ex_create_qp_resp, CreateQpResp>();
        takes_answers_of_any_length::<ffi::ib_uverbs_create_srq_resp, CreateSrqResp>();
        takes_answers_of_any_length::<ffi::ib_uverbs_resize_cq_resp, ResizeCqResp>();
    }

    fn gives_its_request_in_full<C: Zeroed, T: Extensible>() {
        let mut bytes = T::ZEROES;
        bytes.as_mut().copy_from_slice(&answer(T::SIZE));
        let command = UverbsCommand::<C, T>::new(&T::decode_whole(&bytes));
        assert_eq!(command.driver.as_ref(), bytes.as_ref());
        assert_eq!(UverbsCommand::<C, T>::SIZE, size_of::<C>() + T::SIZE);
    }

    // abi: R-930
    #[test]
    fn requests_follow_the_common_part() {
        gives_its_request_in_full::<ffi::ibv_get_context, AllocContextReq>();
        gives_its_request_in_full::<ffi::ibv_create_cq_ex, CreateCqReq>();
        gives_its_request_in_full::<ffi::ibv_create_qp_ex, CreateQpReq>();
        gives_its_request_in_full::<ffi::ibv_create_srq, CreateSrqReq>();
        gives_its_request_in_full::<ffi::ibv_modify_qp_ex, ModifyQpReq>();
        gives_its_request_in_full::<ffi::ibv_modify_srq, ModifySrqReq>();
        gives_its_request_in_full::<ffi::ibv_resize_cq, ResizeCqReq>();
    }
}
