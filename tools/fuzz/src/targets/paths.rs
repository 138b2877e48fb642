// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The same work requests are executed with the direct path and with packets. Completions, memory,
//! states and events must be equal.

use std::sync::atomic::Ordering;

use testkit::engine::{connect, pattern, sge, Cq, Mr, Options, Qp, Vm, Wr, FULL};
use verbs::PathPolicy;
use virtio_rdma_abi::cqe::Cqe;
use virtio_rdma_abi::ib::{AccessFlags, Mtu, QpState, QpType, SendFlags, WcStatus, WrOpcode};

use crate::input::Input;
use crate::stage;

const ACTS: usize = 30;
/// Length of an MR in bytes.
const LEN: u64 = 32 << 10;
/// Offset of the source and the target of READs. Other work requests do not write to this memory,
/// because no fence orders them with READs.
const READ: u64 = 16 << 10;
/// Longest message in bytes.
const LONGEST: usize = 6000;

/// Runs the target.
pub fn run(data: &[u8]) {
    let [direct, wire] = [PathPolicy::Direct, PathPolicy::Wire].map(|path| play(path, data));
    for side in 0..2 {
        // The order of completions of different queues in one CQ is undefined.
        for queue in [Queue::Send, Queue::Receive] {
            let [direct, wire] = [&direct, &wire].map(|outcome| outcome.of(side, queue));
            assert_eq!(direct, wire, "{queue:?} queue of side {side}");
        }
        assert_eq!(direct.events[side], wire.events[side], "events of {side}");
        assert_eq!(direct.states[side], wire.states[side], "state of {side}");
    }
    if let Some(at) = direct.differs(&wire) {
        panic!("memory differs: {at:?}; {:?}", direct.completions);
    }
}

/// The outcome of all work.
struct Outcome {
    completions: [Vec<Ended>; 2],
    events: [Vec<String>; 2],
    states: [QpState; 2],
    memory: [Vec<u8>; 2],
    /// Whether the memory is defined: no message was lost or failed. A failed message leaves the
    /// contents of its buffers undefined.
    is_defined: bool,
}

impl Outcome {
    /// The completions of one queue, in order.
    fn of(&self, side: usize, queue: Queue) -> Vec<&Ended> {
        let ended = self.completions[side].iter();
        ended.filter(|ended| ended.queue == queue).collect()
    }

    /// Side and offset of the first byte of memory that differs from another outcome.
    fn differs(&self, other: &Self) -> Option<(usize, usize)> {
        if !self.is_defined {
            return None;
        }
        (0..2).find_map(|side| {
            let mut pairs = self.memory[side].iter().zip(&other.memory[side]);
            let at = pairs.position(|(ours, theirs)| ours != theirs)?;
            Some((side, at))
        })
    }
}

/// The queue of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    Send,
    Receive,
}

/// The defined fields of a completion.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    queue: Queue,
    id: u64,
    status: u8,
    rest: Option<(u8, u32, [u8; 4], u32)>,
}

impl Ended {
    fn new(cqe: &Cqe, opcode: Option<WrOpcode>) -> Self {
        // `None` stands for a receive.
        let has_length = opcode.is_none()
            || matches!(
                opcode,
                Some(WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp)
            );
        let rest = (
            cqe.opcode,
            if has_length { cqe.byte_len } else { 0 },
            cqe.ex,
            cqe.wc_flags.0,
        );
        Self {
            queue: match opcode {
                Some(_) => Queue::Send,
                None => Queue::Receive,
            },
            id: cqe.wr_id,
            status: cqe.status,
            rest: (cqe.status == 0).then_some(rest),
        }
    }
}

