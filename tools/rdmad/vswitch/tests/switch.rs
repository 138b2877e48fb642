// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The switch over real sockets.
//!
//! That a frame does not arrive is shown by one sent after it, which does.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use roce::net::Mac;
use roce::{Frame, Packet};
use tempfile::TempDir;
use vswitch::stats::Stats;
use vswitch::{Config, DatagramPath, EnginePort, FaultPlan, PortConfig, Switch, Uplink};

const BROADCAST: Mac = [0xff; 6];
const OUTSIDE: Mac = [2, 0, 0, 0, 1, 1];
/// Only a broken switch is this slow.
const PATIENCE: Duration = Duration::from_secs(20);

fn mac(port: usize) -> Mac {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

fn frame(dst: Mac, src: Mac, text: &str) -> Vec<u8> {
    [&dst[..], &src, &[0x88, 0xb5], text.as_bytes()].concat()
}

/// A sound RoCE frame with these addresses; `number` tells them apart.
fn roce(dst: Mac, src: Mac, number: u8) -> Vec<u8> {
    use roce::headers::{Bth, Transport};
    use roce::net::Addresses;
    use roce::opcode::{Extra, Op, Opcode, Position};
    let send = Opcode::rc(Op::Send(Position::Only, Extra::None));
    let transport = Transport::new(Bth::new(send, 0xffff, 17, roce::Psn::new(number.into())));
    let path = roce::Path::new(
        src,
        dst,
        Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into()),
    );
    let mut frame = vec![0; roce::packet::frame_size(&path, &transport, 100)];
    let built: Result<(), ()> = roce::packet::build(&mut frame, &path, 0, &transport, 100, |out| {
        out.fill(number);
        Ok(())
    });
    built.unwrap();
    frame
}

/// QEMU's end of a network interface, or the far end of an uplink.
struct Far(UnixDatagram, PathBuf);

impl Far {
    fn send(&self, frame: &[u8]) {
        // The switch empties its socket, which may be full for a moment.
        loop {
            match self.0.send_to(frame, &self.1) {
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 10_000];
        let len = self.0.recv(&mut bytes).expect("a frame");
        bytes.truncate(len);
        bytes
    }
}

struct Rig {
    switch: Switch,
    nets: Vec<Far>,
    uplinks: Vec<Far>,
    engines: Vec<(EnginePort, mpsc::Receiver<()>)>,
    dir: TempDir,
}

impl Rig {
    fn new(ports: usize, uplinks: usize) -> Self {
        Self::with(ports, uplinks, |_| {})
    }

    fn with(ports: usize, uplinks: usize, change: impl FnOnce(&mut Config)) -> Self {
        let dir = TempDir::new().unwrap();
        let far = |name: String| {
            let (local, remote) = (
                dir.path().join(format!("{name}.switch")),
                dir.path().join(name),
            );
            let socket = UnixDatagram::bind(&remote).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            (Far(socket, local.clone()), DatagramPath { local, remote })
        };
        let mut config = Config::default();
        let (mut net_ends, mut uplink_ends) = (Vec::new(), Vec::new());
        for port in 0..ports {
            let (end, path) = far(format!("net{port}"));
            net_ends.push(end);
            config.ports.push(PortConfig {
                name: format!("vm{port}"),
                mac: mac(port),
                net: Some(path),
            });
        }
        for uplink in 0..uplinks {
            let (end, path) = far(format!("uplink{uplink}"));
            uplink_ends.push(end);
            config.uplinks.push(Uplink::Unix(path));
        }
        change(&mut config);
        let (switch, engines) = Switch::start(config).unwrap();
        let engines = engines
            .into_iter()
            .map(|engine| {
                let (ready, heard) = mpsc::channel();
                engine.on_ready(move || {
                    let _ = ready.send(());
                });
                (engine, heard)
            })
            .collect();
        Self {
            switch,
            nets: net_ends,
            uplinks: uplink_ends,
            engines,
            dir,
        }
    }

