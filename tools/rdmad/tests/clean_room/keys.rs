// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Keys that work requests create and invalidate: fast registration and memory windows.

use crate::connected;
use crate::endpoint::Endpoint;
use crate::endpoint::Options;
use crate::endpoint::PLAIN;
use crate::memory::Extent;
use crate::only;
use crate::pattern;
use crate::wire::*;

/// Features for fast registration and memory windows.
const OPTIONS: Options = Options {
    features: MR_PAGES | REG_PAGES | MEM_WINDOWS,
    ..PLAIN
};
/// Length of the registered memory in bytes, its offset in the first page, and its address.
const LEN: u64 = 6000;
const OFFSET: u64 = 0x777;
const ADDRESS: u64 = 0x1000_0000_0000 + OFFSET;

/// Creates an MR for fast registration. Returns its handle and key.
fn create(side: &mut Endpoint) -> (u32, u32) {
    let access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
    // abi: R-272
    let request = Fields::default().le32(side.pd).le32(access).le32(4);
    let made = side.driver.command(command::CREATE_MR, &request.0, 12);
    let made = made.unwrap();
    // abi: R-278
    assert_eq!(le32(&made, 4), le32(&made, 8));
    // abi: R-273
    assert_eq!(le32(&made, 4) >> 8, le32(&made, 0));
    (le32(&made, 0), le32(&made, 4))
}

/// Registers memory under `key` and waits for the completion.
fn register(side: &mut Endpoint, mrn: u32, key: u32) -> Extent {
    let extent = Extent::new(&side.driver.memory, OFFSET + LEN);
    let list = extent.list(0);
    // abi: R-341
    let fields = Fields::default()
        .le32(mrn)
        .le32(key)
        .le32(LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ)
        // abi: R-342
        .le64(list.address())
        // abi: R-343
        .le32(extent.pages.len() as u32)
        // abi: R-344
        .le64(ADDRESS)
        // abi: R-345
        .le64(LEN)
        // abi: R-346
        .u8(12)
        .le32(0);
    assert_eq!(fields.0.len(), 45);
    let register = Send::new(opcode::REG_MR, 1).member(fields);
    side.post_send(&register.with(&[]));
    let done = Cqe::sent(side.qpn(), 1, opcode::REG_MR, 0);
    assert_eq!(only(&mut side.send_cq), done);
    extent
}

/// Writes to the peer's memory, and returns the status of the completion.
fn write(side: &mut Endpoint, address: u64, rkey: u32, bytes: &[u8]) -> u8 {
    side.region.write(0, bytes);
    let from = side.region.sge(0, bytes.len() as u32);
    let write = Send::new(opcode::RDMA_WRITE, 9).to(address, rkey);
    side.post_send(&write.with(&[from]));
    only(&mut side.send_cq).status
}

/// After a fast registration, the peer can access the registered pages by the key, until the owner
/// invalidates the key.
#[test]
fn a_registration_ends_with_an_invalidation() {
    connected(OPTIONS, OPTIONS, |mut a, mut b| {
        let (mrn, first) = create(&mut b);
        let key = (mrn << 8) | (first.wrapping_add(1) & 0xff);
        let extent = register(&mut b, mrn, key);
        let message = pattern(LEN as u32);
        // abi: R-333
        assert_eq!(write(&mut a, ADDRESS, key, &message), SUCCESS);
        assert_eq!(extent.read(OFFSET, LEN), message);

        // abi: R-620
        let invalidate = Send::new(opcode::LOCAL_INV, 2).ex(key.to_le_bytes());
        b.post_send(&invalidate.with(&[]));
        let done = Cqe::sent(b.qpn(), 2, opcode::LOCAL_INV, 0);
        // abi: R-1157
        assert_eq!(only(&mut b.send_cq), done);
        // abi: R-334
        assert_eq!(write(&mut a, ADDRESS, key, &[7; 8]), REM_ACCESS_ERR);
        assert_eq!(extent.read(OFFSET, LEN), message);
        assert_eq!(b.driver.sleep().0, QP_ACCESS_ERR);
        b.destroy(command::DEREG_MR, mrn).unwrap();
        a.end();
        b.end();
    });
}

