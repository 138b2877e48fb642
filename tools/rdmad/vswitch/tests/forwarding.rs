// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Frames that the switch accepts, and their destinations.

mod common;

use common::*;
use roce::FramePort;

#[test]
fn unicast_between_machines() {
    let rig = Rig::new(3, 1);
    rig.nets[0].send(&frame(mac(1), mac(0), "one"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "one"));
    rig.nets[1].send(&frame(mac(0), mac(1), "two"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "two"));
    // No other link has received the earlier frames: the broadcast is the next frame that arrives.
    rig.nets[0].send(&frame(BROADCAST, mac(0), "all"));
    let fars: [&dyn End; 3] = [&rig.nets[1], &rig.nets[2], &rig.uplinks[0]];
    for far in fars {
        assert_eq!(far.receive(), frame(BROADCAST, mac(0), "all"));
    }
    // The broadcast did not return to its sender.
    rig.nets[2].send(&frame(mac(0), mac(2), "three"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(2), "three"));
}

#[test]
fn a_machine_sends_from_its_own_address_alone() {
    let rig = Rig::new(2, 0);
    for forged in [mac(1), OUTSIDE, BROADCAST, [0; 6]] {
        rig.nets[0].send(&frame(mac(1), forged, "forged"));
        rig.engine_send(0, &roce(mac(1), forged, 1));
    }
    rig.nets[0].send(&[0; 13]);
    rig.nets[0].send(&frame(mac(1), mac(0), "honest"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "honest"));
    // This frame passes through the switch's thread, after the forged frames.
    rig.engine_send(0, &frame(mac(1), mac(0), "after"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "after"));
    rig.engine_send(0, &roce(mac(1), mac(0), 2));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 2));
    rig.counts(0, |stats| stats.refused, 9);
    rig.counts(0, |stats| stats.received, 3);
}

/// The network interface of a port also has the further MAC addresses that are configured. RoCE to
/// them goes to the engine, which sends with the port's own address alone.
#[test]
fn a_machine_has_its_further_addresses() {
    let more = mac(7);
    let rig = Rig::with(2, 1, |config| config.ports[0].more_macs = vec![more]);
    let text = |text| frame(mac(1), more, text);
    rig.nets[0].send(&text("from the further address"));
    assert_eq!(rig.nets[1].receive(), text("from the further address"));
    rig.nets[1].send(&frame(more, mac(1), "to it"));
    assert_eq!(rig.nets[0].receive(), frame(more, mac(1), "to it"));
    rig.engine_send(1, &roce(more, mac(1), 1));
    assert_eq!(rig.engine_receive(0)[..], roce(more, mac(1), 1));
    rig.uplinks[0].send(&roce(more, OUTSIDE, 2));
    assert_eq!(rig.engine_receive(0)[..], roce(more, OUTSIDE, 2));
    // Nobody else sends from it, and the port's engine does not.
    rig.nets[1].send(&frame(mac(0), more, "forged"));
    rig.uplinks[0].send(&frame(mac(0), more, "forged"));
    rig.engine_send(0, &roce(mac(1), more, 3));
    rig.nets[1].send(&frame(mac(0), mac(1), "honest"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "honest"));
    for sender in 0..3 {
        rig.counts(sender, |stats| stats.refused, 1);
    }
}

#[test]
fn frames_to_oneself_and_to_nobody_go_nowhere() {
    let rig = Rig::new(2, 0);
    rig.nets[0].send(&frame(mac(0), mac(0), "me"));
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "nobody"));
    rig.engine_send(0, &frame(mac(0), mac(0), "no RoCE"));
    rig.nets[0].send(&frame(mac(1), mac(0), "honest"));
    rig.nets[1].receive();
    // The engine's frame to its own machine is not delivered either. "honest" passes through the
    // switch's thread after that frame, so the frame is counted when "honest" arrives.
    rig.engine_send(0, &frame(mac(1), mac(0), "honest"));
    rig.nets[1].receive();
    rig.engine_send(0, &roce(mac(0), mac(0), 2));
    assert_eq!(
        rig.engine_receive(0)[..],
        roce(mac(0), mac(0), 2),
        "an engine may talk to itself"
    );
    rig.counts(0, |stats| stats.no_route, 3);
}

