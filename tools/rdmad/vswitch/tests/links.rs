// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sockets, interfaces and engines that are full, absent or in use.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixListener;

use common::*;
use roce::net::Ecn;
use roce::{FramePort, Packet};
use tempfile::TempDir;
use vswitch::{Config, PortConfig, Switch, Uplink};

#[test]
fn a_slow_reader_gets_what_fits_the_backlog() {
    let rig = Rig::new(2, 0);
    let count = 300;
    for number in 0..count {
        rig.nets[0].send(&frame(mac(1), mac(0), &format!("{number}")));
    }
    for number in 0..count {
        assert_eq!(
            rig.nets[1].receive(),
            frame(mac(1), mac(0), &format!("{number}"))
        );
    }
}

#[test]
fn many_frames_of_one_write_arrive() {
    let rig = Rig::new(2, 0);
    let count = 300;
    let packet = |number| {
        let frame = frame(mac(1), mac(0), &format!("{number}"));
        let length = (frame.len() as u32).to_be_bytes();
        [&length[..], &frame].concat()
    };
    rig.nets[0].send_raw(&(0..count).map(packet).collect::<Vec<_>>().concat());
    for number in 0..count {
        assert_eq!(
            rig.nets[1].receive(),
            frame(mac(1), mac(0), &format!("{number}"))
        );
    }
}

/// Copies of broadcasts wait for receivers that don't read, and leave when these read again.
#[test]
fn copies_wait_for_receivers_that_are_full() {
    let rig = Rig::new(2, 1);
    let count = 400;
    let text = |number| format!("{number:04000}");
    for number in 0..count {
        rig.nets[0].send(&frame(BROADCAST, mac(0), &text(number)));
    }
    rig.counts(0, |stats| stats.received, count);
    let fars: [&dyn End; 2] = [&rig.nets[1], &rig.uplinks[0]];
    for far in fars {
        for number in 0..count {
            let expected = frame(BROADCAST, mac(0), &text(number));
            assert!(far.receive() == expected, "copy {number}");
        }
    }
}

/// An engine sends a frame while the switch takes an earlier one. The frame must not wait for the
/// next one.
#[test]
fn no_frame_of_an_engine_is_forgotten() {
    let rig = Rig::new(1, 1);
    for round in 0..5_000 {
        for number in 0..2 {
            rig.engine_send(0, &frame(OUTSIDE, mac(0), &format!("{round} {number}")));
            // The thread is at another place in each round.
            for _ in 0..round % 100 {
                std::hint::spin_loop();
            }
        }
        for number in 0..2 {
            let expected = frame(OUTSIDE, mac(0), &format!("{round} {number}"));
            assert_eq!(rig.uplinks[0].receive(), expected);
        }
    }
}

#[test]
fn nobody_at_the_other_end_costs_frames_alone() {
    let mut rig = Rig::new(3, 0);
    rig.nets.pop();
    rig.nets[0].send(&frame(mac(2), mac(0), "lost"));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "heard"));
    assert_eq!(rig.nets[1].receive(), frame(BROADCAST, mac(0), "heard"));
    // Waits: the receiver may read the last frame before the switch has counted the dropped ones.
    rig.counts(2, |stats| stats.dropped, 2);
    // The receiver returns.
    let again = Netdev::at(&rig.dir.path().join("net2"));
    again.send(&frame(mac(0), mac(2), "back"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(2), "back"));
    rig.nets[0].send(&frame(mac(2), mac(0), "found"));
    assert_eq!(again.receive(), frame(mac(2), mac(0), "found"));
}

#[test]
fn a_second_connection_is_served_once_the_first_has_ended() {
    let mut rig = Rig::new(2, 0);
    let second = Netdev::at(&rig.dir.path().join("net1"));
    second.send(&frame(mac(0), mac(1), "second"));
    for text in ["one", "two"] {
        rig.nets[1].send(&frame(mac(0), mac(1), text));
        assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), text));
        rig.nets[0].send(&frame(mac(1), mac(0), text));
        assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), text));
    }
    drop(rig.nets.remove(1));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "second"));
    rig.nets[0].send(&frame(mac(1), mac(0), "three"));
    assert_eq!(second.receive(), frame(mac(1), mac(0), "three"));
}

