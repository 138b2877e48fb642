// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A hostile guest: invalid commands, doorbells, rings and WQEs, with packets or with the direct
//! path. It must not harm other VMs.

mod peer;
mod plain;
mod typed;

use testkit::engine::{connect, qp::PAGE, srq, Cq, Mr, Options, Qp, Ring, Vm, World, FULL};
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::Features;
use virtio_rdma_abi::ib::{QpState, QpType, PORT};
use virtio_rdma_abi::number::{Cqn, Number, Qpn, Srqn};
use virtio_rdma_abi::ring::{Doorbell, RingKind};
use virtio_rdma_ring::RingMemory;

use self::peer::Peer;
use crate::input::Input;
use crate::stage::{self, Neighbour};
use crate::wqe;

/// Maximum number of steps. More steps would only increase the run time.
const ACTS: usize = 60;
/// Indices of two rings: the SQ of the QP that uses the SRQ, and the SRQ itself.
const SHARED_SQ: usize = 8;
const SRQ: usize = 9;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let path = input.of(&[PathPolicy::Direct, PathPolicy::Wire]);
    let world = stage::world(3, path);
    let [hostile, peer] = [&world.vms[0], &world.vms[1]];
    let before = stage::memory(hostile);
    // The peer and a third VM have a connection that must keep working.
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
    stage::run_until_idle(&world.runtime);
    neighbour.works();
    guest.peer.end(&world.runtime);
    stage::is_sound(&world.runtime, &world.vms);
    assert_eq!(peer.read(guard, 4096), [0x5a; 4096]);
    hostile.hca.reset();
    stage::run_until_idle(&world.runtime);
    // The reset also frees the PD and the GID that `before` counts.
    let after = stage::memory(hostile);
    assert!(
        after <= before,
        "{after} bytes after a reset, {before} at first"
    );
    neighbour.works();
    stage::is_sound(&world.runtime, &world.vms);
}

/// The hostile guest and its objects.
struct Guest<'w> {
    world: &'w World,
    vm: &'w Vm,
    peer: Peer<'w>,
    rings: Vec<Ring>,
    /// Numbers of created objects, of any kind.
    numbers: Vec<u32>,
    qpns: Vec<Qpn>,
    cqn: Cqn,
    srqn: Srqn,
    /// An MR of the guest, and one of the peer.
    mrs: [Mr; 2],
    page_lists: [u64; 3],
    published: Vec<u32>,
}

impl<'w> Guest<'w> {
    fn new(world: &'w World, vm: &'w Vm, peer: &'w Vm) -> Self {
        vm.hca.set_features(Features::ALL);
        let cq = Cq::new(vm, 16);
        let options = Options {
            slots: 16,
            timeout: 8,
            retry_cnt: 1,
            ..Options::default()
        };
        let rc = Qp::new(vm, &cq, &cq, options);
        let peer = Peer::new(peer, options, &rc);
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
        let srq_ring = srq::ring(vm, 16);
        let request = srq::request(vm, vm.pdn, &srq_ring);
        let srqn = vm.call(request).expect("an SRQ").srqn;
        let shared = Qp::with_srq(vm, &cq, srqn, options).expect("a QP of the SRQ");
        connect(&shared, &shared);
        let spare = [(16, 8), (16, 6), (64, 7)]
            .map(|(slots, shift)| Ring::new(vm, RingKind::Work, slots, shift));
        let mrs = [own_mr(vm), peer.mr];
        let numbers = vec![
            cq.cqn.get(),
            srqn.get(),
            vm.pdn.get(),
            mrs[0].mrn.get(),
            mrs[0].key,
            0,
            1,
        ];
        let qpns = vec![rc.qpn, ud.qpn, shared.qpn];
        let memory = vm.alloc(1 << 16);
        let flat: Vec<u64> = (0..16).map(|page| memory + page * 4096).collect();
        let bad = [memory, memory + 1, 1 << 40, u64::MAX, 0];
        let lists = [vm.page_list(&flat), vm.page_list(&bad)];
        let two_levels = vm.page_list(&[lists[0], lists[1]]);
        let mut rings = vec![rc.sq, rc.rq, ud.sq, ud.rq, cq.ring];
        rings.extend(spare);
        rings.extend([shared.sq, srq_ring]);
        Self {
            world,
            vm,
            peer,
            published: vec![0; rings.len()],
            rings,
            numbers,
            qpns,
            cqn: cq.cqn,
            srqn,
            mrs,
            page_lists: [lists[0], lists[1], two_levels],
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=2 => self.typed_command(input),
            3..=4 => self.raw_command(input),
            5 => {
                let value = match input.below(4) {
                    0 => Doorbell::Sq(self.number(input)),
                    1 => Doorbell::Rq(self.number(input)),
                    2 => Doorbell::Cq(self.number(input)),
                    _ => Doorbell::Srq(self.number(input)),
                }
                .to_u32();
                let page = input.of(&[PAGE, PAGE, PAGE, 0, 7, 8, u32::MAX]);
                self.vm
                    .hca
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
                let position = input.edge32(self.published[at]);
                self.rings[at].set_owner(position);
                self.published[at] = position;
            }
            12 => {
                let ring = &self.rings[4];
                ring.store_u64(ring.layout.arm(), input.any::<u64>().to_le());
            }
            13 => {
                for _ in 0..=input.below(8) {
                    stage::step(&self.world.runtime, input.below(2));
                }
            }
            14 => {
                stage::work(&self.world.runtime);
                stage::pass(&self.world.runtime);
            }
            _ => match input.below(8) {
                0 => self.vm.hca.notified(input.any::<u8>().into()),
                1 => {
                    let features = Features(Features::ALL.0 ^ input.any::<u64>());
                    self.vm.hca.set_features(features);
                }
                2 => {
                    self.vm.hca.reset();
                    self.vm.hca.set_features(Features::ALL);
                }
                3 => {
                    let told: u8 = input.any();
                    self.vm.hca.set_link(told & 1 != 0);
                    if told >= 0xe0 {
                        let (port, state, mtu) = (PORT, (told >> 2) & 7, u32::from(told) << 5);
                        let _ = self.vm.call(CmdSetPort { port, state, mtu });
                    }
                }
                4 => {
                    let state = input.of(&[QpState::Err, QpState::Reset]);
                    // The honest peer may change the state of its own QP at any time.
                    self.peer.to(state);
                }
                5 => self.plain_command(input),
                6 => self.peer.act(input, &self.mrs[0]),
                _ => stage::work(&self.world.runtime),
            },
        }
    }

