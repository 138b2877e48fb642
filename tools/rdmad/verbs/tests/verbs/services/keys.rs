// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! P_Keys and Q_Keys: packets with a wrong key are dropped and counted.

use roce::headers::{Body, Deth, Part, RcRequest, SendPart};
use roce::opcode::Service;
use roce::work::With;
use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpAttrMask, QpState, QpType, WcStatus};
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::wire::Wire;

use super::{each_ud, numbered};

/// A Q_Key that only privileged users may set.
const CONTROLLED: u32 = 0x8765_4321;

// abi
#[test]
fn only_the_right_qkey_opens_a_qp() {
    each_ud(|p| {
        p.qb.post_recv(7, &[sge(&p.mb, 0, 4096)]);
        for (n, wrong) in [0, 1, p.qb.options.qkey ^ 1].into_iter().enumerate() {
            let mut wr = p.send(1, 10);
            wr.to.as_mut().unwrap().remote_qkey = wrong;
            p.qa.post(&wr);
            p.cq_a.expect(1, WcStatus::Success);
            wait("the violation to be counted", || {
                (p.b.violations() == (0, n as u32 + 1)).then_some(())
            });
        }
        assert_eq!(p.cq_b.poll(), None);
        assert_eq!(p.a.violations(), (0, 0));
        p.qa.post(&p.send(2, 10));
        p.cq_b.expect(7, WcStatus::Success);
    });
}

/// A Q_Key with its top bit set in a work request stands for the Q_Key of the sending QP. The other
/// bits are ignored.
// abi
#[test]
fn a_controlled_qkey_is_the_qps_own() {
    each_ud(|p| {
        let controlled = QpAttr {
            qkey: CONTROLLED,
            ..QpAttr::ZERO
        };
        p.qb.modify(QpState::Rts, QpAttrMask::QKEY, controlled)
            .unwrap();
        assert_eq!(p.qb.query().qkey, CONTROLLED);
        p.qb.post_recv(7, &[sge(&p.mb, 0, 4096)]);
        let mut wr = p.send(1, 10);
        wr.to.as_mut().unwrap().remote_qkey = CONTROLLED;
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::Success);
        wait("the violation to be counted", || {
            (p.b.violations() == (0, 1)).then_some(())
        });
        // Now the sending QP has the controlled Q_Key itself, and uses it for any Q_Key with its
        // top bit set.
        p.qa.modify(QpState::Rts, QpAttrMask::QKEY, controlled)
            .unwrap();
        wr.to.as_mut().unwrap().remote_qkey = 0xffff_ffff;
        p.qa.post(&wr);
        p.cq_a.expect(1, WcStatus::Success);
        p.cq_b.expect(7, WcStatus::Success);
    });
}

// abi
#[test]
fn packets_of_another_partition() {
    in_both_modes(PathPolicy::Wire, |setup| {
        for (qp_type, service) in [
            (QpType::Rc, Service::Rc),
            (QpType::Uc, Service::Uc),
            (QpType::Ud, Service::Ud),
        ] {
            let world = World::new(2, setup);
            world.negotiate(&[Feature::Counters]);
            let options = Options::of(qp_type);
            let p = Pair::with(&world, options, options);
            for id in 0..4 {
                p.qb.post_recv(id, &[sge(&p.mb, 0, 4096)]);
            }
            let deth = Deth {
                qkey: options.qkey,
                src_qpn: p.qa.qpn,
            };
            let send = |service, pkey| {
                let part = SendPart::Only(With::Nothing);
                let body = match service {
                    Service::Rc => RcRequest::from(part).into(),
                    Service::Uc => Body::Uc(Part::Send(part)),
                    Service::Ud => Body::Ud { deth, imm: None },
                };
                let headers = numbered(body, pkey, p.qb.qpn, 0);
                world
                    .net
                    .inject(p.b.mac, &frame(p.a, p.b, &headers, b"four"));
            };
            for (n, pkey) in [0x8001, 0x7ffe, 0].into_iter().enumerate() {
                send(service, pkey);
                wait("the violation to be counted", || {
                    (p.b.violations() == (n as u32 + 1, 0)).then_some(())
                });
                assert_eq!(p.b.counters().pkey_violations, n as u64 + 1);
            }
            // The QP drops packets of another transport service.
            for other in [Service::Rc, Service::Uc, Service::Ud] {
                if other != service {
                    send(other, 0xffff);
                }
            }
            // A limited member of a partition may send to a full member.
            send(service, 0x7fff);
            p.cq_b.expect(0, WcStatus::Success);
            assert_eq!(p.cq_b.poll(), None);
            p.responder_lives();
        }
    });
}
