// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fields of work requests that are ignored or invalid.

use crate::between;
use crate::only;
use crate::wire::*;

/// Offsets in a send WQE of the number of SGEs, and of the address and L_Key of the first SGE.
const NUM_SGE: usize = 0;
const ADDRESS: usize = 75;
const LKEY: usize = 87;

/// The keys of an access of 0 bytes are not checked.
// abi: R-659, R-1154
#[test]
fn nothing_needs_no_key() {
    between(|mut a, mut b| {
        let nothing = Sge {
            address: u64::MAX,
            length: 0,
            lkey: 0xffff_ffff,
        };
        b.post_receive(&receive(1, &[nothing, b.region.sge(0, 8)]));
        a.post_send(&Send::new(opcode::SEND, 2).with(&[nothing, a.region.sge(0, 8)]));
        assert_eq!(only(&mut a.send_cq).status, SUCCESS);
        assert_eq!(only(&mut b.recv_cq), Cqe::received(b.qpn(), 1, 8));
        for opcode in [opcode::RDMA_WRITE, opcode::RDMA_READ] {
            let wr = Send::new(opcode, 3).to(u64::MAX, 0xffff_ffff);
            a.post_send(&wr.with(&[nothing]));
            assert_eq!(only(&mut a.send_cq), Cqe::sent(a.qpn(), 3, opcode, 0));
        }
        a.end();
        b.end();
    });
}

/// Undefined flags have no effect. Only the length of the SGE of inline data is used.
// abi: R-641, R-1153, R-1155
#[test]
fn fields_without_meaning_are_ignored() {
    between(|mut a, mut b| {
        for length in [0, 8] {
            b.post_receive(&receive(1, &[b.region.sge(0, 8)]));
            let send = Send::new(opcode::SEND, 2).flags(SIGNALED | 0xffff_ffe0);
            let mut wqe = send.inline(&[7; 8][..length]);
            wqe[ADDRESS] = 99;
            wqe[LKEY] = 99;
            a.post_send(&wqe);
            assert_eq!(only(&mut a.send_cq).status, SUCCESS);
            let received = Cqe::received(b.qpn(), 1, length as u32);
            assert_eq!(only(&mut b.recv_cq), received);
        }
        b.region.expect(&[(0, &[7; 8])]);
        a.end();
        b.end();
    });
}

/// A work request with inline data must have exactly one SGE.
// abi: R-1153
#[test]
fn inline_data_of_another_form_is_refused() {
    for num_sge in [0, 2] {
        between(|mut a, b| {
            let mut wqe = Send::new(opcode::SEND, 2).inline(&[7; 8]);
            wqe[NUM_SGE] = num_sge;
            a.post_send(&wqe);
            let failed = only(&mut a.send_cq);
            assert_eq!(failed.failure(), (2, LOC_QP_OP_ERR, a.qpn(), false));
            assert_eq!(a.state(), Ok(state::ERR));
            a.end();
            b.end();
        });
    }
}
