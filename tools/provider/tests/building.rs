// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! The `ibv_wr_*` functions: each builds the same WQEs as `ibv_post_send`, and a batch is posted as
//! a whole or not at all.

use std::ptr;

use provider_testkit::*;
use virtio_rdma_abi::ib::FlushTypes;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::wqe::AtomicWrite;
use virtio_rdma_abi::wqe::Flush;
use virtio_rdma_abi::wqe::Member;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;
use virtio_rdma_provider::builder;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::qp::Qp;

const ADDR: u64 = 0x1122_3344_5566_7788;
const RKEY: u32 = 0x99aa_bbcc;
const IMM: u32 = 0x0403_0201;

/// The functions of a QP, as a C program calls them.
struct Wr(*mut ffi::ibv_qp_ex);

macro_rules! call {
    ($wr:ident . $function:ident ( $($argument:expr),* )) => {{
        let qp = $wr.0;
        // SAFETY: the QP is this provider's and has this function; the arguments are valid for the
        // call.
        unsafe { (*qp).$function.unwrap()(qp $(, $argument)*) }
    }};
}

impl Wr {
    fn of(qp: &Qp) -> Self {
        let qp: *mut ffi::ibv_qp_ex = qp.as_ibv().cast();
        // SAFETY: the QP is the test's alone.
        let qp = unsafe { &mut *qp };
        builder::install(qp);
        qp.wr_atomic_write = Some(builder::atomic_write);
        qp.wr_flush = Some(builder::flush);
        Self(qp)
    }

    fn next(&self, wr_id: u64, flags: u32) {
        // SAFETY: the QP is the test's alone.
        unsafe {
            (*self.0).wr_id = wr_id;
            (*self.0).wr_flags = flags;
        }
    }
}

fn cap() -> ffi::ibv_qp_cap {
    ffi::ibv_qp_cap {
        max_send_wr: 16,
        ..CAP
    }
}

// abi: R-662
#[test]
fn wqes_are_those_of_post_send() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let (mut mw, mut mr) = window_and_region();
    let bind_info = ffi::ibv_mw_bind_info {
        mr: &mut mr,
        addr: ADDR,
        length: 100,
        mw_access_flags: ffi::IBV_ACCESS_REMOTE_WRITE,
    };
    let types = [ffi::IBV_QPT_RC, ffi::IBV_QPT_UC, ffi::IBV_QPT_UD];
    for qp_type in types {
        for opcode in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] {
            // The same work request is posted to one QP and built on the other.
            let posted = qp_of(qp_type, &shared, &cq, &cap(), QPN);
            let built = qp_of(qp_type, &shared, &cq, &cap(), OTHER_QPN);
            let mut sges = [sge(0x1000, 10, 7), sge(0x2000, 20, 8)];
            let flags = ffi::IBV_SEND_SIGNALED | ffi::IBV_SEND_FENCE;
            let mut wr = send_wr(5, opcode, flags, &mut sges);
            if matches!(opcode, 1 | 3 | 7 | 9) {
                wr.__bindgen_anon_1.imm_data = IMM;
            }
            let ah = ah();
            if qp_type == ffi::IBV_QPT_UD {
                wr.wr.ud = ud(&ah);
            } else if matches!(opcode, 5 | 6) {
                wr.wr.atomic = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                    remote_addr: ADDR,
                    compare_add: 1,
                    swap: if opcode == 5 { 2 } else { 0 },
                    rkey: RKEY,
                };
            }
            if opcode == 8 {
                wr.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                    mw: &mut mw,
                    rkey: RKEY,
                    bind_info,
                };
            }
            let status = post_send(&posted, &mut wr).0;

            let wr = Wr::of(&built);
            call!(wr.wr_start());
            wr.next(5, flags);
            match opcode {
                0 => call!(wr.wr_rdma_write(RKEY, ADDR)),
                1 => call!(wr.wr_rdma_write_imm(RKEY, ADDR, IMM)),
                2 => call!(wr.wr_send()),
                3 => call!(wr.wr_send_imm(IMM)),
                4 => call!(wr.wr_rdma_read(RKEY, ADDR)),
                5 => call!(wr.wr_atomic_cmp_swp(RKEY, ADDR, 1, 2)),
                6 => call!(wr.wr_atomic_fetch_add(RKEY, ADDR, 1)),
                7 => call!(wr.wr_local_inv(IMM)),
                8 => call!(wr.wr_bind_mw(&mut mw, RKEY, &bind_info)),
                _ => call!(wr.wr_send_inv(IMM)),
            }
            if qp_type == ffi::IBV_QPT_UD {
                let ud = ud(&ah);
                call!(wr.wr_set_ud_addr(ud.ah, ud.remote_qpn, ud.remote_qkey));
            }
            call!(wr.wr_set_sge_list(2, sges.as_ptr()));
            assert_eq!(call!(wr.wr_complete()), status, "{opcode} of {qp_type}");
            let fetch = |qp: &Qp| Work::new(&qp.rings().send).fetch();
            assert_eq!(fetch(&posted), fetch(&built), "{opcode} of {qp_type}");
        }
    }
}

