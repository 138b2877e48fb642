// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Opcodes of each QP type.

use testkit::engine::*;
use virtio_rdma_abi::cqe::{OPCODE_RECV, OPCODE_RECV_RDMA_WITH_IMM};
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{AsyncEvent, QpState, QpType, WcFlags, WcStatus, WrOpcode};

use super::{data_offset, USER_TYPES};

const LEN: u32 = 3000;
const SEED: u64 = 17;

/// Opcodes that transfer data, and the QP types that support them.
const OPCODES: [(WrOpcode, &[QpType]); 7] = [
    (WrOpcode::Send, &USER_TYPES),
    (WrOpcode::SendWithImm, &USER_TYPES),
    (WrOpcode::RdmaWrite, &[QpType::Rc, QpType::Uc]),
    (WrOpcode::RdmaWriteWithImm, &[QpType::Rc, QpType::Uc]),
    (WrOpcode::RdmaRead, &[QpType::Rc]),
    (WrOpcode::AtomicCmpAndSwp, &[QpType::Rc]),
    (WrOpcode::AtomicFetchAndAdd, &[QpType::Rc]),
];

/// Opcodes that transfer data and also invalidate a key.
const INVALIDATING: [WrOpcode; 2] = [WrOpcode::SendWithInv, WrOpcode::RdmaReadWithInv];

#[test]
fn each_type_has_its_opcodes() {
    // abi
    for qp_type in USER_TYPES {
        // abi: R-612
        for (opcode, types) in OPCODES {
            eprintln!("{qp_type:?} {opcode:?}");
            each_setup_with(Options::of(qp_type), |p| {
                if types.contains(&qp_type) {
                    moves_data(p, opcode);
                } else {
                    is_refused(p, opcode);
                }
            });
        }
    }
}

fn moves_data(p: &Pair<'_>, opcode: WrOpcode) {
    let is_atomic = matches!(
        opcode,
        WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd
    );
    let len = if is_atomic { 8 } else { LEN };
    let data = pattern(len as usize, SEED);
    let reads = is_atomic || opcode == WrOpcode::RdmaRead;
    let (source, at) = if reads {
        (p.b, p.mb.iova)
    } else {
        (p.a, p.ma.iova)
    };
    source.write(at, &data);
    p.qb.post_recv(7, &[sge(&p.mb, 0, 1 << 16)]);
    p.qa.post(&p.wr(1, opcode, len).imm([4, 3, 2, 1]));
    let sent = p.cq_a.expect(1, WcStatus::Success);
    // abi: R-684
    assert_eq!((sent.opcode, sent.qp_num), (opcode.value() as u8, p.qa.qpn));
    let receives = match opcode {
        WrOpcode::Send | WrOpcode::SendWithImm => Some(OPCODE_RECV),
        WrOpcode::RdmaWriteWithImm => Some(OPCODE_RECV_RDMA_WITH_IMM),
        _ => None,
    };
    let offset = match receives {
        Some(OPCODE_RECV) => data_offset(p.qb.options.qp_type),
        _ => 0,
    };
    if let Some(receive) = receives {
        let received = p.cq_b.expect(7, WcStatus::Success);
        // abi: R-684
        assert_eq!((received.opcode, received.qp_num), (receive, p.qb.qpn));
        assert_eq!(u64::from(received.byte_len), u64::from(len) + offset);
        let with_imm = opcode != WrOpcode::Send;
        assert_eq!(received.wc_flags.contains(WcFlags::WITH_IMM), with_imm);
        if with_imm {
            // abi: R-687
            assert_eq!(received.ex, [4, 3, 2, 1]);
        }
    }
    let (target, at) = if reads {
        (p.a, p.ma.iova)
    } else {
        (p.b, p.mb.iova + offset)
    };
    // An unreliable WRITE may complete before it has arrived.
    wait("the data", || {
        (target.read(at, len as usize) == data).then_some(())
    });
    p.responder_lives();
}

fn is_refused(p: &Pair<'_>, opcode: WrOpcode) {
    p.qa.post(&p.wr(1, opcode, 8));
    // abi: R-647
    let cqe = p.cq_a.expect(1, WcStatus::LocQpOpErr);
    assert_eq!(cqe.opcode, opcode.value() as u8);
    let state = match p.qa.options.qp_type {
        QpType::Rc => QpState::Err,
        _ => QpState::Sqe,
    };
    // abi: R-204
    assert_eq!(p.qa.state(), state);
    assert_eq!(p.cq_b.poll(), None);
    p.responder_lives();
}

// abi
#[test]
fn invalidation_belongs_to_reliable_connections() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        for opcode in INVALIDATING {
            each_setup_with(Options::of(qp_type), |p| is_refused(p, opcode));
        }
    }
}

// abi
#[test]
fn a_send_invalidates_no_key_that_is_not_for_it() {
    each_setup(|p| {
        p.qb.post_recv(2, &[sge(&p.mb, 0, 64)]);
        // An MR that was registered by a command can't be invalidated.
        let wr = p.wr(1, WrOpcode::SendWithInv, 64);
        p.fails(&wr.imm(p.mb.key.to_le_bytes()), WcStatus::RemAccessErr);
        p.cq_b.expect(2, WcStatus::RemInvReqErr);
        p.responder_failed(Some(AsyncEvent::QpAccessErr));
    });
}

// abi
#[test]
fn a_read_invalidates_no_key_that_is_not_for_it() {
    each_setup(|p| {
        let wr = p.wr(1, WrOpcode::RdmaReadWithInv, 64);
        p.fails(&wr.imm(p.ma.key.to_le_bytes()), WcStatus::MwBindErr);
        p.responder_lives();
    });
}

/// An unknown opcode moves a QP of any type to its error state.
// abi: R-647
#[test]
fn unknown_opcodes() {
    for qp_type in USER_TYPES {
        each_setup_with(Options::of(qp_type), |p| {
            let mut wqe = p.send(1, 8).bytes();
            wqe[8..12].copy_from_slice(&8u32.to_le_bytes());
            p.qa.post_bytes(&wqe);
            p.cq_a.expect(1, WcStatus::LocQpOpErr);
            assert!(matches!(p.qa.state(), QpState::Err | QpState::Sqe));
            p.responder_lives();
        });
    }
}

// abi: R-630
#[test]
fn a_solicited_message_raises_its_event() {
    use virtio_rdma_abi::ib::SendFlags;
    use virtio_rdma_abi::ring::ArmKind;
    for qp_type in USER_TYPES {
        each_setup_with(Options::of(qp_type), |p| {
            p.cq_b.arm(ArmKind::Solicited);
            for (id, flags) in [
                (1, SendFlags::SIGNALED),
                (2, SendFlags::SIGNALED | SendFlags::SOLICITED),
            ] {
                p.qb.post_recv(id, &[sge(&p.mb, 0, 1 << 16)]);
                p.qa.post(&p.send(id, 10).flags(flags));
                p.cq_a.expect(id, WcStatus::Success);
                p.cq_b.expect(id, WcStatus::Success);
                if id == 1 {
                    assert!(p.b.sink.is_empty());
                }
            }
            p.b.sink.expect(EventKind::Completion, p.cq_b.cookie);
        });
    }
}
