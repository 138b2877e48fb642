// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A model guest: a VM, and what its driver knows beyond single objects.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use verbs::{Fabric, Limits};
use virtio_rdma_abi::event::{EventKind, FIRST_EVENT_QUEUE};
use virtio_rdma_abi::ib::AccessFlags;

use crate::choices::Choices;
use crate::harness::{mac, Mr, Vm, FULL};
use crate::net::Net;

/// The event queue of the CQs.
const COMPLETION_EVENTS: u16 = 2;

/// A VM with its driver.
pub struct Guest {
    pub vm: Vm,
    /// There was no buffer for events, so one may be late.
    is_starved: Cell<bool>,
}

/// Small tables: most of the time of a run would go into making them.
fn limits() -> Limits {
    Limits {
        max_qp: 256,
        max_cq: 256,
        max_srq: 64,
        max_mr: 256,
        max_mw: 64,
        max_pd: 64,
        ..Limits::default()
    }
}

impl Guest {
    /// The guest of this number, with as many buffers for events as the choices say.
    pub fn new(
        n: usize,
        fabric: &Fabric,
        net: &std::sync::Arc<Net>,
        choices: &mut Choices,
    ) -> Self {
        let port = net.port(mac(n));
        let vm = Vm::new(n, fabric, port.clone(), &limits());
        port.attach(&vm.device);
        let buffers = choices.of(&[1_000_000, 2, 1]);
        vm.sink.buffers.store(buffers, Ordering::SeqCst);
        Self {
            vm,
            is_starved: Cell::new(false),
        }
    }

    /// The PD of all that needs no other.
    pub fn pd(&self) -> u32 {
        self.vm.pdn
    }

    /// A fresh MR of `len` bytes with all rights.
    pub fn mr(&self, len: u64) -> Mr {
        self.register(self.pd(), len, FULL)
    }

    /// A fresh MR.
    pub fn register(&self, pd: u32, len: u64, access: AccessFlags) -> Mr {
        self.vm.register(pd, self.vm.alloc(len), len, access)
    }

    /// Takes out the events that bear `cookie`, and gives their buffers back.
    pub fn take_events(&self, cookie: u64) -> Vec<EventKind> {
        self.look_for_buffers();
        let mut taken = Vec::new();
        self.vm.sink.events.lock().unwrap().retain(|event| {
            let is_it = event.2 == cookie;
            if is_it {
                taken.push(event.1);
            }
            !is_it
        });
        if !taken.is_empty() {
            let buffers = &self.vm.sink.buffers;
            buffers.fetch_add(taken.len(), Ordering::SeqCst);
            for queue in [FIRST_EVENT_QUEUE, COMPLETION_EVENTS] {
                self.vm.device.notified(queue);
            }
        }
        taken
    }

    /// Notes if there is no buffer for events. To be called before one is given back.
    fn look_for_buffers(&self) {
        if self.vm.sink.buffers.load(Ordering::SeqCst) == 0 {
            self.is_starved.set(true);
        }
    }

    /// Whether events may be late.
    pub fn is_starved(&self) -> bool {
        self.look_for_buffers();
        self.is_starved.get()
    }

    /// All events have come.
    pub fn settled(&self) {
        self.is_starved.set(false);
    }

    /// Whether an event with this cookie has come that nobody took.
    pub fn has_event(&self, cookie: u64) -> bool {
        let events = self.vm.sink.events.lock().unwrap();
        events.iter().any(|event| event.2 == cookie)
    }
}
