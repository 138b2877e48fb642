// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Page lists, reregistration, fast registration, revocation and memory windows, compared with a
//! model of the bytes to which a key gives access.

mod fast;
mod opens;
mod windows;

use testkit::engine::{connect, pattern, Cq, Mr, Options, Qp, Vm, World, Wr, FULL};
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::*;
use virtio_rdma_abi::feature::{Feature, Features};
use virtio_rdma_abi::ib::{AccessFlags, MwType, QpState, QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::number::{MrNumber, MwNumber};

use self::fast::Fast;
use self::opens::{Kind, Opens};
use crate::input::Input;
use crate::stage;

const ACTS: usize = 40;
const PAGE: u64 = 4096;
/// Number of pages of the owner's memory.
const PAGES: u64 = 16;
/// Maximum number of pages of an MR.
const MR_PAGES: usize = 6;
const ACCESS: AccessFlags = AccessFlags(FULL.0 | AccessFlags::MW_BIND.0);

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.any::<u8>();
    let path = [PathPolicy::Direct, PathPolicy::Wire][usize::from(flags & 1)];
    let world = stage::world(2, path);
    // The features are fixed before any object is created. Without RegPages, a fast registration
    // does not carry its page list.
    let without = match flags & 2 {
        0 => Features::NONE,
        _ => Features::of(&[Feature::RegPages]),
    };
    let mut bench = Bench::new(&world, Features::ALL.without(without));
    for _ in 0..ACTS {
        if !input.has_more() {
            break;
        }
        bench.act(&mut input);
    }
    stage::is_sound(&world.runtime, &world.vms);
    let owner = &world.vms[1];
    let before = stage::memory(owner);
    owner.hca.reset();
    assert!(stage::memory(owner) < before, "a reset gives memory back");
}

