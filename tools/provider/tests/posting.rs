// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Work requests through the C entry points: their WQEs, and refused work requests.

use provider_testkit::*;
use virtio_rdma_abi::ib::SendFlags;
use virtio_rdma_abi::ring::Doorbell;
use virtio_rdma_abi::uverbs::ContextFlags;
use virtio_rdma_abi::wqe::BindMw;
use virtio_rdma_abi::wqe::RqHeader;
use virtio_rdma_abi::wqe::Sge;
use virtio_rdma_abi::wqe::SqHeader;
use virtio_rdma_abi::wqe::INLINE_OFFSET;
use virtio_rdma_provider::cq;
use virtio_rdma_provider::ffi;
use virtio_rdma_provider::mw;
use virtio_rdma_provider::qp::Qp;

/// The bytes of a WQE's header.
fn header(
    num_sge: u32,
    flags: u32,
    opcode: u32,
    position: u32,
    ex: [u8; 4],
    union: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    // abi: R-601
    bytes.extend(num_sge.to_le_bytes());
    // abi: R-602
    bytes.extend(flags.to_le_bytes());
    // abi: R-603
    bytes.extend(opcode.to_le_bytes());
    // abi: R-604
    bytes.extend(u64::from(position).to_le_bytes());
    // abi: R-605
    bytes.extend(ex);
    bytes.extend(union);
    bytes
}

const REMOTE_ADDR: [u8; 8] = [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11];
const RKEY: [u8; 4] = [0xcc, 0xbb, 0xaa, 0x99];

/// The bytes of the header's union for an RDMA opcode.
fn rdma() -> Vec<u8> {
    // abi: R-633
    [&REMOTE_ADDR[..], &RKEY].concat()
}

#[test]
fn every_opcode_of_a_type_becomes_its_wqe() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let imm = [1, 2, 3, 4];
    // The key to invalidate is a number, immediate data is bytes.
    let key = u32::from_ne_bytes(imm).to_le_bytes();
    for (qp_type, opcode, ex, union) in [
        // abi: R-613
        (ffi::IBV_QPT_RC, ffi::IBV_WR_RDMA_WRITE, imm, rdma()),
        // abi: R-614
        (
            ffi::IBV_QPT_RC,
            ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
            imm,
            rdma(),
        ),
        // abi: R-615
        (ffi::IBV_QPT_RC, ffi::IBV_WR_SEND, imm, Vec::new()),
        // abi: R-616
        (ffi::IBV_QPT_RC, ffi::IBV_WR_SEND_WITH_IMM, imm, Vec::new()),
        // abi: R-622
        (ffi::IBV_QPT_RC, ffi::IBV_WR_SEND_WITH_INV, key, Vec::new()),
        // abi: R-617
        (ffi::IBV_QPT_RC, ffi::IBV_WR_RDMA_READ, imm, rdma()),
        // abi: R-620
        (ffi::IBV_QPT_RC, ffi::IBV_WR_LOCAL_INV, key, Vec::new()),
        (ffi::IBV_QPT_UC, ffi::IBV_WR_RDMA_WRITE, imm, rdma()),
        (
            ffi::IBV_QPT_UC,
            ffi::IBV_WR_RDMA_WRITE_WITH_IMM,
            imm,
            rdma(),
        ),
        (ffi::IBV_QPT_UC, ffi::IBV_WR_SEND, imm, Vec::new()),
        (ffi::IBV_QPT_UC, ffi::IBV_WR_SEND_WITH_IMM, imm, Vec::new()),
        (ffi::IBV_QPT_UC, ffi::IBV_WR_LOCAL_INV, key, Vec::new()),
    ] {
        let qp = qp_of(qp_type, &shared, &cq, &CAP, QPN);
        let mut device = Work::new(&qp.rings().send);
        let mut sges = [
            sge(0x1000, 10, 7),
            sge(0x2000, 0, 8),
            sge(u64::MAX, u32::MAX, 9),
        ];
        let flags = ffi::IBV_SEND_SIGNALED
            | ffi::IBV_SEND_SOLICITED
            | ffi::IBV_SEND_FENCE
            | ffi::IBV_SEND_IP_CSUM
            | (1 << 31);
        let mut wr = send_wr(1, opcode, flags, &mut sges);
        wr.__bindgen_anon_1.imm_data = u32::from_ne_bytes(imm);
        assert_eq!(post_send(&qp, &mut wr).0, 0);

        // abi: R-502
        let (position, bytes) = device.fetch().unwrap();
        // abi: R-632, R-1160
        let expected = header(3, 7, opcode, position, ex, &union);
        // abi
        assert_eq!(bytes[..expected.len()], expected, "opcode {opcode}");
        for (index, sge) in sges.iter().enumerate() {
            let at = SqHeader::SIZE + index * Sge::SIZE;
            // abi: R-661
            assert_eq!(Sge::decode(&bytes[at..]).unwrap(), Sge::from(sge));
        }
        assert_eq!(device.fetch(), None);
    }
}