#[test]
fn roce_goes_to_the_engine() {
    let rig = Rig::new(2, 1);
    rig.uplinks[0].send(&roce(mac(1), OUTSIDE, 2));
    assert_eq!(
        rig.engine_receive(1)[..],
        roce(mac(1), OUTSIDE, 2),
        "from outside"
    );
    rig.engine_send(1, &roce(OUTSIDE, mac(1), 3));
    assert_eq!(rig.uplinks[0].receive(), roce(OUTSIDE, mac(1), 3));
    rig.engine_send(1, &roce(mac(0), mac(1), 4));
    assert_eq!(rig.engine_receive(0)[..], roce(mac(0), mac(1), 4));
    // The network interfaces received none of these frames.
    rig.nets[0].send(&frame(mac(1), mac(0), "net"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "net"));
}

/// RoCE from a network interface is not forwarded. Any process of a guest could forge it, and peers
/// trust RoCE from this MAC address.
#[test]
fn network_interfaces_speak_no_roce() {
    const GROUP: roce::net::Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
    let rig = Rig::new(2, 1);
    rig.engines[1].0.join(GROUP);
    let mut refused = 0;
    for to in [mac(0), mac(1), GROUP, OUTSIDE, BROADCAST] {
        let plain = roce(to, mac(0), 1);
        let tag = |kind: [u8; 2]| [&plain[..12], &kind, &[0, 5], &plain[12..]].concat();
        // The first fragment of a packet, which a receiver would reassemble.
        let mut fragment = plain.clone();
        fragment[20] |= 0x20;
        for hidden in [tag([0x81, 0]), tag([0x88, 0xa8]), fragment, plain.clone()] {
            rig.nets[0].send(&hidden);
            refused += 1;
        }
    }
    rig.nets[0].send(&frame(BROADCAST, mac(0), "honest"));
    let fars: [&dyn End; 2] = [&rig.nets[1], &rig.uplinks[0]];
    for far in fars {
        assert_eq!(far.receive(), frame(BROADCAST, mac(0), "honest"));
    }
    assert!(rig
        .engines
        .iter()
        .all(|(engine, _)| receive_frame(engine).is_none()));
    rig.counts(0, |stats| stats.refused, refused);
}

#[test]
fn frames_that_are_sent_together_go_each_to_its_destination_in_order() {
    let rig = Rig::new(3, 1);
    let to = [1, 1, 9, 1, 2, 9, 2, 1];
    let frames: Vec<_> = { 0.. }
        .zip(to)
        .map(|(number, to)| match to {
            9 => roce(OUTSIDE, mac(0), number),
            port => roce(mac(port), mac(0), number),
        })
        .collect();
    rig.engine_send_all(0, &frames);
    for (frame, to) in frames.iter().zip(to) {
        match to {
            9 => assert!(rig.uplinks[0].receive() == *frame),
            port => assert_eq!(rig.engine_receive(port)[..], frame[..]),
        }
    }
    rig.counts(0, |stats| stats.received, 8);
    rig.counts(1, |stats| stats.sent, 4);
    rig.counts(2, |stats| stats.sent, 2);
}

