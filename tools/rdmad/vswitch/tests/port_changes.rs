// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ports that are added and removed while the switch runs.

mod common;

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{channel, Sender};
use std::thread;

use common::*;
use roce::net::Mac;
use roce::{Frame, FramePort};
use sockets::Access;
use tempfile::TempDir;
use testkit::wait;
use vswitch::{Config, DatagramPath, EnginePort, PortConfig, Uplink};

/// Configuration of port number `port`, which a test adds later.
fn late(port: usize, group: u32) -> PortConfig {
    PortConfig {
        name: format!("late{port}"),
        mac: mac(port),
        group,
        ..PortConfig::default()
    }
}

fn rig(spare: usize) -> Rig {
    Rig::with(2, 1, |config| config.spare_ports = spare)
}

fn send(engine: &EnginePort, bytes: &[u8]) {
    let mut frame = engine
        .frame(&destination(bytes), bytes.len())
        .expect("a buffer");
    frame.copy_from_slice(bytes);
    send_frame(engine, frame);
}

fn receive(engine: &EnginePort) -> Frame {
    wait("a frame for the engine", || receive_frame(engine))
}

/// Two switches that are joined by Unix sockets in this directory. The first one has a port with
/// address 0 and room for another one, the second one a port with address 2.
fn joined(dir: &Path) -> [Rig; 2] {
    let join = |config: &mut Config, local, remote| {
        let [local, remote] = [local, remote].map(|name| dir.join(name));
        let path = DatagramPath { local, remote };
        config.uplinks.push(Uplink::Unix(path).into());
    };
    let left = Rig::with(1, 0, |config| {
        config.spare_ports = 1;
        join(config, "left", "right");
    });
    let right = Rig::with(3, 0, |config| {
        config.ports[0].mac = mac(8);
        config.ports[1].mac = mac(9);
        join(config, "right", "left");
    });
    [left, right]
}

#[test]
fn an_engine_that_comes_leaves_the_icrc_to_the_switch_as_others_do() {
    let dir = TempDir::new().unwrap();
    let [mut left, right] = joined(dir.path());
    // The switches agree, and each learns the other's address.
    wait_until("a frame without an ICRC", || {
        left.engine_build(0, mac(2), 1);
        right.engine_receive(2);
        right.engine_build(2, mac(0), 1);
        left.engine_receive(0).lacks_icrc()
    });
    left.engine_build(0, mac(2), 1);
    assert!(right.engine_receive(2).lacks_icrc());
    let engine = left.switch.add_port(late(1, 0), None).unwrap();
    left.engines.push((engine, channel().1));
    left.engine_build(1, mac(2), 1);
    assert!(right.engine_receive(2).lacks_icrc());
}

#[test]
fn an_engine_that_comes_reaches_others_and_they_reach_it() {
    for is_direct in [true, false] {
        let rig = Rig::with(2, 1, |config| {
            config.spare_ports = 1;
            config.faults = (!is_direct).then(Default::default);
        });
        let names = || Vec::from_iter(rig.switch.stats().into_iter().map(|stats| stats.name));
        let before = names();
        for number in 0..20 {
            let engine = rig.switch.add_port(late(2, 0), None).unwrap();
            assert_eq!(names()[2], "late2");
            rig.engine_send(0, &roce(mac(2), mac(0), number));
            assert_eq!(receive(&engine)[..], roce(mac(2), mac(0), number));
            send(&engine, &roce(mac(0), mac(2), number));
            assert_eq!(rig.engine_receive(0)[..], roce(mac(0), mac(2), number));
            rig.switch.remove_port(&engine).unwrap();
            assert_eq!(names(), before);
            // Frames to the address of the removed port are now sent to the uplink.
            rig.engine_send(0, &roce(mac(2), mac(0), number));
            assert_eq!(rig.uplinks[0].receive(), roce(mac(2), mac(0), number));
            assert!(receive_frame(&engine).is_none());
        }
    }
}

