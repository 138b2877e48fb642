// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Network interfaces that send more than a receiver reads.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use budget::CallTime;
use common::*;
use tempfile::TempDir;
use vswitch::{Config, PortConfig, SteppedSwitch};

/// Length of a frame.
const LEN: usize = 1514;
/// Time of a step.
const STEP: Duration = Duration::from_millis(1);
/// Maximum number of rounds until the switch sleeps.
const ROUNDS: usize = 1000;
/// More steps than the switch takes a receiver for a slow one.
const LONG: usize = 500;
/// Maximum number of frames of a sender that wait for a receiver.
const BACKLOG: usize = 512;

/// QEMU's end of a network interface.
struct End {
    stream: UnixStream,
    /// Bytes that the socket had no room for.
    unsent: Vec<u8>,
    /// Bytes of an incomplete frame.
    unread: Vec<u8>,
}

impl End {
    fn at(path: &PathBuf) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self {
            stream,
            unsent: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Sends a frame, or the rest of an earlier one. Returns whether the socket had room for it.
    fn send(&mut self, to: usize, from: usize, number: u32) -> bool {
        if self.unsent.is_empty() {
            let mut frame = frame(mac(to), mac(from), "");
            frame.extend(number.to_be_bytes());
            frame.resize(LEN, 0);
            self.unsent = [&(LEN as u32).to_be_bytes()[..], &frame].concat();
        }
        match self.stream.write(&self.unsent) {
            Ok(sent) => {
                self.unsent.drain(..sent);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        self.unsent.is_empty()
    }

    /// The number in the next frame, if one has arrived.
    fn receive(&mut self) -> Option<u32> {
        const SIZE: usize = 4 + LEN;
        let mut bytes = vec![0; SIZE - self.unread.len()];
        if let Ok(count) = self.stream.read(&mut bytes) {
            self.unread.extend(&bytes[..count]);
        }
        if self.unread.len() < SIZE {
            return None;
        }
        let frame = std::mem::take(&mut self.unread);
        Some(u32::from_be_bytes(frame[18..22].try_into().unwrap()))
    }
}

struct Rig {
    now: Instant,
    switch: SteppedSwitch,
    ends: Vec<End>,
    paths: Vec<PathBuf>,
    _dir: TempDir,
}

impl Rig {
    fn new(ports: usize) -> Self {
        let now = Instant::now();
        let dir = TempDir::new().unwrap();
        let path = |port| dir.path().join(format!("net{port}"));
        let paths: Vec<_> = (0..ports).map(path).collect();
        let ports = paths.iter().enumerate().map(|(port, path)| PortConfig {
            mac: mac(port),
            net: Some(path.clone()),
            ..PortConfig::default()
        });
        let config = Config {
            ports: ports.collect(),
            ..Config::default()
        };
        let (switch, _) = SteppedSwitch::new(config, now).unwrap();
        let ends = paths.iter().map(End::at).collect();
        let mut rig = Self {
            now,
            switch,
            ends,
            paths,
            _dir: dir,
        };
        rig.step();
        rig
    }

    /// Lets the switch work until it sleeps, then time pass.
    fn step(&mut self) {
        let mut rounds = 0;
        while self.switch.is_awake(self.now) {
            self.switch.round(self.now);
            rounds += 1;
            assert!(rounds < ROUNDS, "the switch does not sleep");
        }
        self.now += STEP;
    }

    /// Number of frames from `port` in the switch.
    fn frames_of(&self, port: usize) -> usize {
        self.switch.frames()[self.ends.len() + port]
    }

    /// Sends frames from 0 to 1 until neither the switch nor the socket takes more. Returns their
    /// number.
    fn fill(&mut self) -> u32 {
        let mut sent = 0;
        loop {
            let before = sent;
            while self.ends[0].send(1, 0, sent) {
                sent += 1;
            }
            if sent == before {
                return sent;
            }
            assert!(sent < 10_000, "the switch reads on");
            self.step();
        }
    }
}

#[test]
fn a_sender_waits_for_a_slow_receiver_and_loses_nothing() {
    const FRAMES: u32 = 10_000;
    let mut rig = Rig::new(2);
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        while sent < FRAMES && rig.ends[0].send(1, 0, sent) {
            sent += 1;
        }
        rig.step();
        assert!(rig.frames_of(0) <= BACKLOG);
        for _ in 0..20 {
            if let Some(number) = rig.ends[1].receive() {
                assert_eq!(number, received);
                received += 1;
            }
        }
    }
    assert_eq!(rig.switch.stats()[1].dropped, 0);
}

#[test]
fn other_senders_do_not_wait() {
    let mut rig = Rig::new(4);
    rig.fill();
    for number in 0..2000 {
        assert!(rig.ends[2].send(3, 2, number));
        assert!(rig.ends[3].send(0, 3, number));
        rig.now -= STEP;
        rig.step();
        assert_eq!(rig.ends[3].receive(), Some(number));
        assert_eq!(rig.ends[0].receive(), Some(number));
    }
    // A frame of another sender passes those that wait.
    assert!(rig.ends[2].send(1, 2, u32::MAX));
    rig.step();
    let mut before = 0;
    while rig.ends[1].receive() != Some(u32::MAX) {
        before += 1;
        rig.now -= STEP;
        rig.step();
        assert!(before < BACKLOG);
    }
    assert_eq!(rig.switch.stats()[1].dropped, 0);
}

/// A receiver that reads nothing delays frames to others for a moment only.
#[test]
fn a_sender_does_not_wait_for_a_receiver_that_does_not_read() {
    const FRAMES: u32 = 2000;
    let mut rig = Rig::new(3);
    let (mut sent, mut received, mut steps) = (0, 0, 0);
    while received < FRAMES {
        // Frames to port 1 and 2 alternate.
        while sent < 2 * FRAMES && rig.ends[0].send(1 + sent as usize % 2, 0, sent / 2) {
            sent += 1;
        }
        rig.step();
        while let Some(number) = rig.ends[2].receive() {
            assert_eq!(number, received);
            received += 1;
        }
        steps += 1;
        assert!(steps < LONG);
    }
    let stats = rig.switch.stats();
    assert!(stats[1].dropped > 0);
    assert_eq!(stats[2].dropped, 0);
    assert!(rig.frames_of(0) <= BACKLOG + 1);
}

/// Lets port 0 send to the ports from 1 on in turns for `steps` steps. `reads` is the number of
/// frames that a receiver reads in a step. Returns how many frames each receiver has read.
fn share<const RECEIVERS: usize>(
    rig: &mut Rig,
    steps: usize,
    reads: [usize; RECEIVERS],
) -> [usize; RECEIVERS] {
    let (mut sent, mut received) = (0, [0; RECEIVERS]);
    for _ in 0..steps {
        // More than all receivers of this test read in a step.
        for _ in 0..100 {
            let to = 1 + sent as usize % RECEIVERS;
            if !rig.ends[0].send(to, 0, sent) {
                break;
            }
            sent += 1;
        }
        rig.step();
        for ((end, reads), received) in rig.ends[1..].iter_mut().zip(reads).zip(&mut received) {
            *received += (0..reads).take_while(|_| end.receive().is_some()).count();
        }
    }
    received
}

/// A receiver that reads slowly, but too fast for its frames to become old, does not determine the
/// pace of the sender's other frames.
#[test]
fn a_receiver_that_reads_slowly_does_not_throttle_its_sender() {
    const STEPS: usize = 1500;
    let mut rig = Rig::new(3);
    let [slow, other] = share(&mut rig, STEPS, [2, 100]);
    assert!(slow >= 2 * STEPS - 2 * BACKLOG, "{slow}");
    assert!(other >= 10 * slow, "{slow}, {other}");
    assert_eq!(rig.switch.stats()[2].dropped, 0);
}

/// While an interface sends to one receiver alone, it delays nothing else.
#[test]
fn a_sender_to_one_slow_receiver_waits_as_long_as_it_takes() {
    let mut rig = Rig::new(3);
    // A single frame for another receiver does not change this.
    assert!(rig.ends[0].send(2, 0, 0));
    rig.step();
    rig.now += Duration::from_secs(1);
    let [received] = share(&mut rig, 2000, [2]);
    assert_eq!((received, rig.switch.stats()[1].dropped), (4000, 0));
}

/// Receivers that read nothing take a part of the sender's buffers only, however many they are.
#[test]
fn receivers_that_do_not_read_leave_buffers_for_others() {
    const STEPS: usize = 2000;
    let mut rig = Rig::new(6);
    let received = share(&mut rig, STEPS, [0, 0, 0, 0, 100]);
    assert!(received[4] > 10 * STEPS, "{received:?}");
    assert_eq!(rig.switch.stats()[5].dropped, 0);
    assert_eq!(rig.switch.stats()[0].dropped, 0);
}

const MS: Duration = Duration::from_millis(1);
const LONG_CALL: CallTime = CallTime {
    wall: Duration::from_millis(10),
    cpu: Duration::from_millis(10),
};

/// Checks that the switch has spent a small share of `time` on long calls for port 1.
fn assert_small_share(rig: &Rig, time: Duration) {
    let calls = rig.switch.stats()[1].long_calls;
    // A burst is free, and a call ends before it is charged.
    let limit = time / 200 + 2 * LONG_CALL.cpu;
    assert!(calls.calls > 0 && calls.time <= limit, "{calls:?}");
    assert_eq!(calls.longest, LONG_CALL.cpu);
}

/// QEMU can make each write to its network interface long.
#[test]
fn frames_to_a_receiver_whose_calls_are_long_get_a_share_of_the_time() {
    const STEPS: usize = 5000;
    let mut rig = Rig::new(3);
    rig.switch.set_call_time(1, LONG_CALL);
    let [_, other] = share(&mut rig, STEPS, [100, 100]);
    assert!(other > 20 * STEPS, "{other}");
    assert_small_share(&rig, STEPS as u32 * STEP);
    let stats = rig.switch.stats();
    assert!(stats[1].over_share > 0);
    assert_eq!((stats[2].dropped, stats[2].over_share), (0, 0));
    // The switch sleeps meanwhile, and sends again when calls are short and within the share.
    rig.switch.set_call_time(1, CallTime::default());
    for _ in 0..5000 {
        rig.step();
        while rig.ends[1].receive().is_some() {}
    }
    let before = rig.switch.stats()[1].over_share;
    // The rest of the last frame, and another one.
    for number in [0, u32::MAX] {
        while !rig.ends[0].send(1, 0, number) {
            rig.step();
        }
    }
    rig.step();
    let received = std::iter::from_fn(|| rig.ends[1].receive());
    assert_eq!(received.last(), Some(u32::MAX));
    assert_eq!(rig.switch.stats()[1].over_share, before);
}

/// QEMU can also make each read from its network interface long.
#[test]
fn a_sender_whose_calls_are_long_gets_a_share_of_the_time() {
    const STEPS: u32 = 5000;
    let mut rig = Rig::new(4);
    rig.switch.set_call_time(1, LONG_CALL);
    let mut sent = [0; 2];
    let mut received = [0; 2];
    for step in 0..2 * STEPS {
        for (from, sent) in [1, 2].into_iter().zip(&mut sent) {
            if step < STEPS && rig.ends[from].send(from + 1, from, *sent) {
                *sent += 1;
            }
        }
        if step == STEPS {
            assert_small_share(&rig, STEPS * STEP);
            rig.switch.set_call_time(1, CallTime::default());
        }
        rig.step();
        for (to, received) in [2, 3].into_iter().zip(&mut received) {
            while let Some(number) = rig.ends[to].receive() {
                assert_eq!(number, *received);
                *received += 1;
            }
        }
    }
    assert_eq!(
        received, sent,
        "frames that are not read stay in the socket"
    );
    assert_eq!(sent[1], STEPS);
    assert!(sent[0] < STEPS);
}

/// The switch's thread lost the processor in many calls, but the calls were short.
#[test]
fn a_thread_that_waits_for_the_processor_charges_nobody() {
    let mut rig = Rig::new(3);
    rig.switch.set_call_time(
        1,
        CallTime {
            cpu: MS / 20,
            ..LONG_CALL
        },
    );
    let received = share(&mut rig, 200, [100, 100]);
    assert!(
        received.iter().all(|count| *count > 40 * 200),
        "{received:?}"
    );
    let stats = &rig.switch.stats()[1];
    assert_eq!(
        (stats.long_calls.calls, stats.over_share, stats.dropped),
        (0, 0, 0)
    );
}

/// The switch sleeps while a sender waits, also when the sender ends.
#[test]
fn a_sender_that_waits_may_end() {
    let mut rig = Rig::new(2);
    let sent = rig.fill();
    rig.ends[0] = End::at(&rig.paths[0]);
    // `step` fails if the switch does not sleep.
    for _ in 0..10 {
        rig.step();
    }
    assert!(rig.ends[0].send(1, 0, u32::MAX));
    let mut received = Vec::new();
    while received.last() != Some(&u32::MAX) {
        rig.step();
        received.extend(std::iter::from_fn(|| rig.ends[1].receive()));
    }
    // The frame of which only a part was sent is lost.
    assert!(received.into_iter().eq((0..sent).chain([u32::MAX])));
}

/// The receiver's QEMU ends, so nothing has to wait for it any more.
#[test]
fn a_sender_goes_on_when_the_receiver_ends() {
    let mut rig = Rig::new(3);
    rig.fill();
    rig.ends[1] = End::at(&rig.paths[1]);
    rig.step();
    // The rest of the last frame, and another one.
    while !rig.ends[0].send(1, 0, 0) {
        rig.step();
    }
    assert!(rig.ends[0].send(2, 0, 7));
    rig.step();
    assert_eq!(rig.ends[2].receive(), Some(7));
}