#[test]
fn a_network_interface_speaks_roce_if_told_so() {
    const GROUP: roce::net::Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
    let rig = Rig::with(2, 1, |config| config.ports[0].net_roce = true);
    rig.nets[0].send(&roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
    rig.nets[0].send(&roce(OUTSIDE, mac(0), 2));
    assert_eq!(rig.uplinks[0].receive(), roce(OUTSIDE, mac(0), 2));
    // RoCE from a network interface is not delivered to its own engine, neither unicast nor
    // multicast.
    for engine in &rig.engines {
        engine.0.join(GROUP);
    }
    rig.nets[0].send(&roce(mac(0), mac(0), 3));
    rig.nets[0].send(&roce(GROUP, mac(0), 4));
    assert_eq!(rig.engine_receive(1)[..], roce(GROUP, mac(0), 4));
    rig.nets[1].send(&roce(mac(0), mac(1), 5));
    rig.nets[1].send(&frame(mac(0), mac(1), "honest"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "honest"));
    assert!(receive_frame(&rig.engines[0].0).is_none());
    rig.counts(0, |stats| stats.no_route, 1);
    rig.counts(0, |stats| stats.refused, 0);
    rig.counts(1, |stats| stats.refused, 1);
}

#[test]
fn network_interfaces_claim_their_own_addresses_alone() {
    let given = [10, 9, 0, 1].into();
    let rig = Rig::with(2, 0, |config| config.ports[0].addresses = vec![given]);
    let arp = |from: usize, last| {
        let mut frame = [&BROADCAST[..], &mac(from), &[0x08, 0x06]].concat();
        frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(mac(from));
        frame.extend([10, 9, 0, last, 0, 0, 0, 0, 0, 0, 10, 9, 0, 9]);
        frame
    };
    rig.nets[0].send(&arp(0, 2));
    rig.nets[0].send(&arp(0, 1));
    assert_eq!(rig.nets[1].receive(), arp(0, 1));
    rig.nets[1].send(&arp(1, 1));
    rig.nets[1].send(&arp(1, 2));
    assert_eq!(rig.nets[0].receive(), arp(1, 2));
    rig.counts(0, |stats| stats.refused, 1);
    rig.counts(1, |stats| stats.refused, 1);
}

/// Two uplinks lead to the same segment, so frames that are sent on one uplink return on the other.
/// The returned frames are refused.
#[test]
fn a_loop_of_uplinks_brings_nothing_back() {
    let rig = Rig::new(1, 2);
    for number in 0..3 {
        let text = format!("{number}");
        rig.uplinks[0].send(&frame(BROADCAST, OUTSIDE, &text));
        let forwarded = rig.uplinks[1].receive();
        assert_eq!(forwarded, frame(BROADCAST, OUTSIDE, &text));
        rig.uplinks[1].send(&forwarded);
    }
    rig.uplinks[1].send(&frame(mac(0), [2, 9, 9, 9, 9, 9], "after"));
    for number in 0..3 {
        let once = frame(BROADCAST, OUTSIDE, &format!("{number}"));
        assert_eq!(rig.nets[0].receive(), once);
    }
    assert_eq!(
        rig.nets[0].receive(),
        frame(mac(0), [2, 9, 9, 9, 9, 9], "after")
    );
    rig.counts(2, |stats| stats.refused, 3);
}

/// If the frames of one source wait for an engine that does not read, frames of other sources are
/// still forwarded.
#[test]
fn a_flood_takes_the_buffers_of_its_source_alone() {
    let rig = Rig::new(3, 2);
    for number in 0..10_000u32 {
        rig.uplinks[0].send(&roce(mac(number as usize % 2), OUTSIDE, number as u8));
    }
    rig.nets[0].send(&frame(mac(1), mac(0), "passes"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "passes"));
    let other = [2, 9, 9, 9, 9, 9];
    rig.uplinks[1].send(&roce(mac(2), other, 1));
    assert_eq!(rig.engine_receive(2)[..], roce(mac(2), other, 1));
    // A share of the queue is reserved for frames from engines.
    rig.engine_send(2, &roce(mac(0), mac(2), 2));
    let waiting = std::iter::from_fn(|| receive_frame(&rig.engines[0].0));
    assert_eq!(waiting.last().unwrap()[..], roce(mac(0), mac(2), 2));
}

#[test]
fn frames_of_a_routed_uplink_are_marked() {
    let rig = Rig::with(1, 2, |config| config.uplinks[1].routed = true);
    for (uplink, routed) in [(0, false), (1, true), (0, false)] {
        let source = [2, 9, 9, 9, 9, uplink as u8];
        rig.uplinks[uplink].send(&roce(mac(0), source, 1));
        assert_eq!(rig.engine_receive(0).is_routed(), routed);
    }
}

#[test]
fn copies_of_a_routed_uplinks_frame_are_marked_too() {
    const GROUP: roce::net::Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
    let rig = Rig::with(1, 1, |config| config.uplinks[0].routed = true);
    rig.engines[0].0.join(GROUP);
    rig.uplinks[0].send(&roce(GROUP, OUTSIDE, 1));
    assert!(rig.engine_receive(0).is_routed());
}

#[test]
fn roce_to_a_group_goes_to_those_who_joined() {
    const GROUP: roce::net::Mac = [0x01, 0x00, 0x5e, 1, 2, 3];
    const OTHER: roce::net::Mac = [0x01, 0x00, 0x5e, 1, 2, 4];
    let rig = Rig::new(3, 1);
    let engine = |port: usize| &rig.engines[port].0;
    for port in [0, 1, 1] {
        engine(port).join(GROUP);
    }
    engine(2).join(OTHER);
    rig.engine_send(0, &roce(GROUP, mac(0), 1));
    for port in [0, 1] {
        assert_eq!(rig.engine_receive(port)[..], roce(GROUP, mac(0), 1));
    }
    assert_eq!(rig.nets[1].receive(), roce(GROUP, mac(0), 1));
    assert_eq!(rig.uplinks[0].receive(), roce(GROUP, mac(0), 1));
    // Engine 1 joined twice, so it is still a member.
    engine(1).leave(GROUP);
    rig.engine_send(2, &roce(GROUP, mac(2), 2));
    for port in [0, 1] {
        assert_eq!(rig.engine_receive(port)[..], roce(GROUP, mac(2), 2));
    }
    let fars: [&dyn End; 3] = [&rig.nets[0], &rig.nets[1], &rig.uplinks[0]];
    for far in fars {
        assert_eq!(far.receive(), roce(GROUP, mac(2), 2));
    }
    engine(1).leave(GROUP);
    rig.uplinks[0].send(&roce(GROUP, OUTSIDE, 3));
    rig.uplinks[0].send(&roce(OTHER, OUTSIDE, 4));
    rig.uplinks[0].send(&frame(OTHER, OUTSIDE, "no RoCE"));
    assert_eq!(rig.engine_receive(0)[..], roce(GROUP, OUTSIDE, 3));
    assert_eq!(rig.engine_receive(2)[..], roce(OTHER, OUTSIDE, 4));
    for expected in [
        roce(GROUP, OUTSIDE, 3),
        roce(OTHER, OUTSIDE, 4),
        frame(OTHER, OUTSIDE, "no RoCE"),
    ] {
        assert_eq!(rig.nets[0].receive(), expected, "all of it");
    }
    assert!(rig
        .engines
        .iter()
        .all(|(engine, _)| receive_frame(engine).is_none()));
}

#[test]
fn addresses_behind_uplinks_are_learned() {
    let rig = Rig::new(1, 2);
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "where"));
    for uplink in &rig.uplinks {
        assert_eq!(uplink.receive(), frame(OUTSIDE, mac(0), "where"));
    }
    rig.uplinks[1].send(&frame(mac(0), OUTSIDE, "here"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), OUTSIDE, "here"));
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "found"));
    assert_eq!(rig.uplinks[1].receive(), frame(OUTSIDE, mac(0), "found"));
    // A frame from the address on the other uplink is refused, because the address was just seen
    // on the first one.
    rig.uplinks[0].send(&frame(mac(0), OUTSIDE, "too early"));
    rig.uplinks[0].send(&frame(mac(0), [2, 9, 9, 9, 9, 9], "another"));
    assert_eq!(
        rig.nets[0].receive(),
        frame(mac(0), [2, 9, 9, 9, 9, 9], "another")
    );
    rig.counts(1, |stats| stats.refused, 1);
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "still there"));
    assert_eq!(
        rig.uplinks[1].receive(),
        frame(OUTSIDE, mac(0), "still there")
    );
    std::thread::sleep(vswitch::mac_table::HOLD);
    rig.uplinks[0].send(&frame(mac(0), OUTSIDE, "moved"));
    rig.nets[0].receive();
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "again"));
    assert_eq!(rig.uplinks[0].receive(), frame(OUTSIDE, mac(0), "again"));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "all"));
    assert_eq!(rig.uplinks[1].receive(), frame(BROADCAST, mac(0), "all"));
}