#[test]
fn the_number_of_ports_is_bounded() {
    let rig = rig(1);
    let engine = rig.switch.add_port(late(2, 0), None).unwrap();
    let error = rig.switch.add_port(late(3, 0), None).unwrap_err();
    assert_eq!(error.to_string(), "no room for another port");
    rig.switch.remove_port(&engine).unwrap();
    rig.switch.remove_port(&engine).unwrap();
    rig.switch.add_port(late(3, 0), None).unwrap();
}

#[test]
fn a_port_of_another_group_that_comes_reaches_nobody() {
    let rig = rig(2);
    let [one, two] = [2, 3].map(|port| rig.switch.add_port(late(port, 7), None).unwrap());
    send(&one, &roce(mac(0), mac(2), 1));
    send(&one, &roce(mac(3), mac(2), 2));
    assert_eq!(receive(&two)[..], roce(mac(3), mac(2), 2));
    rig.counts(2, |stats| stats.no_route, 1);
    rig.engine_send(0, &roce(mac(3), mac(0), 3));
    rig.counts(0, |stats| stats.no_route, 1);
    assert!(receive_frame(&two).is_none());
}

/// The network interface of an added port is served, with its configured addresses, until the port
/// is removed.
#[test]
fn a_network_interface_comes_and_goes() {
    let rig = rig(1);
    let at = |name: &str| rig.dir.path().join(name);
    for number in 0..3 {
        let socket = sockets::listen(&at("late"), &Access::default()).unwrap();
        let far = Netdev::at(&at("late"));
        let config = PortConfig {
            addresses: vec!["10.9.0.3".parse().unwrap()],
            ..late(2, 0)
        };
        let engine = rig.switch.add_port(config, Some(socket)).unwrap();
        let text = format!("frame {number}");
        far.send(&frame(mac(0), mac(2), &text));
        assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(2), &text));
        rig.nets[0].send(&frame(mac(2), mac(0), &text));
        assert_eq!(far.receive(), frame(mac(2), mac(0), &text));
        rig.switch.remove_port(&engine).unwrap();
        far.ends();
        assert!(!at("late").exists());
    }
}

/// A frame that waits for a port when the port is removed is not delivered to the next port with
/// the same index.
#[test]
fn frames_that_wait_end_with_their_port() {
    let rig = Rig::with(1, 1, |config| {
        config.spare_ports = 1;
        config.faults = Some("delay=1".parse().unwrap());
    });
    for number in 0..20 {
        let engine = rig.switch.add_port(late(2, 0), None).unwrap();
        rig.engine_send(0, &roce(mac(2), mac(0), number));
        rig.counts(0, |stats| stats.received, 2 * u64::from(number) + 1);
        rig.switch.remove_port(&engine).unwrap();
        let next = rig.switch.add_port(late(3, 0), None).unwrap();
        rig.engine_send(0, &roce(mac(3), mac(0), number));
        assert_eq!(receive(&next)[..], roce(mac(3), mac(0), number));
        rig.switch.remove_port(&next).unwrap();
    }
}