#[test]
fn atomic_writes_and_flushes_are_built_only() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let qp = qp(&shared, &cq, &cap(), QPN);
    let mut device = Work::new(&qp.rings().send);
    let wr = Wr::of(&qp);
    let data = *b"abcdefgh";
    call!(wr.wr_start());
    wr.next(1, ffi::IBV_SEND_SIGNALED);
    call!(wr.wr_atomic_write(RKEY, ADDR, data.as_ptr().cast()));
    call!(wr.wr_flush(RKEY, ADDR, 77, 1, 1));
    // A length beyond 32 bits, which no MR has.
    call!(wr.wr_flush(RKEY, ADDR, 1 << 32, 1, 0));
    assert_eq!(call!(wr.wr_complete()), 0);
    let (_, bytes) = device.fetch().unwrap();
    let header = SqHeader::decode(&bytes).unwrap();
    // abi: R-662
    assert_eq!(
        (header.opcode, header.num_sge),
        (ffi::IBV_WR_ATOMIC_WRITE, 0)
    );
    // abi
    let expected = AtomicWrite {
        remote_addr: ADDR,
        data,
        rkey: RKEY,
    };
    assert_eq!(AtomicWrite::load(&header.wr), expected);
    for (length, level) in [(77, 1), (u32::MAX, 0)] {
        let (_, bytes) = device.fetch().unwrap();
        let header = SqHeader::decode(&bytes).unwrap();
        assert_eq!((header.opcode, header.num_sge), (ffi::IBV_WR_FLUSH, 0));
        // abi: R-741
        let expected = Flush {
            // abi: R-742
            remote_addr: ADDR,
            // abi: R-743
            length,
            // abi: R-744
            rkey: RKEY,
            // abi: R-745
            types: FlushTypes::GLOBAL,
            // abi: R-746
            level,
            // abi: R-747
            reserved: [0; 6],
        };
        assert_eq!(Flush::load(&header.wr), expected);
    }
}

#[test]
fn a_batch_is_posted_at_its_end_in_order() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let qp = qp(&shared, &cq, &cap(), QPN);
    let mut device = Work::new(&qp.rings().send);
    let mut completions = Completions::new(&cq);
    let wr = Wr::of(&qp);
    call!(wr.wr_start());
    for id in 0..3 {
        wr.next(100 + id, ffi::IBV_SEND_SIGNALED);
        call!(wr.wr_send());
        call!(wr.wr_set_sge(7, 0x1000 + id, 10));
    }
    assert_eq!(device.fetch(), None, "not yet complete");
    assert_eq!(shared.doorbell.last(), None);
    assert_eq!(call!(wr.wr_complete()), 0);
    assert!(shared.doorbell.last().is_some());
    for id in 0..3 {
        let (slot, bytes) = device.fetch().unwrap();
        let expected = Sge {
            addr: 0x1000 + id,
            length: 10,
            lkey: 7,
        };
        assert_eq!(Sge::decode(&bytes[SqHeader::SIZE..]), Some(expected));
        completions.push(sent(slot.into()));
    }
    let ids: Vec<_> = poll(&cq, 8).unwrap().iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [100, 101, 102]);
}

#[test]
fn an_aborted_batch_leaves_nothing() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let wr = Wr::of(&qp);
    for _ in 0..3 {
        call!(wr.wr_start());
        for _ in 0..4 {
            call!(wr.wr_send());
        }
        call!(wr.wr_abort());
        assert_eq!(device.fetch(), None);
    }
    // An aborted batch does not hold the lock.
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    assert!(device.fetch().is_some());
}

