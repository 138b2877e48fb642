// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QPs from the view of a driver.

use std::cell::RefCell;
use std::collections::VecDeque;

use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::{AccessFlags, AhFlags, Mtu, QpAttrMask, QpState, QpType, SigType};
use virtio_rdma_abi::number::{Pdn, Qpn, Srqn};
use virtio_rdma_abi::qp::{AhAttr, GlobalRoute, QpAttr};
use virtio_rdma_abi::ring::{slot_shift_for, Doorbell, RingAddr, RingKind, RingLayout};
use virtio_rdma_abi::wire::Wire;
use virtio_rdma_abi::wqe::{rq_wqe_size, sq_wqe_size, RqHeader, Sge, SqHeader, INLINE_OFFSET};
use virtio_rdma_ring::{RingMemory, WorkQueue};

use super::{mode, Ring, Vm, FULL};
use super::{Cq, Wr};
use crate::wait;

/// The doorbell page that tests use.
pub const PAGE: u32 = 3;

/// Options of a new QP.
#[derive(Clone, Copy)]
pub struct Options {
    pub qp_type: QpType,
    /// Whether the QP belongs to a process, not to the kernel.
    pub user: bool,
    /// Whether the QP does not receive its own datagrams to multicast groups.
    pub blocks_loopback: bool,
    pub qkey: u32,
    pub slots: u32,
    /// Whether the QP has no SQ.
    pub without_sq: bool,
    /// Whether the QP has no RQ.
    pub without_rq: bool,
    pub sge: u32,
    pub inline: u32,
    pub signal: SigType,
    pub access: AccessFlags,
    pub mtu: Mtu,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub rd_atomic: u8,
    pub psn: u32,
}

impl Options {
    /// Default options of a QP of type `qp_type`.
    pub fn of(qp_type: QpType) -> Self {
        Self {
            qp_type,
            user: qp_type != QpType::Gsi,
            ..Self::default()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            qp_type: QpType::Rc,
            user: true,
            blocks_loopback: false,
            qkey: 0x1234_5678,
            slots: 64,
            without_sq: false,
            without_rq: false,
            sge: 4,
            inline: 200,
            signal: SigType::Requested,
            access: FULL,
            mtu: Mtu::Mtu1024,
            // The code of about 134 ms. With a shorter timeout, the delay of a worker that does not
            // get a CPU would count as packet loss.
            timeout: 15,
            retry_cnt: 7,
            rnr_retry: 7,
            // The code of 10 µs.
            min_rnr_timer: 1,
            rd_atomic: 4,
            // The PSN wraps after 16 packets.
            psn: 0xff_fff0,
        }
    }
}

pub struct Qp<'vm> {
    pub vm: &'vm Vm,
    pub qpn: Qpn,
    pub cookie: u64,
    pub options: Options,
    pub sq: Ring,
    pub rq: Ring,
    sq_queue: RefCell<Posted>,
    rq_queue: RefCell<Posted>,
}

/// Posted work requests of an SQ or RQ.
struct Posted {
    queue: WorkQueue,
    /// Ids of the work requests that are not known to be complete. `tail` is the ring position of
    /// the first one.
    ids: VecDeque<u64>,
    tail: u32,
}

impl Posted {
    fn new(ring: &Ring) -> RefCell<Self> {
        RefCell::new(Self {
            queue: WorkQueue::new(ring.layout),
            ids: VecDeque::new(),
            tail: 0,
        })
    }

    /// Writes a WQE into the next slot.
    fn put(&mut self, ring: &Ring, id: u64, wqe: &[u8]) {
        let position = self.queue.reserve().expect("room in the queue");
        ring.write(ring.layout.slot(position), wqe);
        self.ids.push_back(id);
    }

    /// Records that work request `id` and all earlier ones are complete, after the completion of
    /// `id` was polled.
    fn ended(&mut self, id: u64) {
        let Some(index) = self.ids.iter().position(|&posted| posted == id) else {
            return;
        };
        self.ids.drain(..=index);
        self.tail = self.tail.wrapping_add(index as u32 + 1);
        self.queue.reclaim(self.tail).expect("it was posted");
    }

