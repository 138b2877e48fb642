// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! One run: a world that the first choices make, steps, and an end at which all that was posted is done.

use std::cell::Cell;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use verbs::{Clock, Fabric, FabricConfig, Limits, PathPolicy};
use virtio_rdma_abi::ib::{Mtu, QpType};
use virtio_rdma_abi::ring::ArmKind;

use crate::choices::Choices;
use crate::connection::{Connection, Grave};
use crate::harness::{mac, Options, Vm};
use crate::net::Net;

/// Frames in a row that may be lost, so that no sender has reason to give up.
const LOSSES: usize = 3;
/// Steps after which workers that find work have no end.
const ENDLESS: usize = 100_000;

/// Why a run failed, if it did.
pub fn guarded(choices: &mut Choices) -> Result<(), String> {
    let done = panic::catch_unwind(AssertUnwindSafe(|| run(choices)));
    done.map_err(|why| {
        let text = why.downcast_ref::<String>().cloned();
        text.or_else(|| why.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
    })
}

struct Sim<'w> {
    fabric: &'w Fabric,
    net: &'w Net,
    vms: &'w [Vm],
    /// Whether each had no buffers for events.
    starved: Vec<Rc<Cell<bool>>>,
    workers: usize,
    connections: Vec<Connection<'w>>,
    graves: Vec<Grave<'w>>,
    lost: usize,
}

/// Runs to the end.
pub fn run(choices: &mut Choices) {
    let workers = 1 + choices.below(3);
    let path = choices.of(&[PathPolicy::Direct, PathPolicy::Wire]);
    let fabric = Fabric::new(FabricConfig {
        workers: Some(workers),
        path,
        at_once: choices.once_in(3),
        clock: Clock::manual(),
        stepped: true,
        secret: Some(7),
        ..FabricConfig::default()
    })
    .unwrap();
    let net = Arc::new(Net::default());
    let count = 2 + choices.below(2);
    let vms: Vec<_> = (1..=count)
        .map(|n| {
            let port = net.port(mac(n));
            let vm = Vm::new(n, &fabric, port.clone(), &Limits::default());
            port.attach(&vm.device);
            let buffers = choices.of(&[1_000_000, 2, 1]);
            vm.sink.buffers.store(buffers, Ordering::SeqCst);
            vm
        })
        .collect();
    let mut sim = Sim {
        fabric: &fabric,
        net: &net,
        vms: &vms,
        starved: vms.iter().map(|_| Rc::default()).collect(),
        workers,
        connections: Vec::new(),
        graves: Vec::new(),
        lost: 0,
    };
    let before = sim.memory();
    for _ in 0..=choices.below(3) {
        let connection = sim.connect(choices);
        sim.connections.push(connection);
    }
    while choices.next_step() {
        sim.step(choices);
    }
    sim.finish();
    sim.end();
    assert_eq!(sim.memory(), before, "what is not given back");
    drop(sim);
    for vm in &vms {
        vm.device.detach();
    }
}

