// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Revocation of MRs.

use rustix::io::Errno;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AsyncEvent, WcStatus, WrOpcode};
use virtio_rdma_abi::number::MrNumber;

const EINVAL: u8 = Errno::INVAL.raw_os_error() as u8;
const EOPNOTSUPP: u8 = Errno::OPNOTSUPP.raw_os_error() as u8;

fn revoke(vm: &Vm, mr: &Mr) -> Result<(), u8> {
    vm.call(CmdRevokeMr { mrn: mr.mrn }).map(|_| ())
}

#[test]
fn what_was_taken_back_is_not_touched() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::Peers]);
        let p = Pair::new(&world);
        p.b.write(p.mb.iova, &[7; 64]);
        p.qa.post(&p.wr(1, WrOpcode::RdmaWrite, 32));
        p.cq_a.expect(1, WcStatus::Success);
        let before = p.b.read(p.mb.iova, 64);
        // abi: R-365
        revoke(p.b, &p.mb).unwrap();
        p.a.write(p.ma.iova, &[9; 64]);
        p.qa.post(&p.wr(2, WrOpcode::RdmaWrite, 64));
        // abi: R-367
        p.cq_a.expect(2, WcStatus::RemAccessErr);
        p.responder_failed(Some(AsyncEvent::QpAccessErr));
        // abi: R-366
        assert_eq!(p.b.read(p.mb.iova, 64), before);
        // A revoked MR keeps its number until it is deregistered.
        // abi: R-368
        assert_ne!(p.b.mr(4096).mrn, p.mb.mrn);
        // abi: R-370
        revoke(p.b, &p.mb).unwrap();
        p.b.call(CmdDeregMr { mrn: p.mb.mrn }).unwrap();
        assert_eq!(revoke(p.b, &p.mb), Err(EINVAL));
    });
}

// abi: R-367
#[test]
fn local_keys_of_what_was_taken_back() {
    in_all_setups(|setup| {
        let world = World::new(2, setup);
        world.negotiate(&[Feature::Peers]);
        let p = Pair::new(&world);
        // A posted receive does not prevent the revocation.
        p.qb.post_recv(5, &[sge(&p.mb, 0, 64)]);
        revoke(p.b, &p.mb).unwrap();
        p.qa.post(&p.send(1, 10));
        p.cq_a.expect(1, WcStatus::RemOpErr);
        p.cq_b.expect(5, WcStatus::LocProtErr);
        revoke(p.a, &p.ma).unwrap();
        let other = Pair::new(&world);
        other.qa.post(&p.send(2, 10));
        other.cq_a.expect(2, WcStatus::LocProtErr);
    });
}

// abi
#[test]
fn what_can_be_taken_back() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let mr = vm.mr(4096);
        assert_eq!(revoke(vm, &mr), Err(EOPNOTSUPP), "not negotiated");
        world.negotiate(&[Feature::Peers]);
        assert_eq!(
            vm.call(CmdRevokeMr {
                mrn: MrNumber::new(0)
            })
            .err(),
            Some(EINVAL)
        );
        let fast = vm.call(CmdCreateMr {
            pdn: vm.pdn,
            access_flags: FULL,
            max_num_sg: 4,
        });
        let mrn = fast.unwrap().mrn;
        assert_eq!(
            vm.call(CmdRevokeMr { mrn }).err(),
            Some(EINVAL),
            "has no memory"
        );
        assert_eq!(revoke(vm, &mr), Ok(()));
        assert!(vm
            .sink
            .events
            .lock()
            .unwrap()
            .iter()
            .all(|event| event.1 == EventKind::Completion));
    });
}