/// A change that is requested while the switch's thread makes another one wakes the thread again.
/// This switch has no links, so nothing else wakes it.
#[test]
fn changes_in_quick_succession_are_all_made() {
    let rig = Rig::with(1, 0, |config| {
        config.ports[0].net = None;
        config.spare_ports = 1;
    });
    let (done, ended) = channel();
    thread::spawn(move || {
        for _ in 0..1000 {
            let engine = rig.switch.add_port(late(2, 0), None).unwrap();
            rig.switch.remove_port(&engine).unwrap();
        }
        done.send(()).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("2,000 changes");
}

/// An output that passes written bytes to a channel.
struct Sink(Sender<Vec<u8>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The frames of a capture.
fn frames_of(capture: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut frames) = (&capture[24..], Vec::new());
    while let Some((header, after)) = rest.split_at_checked(16) {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        frames.push(&after[..len]);
        rest = &after[len..];
    }
    frames
}

/// Engines deliver frames to each other without the switch's thread, except while one of their
/// ports is captured. In both cases a capture contains each frame once.
#[test]
fn frames_from_and_to_a_port_are_captured_once() {
    let rig = Rig::with(3, 1, |config| config.port_captures = 1);
    let (sink, written) = channel();
    let [port, other] = [0, 1].map(|port| &rig.engines[port].0);
    rig.switch.capture(port, Sink(sink), None).unwrap();
    let error = rig.switch.capture(port, io::sink(), None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a capture of the port is running already"
    );
    assert!(
        rig.switch.capture(other, io::sink(), None).is_err(),
        "one at a time"
    );
    let mut expected = Vec::new();
    let mut pass = |from: usize, to: usize, number, is_captured: bool| {
        rig.engine_build(from, mac(to), number);
        let received = rig.engine_receive(to);
        assert_ne!(received.lacks_icrc(), is_captured);
        if is_captured {
            let frame = roce(mac(to), mac(from), number);
            assert_eq!(received[..], frame);
            expected.push(frame);
        }
    };
    pass(0, 1, 1, true);
    pass(1, 0, 2, true);
    pass(1, 2, 3, false);
    pass(0, 0, 4, true);
    rig.nets[1].send(&frame(mac(2), mac(1), "others"));
    rig.nets[2].receive();
    rig.nets[1].send(&frame(BROADCAST, mac(1), "all"));
    rig.nets[0].receive();
    expected.push(frame(BROADCAST, mac(1), "all"));
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "out"));
    rig.uplinks[0].receive();
    rig.uplinks[0].receive();
    expected.push(frame(OUTSIDE, mac(0), "out"));
    let captured = rig.switch.end_capture(port).unwrap().unwrap();
    assert_eq!((captured.frames, captured.left_out), (5, 0));
    assert_eq!(rig.switch.end_capture(port).unwrap(), None);
    rig.engine_send(0, &roce(mac(1), mac(0), 5));
    rig.engine_receive(1);
    let capture: Vec<u8> = written.iter().flatten().collect();
    assert_eq!(frames_of(&capture), expected);
}

/// Removing a port ends its capture.
#[test]
fn a_capture_ends_with_its_port() {
    let rig = Rig::with(2, 0, |config| {
        (config.spare_ports, config.port_captures) = (1, 1);
    });
    for number in 0..10 {
        let engine = rig.switch.add_port(late(2, 0), None).unwrap();
        let (sink, written) = channel();
        wait("a thread that writes", || {
            rig.switch.capture(&engine, Sink(sink.clone()), None).ok()
        });
        drop(sink);
        send(&engine, &roce(mac(0), mac(2), number));
        rig.engine_receive(0);
        rig.switch.remove_port(&engine).unwrap();
        let capture: Vec<u8> = written.iter().flatten().collect();
        assert_eq!(frames_of(&capture), [roce(mac(0), mac(2), number)]);
    }
}

/// The counter `frames` of a queue is its present length, the counter `longest` the maximum so far.
#[test]
fn depths_of_queues_are_counted() {
    let rig = rig(0);
    for number in 0..10 {
        rig.engine_send(0, &roce(mac(1), mac(0), number));
    }
    let queue = rig.stats(1).engine_queue;
    assert_eq!((queue.frames, queue.longest), (10, 10));
    for _ in 0..10 {
        rig.engine_receive(1);
    }
    let queue = rig.stats(1).engine_queue;
    assert_eq!((queue.frames, queue.longest), (0, 10));
    assert!(queue.limit > queue.longest);
    // The receiver does not read, so frames wait when its socket is full.
    const FRAMES: u64 = 400;
    for number in 0..FRAMES {
        rig.nets[0].send(&frame(mac(1), mac(0), &format!("{number}")));
        rig.counts(0, |stats| stats.received, 10 + number + 1);
    }
    wait_until("a queue", || rig.stats(1).socket_queue.longest > 0);
    for number in 0..FRAMES {
        let expected = frame(mac(1), mac(0), &format!("{number}"));
        assert_eq!(rig.nets[1].receive(), expected);
    }
    wait_until("an empty queue", || rig.stats(1).socket_queue.frames == 0);
}