/// A malformed length ends the connection, and nothing else.
#[test]
fn a_malformed_stream_is_closed() {
    let rig = Rig::new(2, 0);
    let path = rig.dir.path().join("net1");
    for (count, length) in (1..).zip([0, 1 << 20, u32::MAX]) {
        let net = Netdev::at(&path);
        if count == 1 {
            // The first connection is still open.
            rig.nets[1].send_raw(&length.to_be_bytes());
            rig.nets[1].ends();
        } else {
            net.send_raw(&length.to_be_bytes());
            net.ends();
        }
        rig.counts(1, |stats| stats.errors, count);
    }
    let net = Netdev::at(&path);
    net.send(&frame(mac(0), mac(1), "sound"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "sound"));
}

/// A frame that is too long for the switch is refused, as on other links.
#[test]
fn a_frame_that_is_too_long_ends_no_connection() {
    let rig = Rig::new(2, 0);
    for _ in 0..3 {
        rig.nets[0].send(&vec![2; 20_000]);
    }
    rig.nets[0].send(&frame(mac(1), mac(0), "short"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "short"));
    rig.counts(0, |stats| stats.refused, 3);
}

#[test]
fn a_network_interface_that_does_not_read_harms_nobody_else() {
    let rig = Rig::new(3, 0);
    let long = |to: usize| [&frame(mac(to), mac(0), "")[..], &[0; 8000]].concat();
    for _ in 0..2000 {
        rig.nets[0].send(&long(1));
        rig.nets[0].send(&long(2));
        assert_eq!(rig.nets[2].receive(), long(2));
    }
    wait_until("drops", || rig.stats(1).dropped > 0);
    // Frames of other ports still have room.
    rig.nets[2].send(&frame(mac(1), mac(2), "late"));
    while rig.nets[1].receive() != frame(mac(1), mac(2), "late") {}
}

/// Sends RoCE frames from engine 0 to the uplink until the engine's buffers run out. Returns the
/// number of frames.
fn exhaust(rig: &Rig) -> usize {
    exhaust_with(rig, 0)
}

/// Like [`exhaust`], with a traffic class.
fn exhaust_with(rig: &Rig, traffic_class: u8) -> usize {
    // The switch must learn first that the destination is behind the uplink.
    rig.uplinks[0].send(&frame(mac(0), OUTSIDE, "here"));
    rig.nets[0].receive();
    let (engine, _) = &rig.engines[0];
    for sent in 0..100_000 {
        let bytes = roce_with(OUTSIDE, mac(0), sent as u8, traffic_class);
        match engine.frame(&destination(&bytes), bytes.len()) {
            Some(mut frame) => {
                frame.copy_from_slice(&bytes);
                send_frame(engine, frame);
            }
            None => return sent,
        }
    }
    panic!("no end of buffers");
}

#[test]
fn an_engine_waits_for_a_slow_link_and_loses_nothing() {
    let rig = Rig::new(1, 1);
    let sent = exhaust(&rig);
    for number in 0..sent {
        assert_eq!(
            rig.uplinks[0].receive(),
            roce(OUTSIDE, mac(0), number as u8)
        );
    }
    let (engine, heard) = &rig.engines[0];
    heard.recv_timeout(PATIENCE).expect("to be told of buffers");
    assert!(engine.frame(&OUTSIDE, 100).is_some());
}

#[test]
fn frames_that_wait_behind_many_are_marked() {
    for (class, marked) in [
        (Ecn::Capable, Ecn::Congestion),
        (Ecn::NotCapable, Ecn::NotCapable),
    ] {
        let rig = Rig::new(1, 1);
        let sent = exhaust_with(&rig, class.within(0));
        let fields = Vec::from_iter((0..sent).map(|_| {
            let frame = rig.uplinks[0].receive();
            let packet = Packet::parse(&frame).expect("a sound frame");
            Ecn::of(packet.path.traffic_class)
        }));
        assert_eq!(fields[0], class, "nothing was before it");
        assert_eq!(fields[sent - 1], marked);
    }
}

