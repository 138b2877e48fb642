// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch whose rounds and times are controlled by the test.

mod common;

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use common::*;
use roce::FramePort;
use tempfile::TempDir;
use vswitch::{Config, DatagramPath, EnginePort, PortConfig, SteppedSwitch, Uplink};

/// A switch with one port that has no network interface. Returns the switch, the port's engine, the
/// other ends of the uplinks, and the directory of their sockets.
fn switch(now: Instant) -> (SteppedSwitch, EnginePort, [UnixDatagram; 2], TempDir) {
    let dir = TempDir::new().unwrap();
    let mut config = Config::default();
    config.ports.push(PortConfig {
        mac: mac(0),
        ..PortConfig::default()
    });
    let fars = ["a", "b"].map(|name| {
        let remote = dir.path().join(name);
        let local = dir.path().join(format!("{name}.switch"));
        let far = UnixDatagram::bind(&remote).unwrap();
        far.set_nonblocking(true).unwrap();
        config
            .uplinks
            .push(Uplink::Unix(DatagramPath { local, remote }).into());
        far
    });
    let (switch, mut engines) = SteppedSwitch::new(config, now).unwrap();
    for (far, name) in fars.iter().zip(["a", "b"]) {
        far.connect(dir.path().join(format!("{name}.switch")))
            .unwrap();
        let mut greeting = [0; 100];
        let len = far.recv(&mut greeting).unwrap();
        assert!(is_of_switches(&greeting[..len]));
    }
    (switch, engines.remove(0), fars, dir)
}

#[test]
fn it_sleeps_until_a_frame_comes_and_forwards_it_in_one_round() {
    let now = Instant::now();
    let (mut switch, _engine, [a, b], _dir) = switch(now);
    assert!(!switch.is_awake(now));
    let there = frame(OUTSIDE, [2, 0, 0, 0, 2, 2], "through");
    a.send(&there).unwrap();
    assert!(switch.is_awake(now));
    switch.round(now);
    assert!(!switch.is_awake(now));
    let mut bytes = [0; 100];
    let len = b.recv(&mut bytes).unwrap();
    assert_eq!(bytes[..len], there);
    assert!(a.recv(&mut bytes).is_err(), "it went back");
    assert_eq!(switch.addresses(), 1);
}

#[test]
fn an_engine_wakes_it_and_gets_its_frame_back() {
    let now = Instant::now();
    let (mut switch, engine, [a, _b], _dir) = switch(now);
    let bytes = roce(OUTSIDE, mac(0), 1);
    let mut frame = engine.frame(bytes.len()).unwrap();
    frame.copy_from_slice(&bytes);
    engine.send(frame);
    // The engine uses one buffer, and each of the three links one buffer for its next frame.
    assert_eq!(switch.frames(), [1, 1, 1, 1]);
    assert!(switch.is_awake(now));
    switch.round(now);
    assert_eq!(switch.frames(), [0, 1, 1, 1]);
    assert_eq!(a.recv(&mut [0; 1000]).unwrap(), bytes.len());
}

#[test]
fn its_time_is_the_callers() {
    let now = Instant::now();
    let (mut switch, _engine, _fars, _dir) = switch(now);
    // The switch searches for restarted peers each second.
    let second = Duration::from_secs(1);
    assert_eq!(switch.alarm(), Some(now + second));
    assert!(!switch.is_awake(now + second / 2));
    assert!(switch.is_awake(now + second));
    switch.round(now + second);
    assert_eq!(switch.alarm(), Some(now + 2 * second));
}
