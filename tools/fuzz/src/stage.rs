// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Whole verbs engines that one thread steps, and a connection that hostile VMs must not disturb.

use std::ops::Range;
use std::time::Duration;

use testkit::engine::{connect, pattern, sge, stepped, Cq, Mr, Options, Qp, Setup, Vm, World, Wr};
use verbs::{Limits, MemoryStatus, PathPolicy, Runtime, RuntimeConfig, MAX_TURN};
use virtio_rdma_abi::ib::{QpState, WcStatus, WrOpcode};

const WORKERS: usize = 2;
/// Maximum number of deadlines to wait for: a requester retries for ever if its peer never posts a
/// receive.
const DEADLINES: usize = 64;
/// Maximum number of bytes that a device may allocate in addition to its tables and frames.
const MEMORY: u64 = 2 << 20;

/// Small limits of a device, so that a driver reaches them soon.
pub fn limits() -> Limits {
    let limits = Limits {
        max_qp: 32,
        max_qp_wr: 256,
        max_cq: 32,
        max_cqe: 256,
        max_srq: 16,
        max_srq_wr: 256,
        max_mr: 32,
        max_mw: 32,
        max_mr_pages: 4096,
        max_pd: 16,
        max_gids: 8,
        max_mcast_grp: 4,
        max_mcast_qp_attach: 4,
        max_total_mcast_qp_attach: 8,
        doorbell_pages: 8,
        ..Limits::default()
    };
    // Tables and frames of any size take less than 64 MiB.
    Limits {
        memory: (64 << 20) + MEMORY,
        ..limits
    }
}

/// Configuration of a runtime whose clock and workers are driven by calls.
fn config(path: PathPolicy) -> RuntimeConfig {
    RuntimeConfig {
        path,
        ..stepped::config(WORKERS)
    }
}

/// A runtime without VMs. The caller adds the VMs.
pub fn runtime(path: PathPolicy) -> Runtime {
    Runtime::new(config(path)).expect("no threads are needed")
}

/// A runtime with this number of VMs.
pub fn world(vms: usize, setup: impl Into<Setup>) -> World {
    let Setup { path, mode } = setup.into();
    World::in_mode(mode, vms, config(path), limits())
}

/// Makes a worker do one step.
pub fn step(runtime: &Runtime, worker: usize) {
    runtime.step(worker % WORKERS);
}

/// Steps the workers until all sleep.
pub fn work(runtime: &Runtime) {
    stepped::rest(runtime, &[0, 1]);
}

/// Advances the clock to the next deadline, or by 10 µs without one. Returns whether there was a
/// deadline.
pub fn pass(runtime: &Runtime) -> bool {
    let next = runtime.next_deadline();
    runtime.pass(next.unwrap_or(Duration::from_micros(10)));
    next.is_some()
}

/// Runs the workers, and advances the clock to their deadlines, until no work is left.
pub fn run_until_idle(runtime: &Runtime) {
    work(runtime);
    for _ in 0..DEADLINES {
        if !pass(runtime) {
            return;
        }
        work(runtime);
    }
}

/// Asserts that no turn was too long, and that no device has failed or exceeds its memory limit.
pub fn is_sound(runtime: &Runtime, vms: &[Vm]) {
    let status = runtime.status();
    assert!(status.longest_turn <= MAX_TURN as u64, "{status:?}");
    for vm in vms {
        assert_eq!(vm.sink.failure(), None);
        let MemoryStatus { used, limit } = vm.hca.status().memory;
        assert!(used <= limit, "{used} of {limit} bytes");
    }
}

/// Number of bytes that a device has allocated.
pub fn memory(vm: &Vm) -> u64 {
    vm.hca.status().memory.used
}

/// A connection between two VMs that must work, whatever other programs and VMs do.
pub struct Neighbour<'w> {
    world: &'w World,
    cqs: [Cq<'w>; 2],
    qps: [Qp<'w>; 2],
    mrs: [Mr; 2],
    /// Memory of the connection in the first VM: queues, page lists and data.
    memory: Range<u64>,
    messages: u64,
}

impl<'w> Neighbour<'w> {
    /// Connects a QP of VM `a` with a QP of VM `b`.
    pub fn new(world: &'w World, [a, b]: [usize; 2]) -> Self {
        let vms = [&world.vms[a], &world.vms[b]];
        let start = vms[0].alloc(0);
        let cqs = vms.map(|vm| Cq::new(vm, 16));
        let options = Options {
            slots: 16,
            ..Options::default()
        };
        let qps = [
            Qp::new(vms[0], &cqs[0], &cqs[0], options),
            Qp::new(vms[1], &cqs[1], &cqs[1], options),
        ];
        connect(&qps[0], &qps[1]);
        let mrs = vms.map(|vm| vm.mr(8192));
        Self {
            world,
            mrs,
            cqs,
            qps,
            memory: start..vms[0].alloc(0),
            messages: 0,
        }
    }

    /// Addresses of the connection's memory in the first VM.
    pub fn memory(&self) -> Range<u64> {
        self.memory.clone()
    }

    /// Asserts that a message arrives intact and that a READ reads it back.
    pub fn works(&mut self) {
        const LEN: u32 = 3000;
        self.messages += 1;
        let data = pattern(LEN as usize, self.messages);
        let [ours, theirs] = &self.qps;
        let [from, to] = &self.mrs;
        ours.vm.write(from.iova, &data);
        theirs.post_recv(1, &[sge(to, 0, LEN)]);
        ours.post(&Wr::new(2, WrOpcode::Send).local(from, 0, LEN));
        let read = Wr::new(3, WrOpcode::RdmaRead).local(from, 4096, LEN);
        ours.post(&read.remote(to, 0));
        run_until_idle(&self.world.runtime);
        for (cq, ids) in self.cqs.iter().zip([&[2, 3][..], &[1]]) {
            for &id in ids {
                let cqe = cq.poll().expect("a completion of the neighbour");
                let got = (cqe.wr_id, cqe.status);
                assert_eq!(got, (id, WcStatus::Success.value()), "{cqe:?}");
            }
            assert_eq!(cq.poll(), None, "a completion of nothing");
        }
        assert!(theirs.vm.read(to.iova, data.len()) == data, "altered");
        let back = ours.vm.read(from.iova + 4096, data.len());
        assert!(back == data, "altered on its way back");
        for qp in &self.qps {
            assert_eq!(qp.state(), QpState::Rts);
        }
    }
}