#[test]
fn atomics_name_a_word_and_two_values() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    for opcode in [
        // abi: R-618
        ffi::IBV_WR_ATOMIC_CMP_AND_SWP,
        // abi: R-619
        ffi::IBV_WR_ATOMIC_FETCH_AND_ADD,
    ] {
        let mut sges = [sge(0x1000, 8, 7)];
        let mut wr = send_wr(1, opcode, ffi::IBV_SEND_FENCE, &mut sges);
        wr.wr.atomic = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: 0x1122_3344_5566_7788,
            compare_add: 0x0102_0304_0506_0708,
            swap: 0x1112_1314_1516_1718,
            rkey: 0x99aa_bbcc,
        };
        assert_eq!(post_send(&qp, &mut wr).0, 0);
        let (position, bytes) = device.fetch().unwrap();
        // abi: R-636
        let union = [
            // abi: R-637
            &REMOTE_ADDR[..],
            // abi: R-638
            &[8, 7, 6, 5, 4, 3, 2, 1],
            // abi: R-639
            &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
            // abi: R-640
            &RKEY,
        ]
        .concat();
        let expected = header(1, 1, opcode, position, [0; 4], &union);
        // abi: R-662
        assert_eq!(bytes[..expected.len()], expected);
    }
}

#[test]
fn bindings_name_window_region_and_key() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let (mut mw, mut mr) = window_and_region();
    for qp_type in [ffi::IBV_QPT_RC, ffi::IBV_QPT_UC] {
        let qp = qp_of(qp_type, &shared, &cq, &CAP, QPN);
        let mut device = Work::new(&qp.rings().send);
        for lkey in [mr.lkey, 0] {
            let mut wr = send_wr(1, ffi::IBV_WR_BIND_MW, ffi::IBV_SEND_SIGNALED, &mut []);
            wr.__bindgen_anon_2.bind_mw = ffi::ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
                mw: &mut mw,
                rkey: 0x0102_0377,
                bind_info: ffi::ibv_mw_bind_info {
                    mr: match lkey {
                        0 => std::ptr::null_mut(),
                        _ => &mut mr,
                    },
                    addr: 0x1122_3344_5566_7788,
                    length: 0x0102_0304_0506_0708,
                    mw_access_flags: ffi::IBV_ACCESS_REMOTE_READ | ffi::IBV_ACCESS_ZERO_BASED,
                },
            };
            assert_eq!(post_send(&qp, &mut wr).0, 0);
            let (position, bytes) = device.fetch().unwrap();
            // abi: R-381
            let union = [
                // abi: R-382
                &REMOTE_ADDR[..],
                // abi: R-383
                &[8, 7, 6, 5, 4, 3, 2, 1],
                // abi: R-384
                &[0xff, 3, 2, 1],
                // abi: R-385
                &[0x77, 3, 2, 1],
                // abi: R-386
                &lkey.to_le_bytes(),
                // abi: R-387
                &[0x24, 0, 0, 0],
                // abi: R-388
                &[0; 4],
            ]
            .concat();
            let expected = header(0, 2, ffi::IBV_WR_BIND_MW, position, [0; 4], &union);
            // abi
            assert_eq!(bytes[..expected.len()], expected);
        }
    }
}

