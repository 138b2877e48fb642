// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A port whose guest memory is lost stops, and other ports continue.

use std::fs::File;

use virtio_rdma_abi::ctrl::CmdCreatePd;
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};
use virtio_rdma_abi::wire::Wire;

use crate::harness::*;

const EIO: u8 = 5;
/// DMA address of memory that the test can take away.
const AT: u64 = 1 << 40;
const LEN: u64 = 0x4000;

#[test]
fn a_work_request_on_lost_memory_does_not_complete() {
    on_both_paths(|path| {
        let world = World::new(3, path);
        let [first, second, third] = &world.vms[..] else {
            panic!("three VMs");
        };
        let pair = Pair::between([first, second], Options::default(), Options::default());
        let other = Pair::between([second, third], Options::default(), Options::default());
        let file = File::from(dma::testing::shrinkable_memory(LEN).unwrap());
        let copy = file.try_clone().unwrap();
        first.space.map(AT, copy.into(), 0, LEN, true).unwrap();
        let mr = first.register(first.pdn, AT, LEN, FULL);
        let write = |id| {
            let wr = Wr::new(id, WrOpcode::RdmaWrite);
            pair.qa.post(&wr.local(&mr, 0, 64).remote(&pair.mb, 0));
        };
        write(1);
        pair.cq_a.expect(1, WcStatus::Success);
        file.set_len(0).unwrap();
        write(2);
        wait("the loss", || first.space.lost());
        write(3);
        for id in 0..10 {
            other.write_and_wait(id);
        }
        assert_eq!(pair.cq_a.poll(), None);
        assert_eq!(first.call(CmdCreatePd::ZERO).err(), Some(EIO));
        assert!(second.sink.failure().is_none() && third.sink.failure().is_none());
    });
}
