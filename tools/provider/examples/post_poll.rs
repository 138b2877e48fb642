// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Posts signalled RDMA WRITEs of one SGE, or SENDs, and polls their completions, over rings in
//! memory. `count-instructions` measures this program, and `tools/dev/way` traces it. Usage:
//! `post_poll COUNT [send]`

use std::env;
use std::hint::black_box;

use provider_testkit::*;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_provider::ffi;

fn main() {
    let count: u64 = env::args()
        .nth(1)
        .and_then(|count| count.parse().ok())
        .expect("a count");
    let shared = shared();
    let cq = cq(&shared, 64);
    let cap = ffi::ibv_qp_cap {
        max_send_wr: 64,
        ..CAP
    };
    let qp = qp(&shared, &cq, &cap, Qpn::new(17));
    let mut device = Work::new(&qp.rings().send);
    let mut completions = Completions::new(&cq);
    let mut sges = [sge(0x1000, 64, 1)];
    let opcode = match env::args().nth(2).as_deref() {
        Some("send") => ffi::IBV_WR_SEND,
        _ => ffi::IBV_WR_RDMA_WRITE,
    };
    let mut wr = send_wr(0, opcode, ffi::IBV_SEND_SIGNALED, &mut sges);
    for id in 0..count {
        wr.wr_id = id;
        assert_eq!(post_send(&qp, black_box(&mut wr)).0, 0);
        let slot = device
            .consume(SqHeader::SIZE)
            .expect("a posted work request");
        // A device that sleeps: each work request rings its doorbell.
        assert!(!device.enable_doorbell());
        completions.push(Cqe {
            wr_id: slot,
            qp_num: Qpn::new(17),
            ..Cqe::default()
        });
        assert_eq!(black_box(poll(&cq, 1)).unwrap()[0].wr_id, id);
    }
}
