// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Allocations of a responder.

use virtio_rdma_abi::number::Qpn;

use super::*;
use crate::net::Addresses;
use crate::work::AccessFlags;

/// Completely filled queues allocate exactly the bytes that [`Responder::queues`] returns, which
/// the caller charges to a budget.
#[test]
fn queues_grow_as_long_as_is_said() {
    let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
    let connection = Connection::new(
        Path::new([2; 6], [4; 6], addresses),
        Qpn::new(2),
        Mtu::Mtu1024,
    );
    for limit in [4, 16, 128] {
        let attr = ResponderAttr {
            rq_psn: 0,
            min_rnr_timer: 0,
            max_dest_rd_atomic: limit,
            access: AccessFlags::ALL,
        };
        let mut responder = Responder::<()>::new(connection.clone(), attr);
        let psn = Psn::new(0);
        for _ in 0..limit {
            responder.keep(ResponseContent::Written);
        }
        for _ in 0..flush::WAITING {
            assert!(responder.has_room_for_flush());
            responder.queue(ResponseContent::Flushed);
        }
        assert!(!responder.has_room_for_flush());
        for _ in 0..1000 {
            responder.reads.note(psn, 1);
            responder.flushes.note(psn, 1);
        }
        let allocated = responder.jobs.capacity() * size_of::<Job>()
            + responder.results.capacity() * size_of::<(Psn, ResponseContent)>()
            + responder.reads.allocated()
            + responder.flushes.allocated();
        assert_eq!(allocated, Responder::<()>::queues(limit), "of {limit}");
    }
}