#[test]
fn a_remote_end_that_is_connected_too_has_more_on_its_way_than_its_queue_takes() {
    let Rig {
        switch,
        nets,
        uplinks,
        dir,
        engines: _,
    } = Rig::new(1, 1);
    uplinks[0].connect();
    let count = 100;
    for number in 0..count {
        nets[0].send(&frame(OUTSIDE, mac(0), &format!("{number}")));
    }
    wait_until("the last frame", || switch.stats()[1].sent >= count);
    // Frames that still wait in the switch are lost when it is dropped.
    drop(switch);
    for number in 0..count {
        let expected = frame(OUTSIDE, mac(0), &format!("{number}"));
        assert_eq!(uplinks[0].receive(), expected);
    }
    drop(dir);
}

#[test]
fn a_successor_of_the_remote_end_gets_frames() {
    let mut rig = Rig::new(1, 1);
    for text in ["first", "second", "third"] {
        let frame = frame(OUTSIDE, mac(0), text);
        rig.nets[0].send(&frame);
        assert_eq!(rig.uplinks[0].receive(), frame);
        rig.uplinks[0].replace();
    }
    assert_eq!(rig.stats(1).dropped, 0);
}

#[test]
fn a_successor_of_the_remote_end_is_heard() {
    let mut rig = Rig::new(1, 1);
    for text in ["first", "second"] {
        let frame = frame(mac(0), OUTSIDE, text);
        rig.uplinks[0].send_when_admitted(&frame);
        assert_eq!(rig.nets[0].receive(), frame);
        rig.uplinks[0].replace();
    }
}

#[test]
fn a_link_that_takes_nothing_gives_the_engine_its_buffers_back() {
    let rig = Rig::new(2, 1);
    exhaust(&rig);
    let (engine, heard) = &rig.engines[0];
    while engine.frame(&OUTSIDE, 100).is_none() {
        heard.recv_timeout(PATIENCE).expect("to be told of buffers");
    }
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
    // The switch's thread returns the buffers before it counts the dropped frames.
    wait_until("a count of dropped frames", || rig.stats(2).dropped > 0);
    // Further frames to this uplink are dropped at once, and don't use up the buffers again.
    for number in 0..10_000 {
        rig.engine_send(0, &roce(OUTSIDE, mac(0), 2));
        rig.engine_send(0, &roce(mac(1), mac(0), 3));
        assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 3));
        if number % 500 == 0 {
            // When this frame arrives, the switch's thread has handled all earlier frames.
            rig.engine_send(0, &frame(mac(1), mac(0), "after them"));
            rig.nets[1].receive();
        }
    }
}

#[test]
fn a_flood_for_an_engine_is_dropped_and_counted() {
    let rig = Rig::new(2, 1);
    let flood = 10_000;
    for _ in 0..flood {
        rig.uplinks[0].send(&roce(mac(0), OUTSIDE, 1));
    }
    rig.uplinks[0].send(&frame(mac(1), OUTSIDE, "still here"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), OUTSIDE, "still here"));
    let mut got = 0;
    while receive_frame(&rig.engines[0].0).is_some() {
        got += 1;
    }
    rig.counts(0, |stats| stats.sent, got);
    let uplink = || rig.stats(2).dropped;
    let counted = || got + rig.stats(0).dropped + uplink();
    wait_until("a count of each frame", || counted() >= flood);
    assert_eq!(counted(), flood);
}

/// A loopback address with a UDP port that is free now.
fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn udp_uplink() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let bind = free_address();
    let remote = far.local_addr().unwrap();
    let rig = Rig::with(1, 0, |config| {
        config.uplinks.push(Uplink::Udp { bind, remote }.into())
    });
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger
        .send_to(&frame(mac(0), OUTSIDE, "stranger"), bind)
        .unwrap();
    far.send_to(&frame(mac(0), OUTSIDE, "in"), bind).unwrap();
    assert_eq!(rig.nets[0].receive(), frame(mac(0), OUTSIDE, "in"));
    rig.engine_send(0, &roce(OUTSIDE, mac(0), 1));
    let mut bytes = [0; 2000];
    let len = far.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..len], roce(OUTSIDE, mac(0), 1));
}

