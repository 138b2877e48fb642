// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The daemon with a driver in virtqueue mode, whose CQs, SQs and RQs are virtqueues.

mod process;
mod program;

use program::call;
use program::daemon;
use program::SIZE;
use testkit::vfio::{descriptor, reg, ring_at, Client, Driver, AVAIL, DATA, TRANSPORT, USED};
use virtio_rdma_abi::config::Config;
use virtio_rdma_abi::config::OwnRingsConfig;
use virtio_rdma_abi::config::RateLimitConfig;
use virtio_rdma_abi::config::OWN_RINGS_CONFIG_OFFSET;
use virtio_rdma_abi::config::RATE_LIMIT_CONFIG_OFFSET;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::*;
use virtio_rdma_abi::number::{Cqn, Pdn, Qpn, Srqn};
use virtio_rdma_abi::qp::AhAttr;
use virtio_rdma_abi::qp::GlobalRoute;
use virtio_rdma_abi::qp::QpAttr;
use virtio_rdma_abi::queues::QueueNumbers;
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::SqHeader;

const MAC: [u8; 6] = [0x52, 0x54, 0, 9, 0, 1];
const GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];
const RING_ADDR: u64 = 1;
/// DMA addresses of the CQE buffers and of the WQE buffers, [`SIZE`] of each.
const CQES: u64 = DATA + 0x4000;
const WQES: u64 = DATA + 0x6000;
/// Interrupt vectors of the control queue and of the CQ.
const CONTROL_VECTOR: usize = 1;
const CQ_VECTOR: usize = 2;

/// Makes the chain at `head` available in the queue at address `at`.
fn offer(driver: &Driver, at: u64, head: u16) {
    let avail = at + AVAIL;
    let index = driver.get16(avail + 2);
    driver.put(avail + 4 + 2 * u64::from(index % SIZE), &head.to_le_bytes());
    driver.put(avail + 2, &index.wrapping_add(1).to_le_bytes());
}

/// Writes descriptor `index` of the queue at address `at`.
fn describe(driver: &Driver, at: u64, index: u16, address: u64, len: u32, flags: u16) {
    let bytes = descriptor(address, len, flags, 0);
    driver.put(at + 16 * u64::from(index), &bytes);
}

fn kick(driver: &mut Driver, queue: u16) {
    driver.write16(reg::NOTIFY + 4 * u64::from(queue), queue);
}

fn reset_queue(driver: &mut Driver, queue: u16) {
    driver.write16(reg::QUEUE_SELECT, queue);
    driver.write16(reg::QUEUE_RESET, 1);
    while driver.read16(reg::QUEUE_RESET) != 0 {}
}

/// Connects a QP to itself and moves it to RTS.
fn connect(driver: &mut Driver, qpn: Qpn) {
    let base = QpAttr {
        port_num: 1,
        path_mtu: Mtu::Mtu1024.value(),
        dest_qp_num: qpn,
        qp_access_flags: AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        ah_attr: AhAttr {
            grh: GlobalRoute {
                dgid: GID,
                hop_limit: 1,
                ..GlobalRoute::ZERO
            },
            port_num: 1,
            ah_flags: AhFlags::GRH,
            dmac: MAC,
            ..AhAttr::ZERO
        },
        ..QpAttr::ZERO
    };
    type M = QpAttrMask;
    for (state, mask) in [
        (QpState::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS),
        (
            QpState::Rtr,
            M::AV
                | M::PATH_MTU
                | M::DEST_QPN
                | M::RQ_PSN
                | M::MAX_DEST_RD_ATOMIC
                | M::MIN_RNR_TIMER,
        ),
        (
            QpState::Rts,
            M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::SQ_PSN | M::MAX_QP_RD_ATOMIC,
        ),
    ] {
        let request = CmdModifyQp {
            qpn,
            attr_mask: mask | M::STATE,
            attrs: QpAttr {
                qp_state: state.value(),
                ..base
            },
        };
        call(driver, request).unwrap();
    }
}

fn start(driver: &mut Driver, features: u64, numbers: QueueNumbers) {
    assert_eq!(driver.negotiate(features), 11);
    driver.enable_queue(0, SIZE);
    enable_cq(driver, numbers);
    enable_pair(driver, numbers);
    driver.write8(reg::STATUS, 15);
}

/// Enables the virtqueue of CQ 0.
fn enable_cq(driver: &mut Driver, numbers: QueueNumbers) {
    driver.enable_queue(numbers.cq(Cqn::new(0)).unwrap(), SIZE);
}

/// Enables the virtqueues of SQ and RQ of QP 2, without interrupts.
fn enable_pair(driver: &mut Driver, numbers: QueueNumbers) {
    for (queue, place) in [(numbers.sq(Qpn::new(2)), 2), (numbers.rq(Qpn::new(2)), 3)] {
        driver.enable_queue_at(queue.unwrap(), SIZE, ring_at(place), 0xffff);
    }
}

