// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The agreement on batches between two switches that Unix sockets join, and attempts of other
//! senders to forge it.

mod common;

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use roce::net::Mac;
use roce::{Frame, Packet};
use tempfile::TempDir;
use vswitch::{Config, DatagramPath, EnginePort, PortConfig, SteppedSwitch, Uplink};

/// A switch with one port and one uplink over a Unix socket.
struct Side {
    switch: SteppedSwitch,
    engine: EnginePort,
    port: usize,
}

impl Side {
    fn new(dir: &Path, names: [&str; 2], port: usize, now: Instant) -> Self {
        Self::with(dir, names, port, now, |_| {})
    }

    fn with(
        dir: &Path,
        [local, remote]: [&str; 2],
        port: usize,
        now: Instant,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = Config::default();
        config.ports.push(PortConfig {
            mac: mac(port),
            ..PortConfig::default()
        });
        let [local, remote] = [local, remote].map(|name| dir.join(name));
        config
            .uplinks
            .push(Uplink::Unix(DatagramPath { local, remote }).into());
        change(&mut config);
        let (switch, mut engines) = SteppedSwitch::new(config, now).unwrap();
        Self {
            switch,
            engine: engines.remove(0),
            port,
        }
    }

    /// Sends a packet without an ICRC from the engine.
    fn send(&self, dst: Mac, number: u8) {
        let frame = build_in(&self.engine, dst, mac(self.port), number);
        send_frame(&self.engine, frame);
    }

    fn receive(&self) -> Frame {
        receive_frame(&self.engine).expect("a frame")
    }

    /// The uplink's counter of refused datagrams.
    fn refused(&self) -> u64 {
        self.switch.stats()[1].refused
    }
}

/// Runs enough rounds of all sides at `now` to exchange all their datagrams.
fn exchange<const N: usize>(now: Instant, mut sides: [&mut Side; N]) {
    for _ in 0..6 {
        for side in &mut sides {
            side.switch.round(now);
        }
    }
}

/// Two sides that have agreed on batches and learned the address of each other's port.
fn pair(dir: &Path, now: Instant) -> (Side, Side) {
    let mut left = Side::new(dir, ["l", "r"], 0, now);
    let mut right = Side::new(dir, ["r", "l"], 1, now);
    exchange(now, [&mut left, &mut right]);
    learn(&mut left, &mut right, now);
    (left, right)
}

/// Lets both sides learn the address of the other's port.
fn learn(left: &mut Side, right: &mut Side, now: Instant) {
    left.send(mac(1), 100);
    exchange(now, [left, right]);
    right.send(mac(0), 101);
    exchange(now, [left, right]);
    left.receive();
    right.receive();
}

#[test]
fn those_that_agree_send_no_icrc() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let (mut left, mut right) = pair(dir.path(), now);
    for number in 0..100 {
        left.send(mac(1), number);
    }
    exchange(now, [&mut left, &mut right]);
    for number in 0..100 {
        let frame = right.receive();
        assert!(frame.lacks_icrc());
        assert_eq!(Packet::parse_frame(&frame).unwrap().payload[0], number);
    }
    assert_eq!((left.refused(), right.refused()), (0, 0));
    // The buffers of received frames were returned to their pools.
    assert_eq!(right.switch.frames(), [0, 1, 1]);
}

/// While the remote end is away, another process that can open the socket sends a frame, a greeting
/// and a batch: before the first remote end exists and after it is gone.
#[test]
fn what_arrives_without_a_remote_end_is_dropped() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let mut left = Side::new(dir.path(), ["l", "r"], 0, now);
    let stranger = UnixDatagram::unbound().unwrap();
    let mut number = 0;
    let mut forge = |left: &mut Side| {
        let refused = left.refused();
        let greeting = b"\x01\x80\xc2\x00\x00\x0e\0\0\0\0\0\0\x88\xb5vrdm\x01\0";
        let greeting = [&greeting[..], &[9; 8], &[0; 8]].concat();
        let forged = [
            roce(mac(0), mac(1), 66),
            greeting,
            batch([9; 8], &roce(mac(0), mac(1), 67)),
        ];
        for bytes in &forged {
            stranger.send_to(bytes, dir.path().join("l")).unwrap();
        }
        exchange(now, [left]);
        assert!(receive_frame(&left.engine).is_none());
        assert!(left.refused() > refused);
        // This frame waits in the socket when the remote end comes.
        stranger.send_to(&forged[0], dir.path().join("l")).unwrap();
        number += 1;
        number
    };
    for _ in 0..2 {
        let number = forge(&mut left);
        let mut right = Side::new(dir.path(), ["r", "l"], 1, now);
        exchange(now, [&mut left, &mut right]);
        right.send(mac(0), number);
        exchange(now, [&mut left, &mut right]);
        let frame = left.receive();
        assert_eq!(Packet::parse_frame(&frame).unwrap().payload[0], number);
        assert!(stranger.send_to(&[0; 60], dir.path().join("l")).is_err());
        drop(right);
        // That the remote end is gone is noticed when a frame is sent to it.
        left.send(mac(1), 0);
        exchange(now, [&mut left]);
    }
}

