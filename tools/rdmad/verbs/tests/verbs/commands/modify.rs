// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! MODIFY_QP and QUERY_QP.

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{AccessFlags, AhFlags, MigState, Mtu, QpAttrMask, QpState};
use virtio_rdma_abi::number::Qpn;
use virtio_rdma_abi::qp::{AhAttr, QpAttr};
use virtio_rdma_abi::wire::Wire;

use super::{EINVAL, EOPNOTSUPP};

#[test]
fn query_returns_what_was_set() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    assert_eq!(qp.state(), QpState::Reset);
    qp.to_init().unwrap();
    qp.to_rtr(b, Qpn::new(1234)).unwrap();
    assert_eq!(qp.state(), QpState::Rtr);
    qp.to_rts().unwrap();
    // abi
    let attr = qp.query();
    // abi
    assert_eq!(
        (attr.qp_state, attr.cur_qp_state),
        (QpState::Rts.value(), QpState::Rts.value())
    );
    // abi
    assert_eq!(
        (attr.path_mtu, attr.dest_qp_num),
        (Mtu::Mtu1024.value(), Qpn::new(1234))
    );
    // abi
    assert_eq!((attr.rq_psn, attr.sq_psn), (0xff_fff0, 0xff_fff0));
    // abi
    assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry), (15, 7, 7));
    // abi
    assert_eq!(
        (
            attr.max_rd_atomic,
            attr.max_dest_rd_atomic,
            attr.min_rnr_timer
        ),
        (4, 4, 1)
    );
    // abi
    assert_eq!((attr.qp_access_flags, attr.port_num), (FULL, 1));
    // abi
    assert_eq!((attr.ah_attr.dmac, attr.ah_attr.grh.dgid), (b.mac, b.gid));
    // abi
    assert_eq!(
        (
            attr.cap.max_send_wr,
            attr.cap.max_recv_sge,
            attr.cap.max_inline_data
        ),
        (64, 4, 200)
    );
    // abi
    assert_eq!(
        (attr.path_mig_state, attr.pkey_index),
        (MigState::Migrated.value(), 0)
    );
    qp.to(QpState::Reset);
    // abi: R-209
    assert_eq!(qp.query().dest_qp_num, Qpn::NONE);
}

#[test]
fn steps_and_values_of_modify() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    // abi: R-203
    assert_eq!(qp.to_rtr(b, Qpn::new(5)), Err(EINVAL), "RESET to RTR");
    // abi: R-210
    assert_eq!(
        qp.modify(QpState::Init, QpAttrMask::NONE, QpAttr::ZERO),
        Err(EINVAL),
        "attributes are missing"
    );
    let mask = QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
    let good = QpAttr {
        port_num: 1,
        ..QpAttr::ZERO
    };
    for bad in [
        QpAttr {
            // abi: R-234
            port_num: 2,
            ..good
        },
        QpAttr {
            // abi: R-227
            pkey_index: 1,
            ..good
        },
        QpAttr {
            // abi: R-226
            qp_access_flags: AccessFlags(1 << 31),
            ..good
        },
    ] {
        // abi: R-261
        assert_eq!(qp.modify(QpState::Init, mask, bad), Err(EINVAL));
    }
    let wrong_current = QpAttr {
        cur_qp_state: QpState::Rts.value(),
        ..good
    };
    // abi: R-262
    assert_eq!(
        qp.modify(QpState::Init, mask | QpAttrMask::CUR_STATE, wrong_current),
        Err(EINVAL)
    );
    // abi: R-212
    assert_eq!(qp.state(), QpState::Reset, "a refused step changes nothing");
    qp.to_init().unwrap();
    qp.to_init().unwrap();
    // abi: R-203
    assert_eq!(qp.to_rts(), Err(EINVAL), "INIT to RTS");
    // abi: R-225
    assert_eq!(qp.to_rtr(b, Qpn::NONE), Err(EINVAL), "QPN 0");
    // abi: R-225
    assert_eq!(
        qp.to_rtr(b, Qpn::new(1 << 24)),
        Err(EINVAL),
        "QPN of 25 bits"
    );
    qp.to_rtr(b, Qpn::new(5)).unwrap();
    qp.to_rts().unwrap();
    for (state, done) in [(QpState::Rts, Ok(())), (QpState::Sqd, Err(EINVAL))] {
        let current = QpAttr {
            cur_qp_state: state.value(),
            ..QpAttr::ZERO
        };
        let modified = qp.modify(QpState::Rts, QpAttrMask::CUR_STATE, current);
        // abi: R-262
        assert_eq!(modified, done, "RTS, not {state:?}");
    }
    // abi
    let alternate = qp.modify(QpState::Rts, QpAttrMask::ALT_PATH, QpAttr::ZERO);
    // abi: R-211
    assert_eq!(alternate, Err(EOPNOTSUPP));
    qp.to(QpState::Err);
    // abi: R-203
    assert_eq!(qp.to_init(), Err(EINVAL), "ERR to INIT");
    qp.to(QpState::Reset);
    qp.to_init().unwrap();
}