// abi
#[test]
fn a_window_has_its_next_key_once_the_binding_is_posted() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let (mut mw, mut mr) = window_and_region();
    let mut bind = ffi::ibv_mw_bind {
        wr_id: 7,
        send_flags: 0,
        bind_info: ffi::ibv_mw_bind_info {
            mr: &mut mr,
            addr: 0x1000,
            length: 1,
            mw_access_flags: 0,
        },
    };
    let mut post = |mw: &mut ffi::ibv_mw| {
        // SAFETY: the QP is this provider's, and the rest is valid.
        unsafe { mw::bind_mw(qp.as_ibv(), mw, &mut bind) }
    };
    // Only the low 8 bits of the key change.
    for rkey in [0x0102_0300, 0x0102_0301] {
        let before = mw.rkey;
        assert_eq!(post(&mut mw), 0);
        assert_eq!(mw.rkey, rkey);
        let (_, bytes) = device.fetch().unwrap();
        let bind = BindMw::decode(&bytes[SqHeader::UNION..]).unwrap();
        assert_eq!((bind.mw_rkey, bind.rkey), (before, rkey));
    }
    // A work request that is not posted changes nothing.
    qp.changed(ffi::IBV_QPS_RTR);
    assert_eq!(post(&mut mw), libc::EINVAL);
    assert_eq!(mw.rkey, 0x0102_0301);
}

// abi: R-942
#[test]
fn without_windows_nothing_is_bound() {
    let shared = shared_with(ContextFlags::OWN_RINGS);
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut wr = send_wr(1, ffi::IBV_WR_BIND_MW, 0, &mut []);
    assert_eq!(post_send(&qp, &mut wr).0, libc::EINVAL);
}

#[test]
fn datagrams_carry_their_destination() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp_of(ffi::IBV_QPT_UD, &shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let ah = ah();
    for (opcode, inline) in [
        (ffi::IBV_WR_SEND, false),
        (ffi::IBV_WR_SEND_WITH_IMM, false),
        (ffi::IBV_WR_SEND, true),
    ] {
        let payload = *b"hello";
        let mut sges = [sge(payload.as_ptr() as u64, 5, 7)];
        let flags = if inline { ffi::IBV_SEND_INLINE } else { 0 };
        let mut wr = send_wr(1, opcode, flags, &mut sges);
        wr.wr.ud = ud(&ah);
        assert_eq!(post_send(&qp, &mut wr).0, 0);
        let (position, bytes) = device.fetch().unwrap();
        // abi: R-770
        let union = [
            // abi: R-771
            &[0x33, 0x22, 0x11, 0][..],
            // abi: R-772
            &[0x44, 0x33, 0x22, 0x11],
            // abi: R-773
            &av().to_bytes(),
        ]
        .concat();
        let expected = header(1, flags, opcode, position, [0; 4], &union);
        // abi: R-662
        assert_eq!(bytes[..expected.len()], expected);
        if inline {
            assert_eq!(&bytes[INLINE_OFFSET..INLINE_OFFSET + 5], b"hello");
        }
    }
    // Without an address handle, the work request is posted with an empty address vector.
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    wr.wr.ud.ah = std::ptr::null_mut();
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    let (_, bytes) = device.fetch().unwrap();
    assert_eq!(bytes[SqHeader::UNION + 8..SqHeader::SIZE], [0; 43]);
}

