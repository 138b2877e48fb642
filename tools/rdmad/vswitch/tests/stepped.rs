// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch whose rounds and times are controlled by the test.

mod common;

use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use roce::FramePort;
use tempfile::TempDir;
use vswitch::{Caller, Config, DatagramPath, EnginePort, PortConfig, SteppedSwitch, Uplink};

/// A switch with one port that has no network interface. Returns the switch, the port's engine, the
/// other ends of the uplinks, and the directory of their sockets.
fn switch(now: Instant) -> (SteppedSwitch, EnginePort, [UnixDatagram; 2], TempDir) {
    let (switch, mut engines, fars, dir) = switch_with(1, now);
    (switch, engines.remove(0), fars, dir)
}

/// Like [`switch`], with `ports` ports.
fn switch_with(
    ports: usize,
    now: Instant,
) -> (SteppedSwitch, Vec<EnginePort>, [UnixDatagram; 2], TempDir) {
    let dir = TempDir::new().unwrap();
    let mut config = Config {
        ports: (0..ports)
            .map(|port| PortConfig {
                mac: mac(port),
                ..PortConfig::default()
            })
            .collect(),
        ..Config::default()
    };
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
    let (switch, engines) = SteppedSwitch::new(config, now).unwrap();
    for (far, name) in fars.iter().zip(["a", "b"]) {
        far.connect(dir.path().join(format!("{name}.switch")))
            .unwrap();
        let mut greeting = [0; 100];
        let len = far.recv(&mut greeting).unwrap();
        assert!(is_of_switches(&greeting[..len]));
    }
    (switch, engines, fars, dir)
}

/// The callers of the engine's notifications from now on.
fn callers(engine: &EnginePort) -> Arc<Mutex<Vec<Caller>>> {
    let heard = Arc::<Mutex<Vec<_>>>::default();
    let listener = heard.clone();
    engine.on_ready(move |caller| listener.lock().unwrap().push(caller));
    heard
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
    let mut frame = engine.frame(&destination(&bytes), bytes.len()).unwrap();
    frame.copy_from_slice(&bytes);
    send_frame(&engine, frame);
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
    // The switch searches for restarted remote ends each second.
    let second = Duration::from_secs(1);
    assert_eq!(switch.alarm(), Some(now + second));
    assert!(!switch.is_awake(now + second / 2));
    assert!(switch.is_awake(now + second));
    switch.round(now + second);
    assert_eq!(switch.alarm(), Some(now + 2 * second));
}

/// The last engine that gets frames in a round may do its work in the switch's thread. Others may
/// not: their workers do the work at the same time.
#[test]
fn the_last_engine_of_a_round_may_work_in_the_thread_of_the_switch() {
    let now = Instant::now();
    let (mut switch, engines, [a, _b], _dir) = switch_with(3, now);
    let heard: Arc<Mutex<Vec<(usize, Caller)>>> = Arc::default();
    for (port, engine) in engines.iter().enumerate() {
        let heard = heard.clone();
        engine.on_ready(move |caller| heard.lock().unwrap().push((port, caller)));
    }
    let mut round = |frames: &[usize]| {
        for port in frames {
            a.send(&roce(mac(*port), OUTSIDE, 1)).unwrap();
        }
        switch.round(now);
        std::mem::take(&mut *heard.lock().unwrap())
    };
    assert_eq!(round(&[1]), [(1, Caller::Idle)]);
    assert_eq!(round(&[2, 0, 2]), [(0, Caller::Busy), (2, Caller::Idle)]);
    assert_eq!(round(&[]), []);
}

/// An engine that works in the switch's thread has its answer sent in the next round, without a
/// sleep before it.
#[test]
fn answers_from_the_thread_of_the_switch_leave_at_once() {
    let now = Instant::now();
    let (mut switch, engine, [a, _b], _dir) = switch(now);
    let answer = roce(OUTSIDE, mac(0), 2);
    let (port, bytes) = (engine.clone(), answer.clone());
    engine.on_ready(move |_| {
        while receive_frame(&port).is_some() {
            let mut frame = port.frame(&destination(&bytes), bytes.len()).unwrap();
            frame.copy_from_slice(&bytes);
            send_frame(&port, frame);
        }
    });
    a.send(&roce(mac(0), OUTSIDE, 1)).unwrap();
    switch.round(now);
    assert!(switch.is_awake(now), "an answer waits");
    switch.round(now);
    let mut received = [0; 1000];
    let len = a.recv(&mut received).unwrap();
    assert_eq!(received[..len], answer);
    assert!(!switch.is_awake(now));
}

/// If a link has more frames than the switch's thread reads for several rounds, the thread leaves
/// the work of engines to their workers.
#[test]
fn a_thread_with_more_frames_to_read_does_no_work_of_engines() {
    let now = Instant::now();
    let (mut switch, engine, [a, _b], _dir) = switch(now);
    let heard = callers(&engine);
    // The switch reads at most 64 frames from a link in a round.
    for _ in 0..9 {
        for _ in 0..64 {
            a.send(&roce(mac(0), OUTSIDE, 1)).unwrap();
        }
        switch.round(now);
    }
    switch.round(now);
    a.send(&roce(mac(0), OUTSIDE, 1)).unwrap();
    switch.round(now);
    let heard = heard.lock().unwrap();
    let (flood, after) = heard.split_at(9);
    let (first, later) = flood.split_at(7);
    assert_eq!(first, [Caller::Idle; 7]);
    assert_eq!(later, [Caller::Busy; 2]);
    assert_eq!(after, [Caller::Idle]);
}

/// An engine that waits for room is notified once, when the switch has sent its frames.
#[test]
fn an_engine_with_room_again_may_work_in_the_thread_of_the_switch() {
    let now = Instant::now();
    let (mut switch, engine, [_a, _b], _dir) = switch(now);
    let heard = callers(&engine);
    let bytes = roce(OUTSIDE, mac(0), 1);
    let frames = std::iter::from_fn(|| {
        let mut frame = engine.frame(&destination(&bytes), bytes.len())?;
        frame.copy_from_slice(&bytes);
        Some(frame)
    });
    let frames = Vec::from_iter(frames);
    frames
        .into_iter()
        .take(64)
        .for_each(|frame| send_frame(&engine, frame));
    // The other frames were dropped outside of a round.
    assert_eq!(std::mem::take(&mut *heard.lock().unwrap()), [Caller::Busy]);
    let mut rest = Vec::from_iter(std::iter::from_fn(|| engine.frame(&OUTSIDE, 60)));
    // There is room again when a quarter of the frames have returned: with those that were sent.
    rest.truncate((64 + rest.len()) / 4 * 3);
    switch.round(now);
    assert_eq!(*heard.lock().unwrap(), [Caller::Idle]);
}
