// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Predicted frame sizes equal the sizes of the frames that are sent.

// Local memory is a list of ranges. Many lists have a single range, such as `vec![0..8]`.
#![allow(clippy::single_range_in_vec_init)]

mod common;

use common::endpoint::Settings;
use common::setup::{at, sent, sim, write, SEND};
use roce::net::Addresses;
use roce::opcode::Service;
use roce::size::{frame_span, request_size};
use roce::work::{AtomicOp, FlushOp, Mtu, SendFlags, SendOp, SendWr, With};
use roce::{Connection, Path};
use virtio_rdma_abi::ib::FlushTypes;
use virtio_rdma_abi::number::Qpn;

#[test]
fn frames_are_as_long_as_foretold() {
    let settings = Settings {
        mtu: Mtu::Mtu256,
        ..Settings::default()
    };
    let mac = [2, 0, 0, 0, 0, 1];
    let addresses = Addresses::V4([10, 9, 0, 1].into(), [10, 9, 0, 2].into());
    let connection = Connection::new(Path::new(mac, mac, addresses), Qpn::new(2), settings.mtu);
    let with_imm = SendOp::Send {
        with: With::Imm([1; 4]),
    };
    let write_imm = SendOp::Write {
        remote: at(0),
        imm: Some([1; 4]),
    };
    let atomic = SendOp::Atomic {
        remote: at(0),
        op: AtomicOp::FetchAdd { add: 1 },
    };
    let atomic_write = SendOp::AtomicWrite {
        remote: at(0),
        data: [1; 8],
    };
    let flush = SendOp::Flush(FlushOp {
        remote: at(0),
        length: Some(100),
        types: FlushTypes::GLOBAL,
    });
    let read = SendOp::Read { remote: at(0) };
    for (op, lengths) in [
        (SEND, &[0usize, 1, 256, 257, 1000] as &[usize]),
        (with_imm, &[0, 3, 512, 700]),
        (write(at(0)), &[0, 256, 1023]),
        (write_imm, &[0, 511]),
        (read, &[0, 1, 256 * 64, 256 * 64 + 1, 40_000]),
        (atomic, &[8]),
        (atomic_write, &[8]),
        (flush, &[0]),
    ] {
        for &length in lengths {
            let mut sim = sim(settings);
            sim.ends[0].post(1, op, vec![0..length]);
            let lengths: Vec<_> = sent(&mut sim, 0).iter().map(Vec::len).collect();
            let wr = SendWr {
                id: 1,
                op,
                length: length as u32,
                flags: SendFlags::SIGNALED,
                local: (),
            };
            // An empty message has one frame.
            let span = frame_span(&op, settings.mtu);
            let count = wr.length.div_ceil(span).max(1);
            let foretold: Vec<_> = (0..count)
                .map(|index| request_size(Service::Rc, &connection, &wr, index))
                .collect();
            // Fewer frames may be sent: the window delays the last requests of a long READ.
            assert!(
                !lengths.is_empty() && lengths.len() <= foretold.len(),
                "{op:?} of {length}: {lengths:?}, {foretold:?}"
            );
            assert_eq!(lengths, foretold[..lengths.len()], "{op:?} of {length}");
        }
    }
    let local = SendWr {
        id: 1,
        op: SendOp::Local { drained: false },
        length: 0,
        flags: SendFlags::NONE,
        local: (),
    };
    assert_eq!(request_size(Service::Rc, &connection, &local, 0), 0);
}
