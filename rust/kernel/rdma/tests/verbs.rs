// SPDX-License-Identifier: GPL-2.0

//! Verbs of a device whose driver only counts, called as the core calls them.

use super::{
    host::Host,
    null::{
        config,
        implement_null, //
    }, //
};
use crate::{
    bindings,
    rdma::{
        counter::{
            self,
            QpCounters, //
        },
        cq::{
            self,
            CompletionQueues,
            CqAttr,
            CqConsumer,
            NewCq, //
        },
        event::PortEvent,
        object::{
            CoreObject,
            Object, //
        },
        pd::{
            self,
            Pd, //
        },
        qp::{
            self,
            NewQp,
            Qp,
            QpConsumer,
            QpInitAttr,
            QueuePairs, //
        },
        stats::{
            Counter,
            PortCounters, //
        },
        Device,
        Registration, //
    },
};
use core::{
    mem::MaybeUninit,
    num::NonZeroU32,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    prelude::*,
    sync::atomic::{
        Atomic,
        AtomicFlag,
        Relaxed, //
    },
    types::Opaque, //
};

/// The driver's data of a device.
struct Counting {
    /// Number of counters that exist.
    counters: Atomic<u32>,
    /// Whether the device refuses to bind QPs to counters.
    refuses: AtomicFlag,
}

implement_null!(Counting);

impl CompletionQueues for Counting {
    type Cq = ();

    fn create_cq(_: &Device<Self>, attr: &CqAttr, _: CqConsumer) -> Result<NewCq<()>> {
        Ok(NewCq {
            entries: attr.entries,
            driver: (),
        })
    }
}

impl QueuePairs for Counting {
    type Qp = ();

    fn create_qp(_: &Pd<Self>, init: &QpInitAttr<'_, Self>, _: QpConsumer) -> Result<NewQp<()>> {
        Ok(NewQp {
            number: 2,
            cap: init.cap(),
            driver: (),
        })
    }
}

static COUNTERS: [Counter; 1] = [Counter::new(c"one")];

impl PortCounters for Counting {
    const COUNTERS: &'static [Counter] = &COUNTERS;

    fn read_counters(_: &Device<Self>, _: u32, _: &mut [u64]) -> Result {
        Ok(())
    }
}

impl QpCounters for Counting {
    fn create_counter(device: &Device<Self>, _: u32) -> Result<NonZeroU32> {
        device.counters.fetch_add(1, Relaxed);
        NonZeroU32::new(5).ok_or(EINVAL)
    }

    fn destroy_counter(device: &Device<Self>, _: NonZeroU32) {
        device.counters.fetch_sub(1, Relaxed);
    }

    fn bind_qp(qp: &Qp<Self>, _: NonZeroU32) -> Result {
        match qp.device().refuses.load(Relaxed) {
            true => Err(EBUSY),
            false => Ok(()),
        }
    }

    fn unbind_qp(_: &Qp<Self>) {}

    fn read_counter(_: &Device<Self>, _: NonZeroU32) -> Result<impl Iterator<Item = u64>> {
        Ok([0u64].into_iter())
    }
}

/// Zeroed memory for an object, as the core allocates it.
struct Memory<C: CoreObject<Counting>>(KBox<MaybeUninit<Object<C, Counting>>>);

impl<C: CoreObject<Counting>> Memory<C> {
    fn new() -> Result<Self> {
        Ok(Self(KBox::new_uninit(GFP_KERNEL | __GFP_ZERO)?))
    }

    fn as_raw(&mut self) -> *mut C {
        self.0.as_mut_ptr().cast()
    }
}

/// A QP with all that it needs.
struct Objects {
    pd: Memory<bindings::ib_pd>,
    cq: Memory<bindings::ib_cq>,
    qp: Memory<bindings::ib_qp>,
}

