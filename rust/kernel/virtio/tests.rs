// SPDX-License-Identifier: GPL-2.0

//! Tests that need no virtio device.

use super::{
    config::check_access,
    recovery::pause,
    Buffer,
    DeviceId,
    Feature,
    Health,
    IdTable,
    Reset,
    VirtioID,
    Virtqueue, //
};
use crate::bindings;
use kernel::{
    prelude::*,
    sync::Arc, //
};

#[cfg(OUT_OF_TREE)]
crate::virtio_device_table!(
    TABLE,
    [
        DeviceId::new(VirtioID::Rng),
        DeviceId::new_with_vendor(VirtioID::Rdma, 0x1af4)
    ]
);

/// The macro's alias would be a symbol of the kernel crate, whose name is not one of C.
#[cfg(not(OUT_OF_TREE))]
static TABLE: kernel::device_id::IdArray<DeviceId, (), 2> =
    kernel::device_id::IdArray::new_without_index([
        DeviceId::new(VirtioID::Rng),
        DeviceId::new_with_vendor(VirtioID::Rdma, 0x1af4),
    ]);

fn queue<C: Send>() -> Result<Arc<Virtqueue<C>>> {
    Arc::pin_init(Virtqueue::new(), GFP_KERNEL)
}

suite! { rust_virtio {
    fn an_id_table_ends_with_zeroes() {
        let table: IdTable = &TABLE;
        let start = table.as_ptr();
        // SAFETY: The table has two entries and a terminating entry of zeroes.
        let ids = unsafe { core::slice::from_raw_parts(start, 3) };
        let ids: [(u32, u32); 3] = core::array::from_fn(|at| (ids[at].device, ids[at].vendor));
        check!(ids == [(4, bindings::VIRTIO_DEV_ANY_ID), (42, 0x1af4), (0, 0)]);
    }

    fn features_of_device_types_are_not_the_transports() {
        const FIRST: Feature = Feature::device_type(0);
        const LAST: Feature = Feature::device_type(63);
        check!(FIRST.bit() == 0);
        check!(LAST.bit() == 63);
        check!(Feature::VERSION_1.bit() == 32);
        check!(Feature::ACCESS_PLATFORM.bit() == 33);
        check!(Feature::ORDER_PLATFORM.bit() == 36);
        check!(Feature::RING_RESET.bit() == 40);
    }

    /// Fields of 64 bits are read by halves.
    fn accesses_are_aligned_fields() {
        check!(check_access(&(0..1), 8) == Ok((0, 1)));
        check!(check_access(&(6..8), 8) == Ok((6, 2)));
        check!(check_access(&(4..8), 8) == Ok((4, 4)));
        check!(check_access(&(7..8), 8) == Ok((7, 1)));
        for access in [0..0, 0..3, 0..8, 1..3, 2..6] {
            check!(check_access(&access, 8) == Err(EINVAL));
        }
    }

    fn accesses_are_within_the_configuration() {
        check!(check_access(&(8..9), 8) == Err(ENXIO));
        check!(check_access(&(8..12), 11) == Err(ENXIO));
        check!(check_access(&(0..4), 0) == Err(ENXIO));
        let end = u32::MAX as usize;
        check!(check_access(&(end..end + 1), usize::MAX) == Ok((u32::MAX, 1)));
        check!(check_access(&(end + 1..end + 2), usize::MAX).is_err());
    }

    fn recoveries_in_a_row_wait_longer_and_longer() {
        let ms = |in_a_row| pause(in_a_row).as_millis();
        check!([0, 1, 2, 3, 6].map(ms) == [0, 1_000, 2_000, 4_000, 32_000]);
        check!([7, 8, 63, 64, 65, u32::MAX].map(ms) == [64_000; 6]);
    }

    fn a_buffer_is_no_longer_than_it_was_allocated() {
        let mut buffer = Buffer::new(8, 16, 7, GFP_KERNEL)?;
        check!(buffer.readable_mut().len() == 8);
        check!(buffer.writable().len() == 16);
        check!(buffer.set_len(9, 16) == Err(EINVAL));
        check!(buffer.set_len(8, 17) == Err(EINVAL));
        check!(buffer.readable_mut().len() == 8 && buffer.writable().len() == 16);
        buffer.set_len(3, 0)?;
        check!(buffer.readable_mut().len() == 3 && buffer.writable().is_empty());
        buffer.set_len(8, 16)?;
        check!(buffer.context == 7);
    }

    fn a_buffer_that_is_reset_is_zero() {
        let mut buffer = Buffer::new(4, 4, (), GFP_KERNEL)?;
        buffer.readable_mut().fill(0xff);
        // Bytes after the end are zeroed too, since a later use may be longer.
        buffer.reset(2, 2)?;
        buffer.set_len(4, 4)?;
        check!(buffer.readable_mut().iter().all(|byte| *byte == 0));
        check!(buffer.reset(5, 0) == Err(EINVAL));
    }

    fn a_detached_queue_gives_buffers_back() {
        let queue = queue::<u32>()?;
        let buffer = Buffer::new(4, 4, 1, GFP_KERNEL)?;
        let Err((ENODEV, buffer)) = queue.add(buffer) else {
            return Err(EINVAL);
        };
        let Err((ENODEV, buffer)) = queue.add_or_keep(buffer) else {
            return Err(EINVAL);
        };
        check!(buffer.context == 1);
        check!(queue.get_buf().is_none());
    }

    fn a_detached_queue_does_nothing() {
        let queue = queue::<()>()?;
        queue.kick();
        check!(queue.vring_size() == 0);
        check!(queue.enable_cb());
        check!(queue.poll_health() == Health::Gone);
        check!(queue.reset() == Err(ENODEV));
        check!(queue.reset_device() == Reset::Unreachable);
    }
} }