/// Moves the calling thread, and the threads and programs that it starts, to a new network
/// namespace with only `lo`. There the test may create taps, raw sockets and addresses without
/// changing the host's network.
fn own_network() {
    // No user namespace is made here, because a process with several threads or in a chroot can't
    // make one. For a user other than root, tools/dev/enter has made a user namespace.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
        .expect("no network namespace: run tests as root or by tools/dev/enter");
    ip("link set lo up");
}

/// Runs `ip` in the network namespace of the current thread. Returns what it prints.
fn ip(args: &str) -> String {
    let done = std::process::Command::new("ip")
        .args(args.split(' '))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "ip {args}: {errors}");
    String::from_utf8(done.stdout).unwrap()
}

/// Sends an ICMP message of this `code` to `source`: its datagram to `target` was undeliverable.
fn unreachable(code: u8, source: SocketAddr, target: SocketAddr) {
    use rustix::net::{ipproto, sendto, socket, AddressFamily, SendFlags, SocketType};
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (source, target) else {
        panic!("IPv4 only");
    };
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    // Destination unreachable, with an MTU for code 4. The IP and UDP headers of the datagram
    // follow.
    let mut message = vec![3, code, 0, 0, 0, 0, 5, 0];
    message.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend(from.ip().octets());
    message.extend(to.ip().octets());
    for word in [from.port(), to.port(), 8, 0] {
        message.extend(word.to_be_bytes());
    }
    let words = message
        .chunks(2)
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum: u32 = words.sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    sendto(raw, &message, SendFlags::empty(), &source).unwrap();
}

#[test]
fn udp_goes_on_after_icmp_messages() {
    own_network();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    let (bind, remote) = (free_address(), far.local_addr().unwrap());
    let rig = Rig::with(1, 0, |config| {
        config.uplinks.push(Uplink::Udp { bind, remote }.into())
    });
    // Codes of ICMP: port unreachable, fragmentation needed, prohibited by a firewall.
    for (count, code) in (1..).zip([3, 4, 13]) {
        unreachable(code, bind, remote);
        let is_heard = || rig.stats(1).errors >= count;
        wait_until("an error", is_heard);
        let text = format!("after code {code}");
        far.send_to(&frame(mac(0), OUTSIDE, &text), bind).unwrap();
        assert_eq!(rig.nets[0].receive(), frame(mac(0), OUTSIDE, &text));
        // A pending error is reported by the next send, which is then retried, so no frame is lost.
        unreachable(code, bind, remote);
        rig.engine_send(0, &roce(OUTSIDE, mac(0), code));
        let mut bytes = [0; 2000];
        let len = far.recv(&mut bytes).unwrap();
        assert_eq!(bytes[..len], roce(OUTSIDE, mac(0), code));
        wait_until("an error", is_heard);
    }
}

/// Two switches, joined by UDP. The port of the second has the MAC address [`OUTSIDE`].
fn udp_pair() -> [Rig; 2] {
    let (one, two) = (free_address(), free_address());
    [(mac(0), one, two), (OUTSIDE, two, one)].map(|(mac, bind, remote)| {
        Rig::with(1, 0, |config| {
            config.ports[0].mac = mac;
            config.uplinks.push(Uplink::Udp { bind, remote }.into());
        })
    })
}

#[test]
fn frames_of_any_length_pass_udp_together_and_in_order() {
    let [near, far] = udp_pair();
    // Frames of the same length, shorter frames at the end of a run, varying lengths, and more
    // frames than one call sends.
    let lengths = [1100; 130]
        .into_iter()
        .chain([1100, 1100, 200, 1100])
        .chain((0..70).map(|n| 90 + 7 * (n % 11)))
        .chain([60; 200])
        .chain([9000; 20]);
    let frames: Vec<Vec<u8>> = lengths
        .enumerate()
        .map(|(number, len)| {
            let mut frame = roce(OUTSIDE, mac(0), 0);
            frame.resize(len, number as u8);
            frame
        })
        .collect();
    // The near switch must learn the far address first: frames to unknown addresses are sent to
    // every uplink.
    far.engine_send(0, &roce(mac(0), OUTSIDE, 0));
    near.engine_receive(0);
    let (engine, _) = &near.engines[0];
    for chunk in frames.chunks(40) {
        for bytes in chunk {
            let mut frame = engine.frame(&destination(bytes), bytes.len()).unwrap();
            frame.copy_from_slice(bytes);
            send_frame(engine, frame);
        }
        for bytes in chunk {
            assert_eq!(&far.engine_receive(0)[..], bytes);
        }
    }
    near.counts(1, |stats| stats.sent, frames.len() as u64);
    assert_eq!(near.stats(1).dropped + far.stats(1).dropped, 0);
}