#[test]
fn the_order_of_start_does_not_matter() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let second = Duration::from_secs(1);
    let mut right = Side::new(dir.path(), ["r", "l"], 1, now);
    exchange(now, [&mut right]);
    let mut left = Side::new(dir.path(), ["l", "r"], 0, now + second);
    exchange(now + second, [&mut left, &mut right]);
    learn(&mut left, &mut right, now + second);
    left.send(mac(1), 1);
    exchange(now + second, [&mut left, &mut right]);
    assert!(right.receive().lacks_icrc());
}

#[test]
fn a_capture_of_what_came_without_has_right_ones() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let file = dir.path().join("out.pcap");
    let mut left = Side::new(dir.path(), ["l", "r"], 0, now);
    let mut right = Side::with(dir.path(), ["r", "l"], 1, now, |config| {
        config.pcap = Some(file.clone());
    });
    exchange(now, [&mut left, &mut right]);
    right.send(mac(0), 5);
    exchange(now, [&mut left, &mut right]);
    left.send(mac(1), 6);
    exchange(now, [&mut left, &mut right]);
    let came = right.receive();
    assert!(!came.lacks_icrc() && Packet::parse(&came).is_ok());
    drop(right);
    let file = std::fs::read(file).unwrap();
    let expected = [roce(mac(0), mac(1), 5), roce(mac(1), mac(0), 6)];
    let size = expected[0].len();
    assert_eq!(file[24 + 16..][..size], expected[0]);
    assert_eq!(file[24 + 2 * 16 + size..], expected[1]);
}

#[test]
fn what_came_without_goes_on_with_one() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside.set_read_timeout(Some(PATIENCE)).unwrap();
    let remote = outside.local_addr().unwrap();
    // An address with a UDP port that is free now.
    let free = UdpSocket::bind("127.0.0.1:0").unwrap();
    let bind = free.local_addr().unwrap();
    drop(free);
    let mut left = Side::new(dir.path(), ["l", "r"], 0, now);
    let mut right = Side::with(dir.path(), ["r", "l"], 1, now, |config| {
        config.uplinks.push(Uplink::Udp { bind, remote }.into());
    });
    exchange(now, [&mut left, &mut right]);
    let here = frame(mac(0), OUTSIDE, "here");
    outside.send_to(&here, bind).unwrap();
    exchange(now, [&mut left, &mut right]);
    left.send(OUTSIDE, 9);
    exchange(now, [&mut left, &mut right]);
    let mut bytes = [0; 1000];
    let len = outside.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..len], roce(OUTSIDE, mac(0), 9));
}

#[test]
fn a_successor_gets_them_until_it_agrees() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let (mut left, right) = pair(dir.path(), now);
    drop(right);
    let socket = UnixDatagram::bind(dir.path().join("r")).unwrap();
    left.send(mac(1), 1);
    exchange(now, [&mut left]);
    let mut bytes = [0; 1000];
    let mut next = || loop {
        let len = socket.recv(&mut bytes).unwrap();
        if !is_of_switches(&bytes[..len]) {
            return bytes[..len].to_vec();
        }
    };
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(next(), roce(mac(1), mac(0), 1));
    left.send(mac(1), 2);
    exchange(now, [&mut left]);
    assert_eq!(next(), roce(mac(1), mac(0), 2));
}

