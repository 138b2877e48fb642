// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The recorder: what it keeps, for how long, and in which words.

#![cfg(not(loom))]

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use recorder::{
    Event, Kind, QpQueue, Reason, Recorded, Recorder, Refusal, Ring, Traced, What, Words,
};
use virtio_rdma_abi::ctrl::Command;

const MS: Duration = Duration::from_millis(1);

fn recorder(slots: usize) -> (Recorder, Instant) {
    let start = Instant::now();
    (Recorder::new("a", Ring::own(slots), start), start)
}

fn modified(qpn: u32, b: u64) -> Event {
    Event {
        kind: Kind::Modified,
        qpn,
        a: 3,
        b,
        c: 0,
    }
}

#[test]
fn the_last_events_are_kept_in_order() {
    let (recorder, start) = recorder(4);
    for number in 0..10 {
        recorder.note(start + number as u32 * MS, modified(7, number));
    }
    let (events, next) = recorder.read(0);
    let found: Vec<_> = events
        .iter()
        .map(|each| (each.number, each.event.b))
        .collect();
    assert_eq!(found, [(6, 6), (7, 7), (8, 8), (9, 9)]);
    assert_eq!(events[0].at, 6 * MS);
    assert_eq!(events[0].event, modified(7, 6));
    assert_eq!(next, 10);
    assert_eq!(recorder.read(9).0.len(), 1, "from a number on");
    assert_eq!(recorder.read(10).0, []);
}

#[test]
fn another_process_reads_what_is_there() {
    struct Shared(Arc<[recorder::AtomicU64]>);
    impl Words for Shared {
        fn word(&self, at: usize) -> &recorder::AtomicU64 {
            &self.0[at]
        }
    }
    let words = (0..Ring::words(4)).map(|_| recorder::AtomicU64::new(0));
    let words: Arc<[_]> = words.collect();
    let start = Instant::now();
    let ring = || Ring::new(Box::new(Shared(words.clone())), 4);
    let new = || Recorder::new("a", ring(), start);
    new().note(start, modified(7, 1));
    let second = new();
    second.note(start + MS, modified(7, 2));
    let numbers: Vec<_> = second.read(0).0.iter().map(|each| each.event.b).collect();
    assert_eq!(numbers, [1, 2]);
}

#[test]
fn what_can_occur_without_end_pushes_nothing_out() {
    let (recorder, start) = recorder(8);
    recorder.note(start, modified(7, 1));
    for round in 0..1000 {
        let now = start + round * MS / 20;
        let dropped = |kind| Event {
            kind,
            qpn: round,
            a: round,
            b: 0,
            c: 0,
        };
        recorder.note(now, dropped(Kind::NoQp));
        recorder.note(now, dropped(Kind::NotPeer));
    }
    let (events, _) = recorder.read(0);
    let kinds: Vec<_> = events.iter().map(|each| each.event.kind).collect();
    assert_eq!(kinds, [Kind::Modified, Kind::NoQp, Kind::NotPeer]);
    recorder.note(start + 150 * MS, Event::port(Kind::NoQp, 0, 0));
    assert_eq!(recorder.read(0).0.len(), 4, "later ones are kept again");
}

#[test]
fn what_occurs_for_each_packet_is_not_kept() {
    let (recorder, start) = recorder(8);
    for &kind in Kind::ALL {
        recorder.note(start, Event::port(kind, 0, 0));
    }
    let (events, _) = recorder.read(0);
    assert!(events.iter().all(|each| each.event.kind.is_kept()));
    assert_eq!(events.last().unwrap().event.kind, Kind::Ordered);
}

#[test]
fn one_qp_or_all_are_traced() {
    let (recorder, _) = recorder(8);
    let traced = || [0, 5, 6].map(|qpn| recorder.is_traced(qpn));
    assert_eq!(traced(), [false; 3]);
    recorder.set_traced(Traced::Qp(5));
    assert_eq!(traced(), [false, true, false]);
    recorder.set_traced(Traced::All);
    assert_eq!(traced(), [true; 3]);
    recorder.set_traced(Traced::Nothing);
    assert_eq!(traced(), [false; 3]);
}

#[test]
fn events_are_told_in_the_words_of_the_specifications() {
    let told = |kind, qpn, a, b| {
        let c = 30;
        Event { kind, qpn, a, b, c }.to_string()
    };
    assert_eq!(
        told(Kind::Modified, 5, 3, 2),
        "QP 5: modified, to RTS, from RTR"
    );
    assert_eq!(
        told(Kind::SendError, 5, 10, 0x1234),
        "QP 5: send work request failed, status REM_ACCESS_ERR, wr id 0x1234, reason PEER_ACCESS"
    );
    assert_eq!(
        told(Kind::NakReceived, 5, 77, 0),
        "QP 5: NAK received, psn 77, code PSN sequence error"
    );
    assert_eq!(told(Kind::Reset, 0, 1, 1), "reset", "it has no numbers");
    assert_eq!(
        told(Kind::Modified, 5, 99, 2),
        "QP 5: modified, to 99, from RTR"
    );
}

fn too_large(value: u64) -> Refusal {
    Refusal {
        reason: Reason::TooLarge,
        what: What::MaxSendWr,
        value,
        limit: 32_768,
        queue: None,
    }
}