    fn engine_send(&self, port: usize, bytes: &[u8]) {
        let mut frame = self.engines[port].0.frame(bytes.len()).expect("a buffer");
        frame.copy_from_slice(bytes);
        self.engines[port].0.send(frame);
    }

    fn engine_receive(&self, port: usize) -> Frame {
        let (engine, heard) = &self.engines[port];
        loop {
            if let Some(frame) = engine.receive() {
                return frame;
            }
            heard.recv_timeout(PATIENCE).expect("a frame");
        }
    }

    /// Counters of a port, or of an uplink behind all ports. Deliveries are counted before the next frame is taken,
    /// so they are right once a later frame has arrived.
    fn stats(&self, index: usize) -> Stats {
        self.switch.stats()[index].clone()
    }
}

#[test]
fn unicast_between_machines() {
    let rig = Rig::new(3, 1);
    rig.nets[0].send(&frame(mac(1), mac(0), "one"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "one"));
    rig.nets[1].send(&frame(mac(0), mac(1), "two"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), mac(1), "two"));
    // Nobody else saw them.
    rig.nets[0].send(&frame(BROADCAST, mac(0), "all"));
    for far in [&rig.nets[1], &rig.nets[2], &rig.uplinks[0]] {
        assert_eq!(far.receive(), frame(BROADCAST, mac(0), "all"));
    }
    // And what was broadcast did not come back.
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
    rig.engine_send(0, &roce(mac(1), mac(0), 2));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 2));
    assert_eq!(rig.stats(0).refused, 9);
    assert_eq!(rig.stats(0).received, 2);
}

#[test]
fn frames_to_oneself_and_to_nobody_go_nowhere() {
    let rig = Rig::new(2, 0);
    rig.nets[0].send(&frame(mac(0), mac(0), "me"));
    rig.nets[0].send(&roce(mac(0), mac(0), 1));
    rig.nets[0].send(&frame(OUTSIDE, mac(0), "nobody"));
    rig.engine_send(0, &frame(mac(0), mac(0), "no RoCE"));
    rig.nets[0].send(&frame(mac(1), mac(0), "honest"));
    rig.nets[1].receive();
    rig.engine_send(0, &roce(mac(0), mac(0), 2));
    assert_eq!(
        rig.engine_receive(0)[..],
        roce(mac(0), mac(0), 2),
        "an engine may talk to itself"
    );
    assert_eq!(rig.stats(0).no_route, 4);
}

#[test]
fn roce_goes_to_the_engine() {
    let rig = Rig::new(2, 1);
    rig.nets[0].send(&roce(mac(1), mac(0), 1));
    assert_eq!(
        rig.engine_receive(1)[..],
        roce(mac(1), mac(0), 1),
        "from a machine's own stack"
    );
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
    // The network interfaces saw none of it.
    rig.nets[0].send(&frame(mac(1), mac(0), "net"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "net"));
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
    // It moves to the other uplink.
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
    assert_eq!(rig.stats(1).refused, 2);
    // Known to be where it comes from: nowhere to go.
    rig.uplinks[0].send(&frame(OUTSIDE, [2, 9, 9, 9, 9, 9], "local"));
    rig.uplinks[0].send(&frame(mac(0), OUTSIDE, "last"));
    assert_eq!(rig.nets[0].receive(), frame(mac(0), OUTSIDE, "last"));
    assert_eq!(rig.stats(1).no_route, 1);
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
    assert_eq!(rig.stats(0).refused, 1);
}

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
fn nobody_at_the_other_end_costs_frames_alone() {
    let rig = Rig::new(3, 0);
    std::fs::remove_file(rig.dir.path().join("net1")).unwrap();
    rig.nets[0].send(&frame(mac(1), mac(0), "lost"));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "heard"));
    assert_eq!(rig.nets[2].receive(), frame(BROADCAST, mac(0), "heard"));
    assert_eq!(rig.stats(1).dropped, 2);
    // It comes back.
    let again = UnixDatagram::bind(rig.dir.path().join("net1")).unwrap();
    again.set_read_timeout(Some(PATIENCE)).unwrap();
    rig.nets[0].send(&frame(mac(1), mac(0), "found"));
    assert_eq!(again.recv(&mut [0; 100]).unwrap(), 14 + 5);
}