    fn reset(&mut self) {
        self.tail = self.queue.reset();
        self.ids.clear();
    }
}

impl<'vm> Qp<'vm> {
    pub fn new(vm: &'vm Vm, send: &Cq<'vm>, recv: &Cq<'vm>, options: Options) -> Self {
        Self::in_pd(vm, vm.pdn, send, recv, options)
    }

    pub fn in_pd(vm: &'vm Vm, pdn: Pdn, send: &Cq<'vm>, recv: &Cq<'vm>, options: Options) -> Self {
        let sq_wqe = sq_wqe_size(options.sge as usize).max(INLINE_OFFSET + options.inline as usize);
        let shift = slot_shift_for(sq_wqe).unwrap();
        let sq = Ring::new(vm, RingKind::Work, options.slots, shift);
        Self::with_sq(vm, pdn, sq, (send, recv, None), options).unwrap()
    }

    /// Creates a QP that takes its receives from SRQ `srqn`.
    pub fn with_srq(vm: &'vm Vm, cq: &Cq<'vm>, srqn: Srqn, options: Options) -> Result<Self, u8> {
        Self::with_srq_in(vm, vm.pdn, cq, srqn, options)
    }

    /// Like [`with_srq`](Self::with_srq), in the PD `pdn`.
    pub fn with_srq_in(
        vm: &'vm Vm,
        pdn: Pdn,
        cq: &Cq<'vm>,
        srqn: Srqn,
        options: Options,
    ) -> Result<Self, u8> {
        let sq_wqe = sq_wqe_size(options.sge as usize).max(INLINE_OFFSET + options.inline as usize);
        let shift = slot_shift_for(sq_wqe).unwrap();
        let sq = Ring::new(vm, RingKind::Work, options.slots, shift);
        Self::with_sq(vm, pdn, sq, (cq, cq, Some(srqn)), options)
    }

    /// Creates a QP with its SQ at DMA address `base`.
    pub fn with_sq_at(vm: &'vm Vm, base: u64, cq: &Cq<'vm>, options: Options) -> Self {
        let sq_wqe = sq_wqe_size(options.sge as usize).max(INLINE_OFFSET + options.inline as usize);
        let shift = slot_shift_for(sq_wqe).unwrap();
        let layout = RingLayout::new(RingKind::Work, options.slots, shift).unwrap();
        let sq = Ring::at(vm, base, layout);
        Self::with_sq(vm, vm.pdn, sq, (cq, cq, None), options).unwrap()
    }

    fn with_sq(
        vm: &'vm Vm,
        pdn: Pdn,
        sq: Ring,
        (send, recv, srqn): (&Cq<'vm>, &Cq<'vm>, Option<Srqn>),
        options: Options,
    ) -> Result<Self, u8> {
        let (recv_wr, recv_sge, from_srq) = match srqn {
            Some(_) => (0, 0, CreateFlags::SRQ),
            None if options.without_rq => (0, options.sge, CreateFlags::NONE),
            None => (options.slots, options.sge, CreateFlags::NONE),
        };
        let rq = Ring::new(
            vm,
            RingKind::Work,
            options.slots,
            slot_shift_for(rq_wqe_size(options.sge as usize)).unwrap(),
        );
        let flag = |set, flag| if set { flag } else { CreateFlags::NONE };
        let cookie = vm.cookie();
        let request = CmdCreateQpRings {
            base: CmdCreateQp {
                pdn,
                qp_type: options.qp_type.value(),
                sq_sig_type: options.signal.value(),
                max_send_wr: if options.without_sq { 0 } else { options.slots },
                max_send_sge: options.sge,
                send_cqn: send.cqn,
                max_recv_wr: recv_wr,
                max_recv_sge: recv_sge,
                recv_cqn: recv.cqn,
                max_inline_data: options.inline,
                flags: flag(options.user, CreateFlags::USER)
                    | flag(
                        options.blocks_loopback,
                        CreateFlags::BLOCK_MULTICAST_LOOPBACK,
                    )
                    | from_srq,
                srqn: srqn.unwrap_or(Srqn::NONE),
                reserved: [0; 24],
            },
            sq: match options.without_sq {
                true => RingAddr::ZERO,
                false => sq.addr,
            },
            rq: match recv_wr {
                0 => RingAddr::ZERO,
                _ => rq.addr,
            },
            doorbell_page: PAGE,
            cookie,
        };
        let qpn = mode::create_qp(vm, request, &sq, &rq)?;
        // Discards the completions of an earlier QP with this number.
        vm.take_ended(qpn, false);
        vm.take_ended(qpn, true);
        Ok(Self {
            vm,
            qpn,
            cookie,
            options,
            sq_queue: Posted::new(&sq),
            rq_queue: Posted::new(&rq),
            sq,
            rq,
        })
    }