#[test]
fn uplinks_forward_to_each_other_but_not_our_own_addresses() {
    let rig = Rig::new(1, 2);
    rig.uplinks[0].send(&frame(BROADCAST, mac(0), "a loop"));
    rig.uplinks[0].send(&frame(mac(0), BROADCAST, "a multicast source"));
    rig.uplinks[0].send(&frame([2, 9, 9, 9, 9, 9], OUTSIDE, "through"));
    assert_eq!(
        rig.uplinks[1].receive(),
        frame([2, 9, 9, 9, 9, 9], OUTSIDE, "through")
    );
    rig.counts(1, |stats| stats.refused, 2);
    // A frame to an address behind the uplink from which the frame arrived has no route.
    rig.uplinks[0].send(&frame(OUTSIDE, [2, 9, 9, 9, 9, 9], "local"));
    rig.uplinks[0].send(&frame(mac(0), OUTSIDE, "last"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), OUTSIDE, "last"));
    rig.counts(1, |stats| stats.no_route, 1);
}

#[test]
fn jumbo_frames_pass_and_longer_ones_do_not() {
    let rig = Rig::new(2, 0);
    let mut long = frame(mac(1), mac(0), "");
    long.resize(roce::frame::MAX_FRAME + 1, 7);
    rig.nets[0].send(&long);
    long.pop();
    rig.nets[0].send(&long);
    assert_eq!(rig.nets[1].receive(), long);
    rig.counts(0, |stats| stats.refused, 1);
}

