// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters of the port.

use std::sync::atomic::Ordering;

use roce::headers::{Bth, Headers, RcRequest, RcResponse, SendPart};
use roce::work::With;
use roce::Psn;
use testkit::engine::*;
use verbs::{Clock, PathPolicy};
use virtio_rdma_abi::ctrl::{CmdQueryCounters, RspQueryCounters};
use virtio_rdma_abi::feature::Feature;
use virtio_rdma_abi::ib::{QpType, WcStatus, WrOpcode};
use virtio_rdma_abi::ring::{ArmKind, Doorbell};

use super::pacing;

fn world(setup: Setup) -> World {
    let world = World::new(2, setup);
    world.negotiate(&[Feature::Counters]);
    world
}

fn counters(pair: &Pair<'_>) -> [RspQueryCounters; 2] {
    [pair.a.counters(), pair.b.counters()]
}

#[test]
fn packets_and_messages() {
    const LEN: u32 = 5000;
    in_all_setups(|setup| {
        let world = world(setup);
        let pair = Pair::new(&world);
        for id in 0..10 {
            pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, LEN));
            pair.cq_a.expect(id, WcStatus::Success);
        }
        pair.qa.post(&pair.wr(10, WrOpcode::RdmaRead, LEN));
        pair.cq_a.expect(10, WcStatus::Success);
        // Packets that were sent twice may still be under way.
        let [a, b] = wait("packets under way", || {
            let [a, b] = counters(&pair);
            let sent = [a.tx_packets, a.tx_bytes, b.tx_packets, b.tx_bytes];
            // abi
            let taken = [b.rx_packets, b.rx_bytes, a.rx_packets, a.rx_bytes];
            (sent == taken).then_some([a, b])
        });
        let len = u64::from(LEN);
        match setup.path {
            PathPolicy::Direct => {
                assert_eq!((a.tx_packets, b.tx_packets), (0, 0));
                // abi
                assert_eq!((a.direct_tx_messages, b.direct_rx_messages), (11, 11));
                // abi
                assert_eq!((a.direct_tx_bytes, b.direct_rx_bytes), (10 * len, 10 * len));
                assert_eq!((a.direct_rx_bytes, b.direct_tx_bytes), (len, len));
            }
            PathPolicy::Wire => {
                assert_eq!(a.direct_tx_messages, 0);
                // A sends ten WRITEs of five packets each, and one READ request. B sends five READ
                // responses and at least one acknowledgement for each WRITE.
                // abi: R-849
                assert_eq!(a.tx_packets - a.retransmitted_packets, 51);
                assert!(b.tx_packets >= 5 + 10);
                // abi: R-850
                assert!(a.tx_bytes > 10 * len && b.tx_bytes > len);
            }
        }
        assert_eq!((a.naks_received, b.naks_sent, b.bad_packets), (0, 0, 0));
        assert_eq!(
            (a.lkey_violations, b.rkey_violations, a.paced_bytes),
            (0, 0, 0)
        );
    });
}

#[test]
fn what_goes_wrong_between_peers() {
    in_all_setups(|setup| {
        let world = world(setup);
        // The SEND finds no receive at first.
        let pair = Pair::new(&world);
        pair.qa.post(&pair.send(1, 100));
        wait("an RNR NAK", || {
            let [a, b] = counters(&pair);
            // abi
            (a.rnr_naks_received > 0 && b.rnr_naks_sent > 0).then_some(())
        });
        pair.qb.post_recv(7, &[sge(&pair.mb, 0, 100)]);
        pair.cq_a.expect(1, WcStatus::Success);

        let mut bad = pair.wr(2, WrOpcode::RdmaWrite, 100);
        bad.remote.rkey ^= 1;
        pair.qa.post(&bad);
        pair.cq_a.expect(2, WcStatus::RemAccessErr);
        // The responder counts the NAK after it has sent it.
        wait("a NAK", || {
            let [a, b] = counters(&pair);
            // abi
            ((b.rkey_violations, b.naks_sent, a.naks_received) == (1, 1, 1)).then_some(())
        });
        assert_eq!(pair.b.counters().lkey_violations, 0);

        let pair = Pair::new(&world);
        let mut bad = pair.wr(3, WrOpcode::RdmaWrite, 100);
        bad.sges[0].lkey ^= 1;
        pair.qa.post(&bad);
        pair.cq_a.expect(3, WcStatus::LocProtErr);
        let [a, b] = counters(&pair);
        // abi
        assert_eq!((a.lkey_violations, b.rkey_violations), (1, 1));

        let options = Options::of(QpType::Ud);
        let pair = Pair::with(&world, options, options);
        let mut wrong = pair.send(4, 10);
        if let Some(to) = &mut wrong.to {
            to.remote_qkey ^= 1;
        }
        pair.qa.post(&wrong);
        pair.cq_a.expect(4, WcStatus::Success);
        wait("a violation", || {
            // abi: R-867
            (pair.b.counters().qkey_violations == 1).then_some(())
        });
        assert_eq!(pair.b.violations(), (0, 1));
    });
}

// abi
#[test]
fn doorbells_and_events() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(setup);
        let pair = Pair::new(&world);
        let before = pair.a.counters();
        for _ in 0..3 {
            pair.qa.ring_doorbell(Doorbell::Sq);
        }
        assert_eq!(pair.a.counters().doorbells, before.doorbells + 3);
        let exchange = |id| {
            pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, 100));
            pair.cq_a.expect(id, WcStatus::Success);
        };
        exchange(1);
        let unarmed = pair.a.counters();
        assert_eq!(unarmed.completion_events, before.completion_events);
        for id in 2..5 {
            pair.cq_a.arm(ArmKind::Next);
            exchange(id);
            // The CQ is no longer armed.
            exchange(10 + id);
            wait("an event", || {
                let events = pair.a.counters().completion_events - before.completion_events;
                (events == id - 1).then_some(())
            });
            pair.cq_a.event_received();
        }
        let [a, b] = counters(&pair);
        assert_eq!(
            (b.doorbells, b.completion_events),
            (0, 0),
            "who is only served"
        );
        assert!(a.doorbells > before.doorbells + 3);
    });
}

