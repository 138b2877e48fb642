// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! VLANs.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdAddGidVlan, CmdDelGid};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpType, WcFlags, WcStatus, WrOpcode, NO_VLAN};
use virtio_rdma_abi::wqe::AddressVector;

use super::{data_offset, USER_TYPES};

const EINVAL: u8 = 22;

/// Sets entry `index` of the GID table to the VM's address in VLAN `vlan`.
fn add(vm: &Vm, index: u16, vlan: u16) -> Result<(), u8> {
    vm.call(CmdDelGid { index, port: 1 }).unwrap();
    vm.call(CmdAddGidVlan {
        base: CmdAddGid {
            gid: vm.gid,
            gid_type: 2,
            index,
            port_num: 1,
        },
        vlan,
    })
    .map(|_| ())
}

/// Two VMs. The address of each, at index 1 of its GID table, is in the VLAN given here.
fn world(setup: Setup, vlans: [u16; 2]) -> World {
    let world = World::new(2, setup);
    world.negotiate(&[Feature::GidVlan]);
    for (vm, vlan) in world.vms.iter().zip(vlans) {
        add(vm, 1, vlan).unwrap();
    }
    world
}

// abi
#[test]
fn vlan_ids() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        vm.negotiate(&[Feature::GidVlan]);
        for vlan in [0, 1, 4094, NO_VLAN] {
            assert_eq!(add(vm, 3, vlan), Ok(()), "{vlan}");
        }
        for vlan in [4095, 4096, 0xfffe] {
            assert_eq!(add(vm, 3, vlan), Err(EINVAL), "{vlan}");
        }
        vm.negotiate(&[]);
        assert_eq!(add(vm, 3, 4095), Ok(()), "past the request");
    });
}

// abi: R-795
#[test]
fn all_types_talk_within_a_vlan() {
    in_all_setups(|setup| {
        let world = world(setup, [5, 5]);
        for qp_type in USER_TYPES {
            let p = Pair::with(&world, Options::of(qp_type), Options::of(qp_type));
            let data = pattern(900, 1);
            p.a.write(p.ma.iova, &data);
            p.qb.post_recv(1, &[sge(&p.mb, 0, 1000)]);
            p.qa.post(&p.send(2, 900));
            p.cq_a.expect(2, WcStatus::Success);
            p.cq_b.expect(1, WcStatus::Success);
            assert!(p.b.read(p.mb.iova + data_offset(qp_type), 900) == data);
            p.responder_lives();
        }
    });
}

/// The completion of a datagram has the VLAN id and the priority of the packet.
#[test]
fn datagrams_tell_their_vlan() {
    for (vlan, sl, completed) in [
        (0x123, 13, (true, 0x123, 5)),
        (4094, 0, (true, 4094, 0)),
        // Without a VLAN tag, `sl` is the type of the headers: 10 for UDP over IPv4.
        // abi: R-798
        (0, 3, (false, 0, 10)),
        // abi: R-793
        (NO_VLAN, 3, (false, 0, 10)),
    ] {
        in_all_setups(|setup| {
            let world = world(setup, [vlan; 2]);
            let options = Options::of(QpType::Ud);
            let p = Pair::with(&world, options, options);
            let mut wr = p.send(2, 10);
            wr.to.as_mut().unwrap().av.sl_tclass_flowlabel = AddressVector::pack(sl, 0, 0).unwrap();
            p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
            p.qa.post(&wr);
            let cqe = p.cq_b.expect(1, WcStatus::Success);
            let tagged = cqe.wc_flags.contains(WcFlags::WITH_VLAN);
            // abi
            assert_eq!((tagged, cqe.vendor_err, cqe.sl), completed, "VLAN {vlan}");
            let tells_headers = cqe.wc_flags.contains(WcFlags::WITH_NETWORK_HDR_TYPE);
            // abi
            assert_eq!(tells_headers, !tagged, "VLAN {vlan}");
        });
    }
}

// abi: R-796
#[test]
fn datagrams_of_other_vlans_are_lost() {
    in_all_setups(|setup| {
        let world = world(setup, [6, 6]);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        add(p.a, 2, 5).unwrap();
        add(p.a, 3, NO_VLAN).unwrap();
        p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
        for (gid_index, len) in [(2, 20), (3, 30), (1, 10)] {
            let mut wr = p.send(2, len);
            wr.to.as_mut().unwrap().av.gid_index = gid_index;
            p.qa.post(&wr);
            p.cq_a.expect(2, WcStatus::Success);
        }
        assert_eq!(p.cq_b.expect(1, WcStatus::Success).byte_len, 40 + 10);
    });
}

/// A device without the feature drops packets with a VLAN tag.
// abi
#[test]
fn without_the_bit_tagged_datagrams_are_lost() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        let options = Options::of(QpType::Ud);
        let p = Pair::with(&world, options, options);
        p.a.negotiate(&[Feature::GidVlan]);
        add(p.a, 2, 5).unwrap();
        add(p.b, 1, 5).unwrap();
        p.qb.post_recv(1, &[sge(&p.mb, 0, 100)]);
        for (gid_index, len) in [(2, 20), (1, 10)] {
            let mut wr = p.send(2, len);
            wr.to.as_mut().unwrap().av.gid_index = gid_index;
            p.qa.post(&wr);
            p.cq_a.expect(2, WcStatus::Success);
        }
        assert_eq!(p.cq_b.expect(1, WcStatus::Success).byte_len, 40 + 10);
    });
}

// abi
#[test]
fn a_connection_has_one_vlan() {
    for vlans in [[5, 6], [5, NO_VLAN], [NO_VLAN, 6]] {
        in_all_setups(|setup| {
            let world = world(setup, vlans);
            let ours = Options {
                // The code of about 1 ms.
                timeout: 8,
                retry_cnt: 1,
                ..Options::default()
            };
            let p = Pair::with(&world, ours, Options::default());
            p.fails(&p.wr(1, WrOpcode::RdmaWrite, 100), WcStatus::RetryExcErr);
            p.responder_lives();
        });
    }
}
