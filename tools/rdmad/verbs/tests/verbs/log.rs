// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Log messages that a guest can cause.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use testkit::engine::World;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use verbs::PathPolicy;
use virtio_rdma_abi::ctrl::CmdAddGid;

const EADDRINUSE: u8 = 98;

/// Counts log messages.
struct Log(Arc<AtomicUsize>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The first refused address is logged, and then only each time the number of refused addresses has
/// doubled.
#[test]
fn addresses_that_are_refused_do_not_fill_the_log() {
    let world = World::new(2, PathPolicy::Direct);
    let [a, b] = [&world.vms[0], &world.vms[1]];
    let told = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Log(told.clone()), || {
        for count in 1..=100u32 {
            let taken = CmdAddGid {
                gid: a.gid,
                gid_type: 2,
                index: 5,
                port_num: 1,
            };
            assert_eq!(b.call(taken).err(), Some(EADDRINUSE));
            let expected = count.ilog2() as usize + 1;
            assert_eq!(told.load(Ordering::Relaxed), expected, "of {count}");
        }
    });
}