#[test]
fn a_successor_agrees_anew() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let (mut left, right) = pair(dir.path(), now);
    drop(right);
    // The successor starts before the left side notices that the first remote end is gone.
    let mut right = Side::new(dir.path(), ["r", "l"], 1, now);
    let mut now = now;
    for _ in 0..3 {
        now += Duration::from_secs(1);
        exchange(now, [&mut left, &mut right]);
    }
    learn(&mut left, &mut right, now);
    left.send(mac(1), 3);
    exchange(now, [&mut left, &mut right]);
    assert!(right.receive().lacks_icrc());
}

#[test]
fn a_remote_end_that_falls_silent_gets_them_again() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let (mut left, right) = pair(dir.path(), now);
    // Another socket is bound at the path while the first one is still open.
    std::fs::remove_file(dir.path().join("r")).unwrap();
    let socket = UnixDatagram::bind(dir.path().join("r")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut now = now;
    let mut bytes = [0; 1000];
    for _ in 0..5 {
        now += Duration::from_secs(1);
        exchange(now, [&mut left]);
        while socket.recv(&mut bytes).is_ok() {}
    }
    left.send(mac(1), 4);
    exchange(now, [&mut left]);
    let len = socket.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..len], roce(mac(1), mac(0), 4));
    drop(right);
}

/// A batch of one frame, whose flag says that the frame lacks its ICRC.
fn batch(token: [u8; 8], frame: &[u8]) -> Vec<u8> {
    let len = (frame.len() as u16).to_be_bytes();
    let head = b"\x01\x80\xc2\x00\x00\x0e\0\0\0\0\0\0\x88\xb5vrdm\x01\x01";
    [&head[..], &token, &[0, 1], &len, &[0, 1], frame].concat()
}

#[test]
fn a_batch_needs_the_token_of_the_present_agreement() {
    let (dir, now) = (TempDir::new().unwrap(), Instant::now());
    let socket = UnixDatagram::bind(dir.path().join("l")).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut right = Side::new(dir.path(), ["r", "l"], 1, now);
    socket.connect(dir.path().join("r")).unwrap();
    let mut greeting = [0; 100];
    socket.recv(&mut greeting).unwrap();
    let token: [u8; 8] = greeting[20..28].try_into().unwrap();
    let bare = {
        let mut frame = roce(mac(1), mac(0), 7);
        let icrc = frame.len() - 4;
        frame[icrc..].fill(0);
        frame
    };
    let sends = |right: &mut Side, bytes: &[u8]| {
        socket.send(bytes).unwrap();
        exchange(now, [right]);
        receive_frame(&right.engine)
    };
    // A batch from an end that has not sent a greeting is refused, whatever its token.
    assert!(sends(&mut right, &batch(token, &bare)).is_none());
    assert!(sends(&mut right, &batch([1; 8], &bare)).is_none());
    assert_eq!(right.refused(), 2);
    // A batch from an end that has sent a greeting is accepted only with the right token.
    let mut hello = greeting[..36].to_vec();
    hello[20..28].copy_from_slice(&[2; 8]);
    hello[28..36].copy_from_slice(&token);
    assert!(sends(&mut right, &hello).is_none());
    assert!(sends(&mut right, &batch([1; 8], &bare)).is_none());
    assert_eq!(right.refused(), 3);
    let frame = sends(&mut right, &batch(token, &bare)).expect("the frame of a batch");
    assert!(frame.lacks_icrc() && Packet::parse_frame(&frame).is_ok());
    // A frame outside of a batch can't be marked as lacking its ICRC.
    let frame = sends(&mut right, &bare).expect("a frame");
    assert!(Packet::parse_frame(&frame).is_err());
    assert_eq!(right.refused(), 3);
}

#[test]
fn no_network_interface_can_send_a_batch() {
    let rig = Rig::with(1, 2, |config| config.ports[0].net_roce = true);
    let bytes = batch([0; 8], &roce(OUTSIDE, mac(0), 1));
    rig.nets[0].send(&bytes);
    rig.uplinks[1].send(&bytes);
    rig.counts(0, |stats| stats.refused, 1);
    rig.counts(2, |stats| stats.refused, 1);
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "after it"));
    let next = rig.uplinks[0].receive();
    assert_eq!(next, frame(OUTSIDE, mac(0), "after it"));
}