/// Creates a CQ and a QP, executes RDMA WRITEs, and destroys the CQ and the QP. Asserts that there
/// are interrupts only when they were requested.
fn one_round(driver: &mut Driver, numbers: QueueNumbers, pdn: Pdn) {
    let cqn = call(driver, CmdCreateCq { cqe: SIZE.into() }).unwrap().cqn;
    assert_eq!(cqn, Cqn::new(0));
    for slot in 0..SIZE {
        // abi: R-894
        describe(driver, ring_at(1), slot, CQES + 64 * u64::from(slot), 64, 2);
        offer(driver, ring_at(1), slot);
    }
    let create = CmdCreateQp {
        pdn,
        qp_type: QpType::Rc.value(),
        sq_sig_type: SigType::All.value(),
        max_send_wr: SIZE.into(),
        max_send_sge: 1,
        send_cqn: cqn,
        max_recv_wr: SIZE.into(),
        max_recv_sge: 1,
        recv_cqn: cqn,
        max_inline_data: 0,
        flags: CreateFlags::NONE,
        srqn: Srqn::NONE,
        reserved: [0; 24],
    };
    let qpn = call(driver, create).unwrap().qpn;
    // abi: R-881
    assert_eq!(qpn, Qpn::new(2));
    connect(driver, qpn);

    let header = SqHeader {
        opcode: WrOpcode::RdmaWrite.value(),
        wr_id: 0x1234,
        ..SqHeader::ZERO
    };
    driver.put(WQES, &header.to_bytes());
    let sq = numbers.sq(qpn).unwrap();
    for round in 0..2u16 {
        if round == 1 {
            let flags = NotifyFlags::NEXT_COMPLETION;
            // The driver returns the buffer of the first completion to the CQ.
            describe(driver, ring_at(1), 0, CQES, 64, 2);
            offer(driver, ring_at(1), 0);
            call(driver, CmdReqNotify { cqn, flags }).unwrap();
            assert!(!driver.interrupted(CQ_VECTOR));
        }
        // abi: R-893
        describe(driver, ring_at(2), round, WQES, 75, 0);
        offer(driver, ring_at(2), round);
        kick(driver, sq);
        while driver.get16(ring_at(1) + USED + 2) == round {}
        let cqe = driver.get(CQES + 64 * u64::from(round), Cqe::SIZE);
        let cqe = Cqe::get(&cqe);
        assert_eq!((cqe.wr_id, cqe.status, cqe.qp_num), (0x1234, 0, qpn));
        // abi: R-900
        assert_eq!(driver.get16(ring_at(2) + USED + 2), round + 1, "given back");
        match round {
            // abi: R-910
            0 => assert!(!driver.interrupted(CQ_VECTOR), "nobody asked for it"),
            // abi: R-914
            _ => driver.wait_interrupt(CQ_VECTOR),
        }
    }
    call(driver, CmdDestroyQp { qpn }).unwrap();
    call(driver, CmdDestroyCq { cqn }).unwrap();
    for queue in [numbers.sq(qpn), numbers.rq(qpn), numbers.cq(cqn)] {
        reset_queue(driver, queue.unwrap());
    }
    enable_pair(driver, numbers);
    enable_cq(driver, numbers);
}

#[test]
fn a_driver_without_own_rings_is_served_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    for withhold in [false, true] {
        let more: &[&str] = match withhold {
            true => &["--withhold", "ring-addr"],
            false => &[],
        };
        let _daemon = daemon(dir.path(), more);
        let mut driver = Driver::new(Client::new(&dir.path().join("vfio")));
        let config = driver.client.read(2, reg::CONFIG, Config::SIZE as u32);
        let numbers = QueueNumbers::new(Config::get(&config.unwrap()).max_cq);
        let own = reg::CONFIG + OWN_RINGS_CONFIG_OFFSET as u64;
        let own = driver.client.read(2, own, OwnRingsConfig::SIZE as u32);
        assert_eq!(own.unwrap().iter().all(|&byte| byte == 0), withhold);
        let rates = reg::CONFIG + RATE_LIMIT_CONFIG_OFFSET as u64;
        let rates = driver.client.read(2, rates, RateLimitConfig::SIZE as u32);
        let rates = RateLimitConfig::get(&rates.unwrap());
        assert!(rates.min_rate > 0, "they do not need own rings");
        for _driver in 0..2 {
            // abi: R-25
            start(&mut driver, TRANSPORT, numbers);
            let pdn = call(&mut driver, CmdCreatePd::ZERO).unwrap().pdn;
            let gid = CmdAddGid {
                gid: GID,
                gid_type: GidType::RoceV2.value(),
                index: 0,
                port_num: 1,
            };
            call(&mut driver, gid).unwrap();
            for _round in 0..3 {
                // abi: R-13
                one_round(&mut driver, numbers, pdn);
            }
            assert!(!driver.interrupted(CONTROL_VECTOR));
        }
        if !withhold {
            // The next driver of the same device uses own rings, so virtqueue 1 is an event queue.
            start(&mut driver, TRANSPORT | RING_ADDR, numbers);
            let refused = CmdReqNotify {
                cqn: Cqn::new(0),
                flags: NotifyFlags::SOLICITED,
            };
            // abi: R-101
            assert_eq!(call(&mut driver, refused), Err(95), "EOPNOTSUPP");
            assert_eq!(
                call(&mut driver, CmdCreateCq { cqe: 16 }),
                Err(22),
                "without a ring"
            );
        }
    }
}
