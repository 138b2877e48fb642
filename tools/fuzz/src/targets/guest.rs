// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A guest that does what no driver does: commands, doorbells, scribbled rings and WQEs, on either
//! path. It harms itself alone.

mod plain;

use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::{QpState, QpType};
use virtio_rdma_abi::ring::{Doorbell, DoorbellKind};
use virtio_rdma_ring::RingMemory;

use crate::input::Input;
use crate::own::harness::{connect, qp::PAGE, Cq, Mr, Options, Qp, Ring, Srq, Vm, World, FULL};
use crate::own::stage::{self, Neighbour};
use crate::wqe;

/// Acts at most: longer inputs only take longer.
const ACTS: usize = 60;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let path = input.of(&[PathPolicy::Direct, PathPolicy::Wire]);
    let world = stage::world(3, path);
    let [hostile, peer] = [&world.vms[0], &world.vms[1]];
    let before = stage::memory(hostile);
    // The peer and a third VM talk to each other.
    let mut neighbour = Neighbour::new(&world, [1, 2]);
    let guard = peer.alloc(4096);
    peer.write(guard, &[0x5a; 4096]);
    let mut guest = Guest::new(&world, hostile, peer);
    for _ in 0..ACTS {
        if !input.has_more() {
            break;
        }
        guest.act(&mut input);
    }
    stage::settle(&world.fabric);
    neighbour.works();
    stage::is_sound(&world.fabric, &world.vms);
    assert_eq!(peer.read(guard, 4096), [0x5a; 4096]);
    hostile.device.reset();
    stage::settle(&world.fabric);
    // The PD and the GID of `before` went with the reset.
    let after = stage::memory(hostile);
    assert!(
        after <= before,
        "{after} bytes after a reset, {before} at first"
    );
    neighbour.works();
    stage::is_sound(&world.fabric, &world.vms);
}

/// The hostile guest and what it knows.
struct Guest<'w> {
    world: &'w World,
    vm: &'w Vm,
    peer: &'w Vm,
    rings: Vec<Ring>,
    /// Numbers of objects that it was told, of any kind.
    numbers: Vec<u32>,
    qpns: Vec<u32>,
    /// Memory of its own and of the peer.
    mrs: [Mr; 2],
    theirs: Qp<'w>,
    page_lists: [u64; 3],
    published: Vec<u16>,
}

impl<'w> Guest<'w> {
    fn new(world: &'w World, vm: &'w Vm, peer: &'w Vm) -> Self {
        vm.device.set_features(Features::ALL);
        let (cq, cq_b) = (Cq::new(vm, 16), Cq::new(peer, 16));
        let options = Options {
            slots: 16,
            timeout: 8,
            retry_cnt: 1,
            ..Options::default()
        };
        let rc = Qp::new(vm, &cq, &cq, options);
        let theirs = Qp::new(peer, &cq_b, &cq_b, options);
        connect(&rc, &theirs);
        let ud = Qp::new(
            vm,
            &cq,
            &cq,
            Options {
                qp_type: QpType::Ud,
                ..options
            },
        );
        connect(&ud, &ud);
        let srq = Srq::new(vm, 16);
        let spare = [(16, 8), (16, 6), (64, 7)].map(|(slots, shift)| Ring::new(vm, slots, shift));
        let mrs = [own_mr(vm), peer.mr(8192)];
        let numbers = vec![cq.cqn, srq.srqn, vm.pdn, mrs[0].mrn, mrs[0].key, 0, 1];
        let qpns = vec![rc.qpn, ud.qpn];
        let memory = vm.alloc(1 << 16);
        let flat: Vec<u64> = (0..16).map(|page| memory + page * 4096).collect();
        let bad = [memory, memory + 1, 1 << 40, u64::MAX, 0];
        let lists = [vm.page_list(&flat), vm.page_list(&bad)];
        let two_levels = vm.page_list(&[lists[0], lists[1]]);
        theirs.post_recv(1, &[]);
        let mut rings = vec![rc.sq, rc.rq, ud.sq, ud.rq, cq.ring];
        rings.extend(spare);
        Self {
            world,
            vm,
            peer,
            published: vec![0; rings.len()],
            rings,
            numbers,
            qpns,
            mrs,
            theirs,
            page_lists: [lists[0], lists[1], two_levels],
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=2 => self.typed_command(input),
            3..=4 => self.raw_command(input),
            5 => {
                let kind = input.of(&[
                    DoorbellKind::Sq,
                    DoorbellKind::Rq,
                    DoorbellKind::Cq,
                    DoorbellKind::Srq,
                ]);
                let number = self.number(input);
                let value = Doorbell { kind, number }.to_u32();
                let page = input.of(&[PAGE, PAGE, PAGE, 0, 7, 8, u32::MAX]);
                self.vm
                    .device
                    .doorbell(page, value ^ input.of(&[0, 0, 0, 1, 1 << 31]));
            }
            6 => {
                let at = input.below(self.rings.len());
                let (offset, bytes) = (input.any::<u16>(), input.bytes(8));
                for (step, byte) in bytes.iter().enumerate() {
                    self.rings[at].scribble(u32::from(offset) + step as u32, *byte);
                }
            }
            7..=10 => self.post(input),
            11 => {
                let at = input.below(self.rings.len());
                let index = input.edge32(self.published[at].into()) as u16;
                let ring = &self.rings[at];
                ring.store_u16_release(ring.layout.avail_idx(), index.to_le());
                self.published[at] = index;
            }
            12 => {
                let ring = &self.rings[4];
                ring.store_u32(ring.layout.arm(), input.any::<u32>().to_le());
            }
            13 => {
                for _ in 0..=input.below(8) {
                    stage::step(&self.world.fabric, input.below(2));
                }
            }
            14 => {
                stage::work(&self.world.fabric);
                stage::pass(&self.world.fabric);
            }
            _ => match input.below(8) {
                0 => self.vm.device.notified(input.any::<u8>().into()),
                1 => {
                    let features = Features(Features::ALL.0 ^ input.any::<u64>());
                    self.vm.device.set_features(features);
                }
                2 => {
                    self.vm.device.reset();
                    self.vm.device.set_features(Features::ALL);
                }
                3 => self.vm.device.set_link(input.any()),
                4 => {
                    let state = input.of(&[QpState::Err, QpState::Reset]);
                    // Its own end is the peer's to do with what it likes.
                    self.theirs.to(state);
                }
                5 => self.plain_command(input),
                _ => stage::work(&self.world.fabric),
            },
        }
    }