struct Bench<'w> {
    world: &'w World,
    owner: &'w Vm,
    features: Features,
    cqs: [Cq<'w>; 2],
    qps: [Qp<'w>; 2],
    /// The peer's local buffer for READs and WRITEs.
    from: Mr,
    base: u64,
    memory: Vec<u8>,
    open: Vec<Opens>,
    /// Keys that give no access.
    closed: Vec<u32>,
    /// Number, key and type of each window.
    windows: Vec<(MwNumber, u32, MwType)>,
    fast: Vec<Fast>,
    posted: u64,
}

impl<'w> Bench<'w> {
    fn new(world: &'w World, features: Features) -> Self {
        let [peer, owner] = [&world.vms[0], &world.vms[1]];
        let from = peer.mr(2 * PAGE * MR_PAGES as u64);
        owner.hca.set_features(features);
        let cqs = [peer, owner].map(|vm| Cq::new(vm, 16));
        let options = Options {
            slots: 16,
            ..Options::of(QpType::Rc)
        };
        let qps = [
            Qp::new(peer, &cqs[0], &cqs[0], options),
            // A QP of a kernel client: only kernel clients may register memory by work requests.
            Qp::new(
                owner,
                &cqs[1],
                &cqs[1],
                Options {
                    user: false,
                    ..options
                },
            ),
        ];
        connect(&qps[0], &qps[1]);
        let base = owner.alloc(PAGES * PAGE);
        let memory = pattern((PAGES * PAGE) as usize, 5);
        owner.write(base, &memory);
        Self {
            world,
            owner,
            features,
            cqs,
            qps,
            from,
            base,
            memory,
            open: Vec::new(),
            closed: vec![0, 1, u32::MAX],
            windows: Vec::new(),
            fast: Vec::new(),
            posted: 0,
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=1 => self.register(input),
            2 => self.register_anew(input),
            3 => self.deregister(input),
            4 => self.allocate_window(input),
            5..=6 => self.bind(input),
            7 => self.invalidate(input),
            8..=9 => self.fast(input),
            _ => self.access(input),
        }
    }

    /// A registration of random pages in random order, and the access that it gives.
    fn request(&self, input: &mut Input<'_>) -> (CmdRegUserMrPages, Opens) {
        let npages = 1 + input.below(MR_PAGES);
        let page = |_| self.base + PAGE * (input.any::<u8>() as u64 % PAGES);
        let pages: Vec<u64> = (0..npages).map(page).collect();
        let offset = u64::from(input.any::<u16>()) % PAGE;
        // With a length from `least` to `most`, the MR ends in the last of `pages`.
        let most = npages as u64 * PAGE - offset;
        let least = most.saturating_sub(PAGE - 1).max(1);
        let len = least + u64::from(input.any::<u16>()) % (most - least + 1);
        let va = PAGE * input.any::<u32>() as u64 + offset;
        let access = input.of(&[
            ACCESS,
            ACCESS,
            FULL,
            AccessFlags::LOCAL_WRITE,
            AccessFlags::NONE,
        ]);
        let flat = self.owner.page_list(&pages);
        let depth = input.below(2) as u8;
        let list = match depth {
            0 => flat,
            _ => self.owner.page_list(&[flat]),
        };
        let request = CmdRegUserMrPages {
            base: CmdRegUserMr {
                pdn: self.owner.pdn,
                access_flags: access,
                start: va,
                length: len,
                virt_addr: va,
                pages: list,
                npages: npages as u32,
            },
            page_shift: 12,
            depth,
            reserved: [0; 6],
        };
        let opens = Opens {
            key: 0,
            mr: MrNumber::default(),
            window: None,
            kind: Kind::Fixed,
            va,
            len,
            offset,
            pages,
            access,
            certain: true,
        };
        (request, opens)
    }

    fn register(&mut self, input: &mut Input<'_>) {
        let (request, opens) = self.request(input);
        if let Ok(made) = self.owner.call(request) {
            self.open.push(Opens {
                key: made.rkey,
                mr: made.mrn,
                ..opens
            });
            self.closed.retain(|key| *key != made.rkey);
        } else {
            assert!(self.open.len() >= 16, "refused: {request:?}");
        }
    }

    fn some(&self, input: &mut Input<'_>, kinds: &[Kind]) -> Option<usize> {
        let open = self.open.iter().enumerate();
        let open: Vec<_> = open.filter(|(_, o)| kinds.contains(&o.kind)).collect();
        (!open.is_empty()).then(|| open[input.below(open.len())].0)
    }

    fn is_bound(&self, mrn: MrNumber) -> bool {
        self.open.iter().any(|o| o.window.is_some() && o.mr == mrn)
    }

    fn register_anew(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.some(input, &[Kind::Fixed]) else {
            return;
        };
        let (memory, opens) = self.request(input);
        let flags = ReregFlags(1 + input.any::<u8>() as u32 % 7);
        let mrn = self.open[at].mr;
        let done = self.owner.call(CmdReregMr { mrn, flags, memory });
        if done.is_err() {
            assert!(self.is_bound(mrn), "refused: {flags:?} {memory:?}");
            return;
        }
        let old = &mut self.open[at];
        if flags.contains(ReregFlags::TRANSLATION) {
            (old.va, old.len) = (opens.va, opens.len);
            (old.offset, old.pages) = (opens.offset, opens.pages);
        }
        if flags.contains(ReregFlags::ACCESS) {
            old.access = opens.access;
        }
        // The model does not predict whether the windows of the MR still give access.
        self.forget_windows(mrn);
    }

    fn forget_windows(&mut self, mrn: MrNumber) {
        let of_mr = |o: &&mut Opens| o.window.is_some() && o.mr == mrn;
        for window in self.open.iter_mut().filter(of_mr) {
            window.certain = false;
        }
    }

    fn deregister(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.some(input, &[Kind::Fixed, Kind::Fast]) else {
            return;
        };
        let mrn = self.open[at].mr;
        let revokes = input.once_in(3);
        let done = match revokes {
            true => self.owner.call(CmdRevokeMr { mrn }).map(|_| ()),
            false => self.owner.call(CmdDeregMr { mrn }).map(|_| ()),
        };
        match done {
            Ok(()) => {
                let gone = self.open.iter().filter(|o| o.mr == mrn);
                let keys: Vec<_> = gone.map(|o| o.key).collect();
                self.closed.extend(keys);
                self.open.retain(|o| o.mr != mrn);
                self.forget_fast(mrn);
            }
            Err(_) => assert!(revokes || self.is_bound(mrn), "not deregistered"),
        }
    }

    /// Executes a local work request of the owner. Returns whether it succeeded.
    fn local(&mut self, wqe: &[u8]) -> bool {
        self.qps[1].post_bytes(wqe);
        stage::run_until_idle(&self.world.runtime);
        let cqe = self.cqs[1].poll().expect("a completion");
        let done = cqe.status == WcStatus::Success.value();
        if !done {
            self.connect_anew();
        }
        done
    }

    /// Connects the QPs again after a failure.
    fn connect_anew(&mut self) {
        for qp in &self.qps {
            qp.to(QpState::Reset);
        }
        stage::work(&self.world.runtime);
        for cq in &self.cqs {
            while cq.poll().is_some() {}
        }
        connect(&self.qps[0], &self.qps[1]);
    }

    /// Lets the peer READ or WRITE by a key, and checks the result.
    fn access(&mut self, input: &mut Input<'_>) {
        let writes = input.any::<bool>();
        let opens = match input.below(8) {
            0 => None,
            _ if self.open.is_empty() => None,
            _ => Some(self.open[input.below(self.open.len())].clone()),
        };
        let (key, va, len) = match &opens {
            Some(opens) => {
                let start = u64::from(input.any::<u16>()) % opens.len;
                let len = u64::from(input.any::<u16>()) % (opens.len - start + 1);
                (opens.key, input.edge(opens.va + start), input.edge(len))
            }
            None => (self.closed[input.below(self.closed.len())], 4096, 8),
        };
        let len = len.min(self.from.len);
        self.posted += 1;
        let data = pattern(len as usize, self.posted);
        let peer = self.qps[0].vm;
        peer.write(self.from.iova, &data);
        let opcode = if writes {
            WrOpcode::RdmaWrite
        } else {
            WrOpcode::RdmaRead
        };
        let mut wr = Wr::new(self.posted, opcode).local(&self.from, 0, len as u32);
        wr.remote.remote_addr = va;
        wr.remote.rkey = key;
        self.qps[0].post(&wr);
        stage::run_until_idle(&self.world.runtime);
        let cqe = self.cqs[0].poll().expect("a completion");
        assert_eq!(cqe.wr_id, self.posted);
        let done = cqe.status == WcStatus::Success.value();
        let needed = match writes {
            true => AccessFlags::REMOTE_WRITE,
            false => AccessFlags::REMOTE_READ,
        };
        let bytes = opens.as_ref().and_then(|opens| {
            let bytes = opens.bytes(va, len)?;
            opens.access.contains(needed).then_some(bytes)
        });
        match (&bytes, done) {
            // The key of an access of 0 bytes is not checked.
            _ if len == 0 => {}
            (None, true) => panic!("let in: {key:#x}, {len} bytes at {va:#x}, {opens:x?}"),
            (Some(_), false) => {
                let certain = opens.is_some_and(|opens| opens.certain);
                assert!(!certain, "{cqe:?}: {key:#x}, {len} bytes at {va:#x}");
            }
            (Some(bytes), true) if writes => {
                for (address, byte) in bytes.iter().zip(&data) {
                    self.memory[(address - self.base) as usize] = *byte;
                }
            }
            (Some(bytes), true) => {
                let at = |address: &u64| self.memory[(address - self.base) as usize];
                let expected: Vec<u8> = bytes.iter().map(at).collect();
                assert!(
                    peer.read(self.from.iova, data.len()) == expected,
                    "other bytes"
                );
            }
            (None, false) => {}
        }
        if !done {
            self.connect_anew();
        }
        let now = self.owner.read(self.base, self.memory.len());
        let wrong = now
            .iter()
            .zip(&self.memory)
            .position(|(now, model)| now != model);
        assert_eq!(wrong, None, "a byte that no key opened");
    }
}
