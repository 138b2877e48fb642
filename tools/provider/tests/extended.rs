// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Extended CQs: completions polled one by one and read field by field.

#[path = "common/extended.rs"]
mod extended_cq;

use std::thread;

use extended_cq::*;
use provider_testkit::*;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::WcFlags;
use virtio_rdma_abi::ib::WcStatus;
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_provider::ffi;
use virtio_rdma_ring::RingMemory;

#[test]
fn every_field_is_read() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    let ex = extended(&cq);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), libc::ENOENT);
    for id in 0..3 {
        assert_eq!(post_recv(&qp, &mut recv_wr(70 + id, &mut [])).0, 0);
    }
    completions.push(Cqe {
        byte_len: 4096,
        ex: [1, 2, 3, 4],
        src_qp: Qpn::new(18),
        wc_flags: WcFlags::GRH | WcFlags::WITH_IMM,
        sl: 5,
        ..received(0)
    });
    completions.push(Cqe {
        ex: [4, 3, 2, 1],
        wc_flags: WcFlags::WITH_INVALIDATE,
        ..received(1)
    });
    completions.push(Cqe {
        status: WcStatus::WrFlushErr.value(),
        vendor_err: 0x1234_5678,
        ..received(2)
    });
    attr.comp_mask = 1;
    assert_eq!(call!(ex.start_poll(&mut attr)), libc::EINVAL);
    attr.comp_mask = 0;

    assert_eq!(call!(ex.start_poll(&mut attr)), 0);
    // SAFETY: the CQ is the test's alone.
    let told = || unsafe { ((*ex).wr_id, (*ex).status) };
    assert_eq!(told(), (70, ffi::IBV_WC_SUCCESS));
    assert_eq!(call!(ex.read_opcode()), ffi::IBV_WC_RECV);
    assert_eq!(call!(ex.read_byte_len()), 4096);
    assert_eq!(call!(ex.read_imm_data()), u32::from_be(0x0102_0304));
    assert_eq!(call!(ex.read_qp_num()), QPN.get());
    assert_eq!(call!(ex.read_src_qp()), 18);
    let flags = ffi::IBV_WC_GRH | ffi::IBV_WC_WITH_IMM;
    assert_eq!(call!(ex.read_wc_flags()), flags);
    assert_eq!((call!(ex.read_slid()), call!(ex.read_sl())), (0, 5));
    assert_eq!(call!(ex.read_dlid_path_bits()), 0);
    assert_eq!(call!(ex.next_poll()), 0);
    assert_eq!(told(), (71, ffi::IBV_WC_SUCCESS));
    assert_eq!(call!(ex.read_imm_data()), 0x0102_0304, "a key is a number");
    assert_eq!(call!(ex.read_wc_flags()), ffi::IBV_WC_WITH_INV);
    assert_eq!(call!(ex.next_poll()), 0);
    assert_eq!(told(), (72, ffi::IBV_WC_WR_FLUSH_ERR));
    assert_eq!(call!(ex.read_vendor_err()), 0x1234_5678);
    assert_eq!(call!(ex.next_poll()), libc::ENOENT);
    call!(ex.end_poll());
    assert_eq!(call!(ex.start_poll(&mut attr)), libc::ENOENT);
}

// abi: R-533
#[test]
fn what_was_polled_is_the_device_s_again() {
    let shared = shared();
    let cq = cq(&shared, 4);
    let cap = ffi::ibv_qp_cap {
        max_send_wr: 16,
        ..CAP
    };
    let qp = qp(&shared, &cq, &cap, QPN);
    let mut completions = Completions::new(&cq);
    let ex = extended(&cq);
    for round in 0..1000u64 {
        for id in 0..4 {
            let mut wr = send_wr(round * 4 + id, ffi::IBV_WR_SEND, 0, &mut []);
            assert_eq!(post_send(&qp, &mut wr).0, 0);
            completions.push(sent(round * 4 + id));
        }
        let mut attr = ATTR;
        assert_eq!(call!(ex.start_poll(&mut attr)), 0);
        for id in 0..4 {
            // SAFETY: the CQ is the test's alone.
            assert_eq!(unsafe { (*ex).wr_id }, round * 4 + id);
            let expected = if id == 3 { libc::ENOENT } else { 0 };
            assert_eq!(call!(ex.next_poll()), expected);
        }
        call!(ex.end_poll());
    }
}

#[test]
fn a_cq_is_locked_from_start_to_end() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut completions = Completions::new(&cq);
    for id in 0..2 {
        let mut wr = send_wr(id, ffi::IBV_WR_SEND, 0, &mut []);
        assert_eq!(post_send(&qp, &mut wr).0, 0);
        completions.push(sent(id));
    }
    let ex = extended(&cq);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), 0);
    thread::scope(|scope| {
        let other = scope.spawn(|| poll(&cq, 1).unwrap()[0].wr_id);
        for _ in 0..100 {
            thread::yield_now();
            // SAFETY: this thread holds the lock of the CQ.
            assert_eq!(unsafe { (*ex).wr_id }, 0);
            assert!(!other.is_finished());
        }
        call!(ex.end_poll());
        assert_eq!(other.join().unwrap(), 1);
    });
}

// abi: R-535
#[test]
fn a_ring_that_was_overwritten_is_an_error() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let ex = extended(&cq);
    let ring = cq.ring().ring();
    let memory = ring.map();
    memory.store_u32(memory.layout().device(), 0xa5a5_a5a5);
    let mut attr = ATTR;
    assert_eq!(call!(ex.start_poll(&mut attr)), libc::EIO);
    assert_eq!(poll(&cq, 1).err(), Some(-libc::EIO), "and no lock is held");
}