    pub fn modify(&self, state: QpState, mask: QpAttrMask, attrs: QpAttr) -> Result<(), u8> {
        let request = CmdModifyQp {
            qpn: self.qpn,
            attr_mask: mask | QpAttrMask::STATE,
            attrs: QpAttr {
                qp_state: state.value(),
                ..attrs
            },
        };
        self.vm.call(request).map(|_| ())
    }

    pub fn to_init(&self) -> Result<(), u8> {
        let mask = QpAttrMask::PKEY_INDEX
            | match self.options.qp_type {
                QpType::Gsi => QpAttrMask::QKEY,
                QpType::Ud => QpAttrMask::QKEY | QpAttrMask::PORT,
                _ => QpAttrMask::ACCESS_FLAGS | QpAttrMask::PORT,
            };
        let attrs = QpAttr {
            port_num: 1,
            qkey: self.options.qkey,
            qp_access_flags: self.options.access,
            ..QpAttr::ZERO
        };
        self.modify(QpState::Init, mask, attrs)
    }

    pub fn to_rtr(&self, peer_vm: &Vm, peer_qpn: Qpn) -> Result<(), u8> {
        let connection =
            QpAttrMask::AV | QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN;
        let mask = match self.options.qp_type {
            QpType::Rc => connection | QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
            QpType::Uc => connection,
            _ => QpAttrMask::NONE,
        };
        let attrs = QpAttr {
            path_mtu: self.options.mtu.value(),
            dest_qp_num: peer_qpn,
            rq_psn: self.options.psn,
            max_dest_rd_atomic: self.options.rd_atomic,
            min_rnr_timer: self.options.min_rnr_timer,
            ah_attr: AhAttr {
                grh: GlobalRoute {
                    dgid: peer_vm.gid,
                    sgid_index: 1,
                    hop_limit: 1,
                    ..GlobalRoute::ZERO
                },
                port_num: 1,
                ah_flags: AhFlags::GRH,
                dmac: peer_vm.mac,
                ..AhAttr::ZERO
            },
            ..QpAttr::ZERO
        };
        self.modify(QpState::Rtr, mask, attrs)
    }

    pub fn to_rts(&self) -> Result<(), u8> {
        let mask = match self.options.qp_type {
            QpType::Rc => {
                QpAttrMask::TIMEOUT
                    | QpAttrMask::RETRY_CNT
                    | QpAttrMask::RNR_RETRY
                    | QpAttrMask::MAX_QP_RD_ATOMIC
            }
            _ => QpAttrMask::NONE,
        } | QpAttrMask::SQ_PSN;
        let attrs = QpAttr {
            timeout: self.options.timeout,
            retry_cnt: self.options.retry_cnt,
            rnr_retry: self.options.rnr_retry,
            sq_psn: self.options.psn,
            max_rd_atomic: self.options.rd_atomic,
            ..QpAttr::ZERO
        };
        self.modify(QpState::Rts, mask, attrs)
    }