// abi: R-612
#[test]
fn opcodes_of_other_types_and_of_the_kernel_are_refused() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let (mut mw, _) = window_and_region();
    let served = |opcodes: &[u32]| -> Vec<u32> { opcodes.to_vec() };
    for (qp_type, opcodes) in [
        (ffi::IBV_QPT_RC, served(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9])),
        (ffi::IBV_QPT_UC, served(&[0, 1, 2, 3, 7, 8])),
        (ffi::IBV_QPT_UD, served(&[2, 3])),
    ] {
        let cap = ffi::ibv_qp_cap {
            max_send_wr: 16,
            ..CAP
        };
        let qp = qp_of(qp_type, &shared, &cq, &cap, QPN);
        let ah = ah();
        for opcode in (0..64).chain([u32::MAX]) {
            let mut wr = send_wr(1, opcode, 0, &mut []);
            if qp_type == ffi::IBV_QPT_UD {
                wr.wr.ud = ud(&ah);
            }
            if opcode == ffi::IBV_WR_BIND_MW {
                wr.__bindgen_anon_2.bind_mw.mw = &mut mw;
            }
            let expected = match opcodes.contains(&opcode) {
                true => 0,
                false => libc::EINVAL,
            };
            let status = post_send(&qp, &mut wr).0;
            assert_eq!(status, expected, "opcode {opcode} of type {qp_type}");
        }
    }
}

// abi
#[test]
fn inline_payload_is_gathered_after_one_sge() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let (mut first, mut second) = (*b"inline payl", *b"oad");
    let mut sges = [
        sge(first.as_ptr() as u64, first.len() as u32, 1),
        sge(0, 0, 2),
        sge(second.as_ptr() as u64, second.len() as u32, 3),
    ];
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, ffi::IBV_SEND_INLINE, &mut sges);
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    // The application may use its buffer again immediately.
    (first, second) = ([0; 11], [0; 3]);
    assert_eq!((first[0], second[0]), (0, 0));

    let (_, bytes) = device.fetch().unwrap();
    let header = SqHeader::decode(&bytes).unwrap();
    assert_eq!((header.num_sge, header.send_flags), (1, SendFlags::INLINE));
    assert_eq!(
        Sge::decode(&bytes[SqHeader::SIZE..]).unwrap(),
        Sge {
            addr: 0,
            length: 14,
            lkey: 0
        }
    );
    assert_eq!(&bytes[INLINE_OFFSET..INLINE_OFFSET + 14], b"inline payload");
}

// abi
#[test]
fn receives_become_their_wqes() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().recv);
    let mut sges = [sge(0x1000, 10, 7), sge(0x2000, 20, 8)];
    for count in 0..=2 {
        let mut wr = recv_wr(5, &mut sges[..count]);
        assert_eq!(post_recv(&qp, &mut wr).0, 0);
        let (position, bytes) = device.fetch().unwrap();
        assert_eq!(
            RqHeader::decode(&bytes).unwrap(),
            RqHeader {
                num_sge: count as u32,
                wr_id: u64::from(position)
            }
        );
        for (index, sge) in sges[..count].iter().enumerate() {
            let at = RqHeader::SIZE + index * Sge::SIZE;
            assert_eq!(Sge::decode(&bytes[at..]).unwrap(), Sge::from(sge));
        }
    }
}

#[test]
fn a_list_is_posted_up_to_the_first_that_is_refused() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let mut sges = [sge(0, 1, 0)];
    let mut third = send_wr(3, ffi::IBV_WR_SEND, 0, &mut sges);
    third.num_sge = 4;
    let mut second = send_wr(2, ffi::IBV_WR_SEND, 0, &mut sges);
    second.next = &mut third;
    let mut first = send_wr(1, ffi::IBV_WR_SEND, 0, &mut sges);
    first.next = &mut second;
    let third: *mut _ = &mut third;
    assert_eq!(post_send(&qp, &mut first), (libc::EINVAL, third));
    assert!(device.fetch().is_some());
    assert!(device.fetch().is_some());
    assert!(device.fetch().is_none());
}