#[test]
fn an_engine_that_does_not_receive_holds_up_its_peer_alone() {
    let rig = Rig::new(3, 0);
    let (sender, heard) = &rig.engines[0];
    let mut sent = 0;
    // Buffers run out when the receiver has them all.
    while let Some(mut frame) = sender.frame(roce(mac(1), mac(0), 0).len()) {
        frame.copy_from_slice(&roce(mac(1), mac(0), sent as u8));
        sender.send(frame);
        sent += 1;
        assert!(sent < 100_000);
    }
    rig.nets[0].send(&frame(mac(2), mac(0), "free"));
    assert_eq!(rig.nets[2].receive(), frame(mac(2), mac(0), "free"));
    while heard.try_recv().is_ok() {}
    for number in 0..sent {
        assert_eq!(
            rig.engine_receive(1)[..],
            roce(mac(1), mac(0), number as u8),
            "in order, none lost"
        );
        if number == 0 {
            heard
                .recv_timeout(PATIENCE)
                .expect("to be told that there is a buffer");
        }
    }
    assert!(sender.frame(100).is_some());
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
    while rig.engines[0].0.receive().is_some() {
        got += 1;
    }
    let (port, uplink) = (rig.stats(0), rig.stats(2));
    assert_eq!(port.sent, got);
    assert_eq!(port.sent + port.dropped + uplink.dropped, flood);
}