    pub fn to(&self, state: QpState) {
        self.modify(state, QpAttrMask::STATE, QpAttr::ZERO).unwrap();
        if state == QpState::Reset {
            self.sq_queue.borrow_mut().reset();
            self.rq_queue.borrow_mut().reset();
        }
    }

    pub fn query(&self) -> QpAttr {
        let request = CmdQueryQp {
            qpn: self.qpn,
            attr_mask: QpAttrMask::STATE,
        };
        self.vm.call(request).unwrap().attr
    }

    pub fn state(&self) -> QpState {
        QpState::try_from(self.query().qp_state).unwrap()
    }

    pub fn wait_for(&self, state: QpState) {
        wait(&format!("state {state:?}"), || {
            (self.state() == state).then_some(())
        });
    }

    /// Posts a WQE given as bytes, and rings the doorbell if the device requests it.
    pub fn post_bytes(&self, bytes: &[u8]) {
        if self.post_all(&[bytes]) || self.vm.is_virtqueue_mode() {
            self.ring_doorbell(Doorbell::Sq);
        }
    }

    /// Posts several WQEs. Returns whether the device requests the doorbell.
    pub fn post_all(&self, wqes: &[impl AsRef<[u8]>]) -> bool {
        self.reclaim();
        let mut posted = self.sq_queue.borrow_mut();
        for bytes in wqes {
            let bytes = bytes.as_ref();
            let id = SqHeader::decode(bytes).map_or(0, |header| header.wr_id);
            posted.put(&self.sq, id, bytes);
        }
        posted.queue.publish(&self.sq)
    }

    pub fn post(&self, wr: &Wr) {
        self.post_bytes(&wr.bytes());
    }

    pub fn post_recv(&self, id: u64, sges: &[Sge]) {
        if self.put_recv(id, sges) || self.vm.is_virtqueue_mode() {
            self.ring_doorbell(Doorbell::Rq);
        }
    }

    /// Posts a receive. Returns whether the device requests the doorbell.
    pub fn put_recv(&self, id: u64, sges: &[Sge]) -> bool {
        let header = RqHeader {
            num_sge: sges.len() as u32,
            wr_id: id,
        };
        let mut bytes = header.to_bytes().to_vec();
        for sge in sges {
            bytes.extend(sge.to_bytes());
        }
        self.reclaim();
        let mut posted = self.rq_queue.borrow_mut();
        posted.put(&self.rq, id, &bytes);
        posted.queue.publish(&self.rq)
    }

    /// Reclaims the slots of the work requests that are known to be complete.
    fn reclaim(&self) {
        for (is_recv, posted) in [(false, &self.sq_queue), (true, &self.rq_queue)] {
            for id in self.vm.take_ended(self.qpn, is_recv) {
                posted.borrow_mut().ended(id);
            }
        }
    }

    /// Whether completions of sends have not been polled.
    pub fn has_outstanding(&self) -> bool {
        self.reclaim();
        !self.sq_queue.borrow().ids.is_empty()
    }

    pub fn ring_doorbell(&self, queue: fn(Qpn) -> Doorbell) {
        mode::ring_doorbell(self.vm, queue(self.qpn));
    }

    pub fn destroy(&self) -> Result<Empty, u8> {
        let done = self.vm.call(CmdDestroyQp { qpn: self.qpn })?;
        mode::disable_qp(self.vm, self.qpn);
        Ok(done)
    }
}

/// Connects two QPs and moves both to state RTS.
pub fn connect(a: &Qp<'_>, b: &Qp<'_>) {
    a.to_init().unwrap();
    if !std::ptr::eq(a, b) {
        b.to_init().unwrap();
    }
    a.to_rtr(b.vm, b.qpn).unwrap();
    a.to_rts().unwrap();
    if !std::ptr::eq(a, b) {
        b.to_rtr(a.vm, a.qpn).unwrap();
        b.to_rts().unwrap();
    }
}