#[test]
fn invalid_work_requests_are_refused() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut sges = [sge(0, 0, 0); 4];
    let mut refuse = |edit: &dyn Fn(&mut ffi::ibv_send_wr)| {
        let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut sges[..1]);
        edit(&mut wr);
        let (status, bad) = post_send(&qp, &mut wr);
        assert_eq!((status, bad), (libc::EINVAL, &mut wr as *mut _));
    };
    refuse(&|wr| wr.num_sge = 4);
    refuse(&|wr| wr.num_sge = -1);
    for opcode in [
        ffi::IBV_WR_RDMA_READ,
        ffi::IBV_WR_ATOMIC_CMP_AND_SWP,
        ffi::IBV_WR_LOCAL_INV,
    ] {
        refuse(&|wr| {
            wr.opcode = opcode;
            wr.send_flags = ffi::IBV_SEND_INLINE;
        });
    }

    let payload = [0u8; MOST_INLINE as usize + 1];
    let mut large = [sge(payload.as_ptr() as u64, MOST_INLINE + 1, 0)];
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, ffi::IBV_SEND_INLINE, &mut large);
    assert_eq!(post_send(&qp, &mut wr).0, libc::EINVAL);
    let mut overflowing = [
        sge(payload.as_ptr() as u64, u32::MAX, 0),
        sge(payload.as_ptr() as u64, 2, 0),
    ];
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, ffi::IBV_SEND_INLINE, &mut overflowing);
    assert_eq!(post_send(&qp, &mut wr).0, libc::EINVAL);

    let mut wr = recv_wr(1, &mut sges[..3]);
    assert_eq!(post_recv(&qp, &mut wr), (libc::EINVAL, &mut wr as *mut _));
    let mut device = Work::new(&qp.rings().send);
    assert!(device.fetch().is_none(), "nothing was posted");
}

// abi
#[test]
fn work_is_taken_in_the_states_of_the_specification() {
    let shared = shared();
    let cq = cq(&shared, 32);
    let cap = ffi::ibv_qp_cap {
        max_send_wr: 32,
        max_recv_wr: 32,
        ..CAP
    };
    let qp = qp(&shared, &cq, &cap, QPN);
    for (state, send, recv) in [
        (ffi::IBV_QPS_RESET, libc::EINVAL, libc::EINVAL),
        (ffi::IBV_QPS_INIT, libc::EINVAL, 0),
        (ffi::IBV_QPS_RTR, libc::EINVAL, 0),
        (ffi::IBV_QPS_RTS, 0, 0),
        (ffi::IBV_QPS_SQD, 0, 0),
        (ffi::IBV_QPS_SQE, 0, 0),
        (ffi::IBV_QPS_ERR, 0, 0),
    ] {
        qp.changed(state);
        let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
        assert_eq!(post_send(&qp, &mut wr).0, send, "send in state {state}");
        let mut wr = recv_wr(1, &mut []);
        assert_eq!(post_recv(&qp, &mut wr).0, recv, "receive in state {state}");
    }
}

#[test]
fn capabilities_that_no_queue_has_are_refused() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let refuse = |qp_type, edit: &dyn Fn(&mut ffi::ibv_qp_cap)| {
        let mut cap = CAP;
        edit(&mut cap);
        let error = Qp::in_memory(
            qp_type,
            &cap,
            (&cq, &cq, None),
            &shared,
            &shared.threads.into(),
        )
        .err()
        .unwrap();
        error.raw_os_error().unwrap()
    };
    let rc = ffi::IBV_QPT_RC;
    assert_eq!(refuse(rc, &|cap| cap.max_send_wr = 32_769), libc::EINVAL);
    assert_eq!(refuse(rc, &|cap| cap.max_recv_wr = u32::MAX), libc::EINVAL);
    assert_eq!(refuse(rc, &|cap| cap.max_send_sge = 300), libc::EINVAL);
    assert_eq!(refuse(rc, &|cap| cap.max_recv_sge = u32::MAX), libc::EINVAL);
    assert_eq!(refuse(rc, &|cap| cap.max_inline_data = 513), libc::EINVAL);
    assert_eq!(refuse(ffi::IBV_QPT_RAW_PACKET, &|_| ()), libc::EOPNOTSUPP);
    assert_eq!(cq::ring_layout(4_194_305, 4_194_304), None);
    assert_eq!(cq::ring_layout(u32::MAX, u32::MAX), None);
    assert_eq!(cq::ring_layout(1, 32_768).unwrap().slots(), 2);
    assert_eq!(cq::ring_layout(100, 32_768).unwrap().slots(), 128);
}

