// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A simulated guest: a VM, and the state of its driver that belongs to no single object.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use testkit::engine::{mac, InFlight, Mr, Port, Vm, FULL};
use verbs::{Clock, Limits, Runtime};
use virtio_rdma_abi::ctrl::{CmdAddGid, CmdCreatePd, CmdDelGid, ControlCommand};
use virtio_rdma_abi::event::{EventKind, FIRST_EVENT_QUEUE};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{AccessFlags, AsyncEvent, PORT};
use virtio_rdma_abi::number::Pdn;
use virtio_rdma_abi::wire::Wire;

use crate::choices::Choices;
use crate::counters::CounterSets;
use crate::traffic::{Route, Sent, Traffic};
use crate::variant::Variant;

/// Event virtqueue of completion events.
const COMPLETION_EVENTS: u16 = 2;

/// GID index of the guest's own address.
const OWN: u16 = 1;
/// GID index for the address of another guest.
const OTHER: u16 = 2;

/// Features in addition to those of the mode.
const FEATURES: [Feature; 3] = [Feature::MemWindows, Feature::RegPages, Feature::RateLimit];
/// Further features of the variant [`Wide`](Variant::Wide).
const WIDE_FEATURES: [Feature; 4] = [
    Feature::CqModeration,
    Feature::Multicast,
    Feature::Counters,
    Feature::CounterSets,
];

/// A VM with its driver.
pub struct Guest {
    pub vm: Vm,
    features: Vec<Feature>,
    pub counter_sets: RefCell<CounterSets>,
    pub port: Arc<Port>,
    pub net: Arc<InFlight>,
    /// The packets that the device has sent.
    sent: Arc<Mutex<Sent>>,
    /// The clock of the runtime.
    pub clock: Clock,
    pd: Cell<Pdn>,
    /// Total number of event buffers.
    pub buffers: usize,
    /// Whether the device was reset, which destroyed its objects.
    reset: Cell<bool>,
    link: Cell<bool>,
    /// Number of link changes.
    changes: Cell<usize>,
    /// Number of events of link changes that have arrived.
    told: Cell<usize>,
    /// State of the link according to the last event of a link change.
    last_told: Cell<bool>,
    /// Whether the event virtqueue had no buffers at some time, so events may be late.
    starved: Cell<bool>,
}

/// Limits with small tables. With large tables, a run would spend most of its time on creating
/// them, and on filling them at the end.
pub fn limits() -> Limits {
    Limits {
        max_qp: 48,
        max_cq: 48,
        max_srq: 8,
        max_mr: 64,
        max_mw: 16,
        max_pd: 16,
        ..Limits::default()
    }
}

impl Guest {
    /// Creates guest number `n`, with a random number of event buffers.
    pub fn new(
        n: usize,
        (runtime, clock): (&Runtime, Clock),
        net: &Arc<InFlight>,
        choices: &mut Choices,
    ) -> Self {
        let port = net.port(mac(n));
        let vm = Vm::new(n, runtime, port.clone(), &limits());
        port.attach(&vm.hca);
        let sent = Arc::new(Mutex::new(Sent::default()));
        let counted = sent.clone();
        port.watch(move |frame| counted.lock().unwrap().count(frame));
        let mut features = FEATURES.to_vec();
        if choices.variant() == Variant::Wide {
            features.extend(WIDE_FEATURES);
        }
        vm.negotiate(&features);
        let buffers = choices.of(&[1_000_000, 2, 1]);
        vm.sink.buffers.store(buffers, Ordering::SeqCst);
        Self {
            pd: Cell::new(vm.pdn),
            vm,
            features,
            counter_sets: RefCell::default(),
            port,
            net: net.clone(),
            sent,
            clock,
            buffers,
            reset: Cell::new(false),
            link: Cell::new(true),
            changes: Cell::new(0),
            told: Cell::new(0),
            last_told: Cell::new(true),
            starved: Cell::new(false),
        }
    }

    /// The PD in which objects are created by default.
    pub fn pd(&self) -> Pdn {
        self.pd.get()
    }

    /// The packets that the device has sent.
    pub fn sent(&self) -> Traffic {
        self.sent.lock().unwrap().total()
    }

    /// The packets that the device has sent to one connected QP.
    pub fn sent_along(&self, route: Route) -> Traffic {
        self.sent.lock().unwrap().along(route)
    }

    /// Whether the device has counter sets.
    pub fn has_counter_sets(&self) -> bool {
        self.features.contains(&Feature::CounterSets)
    }

