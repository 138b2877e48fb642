// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A consumer arms a CQ and waits for events while completions arrive. No wake-up is lost.
//!
//! The environment variable `VERBS_ARM_ROUNDS` says how often the CQ is armed. The 16-bit index of
//! a virtqueue wraps halfway through the default number of rounds, and then after each 65,536
//! messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testkit::engine::*;
use verbs::PathPolicy;
use virtio_rdma_abi::event::EventKind;
use virtio_rdma_abi::ib::{SendFlags, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::ArmKind;

const ROUNDS: u64 = 4_000;
/// Number of messages before the CQ is armed for the first time, so that the index wraps soon.
const AHEAD: u64 = (1 << 16) - ROUNDS / 2;
/// Number of messages in flight at a time before the CQ is armed for the first time.
const BATCH: u64 = 200;
/// Time after which an event counts as lost, long enough for a busy host.
const PATIENCE: Duration = Duration::from_secs(60);

/// A pseudo-random number generator.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Posts a receive and a SEND, after polling the completions of earlier SENDs.
fn send(qp: &Qp<'_>, sent: &Cq<'_>, id: u64, flags: SendFlags) {
    while let Some(cqe) = sent.poll() {
        assert_eq!(cqe.status, WcStatus::Success.value());
    }
    qp.post_recv(id, &[]);
    qp.post(&Wr::new(id, WrOpcode::Send).flags(SendFlags::SIGNALED | flags));
}

/// Transfers the first messages without arming the CQ.
fn go_ahead(qp: &Qp<'_>, sent: &Cq<'_>, cq: &Cq<'_>) {
    for first in (0..AHEAD).step_by(BATCH as usize) {
        let batch = first..AHEAD.min(first + BATCH);
        for id in batch.clone() {
            send(qp, sent, id, SendFlags::NONE);
        }
        for id in batch {
            cq.expect(id, WcStatus::Success);
        }
    }
    assert!(cq.vm.sink.is_empty());
}

/// Progress of producer and consumer, in messages.
struct Progress {
    consumed: AtomicU64,
    /// Id at which the producer stops. The consumer sets it to 0 when it has armed often enough.
    end: AtomicU64,
}

/// Sends messages until the consumer sets the end. Only few messages are unread at a time, so that
/// the consumer sleeps often. The last message before a pause is solicited.
fn produce(qp: &Qp<'_>, sent: &Cq<'_>, progress: &Progress) {
    let mut chance = Chance(7);
    let mut next = AHEAD;
    let mut unread = 1;
    while next < progress.end.load(Ordering::SeqCst) {
        if next - progress.consumed.load(Ordering::SeqCst) >= unread {
            unread = 1 + chance.below(4);
            thread::yield_now();
            continue;
        }
        let last = next + 1 - progress.consumed.load(Ordering::SeqCst) >= unread;
        let flags = match last || chance.below(3) == 0 {
            true => SendFlags::SOLICITED,
            false => SendFlags::NONE,
        };
        send(qp, sent, next, flags);
        next += 1;
    }
}

/// Arms the CQ and polls it in each round, and waits for an event if the CQ is empty. Returns the
/// number of waits.
fn consume(cq: &Cq<'_>, progress: &Progress, rounds: u64) -> u64 {
    let mut chance = Chance(11);
    let (mut consumed, mut slept) = (AHEAD, 0);
    for _ in 0..rounds {
        let kind = match chance.below(3) {
            0 => ArmKind::Solicited,
            _ => ArmKind::Next,
        };
        cq.arm(kind);
        let mut empty = true;
        while let Some(cqe) = cq.poll() {
            assert_eq!(
                (cqe.wr_id, cqe.status),
                (consumed, WcStatus::Success.value())
            );
            consumed += 1;
            progress.consumed.store(consumed, Ordering::SeqCst);
            empty = false;
        }
        let events = &cq.vm.sink.events;
        let start = Instant::now();
        loop {
            let received = std::mem::take(&mut *events.lock().unwrap());
            // In virtqueue mode, the interrupt of the previous round may arrive in this one.
            assert!(
                received.len() <= 1 || cq.vm.is_virtqueue_mode(),
                "one event a sequence"
            );
            if let Some((_, kind, cookie)) = received.first() {
                assert_eq!((*kind, *cookie), (EventKind::Completion, cq.cookie));
                cq.event_received();
                break;
            }
            if !empty {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "a wake-up was lost");
            thread::yield_now();
        }
        slept += u64::from(empty);
    }
    progress.end.store(0, Ordering::SeqCst);
    slept
}

// abi
#[test]
fn no_wake_up_is_lost() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let rounds = match std::env::var("VERBS_ARM_ROUNDS") {
            Ok(rounds) => rounds.parse().expect("a number"),
            Err(_) => ROUNDS,
        };
        let world = World::new(1, setup);
        let vm = &world.vms[0];
        let (cq, sent) = (Cq::new(vm, 256), Cq::new(vm, 256));
        let options = Options {
            slots: 256,
            ..Options::default()
        };
        let qp = Qp::new(vm, &sent, &cq, options);
        connect(&qp, &qp);
        go_ahead(&qp, &sent, &cq);
        let progress = Progress {
            consumed: AtomicU64::new(AHEAD),
            end: AtomicU64::new(u64::MAX),
        };
        let slept = thread::scope(|scope| {
            let progress = &progress;
            scope.spawn(move || produce(&qp, &sent, progress));
            scope
                .spawn(move || consume(&cq, progress, rounds))
                .join()
                .unwrap()
        });
        assert!(slept > 0, "it never slept");
        assert!(
            rounds < ROUNDS || progress.consumed.load(Ordering::SeqCst) > 1 << 16,
            "the index did not wrap"
        );
    });
}