impl<'w> Sim<'w> {
    fn connect(&self, choices: &mut Choices) -> Connection<'w> {
        let a = choices.below(self.vms.len());
        let b = choices.below(self.vms.len());
        let qp_type = choices.of(&[QpType::Rc, QpType::Rc, QpType::Uc]);
        let options = Options {
            mtu: choices.of(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu4096]),
            timeout: 8 + choices.below(6) as u8,
            min_rnr_timer: 1 + choices.below(12) as u8,
            rd_atomic: 1 + choices.below(4) as u8,
            ..Options::of(qp_type)
        };
        let ends = [a, b].map(|at| (&self.vms[at], &self.starved[at]));
        Connection::new(ends, options)
    }

    /// Bytes that the devices have allocated.
    fn memory(&self) -> Vec<u64> {
        let devices = self.vms.iter().map(|vm| &vm.device);
        devices.map(|device| device.status().memory.0).collect()
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.below(17) {
            0..=4 => {
                let worker = choices.below(self.workers);
                self.fabric.step(worker);
            }
            5..=7 => {
                let (at, side) = self.end_of(choices);
                self.connections[at].post(side, choices);
            }
            8..=9 => {
                let (at, side) = self.end_of(choices);
                for _ in 0..=choices.below(4) {
                    self.connections[at].ends[side].post_recv();
                }
            }
            10 => {
                let (at, side) = self.end_of(choices);
                for _ in 0..=choices.below(4) {
                    self.connections[at].poll(side);
                }
            }
            11..=13 => self.frames(choices),
            14 => {
                let (at, side) = self.end_of(choices);
                let kind = choices.of(&[ArmKind::Next, ArmKind::Solicited]);
                while self.connections[at].poll(side) {}
                self.connections[at].ends[side].arm(kind);
            }
            15 => self.time(choices),
            _ => match choices.below(12) {
                10 => {
                    let (at, side) = self.end_of(choices);
                    self.connections[at].end(side);
                }
                11 => {
                    let (at, _) = self.end_of(choices);
                    let path = choices.of(&[PathPolicy::Direct, PathPolicy::Wire]);
                    self.fabric.set_path(path);
                    let next = self.connect(choices);
                    let old = mem::replace(&mut self.connections[at], next);
                    self.graves.extend(old.destroy());
                }
                _ => {}
            },
        }
    }

    fn end_of(&self, choices: &mut Choices) -> (usize, usize) {
        (choices.below(self.connections.len()), choices.below(2))
    }

    fn frames(&mut self, choices: &mut Choices) {
        let flying = self.net.flying();
        if flying == 0 {
            return;
        }
        // Most come in their order.
        let at = if choices.once_in(8) {
            choices.below(flying)
        } else {
            0
        };
        match choices.below(12) {
            10 if self.lost < LOSSES => {
                self.lost += 1;
                self.net.lose(at);
            }
            11 => self.net.double(at),
            _ => {
                self.lost = 0;
                for _ in 0..=choices.below(8) {
                    self.net
                        .deliver(at.min(self.net.flying().saturating_sub(1)));
                }
            }
        }
    }

    fn time(&mut self, choices: &mut Choices) {
        let next = self.fabric.next_deadline();
        let time = match choices.below(3) {
            0 => next.unwrap_or_default(),
            1 => Duration::from_micros(1 + choices.below(20) as u64),
            _ => next.unwrap_or_default() / 2,
        };
        self.fabric.pass(time);
    }

    /// Lets all that was posted be done.
    fn finish(&mut self) {
        for _ in 0..ENDLESS {
            let mut moved = self.work();
            while self.net.flying() > 0 {
                self.net.deliver(0);
                moved = true;
            }
            // One after the other, if there are few buffers.
            while self.take_events() {
                moved |= self.work();
            }
            for connection in &mut self.connections {
                for side in 0..2 {
                    connection.ends[side].settled();
                    while connection.poll(side) {
                        moved = true;
                    }
                    let messages = connection.ends[1 - side].messages();
                    let is_live = !connection.is_ending();
                    while is_live && !connection.ends[side].has_receives_for(messages.min(8)) {
                        connection.ends[side].post_recv();
                        moved = true;
                    }
                }
            }
            if moved {
                continue;
            }
            match self.fabric.next_deadline() {
                Some(time) => self.fabric.pass(time),
                None => {
                    for connection in &mut self.connections {
                        connection.finish();
                    }
                    return;
                }
            }
        }
        panic!("it does not come to its end");
    }

    /// Ends all connections, which have nothing to do.
    fn end(&mut self) {
        for connection in &mut self.connections {
            connection.end(0);
            connection.end(1);
        }
        self.finish();
        for connection in self.connections.drain(..) {
            self.graves.extend(connection.destroy());
        }
        self.work();
        for grave in &self.graves {
            grave.is_quiet();
        }
    }

    /// Takes the events that there are. Returns whether there were any.
    fn take_events(&mut self) -> bool {
        let ends = self.connections.iter_mut().flat_map(|pair| &mut pair.ends);
        ends.fold(false, |any, end| end.take_events() || any)
    }

    /// Has the workers work until all sleep. Returns whether any was awake.
    fn work(&self) -> bool {
        let mut worked = false;
        for _ in 0..ENDLESS {
            let mut awake = false;
            for worker in 0..self.workers {
                awake |= self.fabric.step(worker);
            }
            if !awake {
                return worked;
            }
            worked = true;
        }
        panic!("the workers never sleep");
    }
}