fn play(path: PathPolicy, data: &[u8]) -> Outcome {
    let mut input = Input::new(data);
    let world = stage::world(2, path);
    let qp_type = input.of(&[QpType::Rc, QpType::Rc, QpType::Uc, QpType::Ud]);
    let mtus = [Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096];
    let mtu = input.of(&mtus);
    let access = input.of(&[FULL, FULL, AccessFlags::LOCAL_WRITE]);
    let rnr_retry = input.of(&[7, 0, 2]);
    let options = Options {
        slots: 64,
        mtu,
        access: input.of(&[FULL, FULL, AccessFlags::LOCAL_WRITE]),
        timeout: 8,
        retry_cnt: 2,
        rnr_retry,
        rd_atomic: 2,
        ..Options::of(qp_type)
    };
    let vms = [&world.vms[0], &world.vms[1]];
    let cqs = vms.map(|vm| Cq::new(vm, 256));
    let qps = [0, 1].map(|side| Qp::new(vms[side], &cqs[side], &cqs[side], options));
    connect(&qps[0], &qps[1]);
    let mrs = [0, 1].map(|side: usize| {
        let vm: &Vm = vms[side];
        let at = vm.alloc(LEN);
        vm.write(at, &pattern(LEN as usize, side as u64 + 1));
        let access = if side == 1 { access } else { FULL };
        vm.register_reversed(vm.pdn, at, LEN, access)
    });
    let mut opcodes = Vec::new();
    let mut polled = [Vec::new(), Vec::new()];
    let mut sender = 0;
    for _ in 0..ACTS {
        if !input.has_more() {
            break;
        }
        match input.below(8) {
            0..=3 => {
                let side = usize::from(input.once_in(4));
                // The work of the old sender must complete first: if both sides had work, it would
                // depend on timing which side fails first. Receives are posted for sends that wait
                // for one.
                if side != sender {
                    stage::run_until_idle(&world.runtime);
                    poll_all(&cqs, &mut polled);
                    while qps[sender].has_outstanding() {
                        let piece = sge(&mrs[side], 0, LONGEST as u32);
                        qps[side].post_recv(opcodes.len() as u64, &[piece]);
                        opcodes.push(None);
                        stage::run_until_idle(&world.runtime);
                        poll_all(&cqs, &mut polled);
                    }
                    sender = side;
                }
                let id = opcodes.len() as u64;
                let wr = work_request(&mut input, id, side, &qps, &mrs);
                opcodes.push(Some(wr.opcode));
                qps[side].post(&wr);
            }
            4..=5 => {
                let side = usize::from(!input.once_in(4));
                let len = length(&mut input) as u32 + 40;
                let at = u64::from(input.any::<u8>());
                let mut piece = sge(&mrs[side], at, len);
                // A receive with a bad key is made long enough: if it were also too short, it would
                // be undefined which fault is reported.
                if input.once_in(16) {
                    piece.lkey ^= 1;
                    piece.length = LONGEST as u32;
                }
                qps[side].post_recv(opcodes.len() as u64, &[piece]);
                opcodes.push(None);
            }
            6 => {
                stage::run_until_idle(&world.runtime);
            }
            _ => {
                let side = input.below(2);
                if input.once_in(8) {
                    stage::run_until_idle(&world.runtime);
                    qps[side].to(QpState::Err);
                }
            }
        }
    }
    stage::run_until_idle(&world.runtime);
    stage::is_sound(&world.runtime, &world.vms);
    let states = [0, 1].map(|side: usize| qps[side].state());
    for qp in &qps {
        qp.to(QpState::Err);
    }
    stage::run_until_idle(&world.runtime);
    poll_all(&cqs, &mut polled);
    let completions = polled.map(|polled| {
        let ended = polled
            .iter()
            .map(|cqe| Ended::new(cqe, opcodes[cqe.wr_id as usize]));
        Vec::from_iter(ended)
    });
    let mut ids: Vec<_> = completions.iter().flatten().map(|ended| ended.id).collect();
    ids.sort();
    let all: Vec<_> = (0..opcodes.len() as u64).collect();
    assert_eq!(ids, all, "each completes once");
    let is_done = |ended: &&Ended| ended.status == 0;
    let opcode = |ended: &Ended| opcodes[ended.id as usize];
    let done = || completions.iter().flatten().filter(is_done);
    let taken = done().filter(|ended| opcode(ended).is_none()).count();
    let takes = |ended: &&Ended| {
        matches!(
            opcode(ended),
            Some(WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm)
        )
    };
    let sent = done().filter(takes).count();
    let has_failed = completions.iter().flatten().any(|ended| {
        let is_spare = opcode(ended).is_none() && ended.status == WcStatus::WrFlushErr.value();
        ended.status != 0 && !is_spare
    });
    Outcome {
        is_defined: taken == sent && !has_failed,
        completions,
        states,
        events: vms.map(|vm| {
            assert!(vm.sink.buffers.load(Ordering::SeqCst) > 0);
            let events = vm.sink.events.lock().unwrap();
            let mut events: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
            events.sort();
            events
        }),
        memory: [0, 1].map(|side: usize| vms[side].read(mrs[side].iova, LEN as usize)),
    }
}

