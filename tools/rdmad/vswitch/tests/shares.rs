// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Ports share the bandwidth of an uplink that is too slow for all their frames.

mod common;

use std::os::unix::net::UnixDatagram;
use std::time::Instant;

use common::*;
use roce::FramePort;
use tempfile::TempDir;
use vswitch::{Config, DatagramPath, EnginePort, PortConfig, SteppedSwitch, Uplink};

/// A switch with ports, and an uplink whose far end the test reads.
struct Bottleneck {
    now: Instant,
    switch: SteppedSwitch,
    engines: Vec<EnginePort>,
    far: UnixDatagram,
    _dir: TempDir,
}

impl Bottleneck {
    fn new(ports: usize) -> Self {
        let now = Instant::now();
        let dir = TempDir::new().unwrap();
        let [local, remote] = ["near", "far"].map(|name| dir.path().join(name));
        let far = UnixDatagram::bind(&remote).unwrap();
        far.set_nonblocking(true).unwrap();
        let path = DatagramPath {
            local: local.clone(),
            remote,
        };
        let config = Config {
            ports: (0..ports)
                .map(|port| PortConfig {
                    mac: mac(port),
                    ..PortConfig::default()
                })
                .collect(),
            uplinks: vec![Uplink::Unix(path).into()],
            ..Config::default()
        };
        let (switch, engines) = SteppedSwitch::new(config, now).unwrap();
        let mut bottleneck = Self {
            now,
            switch,
            engines,
            far,
            _dir: dir,
        };
        assert!(is_of_switches(&bottleneck.read().unwrap()));
        // The switch learns that the destination is behind the uplink. The far end is not
        // connected, so its socket holds few frames.
        let hello = frame(mac(0), OUTSIDE, "hello");
        bottleneck.far.send_to(&hello, local).unwrap();
        bottleneck.round();
        bottleneck
    }

    fn round(&mut self) {
        self.switch.round(self.now);
    }

    /// Sends a frame of `len` bytes from a port. Returns whether the port had a buffer for it.
    fn send(&self, port: usize, len: usize) -> bool {
        let Some(mut frame) = self.engines[port].frame(&OUTSIDE, len) else {
            return false;
        };
        frame.fill(0);
        frame[..6].copy_from_slice(&OUTSIDE);
        frame[6..12].copy_from_slice(&mac(port));
        send_frame(&self.engines[port], frame);
        true
    }

    /// The next frame at the far end.
    fn read(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; 10_000];
        let len = self.far.recv(&mut bytes).ok()?;
        bytes.truncate(len);
        Some(bytes)
    }

    /// Reads all frames at the far end, and lets the switch send more. Returns the source port and
    /// the length of each frame read.
    fn next(&mut self) -> Vec<(usize, usize)> {
        let frames: Vec<_> = std::iter::from_fn(|| self.read()).collect();
        self.round();
        let port = |frame: &[u8]| (0..self.engines.len()).find(|port| frame[6..12] == mac(*port));
        let frames = frames.iter();
        frames
            .map(|frame| (port(frame).expect("a port"), frame.len()))
            .collect()
    }
}

#[test]
fn a_frame_of_a_quiet_port_passes_those_of_others() {
    const QUIET: usize = 2;
    let mut bottleneck = Bottleneck::new(3);
    for port in 0..QUIET {
        assert!((0..500).all(|_| bottleneck.send(port, 1000)));
    }
    for _ in 0..20 {
        bottleneck.round();
    }
    bottleneck.send(QUIET, 1000);
    let before = std::iter::repeat_with(|| bottleneck.next())
        .flatten()
        .take_while(|(port, _)| *port != QUIET)
        .count();
    // Only frames that were already in the socket or chosen arrive first, far fewer than the 1000
    // frames of the other ports.
    assert!(before < 200, "{before}");
}

#[test]
fn ports_of_unequal_load_get_their_shares() {
    const PORTS: usize = 64;
    const LIGHT: usize = 32;
    const STEPS: usize = 150;
    const SMALL: usize = 500;
    // Bytes that the far end reads in a step: all bytes of the light ports, but only a part of the
    // bytes that the heavy ports send.
    const CAPACITY: usize = LIGHT * SMALL + (PORTS - LIGHT) * 2000;
    let mut bottleneck = Bottleneck::new(PORTS);
    let mut arrived = [0; PORTS];
    for step in 0..STEPS {
        for port in 0..PORTS {
            let heavy = if port % 2 == 0 { 300 } else { 4000 };
            let (count, len) = if port < LIGHT {
                (1, SMALL)
            } else {
                (100, heavy)
            };
            // A port without a free buffer waits for the next step.
            let _ = (0..count).all(|_| bottleneck.send(port, len));
        }
        bottleneck.round();
        let mut read = 0;
        while read < CAPACITY {
            let frames = bottleneck.next();
            if frames.is_empty() {
                break;
            }
            for (port, len) in frames {
                read += len;
                // The first third of the steps is not counted: the buffers of the switch fill.
                if step >= STEPS / 3 {
                    arrived[port] += len;
                }
            }
        }
    }
    let offered = (STEPS - STEPS / 3) * SMALL;
    // A frame of a light port waits at most for one turn of each heavy port. This takes less than
    // ten steps, so less than ten frames of the port are missing at the end.
    let delayed = 10 * SMALL;
    for (port, bytes) in arrived[..LIGHT].iter().enumerate() {
        assert!(
            bytes + delayed >= offered,
            "port {port}: {bytes} of {offered}"
        );
    }
    let heavy = &arrived[LIGHT..];
    let index = jain(heavy);
    assert!(index > 0.95, "Jain's index {index}: {heavy:?}");
}

/// Jain's fairness index: 1 if all values are equal.
fn jain(values: &[usize]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}
