// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch, and real sockets at the other ends of its links. The networks of `testkit` have no
//! switch, or a real one that joins engines.
//!
//! To show that a frame does not arrive, a test sends another frame afterwards: it must be the next
//! one that arrives.
// Each test program uses a part of this module.
#![allow(dead_code)]

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use roce::frame::Frames;
use roce::headers::{Bth, Headers, RcRequest, SendPart};
use roce::net::{Addresses, Mac, Template};
use roce::packet::{build, build_frame, frame_size};
use roce::work::With;
use roce::{Frame, FramePort, Path, Psn, Qpn};
use tempfile::TempDir;
use vswitch::stats::Stats;
use vswitch::{Config, DatagramPath, EnginePort, PortConfig, Switch, Uplink};

pub use testkit::{wait_until, Netdev};

pub const BROADCAST: Mac = [0xff; 6];
pub const OUTSIDE: Mac = [2, 0, 0, 0, 1, 1];
/// Time limit of a wait, which only a broken switch exceeds.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a frame from an engine.
pub fn send_frame(engine: &EnginePort, frame: Frame) {
    engine.send(&mut Frames::from_iter([frame]));
}

/// The destination address of a frame.
pub fn destination(frame: &[u8]) -> Mac {
    frame[..6].try_into().unwrap()
}

/// A frame like [`roce`] in a buffer of an engine, without an ICRC.
pub fn build_in(engine: &EnginePort, dst: Mac, src: Mac, number: u8) -> Frame {
    let (path, headers) = send_only(dst, src, number, 0);
    let size = frame_size(&path, &headers.body, PAYLOAD);
    let mut frame = engine.frame(&dst, size).expect("a buffer");
    let template = Template::of(&path);
    let built: Result<(), ()> = build_frame(&mut frame, &template, 0, &headers, PAYLOAD, |out| {
        out.fill(number);
        Ok(())
    });
    built.unwrap();
    frame
}

/// The next received frame of an engine.
pub fn receive_frame(engine: &EnginePort) -> Option<Frame> {
    let mut frames = Frames::new();
    engine.receive(1, &mut frames);
    frames.pop()
}

pub fn mac(port: usize) -> Mac {
    [2, 0, 0, 0, 0, port as u8 + 1]
}

pub fn frame(dst: Mac, src: Mac, text: &str) -> Vec<u8> {
    [&dst[..], &src, &[0x88, 0xb5], text.as_bytes()].concat()
}

/// A valid RoCE frame with these addresses. `number` makes it unique.
pub fn roce(dst: Mac, src: Mac, number: u8) -> Vec<u8> {
    roce_with(dst, src, number, 0)
}

/// Like [`roce`], with a traffic class.
pub fn roce_with(dst: Mac, src: Mac, number: u8, traffic_class: u8) -> Vec<u8> {
    let (path, headers) = send_only(dst, src, number, traffic_class);
    let mut frame = vec![0; frame_size(&path, &headers.body, PAYLOAD)];
    let built: Result<(), ()> = build(&mut frame, &path, 0, &headers, PAYLOAD, |out| {
        out.fill(number);
        Ok(())
    });
    built.unwrap();
    frame
}

pub const PAYLOAD: usize = 100;

