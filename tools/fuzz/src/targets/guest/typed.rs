// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Commands with rings, page lists and attributes, mostly with valid fields.

use testkit::engine::qp::PAGE;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::ib::QpType;
use virtio_rdma_abi::number::Qpn;

use super::Guest;
use crate::input::Input;
use crate::wqe;

impl Guest<'_> {
    /// Executes a command with a ring, a page list or attributes, and records the number of the
    /// object that it creates.
    pub(super) fn typed_command(&mut self, input: &mut Input<'_>) {
        let made = match input.below(8) {
            0 => self.vm.call(self.memory(input)).map(|made| made.mrn.get()),
            1 => {
                let memory = self.memory(input);
                let request = CmdReregMr {
                    mrn: self.number(input),
                    flags: ReregFlags(u32::from(input.any::<u8>() & 15)),
                    memory,
                };
                self.vm.call(request).map(|_| 0)
            }
            2 => {
                let flags = CreateFlags(u32::from(input.any::<u8>() & 7));
                let request = CmdCreateCqRing {
                    base: CmdCreateCq {
                        cqe: input.edge32(16),
                    },
                    flags,
                    ring: self.ring(input),
                    doorbell_page: input.edge32(PAGE),
                    event_queue: input.edge32(2),
                    cookie: 5,
                    reserved: [0; 8],
                };
                self.vm.call(request).map(|made| made.cqn.get())
            }
            3 => {
                let request = CmdResizeCq {
                    cqn: self.number(input),
                    cqe: input.edge32(32),
                    ring: self.ring(input),
                };
                self.vm.call(request).map(|_| 0)
            }
            4 => {
                let request = CmdCreateSrq {
                    pdn: input.number(self.vm.pdn),
                    max_wr: input.edge32(16),
                    max_sge: input.edge32(2),
                    flags: CreateFlags(u32::from(input.any::<u8>() & 3)),
                    ring: self.ring(input),
                    doorbell_page: input.edge32(PAGE),
                    cookie: 6,
                };
                self.vm.call(request).map(|made| made.srqn.get())
            }
            5 => {
                let request = CmdModifySrq {
                    srqn: self.number(input),
                    attr_mask: SrqAttrMask(u32::from(input.any::<u8>() & 3)),
                    max_wr: input.edge32(64),
                    limit: input.edge32(2),
                    ring: self.ring(input),
                };
                self.vm.call(request).map(|_| 0)
            }
            6 => {
                let made = self.vm.call(self.qp(input)).map(|made| made.qpn);
                if let Ok(qpn) = made {
                    self.qpns.push(qpn);
                }
                made.map(Qpn::get)
            }
            _ => {
                let (attr_mask, attrs) = wqe::attributes(input, self.peer.vm, self.peer.qp.qpn);
                let request = CmdModifyQp {
                    qpn: self.number(input),
                    attr_mask,
                    attrs,
                };
                self.vm.call(request).map(|_| 0)
            }
        };
        self.learn(made.unwrap_or_default());
    }

    fn ring(&self, input: &mut Input<'_>) -> virtio_rdma_abi::ring::RingAddr {
        let mut addr = self.rings[input.below(self.rings.len())].addr;
        match input.below(8) {
            0 => addr.pages = input.of(&self.page_lists),
            1 => addr.npages = input.edge32(addr.npages),
            2 => addr.slots = input.edge32(addr.slots),
            3 => addr.page_shift = input.any(),
            4 => addr.slot_shift = input.any(),
            _ => {}
        }
        addr
    }

    fn memory(&self, input: &mut Input<'_>) -> CmdRegUserMrPages {
        let npages = input.edge32(16);
        let length = input.edge(u64::from(npages).wrapping_mul(4096));
        CmdRegUserMrPages {
            base: CmdRegUserMr {
                pdn: input.number(self.vm.pdn),
                access_flags: wqe::access(input),
                start: input.edge(0x10_0000),
                length,
                virt_addr: input.edge(0x10_0000),
                pages: input.of(&self.page_lists),
                npages,
            },
            page_shift: input.of(&[12, 12, 12, 13, 21, 30, 31, 63, 0]),
            depth: input.of(&[0, 0, 1, 2]),
            reserved: [0; 6],
        }
    }

    fn qp(&self, input: &mut Input<'_>) -> CmdCreateQpRings {
        let types = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::Gsi, QpType::Smi];
        let base = CmdCreateQp {
            pdn: input.number(self.vm.pdn),
            qp_type: input.of(&types).value(),
            sq_sig_type: input.any::<u8>() % 3,
            max_send_wr: input.edge32(16),
            max_send_sge: input.edge32(2),
            send_cqn: self.cqn,
            max_recv_wr: input.edge32(16),
            max_recv_sge: input.edge32(2),
            recv_cqn: input.number(self.cqn),
            max_inline_data: input.edge32(64),
            flags: CreateFlags(u32::from(input.any::<u8>() & 7)),
            srqn: self.srqn,
            reserved: [0; 24],
        };
        CmdCreateQpRings {
            base,
            sq: self.ring(input),
            rq: self.ring(input),
            doorbell_page: input.of(&[PAGE, 0, 7, 8]),
            cookie: 7,
        }
    }
}
