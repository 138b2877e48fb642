// SPDX-License-Identifier: GPL-2.0

//! Tests of buffers.

use super::Buffer;
use core::mem::MaybeUninit;

suite! { rust_hw_random {
    fn a_buffer_takes_what_fits() {
        let mut room = [MaybeUninit::new(0u8); 4];
        let mut buffer = Buffer::new(&mut room);
        check!(buffer.remaining() == 4);
        check!(buffer.write(&[]) == 0);
        check!(buffer.write(&[1, 2, 3]) == 3);
        check!(buffer.remaining() == 1);
        check!(buffer.write(&[4, 5]) == 1);
        check!(buffer.remaining() == 0);
        check!(buffer.write(&[6]) == 0);
        // SAFETY: All bytes were initialized.
        check!(room.map(|byte| unsafe { byte.assume_init() }) == [1, 2, 3, 4]);
    }
} }
