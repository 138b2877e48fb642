// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! If a socket thread fails, it stops its device, unmaps guest memory, and logs the reason.

mod common;

use std::fmt::Debug;
use std::sync::Mutex;

use common::*;
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use testkit::vfio::Driver;
use testkit::wait;
use tracing::field::{Field, Visit};
use tracing::{span, Event, Level, Metadata, Subscriber};

/// When this message is logged next, the logging thread panics.
static PLANTED: Mutex<Option<&str>> = Mutex::new(None);
/// Errors that were logged.
static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Log;

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut message = Message::default();
        event.record(&mut message);
        if *event.metadata().level() == Level::ERROR {
            ERRORS.lock().unwrap().push(message.0.clone());
        }
        let is_planted = |planted: &mut &str| message.0 == *planted;
        let planted = PLANTED.lock().unwrap().take_if(is_planted);
        if planted.is_some() {
            panic!("planted");
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Checks that `end` makes the socket thread fail for the reason `why`.
fn ends(why: &str, end: impl FnOnce(Driver)) {
    let bench = Bench::new();
    let mut driver = bench.driver();
    driver.start(FEATURES);
    assert_eq!(driver.echo(0, 16, b"ab", 2), b"ba");
    end(driver);
    wait("the end of the socket", || {
        (!bench.path.exists()).then_some(())
    });
    assert_eq!(bench.space.mapped().0, 0, "memory of the VM");
    let failure = wait("the end of the device", || {
        bench.device.take_failures().pop()
    });
    assert!(failure.contains(why), "{failure}");
    let told = std::mem::take(&mut *ERRORS.lock().unwrap());
    assert!(told.iter().any(|error| error.contains(why)), "{told:?}");
}

#[test]
fn a_socket_thread_that_ends_stops_its_device() {
    tracing::subscriber::set_global_default(Log).unwrap();
    ends("panicked: planted", |driver| {
        *PLANTED.lock().unwrap() = Some("client disconnected");
        drop(driver);
    });
    // poll(2) fails if the number of descriptors exceeds the limit of open files.
    let limit = getrlimit(Resource::Nofile);
    ends("Invalid argument", |driver| {
        let current = Some(4);
        setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
        drop(driver);
    });
    setrlimit(Resource::Nofile, limit).unwrap();
}