#[test]
fn address_vectors() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(b, Qpn::new(5)).unwrap();
    let good = qp.query();
    let mask = QpAttrMask::AV
        | QpAttrMask::PATH_MTU
        | QpAttrMask::DEST_QPN
        | QpAttrMask::RQ_PSN
        | QpAttrMask::MAX_DEST_RD_ATOMIC
        | QpAttrMask::MIN_RNR_TIMER;
    let with = |change: fn(&mut AhAttr)| {
        qp.to(QpState::Reset);
        qp.to_init().unwrap();
        let mut attr = good;
        change(&mut attr.ah_attr);
        qp.modify(QpState::Rtr, mask, attr)
    };
    assert_eq!(with(|_| ()), Ok(()));
    // abi
    assert_eq!(with(|ah| ah.static_rate = 99), Ok(()), "not looked at");
    // abi
    assert_eq!(
        with(|ah| ah.ah_flags = AhFlags::NONE),
        Err(EINVAL),
        "no GRH"
    );
    // abi: R-249
    assert_eq!(with(|ah| ah.port_num = 2), Err(EINVAL));
    // abi: R-247
    assert_eq!(with(|ah| ah.sl = 16), Err(EINVAL));
    // abi: R-254
    assert_eq!(with(|ah| ah.grh.flow_label = 1 << 20), Err(EINVAL));
    // abi
    assert_eq!(with(|ah| ah.grh.sgid_index = 7), Err(EINVAL), "no such GID");
    // abi
    assert_eq!(
        with(|ah| ah.grh.dgid = [0x20; 16]),
        Err(EINVAL),
        "IPv6 from IPv4"
    );
    // abi
    assert_eq!(with(|ah| ah.dmac = [0; 6]), Err(EINVAL));
    // abi: R-263
    assert_eq!(with(|ah| ah.dmac[0] |= 1), Err(EINVAL), "multicast");
    for (change, name) in [
        // abi: R-220
        ((|attr| attr.path_mtu = 6) as fn(&mut QpAttr), "MTU"),
        (|attr| attr.path_mtu = 0, "MTU"),
        // abi: R-233
        (|attr| attr.min_rnr_timer = 32, "RNR timer"),
        // abi
        (|attr| attr.max_dest_rd_atomic = 129, "READs"),
    ] {
        let mut attr = good;
        change(&mut attr);
        qp.to(QpState::Reset);
        qp.to_init().unwrap();
        // abi: R-261
        assert_eq!(qp.modify(QpState::Rtr, mask, attr), Err(EINVAL), "{name}");
    }
}

// abi
#[test]
fn a_connection_outlives_its_gid() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let cq = Cq::new(a, 64);
    let qp = Qp::new(a, &cq, &cq, Options::default());
    qp.to_init().unwrap();
    qp.to_rtr(b, Qpn::new(5)).unwrap();
    a.call(CmdDelGid { index: 1, port: 1 }).unwrap();
    qp.to_rts().unwrap();
    qp.to(QpState::Sqd);
    let av = qp.query();
    assert_eq!(
        qp.modify(QpState::Sqd, QpAttrMask::AV, av),
        Err(EINVAL),
        "a new path needs it"
    );
}