#[test]
fn ports_of_different_groups_do_not_reach_one_another() {
    const GROUP: roce::net::Mac = [0x33, 0x33, 0, 0, 0, 1];
    // With a capture, all frames pass through the switch's thread. Without one, the sending engine
    // delivers frames to its neighbours.
    for captured in [false, true] {
        let rig = Rig::with(4, 1, |config| {
            for (port, group) in config.ports.iter_mut().zip([1, 1, 2, 0]) {
                port.group = group;
            }
            if captured {
                let dir = config.ports[0].net.as_ref().unwrap().parent();
                config.pcap = Some(dir.unwrap().join("pcap"));
            }
        });
        for (engine, _) in &rig.engines {
            engine.join(GROUP);
        }
        for other in [2, 3] {
            rig.nets[0].send(&frame(mac(other), mac(0), "no"));
            rig.engine_send(0, &roce(mac(other), mac(0), 1));
        }
        rig.nets[0].send(&frame(BROADCAST, mac(0), "to all"));
        rig.engine_send(0, &roce(GROUP, mac(0), 2));
        rig.engine_send(0, &roce(mac(1), mac(0), 3));
        // Ports of the same group and uplinks receive the frames.
        let from_net = |far: &dyn End| loop {
            let received = far.receive();
            if received.ends_with(b"to all") {
                return;
            }
        };
        from_net(&rig.nets[1]);
        from_net(&rig.uplinks[0]);
        for _ in [2, 3] {
            rig.engine_receive(1);
        }
        // The next frames that ports of other groups receive are from outside.
        for other in [2, 3] {
            rig.uplinks[0].send(&frame(mac(other), OUTSIDE, "outside"));
            assert!(rig.nets[other].receive().ends_with(b"outside"));
            rig.uplinks[0].send(&roce(mac(other), OUTSIDE, 9));
            assert_eq!(*rig.engine_receive(other), roce(mac(other), OUTSIDE, 9));
        }
        rig.counts(0, |stats| stats.no_route, 4);
    }
}

/// Frames of bridges: spanning tree, link aggregation, LLDP and the like.
#[test]
fn frames_of_bridges_go_nowhere() {
    let rig = Rig::new(2, 2);
    for last in [0, 2, 0x0e, 0x0f] {
        let to = [0x01, 0x80, 0xc2, 0, 0, last];
        rig.nets[0].send(&frame(to, mac(0), "a VM"));
        rig.engine_send(1, &frame(to, mac(1), "an engine"));
        rig.uplinks[0].send(&frame(to, OUTSIDE, "a host"));
    }
    for sender in 0..3 {
        rig.counts(sender, |stats| stats.refused, 4);
    }
    // The next address is like any other.
    let to = [0x01, 0x80, 0xc2, 0, 0, 0x10];
    rig.nets[0].send(&frame(to, mac(0), "after it"));
    let far: [&dyn End; 3] = [&rig.nets[1], &rig.uplinks[0], &rig.uplinks[1]];
    for far in far {
        assert_eq!(far.receive(), frame(to, mac(0), "after it"));
    }
}