#[test]
fn losses() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = world(setup);
        let pair = Pair::new(&world);
        world.net.lose_one_in.store(20, Ordering::Relaxed);
        for id in 0..40 {
            pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, 20_000));
            pair.cq_a.expect(id, WcStatus::Success);
        }
        world.net.lose_one_in.store(0, Ordering::Relaxed);
        let [a, b] = counters(&pair);
        // abi
        assert!(a.retransmitted_packets > 0 && b.out_of_sequence > 0 && b.naks_sent > 0);
        // NAKs get lost as well.
        // abi: R-860
        assert!(a.naks_received > 0 && a.naks_received <= b.naks_sent);
        assert!(b.rx_packets < a.tx_packets, "lost ones do not arrive");
        // A duplicate of the first packet of the connection.
        let psn = Psn::new(pair.qa.options.psn);
        let send = RcRequest::from(SendPart::Only(With::Nothing));
        let again = Headers::new(Bth::new(0xffff, pair.qb.qpn, psn), send);
        let before = pair.b.counters().duplicates;
        let bytes = frame(pair.a, pair.b, &again, &[]);
        world.net.inject(pair.b.mac, &bytes);
        wait("a duplicate", || {
            // abi: R-864
            (pair.b.counters().duplicates == before + 1).then_some(())
        });
        // A congestion notification does not count as a bad packet.
        let bth = Bth::new(0xffff, pair.qb.qpn, Psn::new(0));
        let headers = Headers::new(bth, RcResponse::Congestion);
        let notification = frame(pair.a, pair.b, &headers, &[]);
        world.net.inject(pair.b.mac, &notification);
        world.net.inject(pair.b.mac, &[0; 60]);
        wait("a bad packet", || {
            // abi: R-865
            (pair.b.counters().bad_packets == 1).then_some(())
        });
        // The QP may handle the notification after the port has counted the bad packet.
        wait("a notification", || {
            // abi: R-1163
            (pair.b.counters().notifications_received == 1).then_some(())
        });
    });
}

/// Padding after the packet is not counted. Ethernet pads short frames, and an uplink over UDP
/// pads a run of packets to one length.
// abi: R-852
#[test]
fn the_sender_counts_the_bytes_that_the_receiver_counts() {
    in_both_modes(PathPolicy::Wire, |setup| {
        let world = world(setup);
        let pair = Pair::new(&world);
        let psn = Psn::new(pair.qa.options.psn);
        let send = RcRequest::from(SendPart::Only(With::Nothing));
        let headers = Headers::new(Bth::new(0xffff, pair.qb.qpn, psn), send);
        pair.qb.post_recv(1, &[]);
        let packet = frame(pair.a, pair.b, &headers, &[]);
        let padded = [&packet[..], &[0; 20]].concat();
        world.net.inject(pair.b.mac, &padded);
        pair.cq_b.expect(1, WcStatus::Success);
        let b = pair.b.counters();
        assert_eq!((b.rx_packets, b.rx_bytes), (1, packet.len() as u64));
    });
}

/// On the direct path a turn's budget, or the port's limit, may end within a frame. The frame
/// counts once, as on the wire.
// abi: R-830
#[test]
fn a_frame_that_several_turns_copy_is_paced_once() {
    for mode in MODES {
        // With the cost of its work request, such a message does not divide a turn's budget.
        const LEN: u32 = 60_000;
        const COUNT: u64 = 8;
        let counted = PATHS.map(|path| {
            let world = pacing::world(2, Setup { path, mode }, Clock::manual());
            let pair = Pair::new(&world);
            // The burst of this rate, 625,000 bytes, exceeds all messages.
            pacing::limit(&pair.qa, 1_000_000, 0, 0).unwrap();
            for id in 0..COUNT {
                pair.qa.post(&pair.wr(id, WrOpcode::RdmaWrite, LEN));
            }
            for id in 0..COUNT {
                pair.cq_a.expect(id, WcStatus::Success);
            }
            pair.a.counters().paced_bytes
        });
        assert!(counted[0] > COUNT * u64::from(LEN), "with headers");
        assert_eq!(counted[0], counted[1]);
    }
}

// abi
#[test]
fn an_answer_that_does_not_come() {
    each_setup_with(
        Options {
            timeout: 8,
            retry_cnt: 2,
            ..Options::default()
        },
        |pair| {
            pair.a.negotiate(&[Feature::Counters]);
            pair.qb.destroy().unwrap();
            pair.qa.post(&pair.wr(1, WrOpcode::RdmaWrite, 100));
            pair.cq_a.expect(1, WcStatus::RetryExcErr);
            assert_eq!(pair.a.counters().timeouts, 3);
        },
    );
}

// abi
#[test]
fn counters_of_another_port_or_without_the_feature() {
    in_both_modes(PathPolicy::Direct, |setup| {
        let world = world(setup);
        let vm = &world.vms[0];
        for port in [0, 2, 255] {
            assert_eq!(vm.call(CmdQueryCounters { port }).err(), Some(22));
        }
        vm.negotiate(&[]);
        assert_eq!(vm.call(CmdQueryCounters { port: 1 }).err(), Some(95));
    });
}