/// A peer invalidates a key by a SEND. The receiver's CQE contains the key, and the MR can then be
/// registered again.
#[test]
fn a_peer_invalidates_a_registration() {
    connected(OPTIONS, OPTIONS, |mut a, mut b| {
        let (mrn, key) = create(&mut b);
        for _ in 0..2 {
            // abi: R-334
            let extent = register(&mut b, mrn, key);
            assert_eq!(write(&mut a, ADDRESS, key, &[5; 100]), SUCCESS);
            assert_eq!(extent.read(OFFSET, 100), [5; 100]);
            b.post_receive(&receive(3, &[]));
            // abi: R-622
            let send = Send::new(opcode::SEND_WITH_INV, 4).ex(key.to_le_bytes());
            a.post_send(&send.with(&[]));
            let received = Cqe {
                // abi: R-687
                ex: key.to_le_bytes(),
                // abi: R-697
                wc_flags: WITH_INVALIDATE,
                ..Cqe::received(b.qpn(), 3, 0)
            };
            assert_eq!(only(&mut b.recv_cq), received);
            let sent = Cqe::sent(a.qpn(), 4, opcode::SEND_WITH_INV, 0);
            assert_eq!(only(&mut a.send_cq), sent);
        }
        b.destroy(command::DEREG_MR, mrn).unwrap();
        a.end();
        b.end();
    });
}

/// The BIND_MW member of a WQE's union, for `length` bytes from `offset` of the MR on.
fn binding(side: &Endpoint, offset: u64, length: u64, old: u32, new: u32) -> Fields {
    // abi: R-381
    Fields::default()
        // abi: R-382
        .le64(side.region.address + offset)
        // abi: R-383
        .le64(length)
        // abi: R-384
        .le32(old)
        // abi: R-385
        .le32(new)
        .le32(side.region.lkey)
        .le32(REMOTE_WRITE)
        .le32(0)
}

/// Windows of both types give access to a part of an MR. Type 1 can be bound again to another part,
/// type 2 can't.
#[test]
fn memory_windows() {
    for kind in [1, 2] {
        connected(OPTIONS, OPTIONS, |mut a, mut b| {
            // abi: R-374
            let request = Fields::default().le32(b.pd).u8(kind).zeroes(8);
            let window = b.driver.command(command::ALLOC_MW, &request.0, 8);
            let window = window.unwrap();
            let (mwn, first) = (le32(&window, 0), le32(&window, 4));
            // abi: R-375
            assert_eq!(first >> 8, mwn);
            let next = |key: u32| (mwn << 8) | (key.wrapping_add(1) & 0xff);
            let (second, third) = (next(first), next(next(first)));
            let bind = |side: &mut Endpoint, fields| {
                let bind = Send::new(opcode::BIND_MW, 1).member(fields);
                side.post_send(&bind.with(&[]));
                let done = only(&mut side.send_cq);
                assert_eq!(done.wr_id, 1);
                done.status
            };
            let fields = binding(&b, 100, 50, first, second);
            assert_eq!(bind(&mut b, fields), SUCCESS);
            let at = b.region.address + 100;
            assert_eq!(write(&mut a, at, second, &[8; 50]), SUCCESS);
            b.region.expect(&[(100, &[8; 50])]);
            let (region, pd) = (b.region.handle, b.pd);
            // abi: R-412
            assert_eq!(b.destroy(command::DEREG_MR, region), Err(EBUSY));
            assert_eq!(b.destroy(command::DESTROY_PD, pd), Err(EBUSY));

            let fields = binding(&b, 200, 50, second, third);
            match kind {
                1 => {
                    // abi: R-377
                    assert_eq!(bind(&mut b, fields), SUCCESS);
                    let at = b.region.address + 200;
                    assert_eq!(write(&mut a, at, third, &[9; 50]), SUCCESS);
                    b.region.expect(&[(100, &[8; 50]), (200, &[9; 50])]);
                    assert_eq!(write(&mut a, at, third, &[6; 51]), REM_ACCESS_ERR);
                    assert_eq!(b.driver.sleep().0, QP_ACCESS_ERR);
                    b.region.expect(&[(100, &[8; 50]), (200, &[9; 50])]);
                }
                // abi
                _ => assert_eq!(bind(&mut b, fields), MW_BIND_ERR),
            }
            b.destroy(command::DEALLOC_MW, mwn).unwrap();
            a.end();
            b.end();
        });
    }
}