    /// A work request of a ring, and its doorbell.
    fn post(&mut self, input: &mut Input<'_>) {
        let at = input.of(&[0, 0, 2, 1, 3]);
        let wqe = if at % 2 == 0 {
            wqe::send(input, &self.mrs, self.peer, &self.qpns)
        } else {
            wqe::receive(input, &self.mrs)
        };
        let ring = &self.rings[at];
        let room = ring.layout.slot_size() as usize;
        let index = self.published[at];
        ring.write(ring.layout.slot(index), &wqe[..wqe.len().min(room)]);
        ring.store_u16(ring.layout.avail_ring(index), (index % 16).to_le());
        self.published[at] = index.wrapping_add(1);
        ring.store_u16_release(ring.layout.avail_idx(), self.published[at].to_le());
        let number = self.qpns[at / 2];
        let kind = [DoorbellKind::Sq, DoorbellKind::Rq][at % 2];
        self.vm
            .device
            .doorbell(PAGE, Doorbell { kind, number }.to_u32());
    }

    fn number(&self, input: &mut Input<'_>) -> u32 {
        let any = input.any::<u8>();
        match any % 4 {
            0 | 1 => self.qpns[usize::from(any / 4) % self.qpns.len()],
            2 => self.numbers[usize::from(any / 4) % self.numbers.len()],
            _ => input.edge32(u32::from(any / 4)),
        }
    }

    /// A command by its bytes: most begin with the number of an object.
    fn raw_command(&mut self, input: &mut Input<'_>) {
        let command = input.of(Command::ALL);
        let mut request = vec![input.edge32(u32::from(command.value())) as u8];
        request.extend(self.number(input).to_le_bytes());
        request.extend(input.bytes(80));
        request.resize(
            1 + usize::from(input.of(&[60u8, 137, 4, 0])).max(request.len()),
            0,
        );
        let room = usize::from(input.of(&[255u8, 255, 5, 1, 0]));
        let mut response = Vec::new();
        self.vm.device.command(&request, room, &mut response);
        assert!(
            !response.is_empty() && response.len() <= room.max(1),
            "{command:?}"
        );
        if let [RESPONSE_OK, a, b, c, d, ..] = *response {
            self.learn(u32::from_le_bytes([a, b, c, d]));
        }
    }

    fn learn(&mut self, number: u32) {
        if self.numbers.len() < 64 {
            self.numbers.push(number);
        }
    }

    fn typed_command(&mut self, input: &mut Input<'_>) {
        let made = match input.below(8) {
            0 => self.vm.call(self.memory(input)).map(|made| made.mrn),
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
                self.vm.call(request).map(|made| made.cqn)
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
                    pdn: input.edge32(self.vm.pdn),
                    max_wr: input.edge32(16),
                    max_sge: input.edge32(2),
                    flags: CreateFlags(u32::from(input.any::<u8>() & 3)),
                    ring: self.ring(input),
                    doorbell_page: input.edge32(PAGE),
                    cookie: 6,
                };
                self.vm.call(request).map(|made| made.srqn)
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
                made
            }
            _ => {
                let (attr_mask, attrs) = wqe::attributes(input, self.peer, self.theirs.qpn);
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
                pdn: input.edge32(self.vm.pdn),
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
            pdn: input.edge32(self.vm.pdn),
            qp_type: input.of(&types).value(),
            sq_sig_type: input.any::<u8>() % 3,
            max_send_wr: input.edge32(16),
            max_send_sge: input.edge32(2),
            send_cqn: self.numbers[0],
            max_recv_wr: input.edge32(16),
            max_recv_sge: input.edge32(2),
            recv_cqn: input.edge32(self.numbers[0]),
            max_inline_data: input.edge32(64),
            flags: CreateFlags(u32::from(input.any::<u8>() & 7)),
            srqn: self.numbers[1],
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

/// An MR of the guest. With lists that tell their page size, the harness's request is too short.
fn own_mr(vm: &Vm) -> Mr {
    const LEN: u64 = 8192;
    let iova = vm.alloc(LEN);
    let pages = vm.page_list(&[iova, iova + 4096]);
    let request = CmdRegUserMrPages {
        base: CmdRegUserMr {
            pdn: vm.pdn,
            access_flags: FULL,
            start: iova,
            length: LEN,
            virt_addr: iova,
            pages,
            npages: 2,
        },
        page_shift: 12,
        depth: 0,
        reserved: [0; 6],
    };
    let made = vm.call(request).expect("an MR");
    Mr {
        mrn: made.mrn,
        key: made.lkey,
        addr: iova,
        iova,
        len: LEN,
    }
}