/// A QP takes as many inline bytes as its slots have room for, whether they were requested or not.
#[test]
fn inline_room_is_what_the_slots_have() {
    let shared = shared();
    let cq = cq(&shared, 8);
    // The longest WQE of a QP: its SGEs, or its inline payload after 91 bytes.
    for (sges, asked, room) in [
        (0, 0, 37),
        (1, 0, 37),
        (1, 37, 37),
        (1, 38, 165),
        (3, 60, 165),
        (16, 0, 421),
        (1, 512, 512),
    ] {
        let cap = ffi::ibv_qp_cap {
            max_send_sge: sges,
            max_inline_data: asked,
            ..CAP
        };
        let qp = qp(&shared, &cq, &cap, QPN);
        let mut told = CAP;
        qp.report(&mut told);
        assert_eq!(told.max_inline_data, room, "{sges} SGEs, {asked} bytes");
        let payload = [0u8; 513];
        // The payload of a posted list is an SGE.
        let fits = if sges == 0 { libc::EINVAL } else { 0 };
        for (length, expected) in [(room, fits), (room + 1, libc::EINVAL)] {
            let mut whole = [sge(payload.as_ptr() as u64, length, 0)];
            let flags = ffi::IBV_SEND_INLINE;
            let mut wr = send_wr(1, ffi::IBV_WR_SEND, flags, &mut whole);
            assert_eq!(post_send(&qp, &mut wr).0, expected, "{length} bytes");
        }
    }
    let none = ffi::ibv_qp_cap {
        max_send_wr: 0,
        max_inline_data: 5,
        ..CAP
    };
    let mut told = CAP;
    qp(&shared, &cq, &none, QPN).report(&mut told);
    assert_eq!(told.max_inline_data, 5);
}

// abi
#[test]
fn doorbells_ring_only_for_a_device_that_waits() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut device = Work::new(&qp.rings().send);
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    assert_eq!(shared.doorbell.last(), Some(Doorbell::Sq(QPN)));
    let mut wr_recv = recv_wr(1, &mut []);
    assert_eq!(post_recv(&qp, &mut wr_recv).0, 0);
    assert_eq!(shared.doorbell.last(), Some(Doorbell::Rq(QPN)));
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    assert_eq!(
        shared.doorbell.last(),
        Some(Doorbell::Rq(QPN)),
        "the device has not asked again"
    );
    while device.consume(SqHeader::SIZE).is_some() {}
    assert!(!device.enable_doorbell());
    assert_eq!(post_send(&qp, &mut wr).0, 0);
    assert_eq!(shared.doorbell.last(), Some(Doorbell::Sq(QPN)));
}

#[test]
fn a_query_that_finds_err_has_posts_flushed() {
    let shared = shared();
    let cq = cq(&shared, 8);
    let qp = qp(&shared, &cq, &CAP, QPN);
    let mut wr = send_wr(1, ffi::IBV_WR_SEND, 0, &mut []);
    qp.changed(ffi::IBV_QPS_RTR);
    // The state that a query returns may be stale if another thread modifies the QP meanwhile.
    qp.queried(ffi::IBV_QPS_RTR, ffi::IBV_QPS_RTS);
    qp.queried(ffi::IBV_QPS_INIT, ffi::IBV_QPS_ERR);
    assert_eq!(post_send(&qp, &mut wr).0, libc::EINVAL);
    qp.queried(ffi::IBV_QPS_RTR, ffi::IBV_QPS_ERR);
    assert_eq!(post_send(&qp, &mut wr).0, 0);
}