#[test]
fn the_first_error_is_told_at_the_end_and_nothing_is_posted() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let rc = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&rc.rings().send);
    let wr = Wr::of(&rc);
    let mut refuse = |expected, build: &dyn Fn(&Wr)| {
        call!(wr.wr_start());
        call!(wr.wr_send());
        build(&wr);
        call!(wr.wr_send());
        assert_eq!(call!(wr.wr_complete()), expected);
        assert_eq!(device.fetch(), None);
    };
    let long = [sge(0, 0, 0); 4];
    refuse(libc::EINVAL, &|wr| {
        call!(wr.wr_set_sge_list(4, long.as_ptr()))
    });
    let text = [0u8; MOST_INLINE as usize + 1];
    let (text, length) = (text.as_ptr().cast_mut().cast(), text.len());
    refuse(libc::EINVAL, &|wr| {
        call!(wr.wr_set_inline_data(text, length))
    });
    let huge = ffi::ibv_data_buf {
        addr: text,
        length: usize::MAX,
    };
    refuse(libc::EINVAL, &|wr| {
        call!(wr.wr_set_inline_data_list(2, [huge; 2].as_ptr()))
    });
    refuse(libc::EINVAL, &|wr| {
        call!(wr.wr_rdma_read(RKEY, ADDR));
        call!(wr.wr_set_inline_data(text, 1));
    });
    let ah = ah();
    let ah = ptr::from_ref(&*ah).cast_mut().cast();
    refuse(libc::EINVAL, &|wr| call!(wr.wr_set_ud_addr(ah, 1, 2)));
    refuse(libc::ENOMEM, &|wr| {
        for _ in 0..4 {
            call!(wr.wr_send());
        }
        // A second error, which is not reported.
        call!(wr.wr_set_sge_list(4, long.as_ptr()));
    });
    // Without an operation there is nothing to set.
    call!(wr.wr_start());
    call!(wr.wr_set_sge(1, 2, 3));
    call!(wr.wr_send());
    assert_eq!(call!(wr.wr_complete()), libc::EINVAL);
    assert_eq!(device.fetch(), None);

    rc.changed(ffi::IBV_QPS_RTR);
    call!(wr.wr_start());
    call!(wr.wr_send());
    assert_eq!(call!(wr.wr_complete()), libc::EINVAL, "not in RTS");

    let none = ffi::ibv_qp_cap {
        max_send_wr: 0,
        ..CAP
    };
    let qp = qp(&shared, &cq, &none, OTHER_QPN);
    let wr = Wr::of(&qp);
    call!(wr.wr_start());
    call!(wr.wr_send());
    call!(wr.wr_set_sge(1, 2, 3));
    assert_eq!(call!(wr.wr_complete()), libc::ENOMEM, "no send queue");
    call!(wr.wr_start());
    call!(wr.wr_abort());
}

#[test]
fn a_datagram_without_a_destination_is_an_error() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let qp = qp_of(ffi::IBV_QPT_UD, &shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let ah = ah();
    let ud = ud(&ah);
    let wr = Wr::of(&qp);
    // Every slot has the destination of an earlier WQE.
    for _ in 0..4 {
        call!(wr.wr_start());
        call!(wr.wr_send());
        call!(wr.wr_set_ud_addr(ud.ah, ud.remote_qpn, ud.remote_qkey));
        assert_eq!(call!(wr.wr_complete()), 0);
    }
    let slots = [(); 4].map(|()| device.fetch().unwrap().0);
    Completions::new(&cq).push(sent(slots[3].into()));
    assert_eq!(poll(&cq, 1).unwrap().len(), 1);
    // The destination is missing in the last WQE of a batch, and in an earlier WQE.
    call!(wr.wr_start());
    call!(wr.wr_send());
    call!(wr.wr_set_sge(1, 2, 3));
    assert_eq!(call!(wr.wr_complete()), libc::EINVAL);
    call!(wr.wr_start());
    call!(wr.wr_send_imm(1));
    call!(wr.wr_send());
    call!(wr.wr_set_ud_addr(ud.ah, ud.remote_qpn, ud.remote_qkey));
    assert_eq!(call!(wr.wr_complete()), libc::EINVAL);
    assert_eq!(device.fetch(), None);
}

// abi: R-641
#[test]
fn inline_payload_is_copied_and_marked() {
    let shared = shared();
    let cq = cq(&shared, 64);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let wr = Wr::of(&qp);
    let pieces = [&b"inline payl"[..], b"", b"oad"];
    let buffers: Vec<_> = pieces
        .iter()
        .map(|piece| ffi::ibv_data_buf {
            addr: piece.as_ptr().cast_mut().cast(),
            length: piece.len(),
        })
        .collect();
    call!(wr.wr_start());
    // The WQE's inline flag depends on the payload, not on the application's flag.
    wr.next(1, ffi::IBV_SEND_INLINE);
    call!(wr.wr_send());
    call!(wr.wr_set_inline_data_list(3, buffers.as_ptr()));
    wr.next(2, 0);
    call!(wr.wr_send());
    call!(wr.wr_set_inline_data(buffers[0].addr, 6));
    wr.next(3, ffi::IBV_SEND_INLINE);
    call!(wr.wr_send());
    assert_eq!(call!(wr.wr_complete()), 0);
    for expected in [&b"inline payload"[..], b"inline"] {
        let (_, bytes) = device.fetch().unwrap();
        let header = SqHeader::decode(&bytes).unwrap();
        assert_eq!((header.num_sge, header.send_flags), (1, SendFlags::INLINE));
        let whole = Sge {
            length: expected.len() as u32,
            ..Sge::default()
        };
        assert_eq!(Sge::decode(&bytes[SqHeader::SIZE..]), Some(whole));
        assert_eq!(bytes[INLINE_OFFSET..][..expected.len()], *expected);
    }
    let header = SqHeader::decode(&device.fetch().unwrap().1).unwrap();
    assert_eq!((header.num_sge, header.send_flags), (0, SendFlags::NONE));
}