    /// Writes a work request to a ring and rings the doorbell.
    fn post(&mut self, input: &mut Input<'_>) {
        let at = match input.any::<u8>() {
            0xf0.. => SHARED_SQ,
            0xe0.. => SRQ,
            any => [0, 0, 2, 1, 3][usize::from(any) % 5],
        };
        let [ours, theirs] = self.mrs;
        // The QP that uses the SRQ is connected to itself.
        let remote = if at == SHARED_SQ { ours } else { theirs };
        let wqe = if at % 2 == 0 {
            wqe::send(input, &[ours, remote], self.peer.vm, &self.qpns)
        } else {
            wqe::receive(input, &self.mrs)
        };
        let ring = &self.rings[at];
        let room = ring.layout.slot_size() as usize;
        let position = self.published[at];
        ring.write(ring.layout.slot(position), &wqe[..wqe.len().min(room)]);
        if ring.layout.kind() == RingKind::Shared {
            // LOSSLESS: there are fewer slots than a u16 counts.
            let slot = ring.layout.slot_index(position) as u16;
            ring.store_u16(ring.layout.order(position), slot.to_le());
        }
        self.published[at] = position.wrapping_add(1);
        ring.set_owner(self.published[at]);
        let doorbell = match at {
            SHARED_SQ => Doorbell::Sq(self.qpns[2]),
            SRQ => Doorbell::Srq(self.srqn),
            _ if at % 2 == 0 => Doorbell::Sq(self.qpns[at / 2]),
            _ => Doorbell::Rq(self.qpns[at / 2]),
        };
        self.vm.hca.doorbell(PAGE, doorbell.to_u32());
    }

    /// The number of an object, which may be of another kind than `N`.
    fn number<N: Number>(&self, input: &mut Input<'_>) -> N {
        let any = input.any::<u8>();
        N::new(match any % 4 {
            0 | 1 => self.qpns[usize::from(any / 4) % self.qpns.len()].get(),
            2 => self.numbers[usize::from(any / 4) % self.numbers.len()],
            _ => input.edge32(u32::from(any / 4)),
        })
    }

    /// Sends a command of random bytes, which mostly begins with the number of an object.
    fn raw_command(&mut self, input: &mut Input<'_>) {
        let command = input.of(Command::ALL);
        let mut request = vec![input.edge32(u32::from(command.value())) as u8];
        request.extend(self.number::<Qpn>(input).get().to_le_bytes());
        request.extend(input.bytes(80));
        request.resize(
            1 + usize::from(input.of(&[60u8, 137, 4, 0])).max(request.len()),
            0,
        );
        let room = usize::from(input.of(&[255u8, 255, 5, 1, 0]));
        let mut response = Vec::new();
        self.vm.hca.command(&request, room, &mut response);
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
}

/// Registers an MR of the guest. [`Vm::register`] can't do this: its request lacks the page size
/// that the negotiated features require.
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