#[test]
fn udp_uplink() {
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    // A port that is free now.
    let bind = UdpSocket::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let peer = far.local_addr().unwrap();
    let rig = Rig::with(1, 0, |config| {
        config.uplinks.push(Uplink::Udp { bind, peer })
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

#[test]
fn tap_uplink() {
    let name = format!("vsw{}", std::process::id() % 1_000_000);
    let config = || Config {
        uplinks: vec![Uplink::Tap(name.clone())],
        ..Config::default()
    };
    match Switch::start(config()) {
        Ok(_switch) => {
            let flags =
                std::fs::read_to_string(format!("/sys/class/net/{name}/tun_flags")).unwrap();
            let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).unwrap();
            assert_eq!(flags & 0x1003, 0x1002, "a tap without packet information");
            assert!(Switch::start(config()).is_err(), "it is taken");
        }
        // Not everybody may create interfaces.
        Err(error) => assert!(error.to_string().contains("uplink Tap"), "{error}"),
    }
}

#[test]
fn sockets_left_behind_are_replaced_and_live_ones_are_not() {
    let dir = TempDir::new().unwrap();
    let (local, remote) = (dir.path().join("switch"), dir.path().join("qemu"));
    drop(UnixDatagram::bind(&local).unwrap());
    assert!(local.exists());
    let config = Config {
        ports: vec![PortConfig {
            name: "a".into(),
            mac: mac(0),
            net: Some(DatagramPath {
                local: local.clone(),
                remote,
            }),
        }],
        ..Config::default()
    };
    let (switch, _) = Switch::start(config.clone()).unwrap();
    let error = Switch::start(config.clone()).unwrap_err().to_string();
    assert!(
        error.contains("network of port a") && error.contains("in use"),
        "{error}"
    );
    drop(switch);
    assert!(!local.exists());
    std::fs::write(&local, "not a socket").unwrap();
    assert!(Switch::start(config).is_err());
    assert_eq!(std::fs::read(&local).unwrap(), b"not a socket");
}

/// The frames of a capture file.
fn capture(path: &std::path::Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!(
        (word(0), word(20)),
        (0xa1b2_3c4d, 1),
        "nanoseconds, Ethernet"
    );
    let (mut frames, mut at, mut last) = (Vec::new(), 24, 0);
    while at < file.len() {
        let time = word(at) * 1_000_000_000 + word(at + 4);
        assert!(word(at + 4) < 1_000_000_000 && time >= last);
        last = time;
        assert_eq!(word(at + 8), word(at + 12), "whole frames");
        frames.push(file[at + 16..at + 16 + word(at + 8)].to_vec());
        at += 16 + word(at + 8);
    }
    frames
}

#[test]
fn what_crosses_the_switch_is_captured_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out.pcap");
    let rig = Rig::with(2, 1, |config| config.pcap = Some(path.clone()));
    rig.nets[0].send(&frame(BROADCAST, mac(0), "all"));
    rig.nets[1].receive();
    rig.nets[0].send(&frame(mac(1), OUTSIDE, "forged"));
    rig.engine_send(0, &roce(mac(1), mac(0), 5));
    rig.engine_receive(1);
    rig.uplinks[0].send(&frame(mac(1), OUTSIDE, "in"));
    rig.nets[1].receive();
    drop(rig);
    let frames = capture(&path);
    assert_eq!(frames.len(), 3);
    assert!(frames.contains(&frame(BROADCAST, mac(0), "all")));
    assert!(frames.contains(&roce(mac(1), mac(0), 5)));
    assert!(frames.contains(&frame(mac(1), OUTSIDE, "in")));
    assert!(Packet::parse(frames.iter().find(|frame| frame.len() > 100).unwrap()).is_ok());
}

/// Numbers of 200 frames from one engine to the other that arrive unharmed, in order of arrival.
fn arrivals(plan: &str) -> Vec<u8> {
    let plan: FaultPlan = plan.parse().unwrap();
    let rig = Rig::with(2, 0, |config| config.faults = Some(plan));
    for number in 0..200 {
        rig.engine_send(0, &roce(mac(1), mac(0), number));
    }
    // Behind all others, to see the end: frames between network interfaces meet no faults.
    let sent = 200;
    let mut numbers = Vec::new();
    let mut seen = 0;
    while seen < sent {
        let stats = rig.stats(0);
        seen = stats.received;
        std::thread::yield_now();
    }
    rig.nets[0].send(&frame(mac(1), mac(0), "end"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "end"));
    while let Some(frame) = rig.engines[1].0.receive() {
        if let Ok(packet) = Packet::parse(&frame) {
            numbers.push(packet.payload[0]);
        }
    }
    numbers
}

#[test]
fn faults_repeat_with_the_seed() {
    let plan = "drop=0.2,duplicate=0.1,corrupt=0.2,seed=";
    let first = arrivals(&format!("{plan}5"));
    assert!(first.len() > 80 && first.len() < 200 && first.is_sorted());
    assert!(first.windows(2).any(|pair| pair[0] == pair[1]));
    assert_eq!(arrivals(&format!("{plan}5")), first);
    assert_ne!(arrivals(&format!("{plan}6")), first);
}

#[test]
fn faults_spare_the_network_interfaces() {
    let rig = Rig::with(2, 1, |config| {
        config.faults = Some("drop=1".parse().unwrap())
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    rig.engine_send(0, &roce(OUTSIDE, mac(0), 1));
    rig.nets[0].send(&roce(OUTSIDE, mac(0), 2));
    assert_eq!(
        rig.uplinks[0].receive(),
        roce(OUTSIDE, mac(0), 2),
        "an interface's RoCE on its way out"
    );
    rig.nets[0].send(&frame(mac(1), mac(0), "spared"));
    assert_eq!(rig.nets[1].receive(), frame(mac(1), mac(0), "spared"));
    assert!(rig.engines[1].0.receive().is_none());
}

#[test]
fn frames_that_wait_are_delivered_when_nothing_else_happens() {
    let rig = Rig::with(2, 0, |config| {
        config.faults = Some("reorder=1".parse().unwrap())
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
    let rig = Rig::with(2, 0, |config| {
        config.faults = Some("delay=1".parse().unwrap())
    });
    rig.engine_send(0, &roce(mac(1), mac(0), 1));
    assert_eq!(rig.engine_receive(1)[..], roce(mac(1), mac(0), 1));
}