impl Objects {
    fn new(device: &Device<Counting>) -> Result<Self> {
        let mut pd = Memory::<bindings::ib_pd>::new()?;
        let mut cq = Memory::<bindings::ib_cq>::new()?;
        let mut qp = Memory::<bindings::ib_qp>::new()?;
        let cq_attr = bindings::ib_cq_init_attr {
            cqe: 1,
            ..Default::default()
        };
        let (pd_raw, cq_raw, qp_raw) = (pd.as_raw(), cq.as_raw(), qp.as_raw());
        let mut qp_attr = bindings::ib_qp_init_attr {
            send_cq: cq_raw,
            recv_cq: cq_raw,
            qp_type: bindings::ib_qp_type_IB_QPT_RC,
            ..Default::default()
        };
        // SAFETY: The memory is zeroed, the device registered, and all objects belong to it. The
        // verbs are called in the core's order.
        unsafe {
            (*pd_raw).device = device.as_raw();
            (*cq_raw).device = device.as_raw();
            (*qp_raw).device = device.as_raw();
            (*qp_raw).pd = pd_raw;
            done(pd::alloc::<Counting>(pd_raw, null_mut()))?;
            done(cq::create::<Counting>(cq_raw, &cq_attr, null_mut()))?;
            done(qp::create::<Counting>(qp_raw, &mut qp_attr, null_mut()))?;
        }
        Ok(Self { pd, cq, qp })
    }

    fn destroy(mut self) -> Result {
        // SAFETY: All objects were created, and nothing uses them any more.
        unsafe {
            done(qp::destroy::<Counting>(self.qp.as_raw(), null_mut()))?;
            done(cq::destroy::<Counting>(self.cq.as_raw(), null_mut()))?;
            done(pd::dealloc::<Counting>(self.pd.as_raw(), null_mut()))
        }
    }
}

fn done(result: c_int) -> Result {
    kernel::error::to_result(result)
}

fn register(host: &Host) -> Result<Registration<Counting>> {
    let data = Counting {
        counters: Atomic::new(0),
        refuses: AtomicFlag::new(true),
    };
    Registration::new(&config(host.device()), Ok(data))
}

suite! { rust_rdma_verbs {
    /// The core frees such a counter without a callback.
    fn a_counter_whose_first_qp_is_refused_is_destroyed() {
        let host = Host::new(c"rdma_test")?;
        let registration = register(&host)?;
        let registered = registration.device().try_get().ok_or(ENODEV)?;
        let device: &Device<Counting> = &registered;
        let mut objects = Objects::new(device)?;
        let qp = objects.qp.as_raw();
        let counter = KBox::new(Opaque::<bindings::rdma_counter>::zeroed(), GFP_KERNEL)?;
        let counter = counter.get();
        // SAFETY: Nothing else uses the counter and the QP, which belong to the device.
        unsafe {
            (*counter).device = device.as_raw();
            check!(done(counter::bind::<Counting>(counter, qp, 1)) == Err(EBUSY));
            check!((*counter).id == 0 && (*qp).counter.is_null());
            check!(device.counters.load(Relaxed) == 0);

            device.refuses.store(false, Relaxed);
            done(counter::bind::<Counting>(counter, qp, 1))?;
            check!((*counter).id == 5 && (*qp).counter == counter);
            check!(device.counters.load(Relaxed) == 1);
            done(counter::unbind::<Counting>(qp, 1))?;
            done(counter::dealloc::<Counting>(counter))?;
        }
        check!(device.counters.load(Relaxed) == 0);
        objects.destroy()?;
    }

    /// A process could not use queues that are in the kernel. The core calls these functions for
    /// processes if the device has SRQs of processes, but no CQs and QPs of processes.
    fn queues_in_the_kernel_are_not_for_processes() {
        let data = NonNull::<bindings::ib_udata>::dangling().as_ptr();
        let attrs = NonNull::<bindings::uverbs_attr_bundle>::dangling().as_ptr();
        let mut cq = Memory::<bindings::ib_cq>::new()?;
        let mut qp = Memory::<bindings::ib_qp>::new()?;
        let cq_attr = bindings::ib_cq_init_attr::default();
        let mut qp_attr = bindings::ib_qp_init_attr::default();
        // SAFETY: The functions use nothing of what they refuse.
        unsafe {
            let created = cq::create::<Counting>(cq.as_raw(), &cq_attr, attrs);
            check!(done(created) == Err(EOPNOTSUPP));
            let created = qp::create::<Counting>(qp.as_raw(), &mut qp_attr, data);
            check!(done(created) == Err(EOPNOTSUPP));
        }
    }

    /// Clients use the number of the port as an index without a check.
    fn events_are_of_ports_that_exist() {
        let host = Host::new(c"rdma_test")?;
        let registration = register(&host)?;
        let device = registration.device().try_get().ok_or(ENODEV)?;
        device.dispatch_port_event(1, PortEvent::Active)?;
        for port in [0, 2, u32::MAX] {
            check!(device.dispatch_port_event(port, PortEvent::Active) == Err(EINVAL));
        }
    }
} }