#[test]
fn a_refusal_is_told_with_its_value() {
    let (recorder, start) = recorder(8);
    let create = Command::CreateQp.value();
    let event = Event::command(0, create, Some(too_large(40_000)));
    recorder.note(start, event);
    recorder.note(start, Event::command(5, create, None));
    let told = recorder.read(0).0;
    assert_eq!(told[0].event, event, "nothing of it is lost");
    assert_eq!(told[0].event.refusal(), Some(too_large(40_000)));
    let words: Vec<_> = told.iter().map(|each| each.event.to_string()).collect();
    assert_eq!(
        words,
        [
            "command CREATE_QP refused (EINVAL): max_send_wr is 40000, at most 32768 is possible",
            "QP 5: command CREATE_QP",
        ]
    );
    let values = event.values().into_iter();
    let values: Vec<_> = values
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(
        values,
        [
            "command=CREATE_QP",
            "errno=EINVAL",
            "reason=TOO_LARGE",
            "what=max_send_wr",
            "value=40000",
            "limit=32768",
        ]
    );
}

#[test]
fn numbers_of_refusals_are_told_in_their_units() {
    let told = |reason, what, value, limit| {
        let refusal = Refusal {
            reason,
            what,
            value,
            limit,
            queue: None,
        };
        refusal.to_string()
    };
    assert_eq!(
        told(Reason::MissingAttribute, What::PathMtu, 1, 2),
        "path_mtu is missing in attr_mask, INIT to RTR needs it"
    );
    assert_eq!(
        told(Reason::TooLarge, What::PathMtu, 5, 3),
        "path_mtu is MTU4096, at most MTU1024 is possible"
    );
    assert_eq!(
        told(Reason::NotNegotiated, What::Command, 19, 4),
        "command ALLOC_MW needs the feature mem-windows"
    );
    assert_eq!(
        told(Reason::NotUnicast, What::Dmac, 0x0100_5e00_0001, 0),
        "dmac is 01:00:5e:00:00:01, which is not the address of one host"
    );
    let gid = Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
    assert_eq!(
        Refusal::gid(Reason::OtherPort, What::Gid, gid).to_string(),
        "gid 10.9.0.1 belongs to another port"
    );
}

#[test]
fn a_refusal_names_its_queue() {
    let (recorder, start) = recorder(8);
    for (queue, name) in [(QpQueue::Sq, "SQ"), (QpQueue::Rq, "RQ")] {
        for &reason in Reason::ALL {
            let refusal = Refusal::new(reason, What::Slots, 5u8);
            let text = refusal.to_string();
            let refusal = refusal.of(queue);
            assert_eq!(refusal.to_string(), format!("{name}: {text}"));
            let event = Event::command(0, Command::CreateQp.value(), Some(refusal));
            recorder.note(start, event);
            let last = recorder.last_refusal().unwrap().event;
            assert_eq!(last.refusal(), Some(refusal), "nothing of it is lost");
            let mut values = last.values().into_iter();
            let told = values.find(|(value, _)| *value == "queue").unwrap().1;
            assert_eq!(told.to_string(), name);
        }
    }
}

#[test]
fn no_sentence_has_a_blank() {
    for &reason in Reason::ALL {
        for &what in What::ALL {
            let text = Refusal::new(reason, what, 1u8).to_string();
            assert!(!text.contains(['{', '}']), "{text}");
        }
    }
}

#[test]
fn the_last_refusal_is_not_pushed_out() {
    let (recorder, start) = recorder(4);
    assert_eq!(recorder.last_refusal(), None);
    for value in [40_000, 50_000] {
        let event = Event::command(0, 11, Some(too_large(value)));
        recorder.note(start + MS, event);
    }
    for number in 0..10 {
        recorder.note(start + 2 * MS, modified(7, number));
    }
    let Recorded { number, at, event } = recorder.last_refusal().unwrap();
    assert_eq!((number, at), (1, MS), "it is the second one");
    assert_eq!(event.refusal(), Some(too_large(50_000)));
}

/// A driver that reads counters each second must not push out what explains a failure.
#[test]
fn queries_that_succeed_are_not_kept() {
    let (recorder, start) = recorder(8);
    let query = Command::QueryCounters.value();
    recorder.note(start, Event::command(0, query, None));
    recorder.note(start, Event::command(0, Command::CreatePd.value(), None));
    recorder.note(start, Event::command(0, query, Some(too_large(1))));
    let (events, _) = recorder.read(0);
    let refused: Vec<_> = events.iter().map(|each| each.event.refusal()).collect();
    assert_eq!(refused, [None, Some(too_large(1))]);
}

#[test]
fn many_threads_write_and_none_of_their_events_is_mixed() {
    let (recorder, start) = recorder(3);
    thread::scope(|scope| {
        for thread in 1..=3 {
            let recorder = &recorder;
            scope.spawn(move || {
                for round in 0..20_000 {
                    recorder.note(
                        start,
                        Event {
                            a: round,
                            b: (u64::from(round) << 32) | thread,
                            c: u64::from(round) + thread,
                            ..modified(thread as u32, 0)
                        },
                    );
                }
            });
        }
        for _ in 0..20_000 {
            for each in recorder.read(0).0 {
                let Event { qpn, a, b, c, .. } = each.event;
                assert_eq!(b, (u64::from(a) << 32) | u64::from(qpn));
                assert_eq!(c, u64::from(a) + u64::from(qpn));
            }
        }
    });
}

#[test]
fn each_try_of_a_peer_that_is_not_ready_is_kept_unless_they_never_end() {
    let (recorder, start) = recorder(32);
    for kind in [Kind::RnrNakReceived, Kind::PeerNotReady] {
        for left in [3, 2, 1, 0, 7, 7, 7] {
            let event = Event {
                kind,
                ..modified(7, left)
            };
            recorder.note(start, event);
        }
    }
    assert_eq!(recorder.read(0).0.len(), 2 * (4 + 1));
}