#[test]
fn tap_uplink() {
    own_network();
    let config = || Config {
        uplinks: vec![Uplink::Tap("up0".into()).into()],
        ..Config::default()
    };
    let _switch = Switch::start(config()).unwrap();
    let link = ip("-details link show up0");
    assert!(link.contains(" type tap pi off "), "{link}");
    let error = Switch::start(config()).unwrap_err().to_string();
    assert!(error.contains("uplink Tap"), "{error}");
}

#[test]
fn a_tap_that_goes_is_found_when_it_comes_back() {
    own_network();
    ip("tuntap add dev up0 mode tap");
    let rig = Rig::with(1, 0, |config| {
        config.uplinks.push(Uplink::Tap("up0".into()).into())
    });
    // Linux sends multicast frames when an interface comes up.
    ip("link set up0 up");
    rig.nets[0].receive();
    ip("link del up0");
    // The new interface has the same name. The switch notices the deletion and attaches to it.
    ip("tuntap add dev up0 mode tap");
    ip("link set up0 up");
    let at = |frame: &[u8]| frame[6..12].to_vec();
    let mac = || {
        let text = ip("-oneline link show up0");
        let (_, rest) = text.split_once("link/ether ").unwrap();
        let mac = rest.split(' ').next().unwrap();
        let byte = |byte| u8::from_str_radix(byte, 16).unwrap();
        mac.split(':').map(byte).collect::<Vec<_>>()
    };
    let new = mac();
    while at(&rig.nets[0].receive()) != new {}
}

#[test]
fn a_frame_that_is_too_long_is_refused_by_a_tap() {
    own_network();
    ip("tuntap add dev up0 mode tap");
    ip("link set up0 mtu 20000 up");
    ip("address add 192.0.2.1/24 dev up0");
    let rig = Rig::with(1, 0, |config| {
        config.uplinks.push(Uplink::Tap("up0".into()).into())
    });
    ip("neighbour add 192.0.2.2 lladdr 02:00:00:00:00:01 dev up0");
    // The tap has a carrier since the switch has opened it. Linux drops packets until it has
    // noticed the carrier.
    let has_carrier = || ip("link show up0").contains(" state UP ");
    wait_until("a carrier of the tap", has_carrier);
    let socket = UdpSocket::bind("192.0.2.1:0").unwrap();
    for len in [15_000, 100] {
        socket.send_to(&vec![0; len], "192.0.2.2:9").unwrap();
    }
    // Linux itself sends other frames too.
    while rig.nets[0].receive().len() != 14 + 28 + 100 {}
    rig.counts(1, |stats| stats.refused, 1);
}

#[test]
fn sockets_left_behind_are_replaced_and_live_ones_are_not() {
    let dir = TempDir::new().unwrap();
    let local = dir.path().join("switch");
    drop(UnixListener::bind(&local).unwrap());
    assert!(local.exists());
    let config = Config {
        ports: vec![PortConfig {
            name: "a".into(),
            mac: mac(0),
            net: Some(local.clone()),
            ..PortConfig::default()
        }],
        ..Config::default()
    };
    let (switch, _) = Switch::start(config.clone()).unwrap();
    let error = Switch::start(config.clone()).unwrap_err().to_string();
    assert!(
        error.contains("network socket of port a") && error.contains("in use"),
        "{error}"
    );
    drop(switch);
    assert!(!local.exists());
    std::fs::write(&local, "not a socket").unwrap();
    assert!(Switch::start(config).is_err());
    assert_eq!(std::fs::read(&local).unwrap(), b"not a socket");
}
