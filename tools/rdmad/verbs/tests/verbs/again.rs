// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Failures on order are the same again: programs that do the same in each run see the same
//! completions in the same order at each QP, however the machine is loaded.
//!
//! The environment variable `VERBS_RUNS` says how often each program runs.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::hash::{Hash, Hasher};
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testkit::engine::*;
use testkit::wait;
use verbs::PathPolicy;
use virtio_rdma_abi::ib::{WcStatus, WrOpcode};

/// Number of connections of a program.
const QPS: usize = 8;
/// Number of work requests that a QP has outstanding.
const WINDOW: u64 = 16;

/// The work of a program.
struct Program {
    /// The rules of both VMs.
    rules: &'static str,
    /// Number of work requests of each QP.
    messages: u64,
    /// The operations of each QP, one after the other.
    operations: &'static [WrOpcode],
    /// Whether work requests fail.
    fails: bool,
}

/// One side of a connection.
struct Side<'a, 'vm> {
    cq: &'a Cq<'vm>,
    seen: DefaultHasher,
    /// Number of completions, and of those in error.
    ended: u64,
    failed: u64,
}

impl<'a, 'vm> Side<'a, 'vm> {
    fn new(cq: &'a Cq<'vm>) -> Self {
        Self {
            cq,
            seen: DefaultHasher::new(),
            ended: 0,
            failed: 0,
        }
    }

    /// Polls one completion. Returns whether it is one of success.
    fn poll(&mut self) -> Option<bool> {
        let cqe = self.cq.poll()?;
        (cqe.wr_id, cqe.status).hash(&mut self.seen);
        let succeeded = cqe.status == WcStatus::Success.value();
        self.ended += 1;
        self.failed += u64::from(!succeeded);
        Some(succeeded)
    }
}

/// A connection whose active side has work to do.
struct Flow<'a, 'vm> {
    pair: &'a Pair<'vm>,
    active: Side<'a, 'vm>,
    passive: Side<'a, 'vm>,
    posted: u64,
    received: u64,
    /// Whether the sides post no more.
    stops: [bool; 2],
}

impl Flow<'_, '_> {
    fn post(&mut self, program: &Program) {
        let at = self.posted as usize % program.operations.len();
        self.posted += 1;
        let opcode = program.operations[at];
        let len = match opcode {
            WrOpcode::AtomicFetchAndAdd => 8,
            _ => 3000,
        };
        self.pair.qa.post(&self.pair.wr(self.posted, opcode, len));
    }

    fn post_recv(&mut self) {
        self.received += 1;
        let sges = [sge(&self.pair.mb, 0, 4096)];
        self.pair.qb.post_recv(self.received, &sges);
    }

    /// Polls and posts what can be polled and posted now. Returns whether all has ended.
    fn step(&mut self, program: &Program) -> bool {
        let sends = program.operations.contains(&WrOpcode::Send);
        while let Some(succeeded) = self.active.poll() {
            self.stops[0] |= !succeeded;
            if !self.stops[0] && self.posted < program.messages {
                self.post(program);
            }
        }
        while let Some(succeeded) = self.passive.poll() {
            self.stops[1] |= !succeeded;
            if !self.stops[1] && sends {
                self.post_recv();
            }
        }
        // The receives of a QP that lives stay posted.
        let passive_ends = !self.stops[1] || self.passive.ended == self.received;
        self.active.ended == self.posted && passive_ends
    }
}

/// Runs a program. Returns the hash of what each QP has seen, by creation.
fn run(path: PathPolicy, program: &Program) -> u64 {
    let world = World::new(2, path);
    let options = Options {
        retry_cnt: 7,
        rnr_retry: 7,
        ..Options::default()
    };
    for vm in &world.vms {
        vm.hca.rules().add(&program.rules.parse().unwrap()).unwrap();
    }
    let pairs: Vec<_> = (0..QPS)
        .map(|_| Pair::with(&world, options, options))
        .collect();
    let mut flows: Vec<_> = pairs
        .iter()
        .map(|pair| Flow {
            pair,
            active: Side::new(&pair.cq_a),
            passive: Side::new(&pair.cq_b),
            posted: 0,
            received: 0,
            stops: [false; 2],
        })
        .collect();
    for flow in &mut flows {
        if program.operations.contains(&WrOpcode::Send) {
            // Messages that are executed and not yet polled need receives too.
            (0..2 * WINDOW).for_each(|_| flow.post_recv());
        }
        (0..WINDOW).for_each(|_| flow.post(program));
    }
    let mut left: Vec<_> = flows.iter_mut().collect();
    wait("the program to end", || {
        left.retain_mut(|flow| !flow.step(program));
        left.is_empty().then_some(())
    });
    let failed: u64 = flows.iter().map(|flow| flow.active.failed).sum();
    assert_eq!(failed > 0, program.fails);
    let applied: u64 = world
        .vms
        .iter()
        .flat_map(|vm| vm.hca.rules().list())
        .map(|rule| rule.applied)
        .sum();
    assert!(applied > 0);
    let mut all = DefaultHasher::new();
    for flow in &flows {
        flow.active.seen.finish().hash(&mut all);
        flow.passive.seen.finish().hash(&mut all);
    }
    all.finish()
}

/// Ends the threads that take processor time, also after a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a program several times on each path, beside threads that take processor time. All runs
/// must see the same.
fn is_the_same_again(name: &str, program: &Program) {
    let runs: u32 = env::var("VERBS_RUNS").map_or(2, |runs| runs.parse().unwrap());
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        let _ends = Ends(&ends);
        for path in [PathPolicy::Direct, PathPolicy::Wire] {
            let first = run(path, program);
            let others = (1..runs).map(|_| run(path, program));
            let differing = others.filter(|hash| *hash != first).count();
            println!("{name} {path:?}: {runs} runs, hash {first:016x}");
            assert_eq!(differing, 0, "{name} {path:?}: of {runs} runs");
        }
    });
}

#[test]
fn losses_change_nothing() {
    let runs = env::var("VERBS_RUNS").is_ok();
    is_the_same_again(
        "losses",
        &Program {
            rules: "packet every 100 from 100 then drop",
            messages: if runs { 10_000 } else { 500 },
            operations: &[WrOpcode::Send],
            fails: false,
        },
    );
}

#[test]
fn failures_come_at_the_same_work_request() {
    is_the_same_again(
        "failures",
        &Program {
            rules: "a: send any qp 1 nth 170 then fail RETRY_EXC_ERR\n\
                    b: receive qp 2 nth 130 then fail LOC_PROT_ERR\n\
                    c: access REMOTE_WRITE qp 3 nth 40 then fail REM_ACCESS_ERR\n\
                    d: send any qp 4 from 150 then raise QP_FATAL\n\
                    e: receive qp 5 every 7 then withhold\n",
            messages: 400,
            operations: &[WrOpcode::Send, WrOpcode::RdmaWrite],
            fails: true,
        },
    );
}

#[test]
fn bad_packets_and_late_completions_change_nothing() {
    is_the_same_again(
        "packets",
        &Program {
            rules: "a: packet every 40 from 9 then corrupt\n\
                    b: packet every 30 from 5 then repeat\n\
                    c: packet every 50 from 2 then delay 2\n\
                    d: completion every 90 then hold 1ms\n",
            messages: 400,
            operations: &[
                WrOpcode::RdmaRead,
                WrOpcode::AtomicFetchAndAdd,
                WrOpcode::RdmaWrite,
            ],
            fails: false,
        },
    );
}