pub fn send_only(dst: Mac, src: Mac, number: u8, traffic_class: u8) -> (Path, Headers) {
    let bth = Bth::new(0xffff, Qpn::new(17), Psn::new(number.into()));
    let send = RcRequest::from(SendPart::Only(With::Nothing));
    let addresses = Addresses::V4([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let path = Path {
        traffic_class,
        ..Path::new(src, dst, addresses)
    };
    (path, Headers::new(bth, send))
}

/// Whether a datagram is a greeting or a batch between switches: its source address is zero.
pub fn is_of_switches(bytes: &[u8]) -> bool {
    bytes.get(6..12) == Some(&[0; 6])
}

/// The other end of a link.
pub trait End {
    /// Receives the next frame.
    fn receive(&self) -> Vec<u8>;
}

impl End for Netdev {
    fn receive(&self) -> Vec<u8> {
        Netdev::receive(self)
    }
}

/// The far end of an uplink.
pub struct Far(UnixDatagram, PathBuf);

impl Far {
    pub fn send(&self, frame: &[u8]) {
        // The switch's socket may be full until the switch reads it.
        loop {
            match self.0.send_to(frame, &self.1) {
                Ok(_) => return,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Connects to the switch, like another switch would. This socket then refuses datagrams of
    /// other senders.
    pub fn connect(&self) {
        self.0.connect(&self.1).expect("the switch's socket");
    }

    /// Closes the socket and binds a new one at the same path.
    pub fn replace(&mut self) {
        let path = self.0.local_addr().expect("an address");
        let path = path.as_pathname().expect("a path");
        std::fs::remove_file(path).expect("the socket's file");
        self.0 = UnixDatagram::bind(path).expect("a socket");
        self.0.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }

    /// Sends a frame as soon as the switch has connected to this socket.
    pub fn send_when_admitted(&self, frame: &[u8]) {
        wait_until("admission by the switch", || {
            let sent = self.0.send_to(frame, &self.1);
            sent.map_err(|error| assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied))
                .is_ok()
        });
    }

    /// Receives the next datagram.
    pub fn receive_any(&self) -> Vec<u8> {
        let mut bytes = vec![0; 70_000];
        let len = self.0.recv(&mut bytes).expect("a frame");
        bytes.truncate(len);
        bytes
    }
}

impl End for Far {
    /// Receives the next frame, and skips datagrams between switches.
    fn receive(&self) -> Vec<u8> {
        loop {
            let bytes = self.receive_any();
            if !is_of_switches(&bytes) {
                return bytes;
            }
        }
    }
}

/// Number of refused frames of each network interface that [`Rig::stats`] leaves out.
const GREETINGS: u64 = 1;

/// A switch with its engines and the far ends of its links.
pub struct Rig {
    pub switch: Switch,
    pub nets: Vec<Netdev>,
    pub uplinks: Vec<Far>,
    pub engines: Vec<(EnginePort, mpsc::Receiver<()>)>,
    pub dir: TempDir,
}

impl Rig {
    pub fn new(ports: usize, uplinks: usize) -> Self {
        Self::with(ports, uplinks, |_| {})
    }

    pub fn with(ports: usize, uplinks: usize, change: impl FnOnce(&mut Config)) -> Self {
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
        let mut uplink_ends = Vec::new();
        for port in 0..ports {
            config.ports.push(PortConfig {
                name: format!("vm{port}"),
                mac: mac(port),
                net: Some(dir.path().join(format!("net{port}"))),
                ..PortConfig::default()
            });
        }
        for uplink in 0..uplinks {
            let (end, path) = far(format!("uplink{uplink}"));
            uplink_ends.push(end);
            config.uplinks.push(Uplink::Unix(path).into());
        }
        change(&mut config);
        let paths: Vec<_> = config
            .ports
            .iter()
            .map_while(|port| port.net.clone())
            .collect();
        let (switch, engines) = Switch::start(config).unwrap();
        let nets: Vec<_> = paths.iter().map(|path| Netdev::at(path)).collect();
        // The switch refuses this frame. By then, it has accepted the connection.
        for (port, net) in nets.iter().enumerate() {
            net.send(&[0; 14]);
            wait_until("a connection", || switch.stats()[port].refused == GREETINGS);
        }
        let engines = engines
            .into_iter()
            .map(|engine| {
                let (ready, heard) = mpsc::channel();
                engine.on_ready(move |_| {
                    let _ = ready.send(());
                });
                (engine, heard)
            })
            .collect();
        Self {
            switch,
            nets,
            uplinks: uplink_ends,
            engines,
            dir,
        }
    }

    pub fn engine_send(&self, port: usize, bytes: &[u8]) {
        self.engine_send_all(port, &[bytes]);
    }

    /// Sends several frames from an engine at the same time.
    pub fn engine_send_all(&self, port: usize, frames: &[impl AsRef<[u8]>]) {
        let (engine, _) = &self.engines[port];
        let frames = frames.iter().map(|bytes| {
            let bytes = bytes.as_ref();
            let mut frame = engine
                .frame(&destination(bytes), bytes.len())
                .expect("a buffer");
            frame.copy_from_slice(bytes);
            frame
        });
        let mut frames: Frames = frames.collect();
        engine.send(&mut frames);
        assert!(frames.is_empty());
    }

    /// Sends a frame like [`roce`] from an engine, without an ICRC.
    pub fn engine_build(&self, port: usize, dst: Mac, number: u8) {
        let (engine, _) = &self.engines[port];
        let frame = build_in(engine, dst, mac(port), number);
        assert!(frame.lacks_icrc());
        send_frame(engine, frame);
    }

    pub fn engine_receive(&self, port: usize) -> Frame {
        let (engine, heard) = &self.engines[port];
        loop {
            if let Some(frame) = receive_frame(engine) {
                return frame;
            }
            heard.recv_timeout(PATIENCE).expect("a frame");
        }
    }

    /// Counters of port or uplink number `index`; the numbers of uplinks follow those of ports. The
    /// switch's thread may not have counted the last frames yet: [`counts`](Self::counts) waits for
    /// a value.
    pub fn stats(&self, index: usize) -> Stats {
        let mut stats = self.switch.stats()[index].clone();
        if index < self.nets.len() {
            stats.refused -= GREETINGS;
        }
        stats
    }

    /// Waits until a counter of port or uplink `index` reaches `value`. It must not exceed `value`.
    pub fn counts(&self, index: usize, counter: fn(&Stats) -> u64, value: u64) {
        wait_until("a count", || counter(&self.stats(index)) >= value);
        assert_eq!(counter(&self.stats(index)), value);
    }
}
