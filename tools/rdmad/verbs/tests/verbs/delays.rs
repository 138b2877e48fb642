// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Delays of small messages beside a VM that keeps the worker busy:
//!
//! `cargo test --release -p verbs --test verbs delays -- --ignored --nocapture`

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testkit::engine::*;
use verbs::{Limits, PathPolicy, RuntimeConfig};
use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::ring::Doorbell;

use crate::turns::unsignaled;

/// Time for which each load is measured.
const TIME: Duration = Duration::from_secs(3);
/// DMA address of the busy VM's messages.
const AT: u64 = 1 << 40;

/// The work of the busy VM: SENDs between two of its own QPs.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Number of work requests that are posted together; 0 if the VM is idle.
    count: u64,
    sges: u64,
    /// Bytes of an SGE.
    len: u32,
    /// Distance of SGEs in memory.
    stride: u64,
    /// Whether the host has to provide all memory again for each batch.
    fresh: bool,
}

const IDLE: Load = Load {
    name: "nothing",
    count: 0,
    sges: 1,
    len: 64 << 10,
    stride: 64 << 10,
    fresh: false,
};
const LARGE: Load = Load {
    name: "messages of 64 KiB",
    count: 64,
    ..IDLE
};
const PIECES: Load = Load {
    name: "32 SGEs of 1 byte",
    count: 504,
    sges: 32,
    len: 1,
    stride: 4096,
    fresh: false,
};
const LOADS: [Load; 5] = [
    IDLE,
    LARGE,
    Load {
        name: "messages of 64 KiB, fresh memory",
        fresh: true,
        ..LARGE
    },
    PIECES,
    Load {
        name: "32 SGEs of 1 byte, fresh memory",
        fresh: true,
        ..PIECES
    },
];

/// Keeps the worker busy with `load` until `is_over`.
fn keep_busy(vm: &Vm, load: Load, is_over: &AtomicBool) {
    let half = (load.count * load.sges * load.stride).next_multiple_of(4096);
    let file = File::from(dma::testing::shrinkable_memory(2 * half).unwrap());
    let copy = file.try_clone().unwrap();
    vm.space.map(AT, copy.into(), 0, 2 * half, true).unwrap();
    let mr = vm.register(vm.pdn, AT, 2 * half, FULL);
    let options = Options {
        slots: load.count.next_power_of_two() as u32,
        sge: load.sges as u32,
        inline: 0,
        ..Options::default()
    };
    let (cq_a, cq_b) = (Cq::new(vm, 4096), Cq::new(vm, 4096));
    let qa = Qp::new(vm, &cq_a, &cq_a, options);
    let qb = Qp::new(vm, &cq_b, &cq_b, options);
    connect(&qa, &qb);
    let pieces = |id: u64, from: u64| {
        let first = id * load.sges;
        let piece = |n| sge(&mr, from + (first + n) * load.stride, load.len);
        Vec::from_iter((0..load.sges).map(piece))
    };
    while !is_over.load(Ordering::Relaxed) {
        let wrs = (0..load.count).map(|id| {
            qb.put_recv(id, &pieces(id, half));
            let mut wr = Wr::new(id, WrOpcode::Send);
            wr.sges = pieces(id, 0);
            match id + 1 == load.count {
                true => wr.bytes(),
                false => unsignaled(wr.bytes()),
            }
        });
        qa.post_all(&Vec::from_iter(wrs));
        qa.ring_doorbell(Doorbell::Sq);
        while cq_a.poll().is_none() {
            thread::yield_now();
        }
        while cq_b.poll().is_some() {}
        if load.fresh {
            // The guest gives its memory back, as a balloon does.
            file.set_len(0).unwrap();
            file.set_len(2 * half).unwrap();
        }
    }
}

/// Times from the post of a message of one byte to its completion.
fn delays(vm: &Vm) -> Vec<Duration> {
    let (cq_a, cq_b) = (Cq::new(vm, 64), Cq::new(vm, 64));
    let qa = Qp::new(vm, &cq_a, &cq_a, Options::default());
    let qb = Qp::new(vm, &cq_b, &cq_b, Options::default());
    connect(&qa, &qb);
    let mr = vm.mr(4096);
    let mut delays = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME {
        let id = delays.len() as u64;
        qb.put_recv(id, &[sge(&mr, 0, 1)]);
        let posted = Instant::now();
        qa.post(&Wr::new(id, WrOpcode::Send).local(&mr, 8, 1));
        while cq_a.poll().is_none() {
            thread::yield_now();
        }
        delays.push(posted.elapsed());
        while cq_b.poll().is_some() {}
        thread::sleep(Duration::from_micros(200));
    }
    delays.sort();
    delays
}

#[test]
#[ignore = "depends on the machine"]
fn of_small_messages_beside_another_vm() {
    println!("{:34} {:>9} {:>9} {:>9}", "beside", "50 %", "99 %", "most");
    for load in LOADS {
        let config = RuntimeConfig {
            workers: Some(1),
            path: PathPolicy::Direct,
            ..RuntimeConfig::default()
        };
        let world = World::with_config(2, config, Limits::default());
        let [busy, idle] = [&world.vms[0], &world.vms[1]];
        let is_over = AtomicBool::new(load.count == 0);
        let delays = thread::scope(|scope| {
            scope.spawn(|| {
                if load.count > 0 {
                    keep_busy(busy, load, &is_over);
                }
            });
            let delays = delays(idle);
            is_over.store(true, Ordering::Relaxed);
            delays
        });
        let at = |share: usize| delays[(delays.len() - 1) * share / 100].as_micros();
        let [half, most_of_them, all] = [50, 99, 100].map(at);
        println!(
            "{:34} {half:>6} us {most_of_them:>6} us {all:>6} us",
            load.name
        );
    }
}
