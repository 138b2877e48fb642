// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Operations on the peer's memory: WRITE, READ, atomic operations, atomic WRITE and FLUSH.

use crate::between;
use crate::connected;
use crate::endpoint::Options;
use crate::endpoint::PLAIN;
use crate::endpoint::QP_COOKIE;
use crate::only;
use crate::pattern;
use crate::region::LEN;
use crate::wire::*;

/// The first address in an MR at `address` that is a multiple of 8, and its offset in the MR.
fn aligned(address: u64) -> (u64, u32) {
    let word = address.next_multiple_of(8);
    (word, (word - address) as u32)
}

/// A READ returns the bytes of an earlier WRITE. The READ has a fence.
#[test]
fn a_write_is_read_back() {
    between(|mut a, b| {
        let message = pattern(4500);
        a.region.write(0, &message);
        let (there, rkey) = (b.region.address + 3000, b.region.rkey);
        // abi: R-613
        let write = Send::new(opcode::RDMA_WRITE, 1).to(there, rkey).flags(0);
        a.post_send(&write.with(&[a.region.sge(0, 4500)]));
        // abi: R-617
        let read = Send::new(opcode::RDMA_READ, 2).to(there, rkey);
        a.post_send(
            &read
                .flags(SIGNALED | FENCE)
                .with(&[a.region.sge(9000, 1000), a.region.sge(4600, 3500)]),
        );
        let done = Cqe::sent(a.qpn(), 2, opcode::RDMA_READ, 4500);
        assert_eq!(only(&mut a.send_cq), done);
        b.region.expect(&[(3000, &message)]);
        // abi
        a.region.expect(&[
            (0, &message),
            (9000, &message[..1000]),
            (4600, &message[1000..]),
        ]);
        a.end();
        b.end();
    });
}

/// Atomic operations return the original value. COMPARE_SWAP swaps only if the original value
/// equals the expected one.
#[test]
fn atomic_operations() {
    between(|mut a, b| {
        let (word, offset) = aligned(b.region.address);
        b.region.write(offset, &100u64.to_ne_bytes());
        let rkey = b.region.rkey;
        let atomic = |opcode, operand: u64, swap| {
            // abi
            let fields = Fields::default().le64(word).le64(operand);
            // abi
            Send::new(opcode, 7).member(fields.le64(swap).le32(rkey))
        };
        let (add, swap) = (opcode::ATOMIC_FETCH_AND_ADD, opcode::ATOMIC_CMP_AND_SWP);
        for (opcode, operand, with, before, after) in [
            // abi: R-619
            (add, 11, 0, 100u64, 111u64),
            // abi: R-618
            (swap, 5, 1000, 111, 111),
            (swap, 111, 1 << 50, 111, 1 << 50),
            (add, u64::MAX, 0, 1 << 50, (1 << 50) - 1),
        ] {
            let into = a.region.sge(16, 8);
            a.post_send(&atomic(opcode, operand, with).with(&[into]));
            let done = Cqe::sent(a.qpn(), 7, opcode, 8);
            assert_eq!(only(&mut a.send_cq), done);
            // abi: R-668
            a.region.expect(&[(16, &before.to_ne_bytes())]);
            // abi
            b.region.expect(&[(offset, &after.to_ne_bytes())]);
        }
        a.end();
        b.end();
    });
}

/// An atomic operation on an unaligned address is refused, and memory does not change.
// abi: R-669, R-1151
#[test]
fn an_atomic_operation_is_aligned() {
    between(|mut a, mut b| {
        let (word, _) = aligned(b.region.address);
        let fields = Fields::default().le64(word + 4).le64(1).le64(0);
        let add = Send::new(opcode::ATOMIC_FETCH_AND_ADD, 7).member(fields.le32(b.region.rkey));
        a.post_send(&add.with(&[a.region.sge(16, 8)]));
        let failed = only(&mut a.send_cq);
        assert_eq!(failed.failure(), (7, REM_INV_REQ_ERR, a.qpn(), false));
        assert_eq!(b.driver.sleep(), (QP_REQ_ERR, QP_COOKIE));
        b.region.expect(&[]);
        a.end();
        b.end();
    });
}

/// The bytes of an atomic WRITE are in the WQE. A FLUSH completes when written bytes are visible.
#[test]
fn atomic_writes_and_flushes() {
    let options = Options {
        features: ATOMIC_WRITE | FLUSH | MR_PAGES,
        ..PLAIN
    };
    connected(options, options, |mut a, b| {
        let (word, offset) = aligned(b.region.address);
        let rkey = b.region.rkey;
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        // abi
        let fields = Fields::default().le64(word).raw(&bytes).le32(rkey);
        // abi: R-625
        let write = Send::new(opcode::ATOMIC_WRITE, 1).member(fields).flags(0);
        a.post_send(&write.with(&[]));
        // abi
        for (level, length) in [(0, LEN), (1, 77)] {
            // abi: R-741
            let fields = Fields::default()
                // abi: R-742
                .le64(b.region.address)
                // abi: R-743
                .le32(length)
                // abi: R-744
                .le32(rkey)
                // abi: R-745
                .u8(1) // GLOBAL
                // abi: R-746
                .u8(level)
                .zeroes(24);
            // abi: R-624
            let flush = Send::new(opcode::FLUSH, 2).member(fields);
            a.post_send(&flush.with(&[]));
            let done = Cqe::sent(a.qpn(), 2, opcode::FLUSH, 0);
            assert_eq!(only(&mut a.send_cq), done);
            b.region.expect(&[(offset, &bytes)]);
        }
        a.end();
        b.end();
    });
}

/// Without page sizes, an aligned address may map to unaligned memory. Atomic operations on such
/// memory are impossible, so they are refused.
// abi: R-1151, R-1156
#[test]
fn memory_of_an_atomic_operation_is_aligned() {
    let options = Options {
        features: ATOMIC_WRITE,
        ..PLAIN
    };
    for is_write in [false, true] {
        connected(options, options, |mut a, mut b| {
            let (word, _) = aligned(b.region.address);
            let rkey = b.region.rkey;
            let fields = Fields::default().le64(word).le64(1);
            match is_write {
                false => {
                    let fields = fields.le64(0).le32(rkey);
                    let add = Send::new(opcode::ATOMIC_FETCH_AND_ADD, 7).member(fields);
                    a.post_send(&add.with(&[a.region.sge(16, 8)]));
                }
                true => {
                    let write = Send::new(opcode::ATOMIC_WRITE, 7).member(fields.le32(rkey));
                    a.post_send(&write.with(&[]));
                }
            }
            let failed = only(&mut a.send_cq);
            assert_eq!(failed.failure(), (7, REM_OP_ERR, a.qpn(), false));
            a.region.expect(&[]);
            b.region.expect(&[]);
            a.end();
            assert_eq!(b.driver.sleep(), (QP_FATAL, QP_COOKIE));
            b.end();
        });
    }
}