    /// Allocates and registers `len` bytes with all access flags.
    pub fn mr(&self, len: u64) -> Mr {
        self.register(self.pd(), len, FULL)
    }

    /// Allocates and registers `len` bytes with the access flags `access` in the PD `pd`.
    pub fn register(&self, pd: Pdn, len: u64, access: AccessFlags) -> Mr {
        self.vm.register(pd, self.vm.alloc(len), len, access)
    }

    /// Removes the events with `cookie` and returns their buffers to the device.
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
                self.vm.hca.notified(queue);
            }
        }
        taken
    }

    /// Records whether there are no event buffers. Must be called before a buffer is returned.
    fn look_for_buffers(&self) {
        if self.vm.sink.buffers.load(Ordering::SeqCst) == 0 {
            self.starved.set(true);
        }
    }

    /// Whether events may be late.
    pub fn is_starved(&self) -> bool {
        self.look_for_buffers();
        self.starved.get()
    }

    /// Records that all events have arrived.
    pub fn note_all_events(&self) {
        self.starved.set(false);
    }

    /// Whether an event with `cookie` has arrived and was not taken.
    pub fn has_event(&self, cookie: u64) -> bool {
        let events = self.vm.sink.events.lock().unwrap();
        events.iter().any(|event| event.2 == cookie)
    }

    /// Destroys an object by the command `request`, unless a reset has destroyed it.
    pub fn give_back<R: ControlCommand>(&self, request: R) {
        if !self.reset.get() {
            assert!(self.vm.call(request).is_ok(), "an object can't go");
        }
    }

    /// Resets the device, which destroys its objects.
    pub fn reset(&self) {
        self.vm.hca.reset();
        self.counter_sets.take();
        self.reset.set(true);
    }

    /// Sets up the device after a reset.
    pub fn restart(&self) {
        self.vm.sink.events.lock().unwrap().clear();
        self.vm.sink.buffers.store(self.buffers, Ordering::SeqCst);
        self.reset.set(false);
        self.note_all_events();
        self.told.set(self.changes.get());
        self.last_told.set(self.link.get());
        self.vm.negotiate(&self.features);
        self.pd.set(self.vm.call(CmdCreatePd::ZERO).unwrap().pdn);
        self.take_address();
    }

    /// Sets the link up or down.
    pub fn set_link(&self, up: bool) {
        if self.link.replace(up) != up {
            self.changes.set(self.changes.get() + 1);
            self.vm.hca.set_link(up);
        }
    }

    /// Takes and checks the events of the port. Returns whether there were any.
    pub fn take_port_events(&self) -> bool {
        let events = self.take_events(PORT.into());
        for event in &events {
            self.told.set(self.told.get() + 1);
            self.last_told.set(match event {
                EventKind::Async(AsyncEvent::PortActive) => true,
                EventKind::Async(AsyncEvent::PortErr) => false,
                _ => panic!("{event:?} of the port"),
            });
        }
        assert!(
            self.told.get() <= self.changes.get(),
            "{events:?} for nothing"
        );
        !events.is_empty()
    }

    /// Checks that the last event of the port reported the present state of the link. All events of
    /// the port must have arrived.
    pub fn check_port(&self) {
        let (link, told) = (self.link.get(), self.last_told.get());
        assert_eq!(link, told, "the last event of the port is wrong");
    }

    /// Deletes the guest's own address from the GID table.
    pub fn leave_address(&self) {
        let index = OWN;
        self.vm
            .call(CmdDelGid {
                index,
                port: PORT.into(),
            })
            .unwrap();
    }

    /// Adds the guest's own address to the GID table.
    pub fn take_address(&self) {
        self.add_gid(OWN, self.vm.gid).unwrap();
    }

    /// Tries to add the address of another guest, and deletes it again. Returns whether the device
    /// accepted the address.
    pub fn borrow_address(&self, of: &Self) -> bool {
        let may = self.add_gid(OTHER, of.vm.gid).is_ok();
        if may {
            let index = OTHER;
            self.vm
                .call(CmdDelGid {
                    index,
                    port: PORT.into(),
                })
                .unwrap();
        }
        may
    }

    fn add_gid(&self, index: u16, gid: [u8; 16]) -> Result<(), u8> {
        let request = CmdAddGid {
            gid,
            gid_type: 2,
            index,
            port_num: PORT.into(),
        };
        self.vm.call(request).map(|_| ())
    }
}