/// Another port may claim the addresses of a port that was removed.
#[test]
fn addresses_end_with_their_port() {
    let rig = rig(1);
    let claim = {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 3];
        packet.resize(28, 0);
        [&mac(1)[..], &mac(0), &[8, 0], &packet].concat()
    };
    let config = PortConfig {
        addresses: vec!["10.9.0.3".parse().unwrap()],
        ..late(2, 0)
    };
    let engine = rig.switch.add_port(config, None).unwrap();
    rig.nets[0].send(&claim);
    rig.counts(0, |stats| stats.refused, 1);
    rig.switch.remove_port(&engine).unwrap();
    rig.nets[0].send(&claim);
    assert_eq!(rig.nets[1].receive(), claim);
}

/// The end of a port takes nothing from a port that has its MAC address by then.
#[test]
fn a_port_ends_while_another_one_has_its_address() {
    for is_direct in [true, false] {
        let rig = Rig::with(1, 1, |config| {
            config.spare_ports = 2;
            config.faults = (!is_direct).then(Default::default);
        });
        let [old, new] = [(); 2].map(|()| rig.switch.add_port(late(2, 0), None).unwrap());
        rig.switch.remove_port(&old).unwrap();
        // Only frames that pass through the switch's thread get an ICRC.
        rig.engine_build(0, mac(2), 1);
        assert_eq!(receive(&new).lacks_icrc(), is_direct);
        // The switch's thread finds the port too.
        rig.uplinks[0].send(&roce(mac(2), OUTSIDE, 2));
        assert_eq!(receive(&new)[..], roce(mac(2), OUTSIDE, 2));
    }
}

/// The next port with the same index gets no frames for multicast addresses that the former port
/// had joined.
#[test]
fn joins_end_with_their_port() {
    const GROUP: Mac = [0x33, 0x33, 0, 0, 0, 1];
    let rig = rig(1);
    let old = rig.switch.add_port(late(2, 0), None).unwrap();
    old.join(GROUP);
    rig.engine_send(0, &roce(GROUP, mac(0), 1));
    assert_eq!(receive(&old)[..], roce(GROUP, mac(0), 1));
    rig.uplinks[0].receive();
    rig.switch.remove_port(&old).unwrap();
    let new = rig.switch.add_port(late(3, 0), None).unwrap();
    old.join(GROUP);
    rig.engine_send(0, &roce(GROUP, mac(0), 2));
    // Uplinks get their copies after the engines.
    assert_eq!(rig.uplinks[0].receive(), roce(GROUP, mac(0), 2));
    assert!(receive_frame(&new).is_none());
    old.leave(GROUP);
    new.join(GROUP);
    rig.engine_send(0, &roce(GROUP, mac(0), 3));
    assert_eq!(receive(&new)[..], roce(GROUP, mac(0), 3));
}

/// The network interface of a port that follows a port of another isolation group at its index gets
/// no broadcasts of that group.
#[test]
fn broadcasts_stay_in_their_group() {
    let rig = rig(2);
    let add = |port, group| {
        let path = rig.dir.path().join(format!("net{port}"));
        let socket = sockets::listen(&path, &Access::default()).unwrap();
        let far = Netdev::at(&path);
        let engine = rig.switch.add_port(late(port, group), Some(socket));
        (far, engine.unwrap())
    };
    let (other, _engine) = add(4, 7);
    let (_, old) = add(2, 7);
    rig.switch.remove_port(&old).unwrap();
    let (new, _engine) = add(3, 0);
    other.send(&frame(BROADCAST, mac(4), "others"));
    assert_eq!(rig.uplinks[0].receive(), frame(BROADCAST, mac(4), "others"));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "own"));
    assert_eq!(new.receive(), frame(BROADCAST, mac(0), "own"));
}