/// Polls all completions of each CQ.
fn poll_all(cqs: &[Cq<'_>; 2], polled: &mut [Vec<Cqe>; 2]) {
    for (cq, polled) in cqs.iter().zip(polled) {
        while let Some(cqe) = cq.poll() {
            polled.push(cqe);
        }
    }
}

fn length(input: &mut Input<'_>) -> usize {
    match input.below(4) {
        0 => 0,
        1 => input.below(64),
        2 => 255 + input.below(4),
        _ => usize::from(input.any::<u16>()) % LONGEST,
    }
}

/// A signaled work request of `side`.
fn work_request(
    input: &mut Input<'_>,
    id: u64,
    side: usize,
    qps: &[Qp<'_>; 2],
    mrs: &[Mr; 2],
) -> Wr {
    let (ours, theirs) = (&mrs[side], &mrs[1 - side]);
    let opcode = input.of(&[
        WrOpcode::Send,
        WrOpcode::SendWithImm,
        WrOpcode::RdmaWrite,
        WrOpcode::RdmaWriteWithImm,
        WrOpcode::RdmaRead,
        WrOpcode::AtomicFetchAndAdd,
        WrOpcode::AtomicCmpAndSwp,
    ]);
    let len = match opcode {
        WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => 8,
        _ => length(input),
    };
    let fetches = matches!(
        opcode,
        WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp
    );
    let base = if fetches { READ } else { 0 };
    let mut wr = Wr::new(id, opcode).imm([1, 2, 3, id as u8]);
    if input.once_in(8) && len <= 200 {
        wr = wr.inline(&pattern(len, id));
    } else {
        let at = base + u64::from(input.any::<u8>());
        let cut = len.min(input.below(256));
        wr = wr.local(ours, at, cut as u32);
        wr = wr.local(ours, at + cut as u64, (len - cut) as u32);
        if input.once_in(16) {
            wr.sges[1].lkey ^= 1;
        }
        if input.once_in(16) {
            wr.sges[0].addr = input.edge(ours.addr + LEN - 1);
        }
    }
    let mut at = u64::from(input.any::<u8>()) * 8;
    if opcode == WrOpcode::RdmaRead {
        at += READ;
    }
    wr = wr.remote(theirs, at).operands(id, 7);
    if input.once_in(16) {
        wr.remote.rkey ^= 1 << input.below(32);
    }
    if input.once_in(8) {
        wr.remote.remote_addr = match opcode {
            WrOpcode::RdmaRead => input.edge(theirs.addr + LEN - len as u64 + 1),
            _ => input.edge(theirs.addr - 1),
        };
    }
    if matches!(qps[0].options.qp_type, QpType::Ud) {
        wr = wr.to(&qps[1 - side]);
        if let (true, Some(to)) = (input.once_in(8), &mut wr.to) {
            to.remote_qkey ^= 1;
        }
    }
    let mut flags = wr.flags;
    if input.once_in(4) {
        flags = flags | SendFlags::SOLICITED;
    }
    if input.once_in(4) {
        flags = flags | SendFlags::FENCE;
    }
    wr.flags(flags)
}
