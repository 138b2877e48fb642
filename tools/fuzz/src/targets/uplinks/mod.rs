// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A switch with hostile neighbours, which send arbitrary frames, do not read, disappear and
//! return. Honest parties exchange frames through the switch at the same time.
//!
//! One thread runs the rounds of the switch and sets its time. Tap interfaces are not tested, since
//! they need privileges.

mod claims;
mod far;
mod frames;
mod ledger;

use std::array;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::frame::{Frames, FRAMES_AT_ONCE};
use roce::FramePort;
use tempfile::TempDir;
use vswitch::mac_table::{CAPACITY, HOLD};
use vswitch::{
    Config, DatagramPath, EnginePort, Error, PortConfig, SteppedSwitch, Uplink, UplinkConfig,
};

use self::claims::SECOND;
use self::far::Far;
use self::frames::{hostile, plain, renumber, roce, HOSTILE};
use self::ledger::{mac, Ledger, Party, ADDRESS, GROUP, HONEST, PORTS};
use crate::input::Input;

const ACTS: usize = 60;
/// Number of uplinks: to the honest neighbour, and to hostile neighbours by Unix sockets and by
/// UDP.
const UPLINKS: usize = 3;
/// Number of links: network interfaces, then uplinks.
const LINKS: usize = PORTS + UPLINKS;
/// Maximum number of frames of hostile parties before the honest parties read. A queue has room for
/// more frames.
const FLOOD: usize = 200;
/// Number of rounds after which a switch that still has work counts as endless.
const ENDLESS: usize = 2000;
/// Number of sleeps after which waiting frames count as stuck.
const SLEEPS: usize = 400;
/// Maximum sleep of the switch while frames wait for room.
const STALE: Duration = Duration::from_millis(500);
/// Maximum number of frames that the switch takes from one source in a round.
const BATCH: u64 = 64;
/// The honest and the hostile parties.
const HONEST_PARTIES: [Party; 3] = [Party::Net(0), Party::Engine(0), Party::Uplink(0)];
const HOSTILE_PARTIES: [Party; 4] = [
    Party::Net(1),
    Party::Engine(1),
    Party::Uplink(1),
    Party::Uplink(2),
];

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    world.talk();
    for _ in 0..ACTS {
        if !input.has_more() {
            break;
        }
        world.act(&mut input);
    }
    world.talk();
    world.come_home();
}

struct World {
    now: Instant,
    switch: SteppedSwitch,
    engines: Vec<EnginePort>,
    /// Whether engine 0 was notified of frames.
    told: Arc<AtomicBool>,
    fars: [Far; LINKS],
    ledger: Ledger,
    /// Time when the honest neighbour last sent a frame.
    spoke: Instant,
    /// Number of frames of hostile parties since the honest parties last read everything.
    flood: usize,
    /// Frames of honest parties that must arrive, and their receivers.
    due: Vec<(Vec<u8>, Party)>,
    _dir: TempDir,
}

/// A loopback address with a UDP port that is free now.
fn free_address() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("its address")
}

fn config(dir: &Path, udp: [SocketAddr; 2], ledger: &Ledger) -> (Config, [Far; LINKS]) {
    let paths: [DatagramPath; LINKS] = array::from_fn(|link| DatagramPath {
        local: dir.join(format!("{link}.switch")),
        remote: dir.join(format!("{link}")),
    });
    let [ours, switch] = udp;
    let fars = array::from_fn(|link| match link {
        0..PORTS => Far::stream(paths[link].local.clone()),
        4 => Far::udp(ours, switch),
        _ => Far::unix(paths[link].remote.clone(), paths[link].local.clone()),
    });
    let mut config = Config::default();
    for (port, path) in paths.iter().take(PORTS).enumerate() {
        config.ports.push(PortConfig {
            name: format!("vm{port}"),
            mac: mac(port),
            net: Some(path.local.clone()),
            addresses: match (ledger.restricted[port], port) {
                (false, _) => vec![],
                (true, 0) => vec![ADDRESS.into()],
                (true, _) => vec![SECOND.into()],
            },
            net_roce: ledger.net_roce[port],
            ..PortConfig::default()
        });
    }
    let [_, _, honest, hostile, _] = paths;
    let udp = Uplink::Udp {
        bind: switch,
        remote: ours,
    };
    let links = [Uplink::Unix(honest), Uplink::Unix(hostile), udp];
    let uplinks = links.into_iter().zip(ledger.routed);
    let uplinks = uplinks.map(|(link, routed)| UplinkConfig { link, routed });
    config.uplinks.extend(uplinks);
    (config, fars)
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let mut ledger = Ledger::default();
        let flags = input.any::<u8>();
        ledger.net_roce[1] = flags & 1 != 0;
        ledger.restricted = [true, flags & 0x80 != 0];
        ledger.routed[1..].copy_from_slice(&[input.any(), input.any()]);
        let dir = TempDir::new().expect("a directory");
        let now = Instant::now();
        let (mut fars, switch, engines) = loop {
            let udp = [free_address(), free_address()];
            let (config, fars) = config(dir.path(), udp, &ledger);
            match SteppedSwitch::new(config, now) {
                Ok((switch, engines)) => break (fars, switch, engines),
                // Another process has bound an address in the meantime, so other addresses are
                // tried.
                Err(Error::Uplink(Uplink::Udp { .. }, _)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        for far in &mut fars[..PORTS] {
            far.open();
        }
        fars[2].connect();
        let told = Arc::new(AtomicBool::new(false));
        let tell = told.clone();
        engines[0].on_ready(move |_| tell.store(true, Ordering::Relaxed));
        engines[0].join(GROUP);
        Self {
            now,
            switch,
            engines,
            told,
            fars,
            ledger,
            spoke: now,
            flood: 0,
            due: Vec::new(),
            _dir: dir,
        }
    }

    fn act(&mut self, input: &mut Input<'_>) {
        if self.now - self.spoke >= HOLD / 2 {
            self.talk();
        }
        match input.below(16) {
            0..=5 => self.disturb(input, 1),
            6 => {
                let times = usize::from(input.any::<u8>()).min(FLOOD);
                self.disturb(input, times);
            }
            7..=8 => {
                let far = &mut self.fars[input.of(&[1, 3, 4])];
                match input.below(8) {
                    0..=1 => far.reads = !far.reads,
                    2 => far.close(),
                    3..=4 => far.open(),
                    5 => far.connect(),
                    6 => far.send_malformed(),
                    _ => far.deafen(),
                }
            }
            9 => {
                let link = input.of(&[1, 3, 4]);
                let most = input.below(64);
                self.read_link(link, most);
            }
            10 => {
                for _ in 0..=input.below(4) {
                    self.round();
                    self.read();
                }
            }
            11 => {
                self.now += Duration::from_micros(input.of(&[1, 100, 1000, 400_000]));
            }
            12 => {
                self.run_until_idle();
                self.now += Duration::from_millis(input.of(&[100, 1000, 4000, 301_000]));
                self.talk();
            }
            13 => match input.below(3) {
                0 => self.engines[1].join(GROUP),
                1 => self.engines[1].leave(GROUP),
                _ => self.read_engine(1),
            },
            14 => self.speak(usize::from(input.any::<u8>())),
            _ => self.run_until_idle(),
        }
    }

    /// Sends a frame of a hostile party, or many frames with different numbers and sources.
    fn disturb(&mut self, input: &mut Input<'_>, times: usize) {
        let party = input.of(&HOSTILE_PARTIES);
        let own = match party {
            Party::Uplink(uplink) => HOSTILE[uplink - 1],
            _ => mac(1),
        };
        let number = self.ledger.number();
        let mut frame = hostile(input, own, number);
        // A UDP datagram may arrive so late that the switch would learn the honest address from it.
        if party == Party::Uplink(2) && frame.get(6..12) == Some(&HONEST) {
            return;
        }
        if self.flood + times > FLOOD {
            self.run_until_idle();
        }
        self.flood += times;
        let spread = times > 1 && input.any();
        for at in 0..times {
            if at > 0 {
                let number = self.ledger.number();
                renumber(&mut frame, number);
                if spread && frame.len() >= 12 {
                    frame[10..12].copy_from_slice(&(number as u16).to_be_bytes());
                }
            }
            self.send(party, &frame);
        }
    }

    /// Sends a frame. Returns false if the engine has no buffer or the switch's socket has no room.
    fn send(&mut self, from: Party, frame: &[u8]) -> bool {
        let link = match from {
            Party::Net(port) => port,
            Party::Uplink(uplink) => PORTS + uplink,
            Party::Engine(port) => {
                let engine = &self.engines[port];
                let to = frame.first_chunk().copied().unwrap_or_default();
                let Some(mut buffer) = engine.frame(&to, frame.len()) else {
                    return false;
                };
                buffer.copy_from_slice(frame);
                self.ledger.send(from, frame);
                engine.send(&mut Frames::from_iter([buffer]));
                return true;
            }
        };
        let sent = self.fars[link].send(frame).is_ok();
        if sent {
            self.ledger.send(from, frame);
        }
        sent
    }

    /// Sends frames between the honest parties, and records that these frames must arrive.
    fn speak(&mut self, len: usize) {
        if self.due.len() > 8 {
            self.run_until_idle();
        }
        let [net, engine, uplink] = HONEST_PARTIES;
        let number = self.ledger.number();
        let group = roce(GROUP, HONEST, number, len);
        let messages = [
            (plain(mac(0), HONEST, number, len), uplink, vec![net]),
            (roce(mac(0), HONEST, number, len), uplink, vec![engine]),
            (group, uplink, vec![net, engine]),
            (plain(HONEST, mac(0), number, len), net, vec![uplink]),
            (roce(HONEST, mac(0), number, len), engine, vec![uplink]),
        ];
        let claims = claims::honest(HONEST).map(|mut frame| {
            renumber(&mut frame, number);
            (frame, net, vec![uplink])
        });
        for (frame, from, to) in messages.into_iter().chain(claims) {
            assert!(self.send(from, &frame), "{from:?} can't send");
            self.due
                .extend(to.into_iter().map(|to| (frame.clone(), to)));
        }
    }

    /// Exchanges frames between the honest parties, and asserts that all arrive.
    fn talk(&mut self) {
        self.run_until_idle();
        // The switch learns the honest address before a hostile party uses it.
        let number = self.ledger.number();
        let hello = plain(mac(0), HONEST, number, 0);
        assert!(self.send(Party::Uplink(0), &hello));
        self.due.push((hello, Party::Net(0)));
        self.run_until_idle();
        self.spoke = self.now;
        self.speak(100);
        self.run_until_idle();
    }

    fn read_link(&mut self, link: usize, most: usize) {
        let at = match link.checked_sub(PORTS) {
            None => Party::Net(link),
            Some(uplink) => Party::Uplink(uplink),
        };
        for _ in 0..most {
            let Some(frame) = self.fars[link].receive() else {
                return;
            };
            self.ledger.arrive(at, frame, false);
        }
    }

    fn read_engine(&mut self, port: usize) {
        let mut frames = Frames::new();
        loop {
            self.engines[port].receive(FRAMES_AT_ONCE, &mut frames);
            if frames.is_empty() {
                return;
            }
            for frame in frames.drain(..) {
                let routed = frame.is_routed();
                self.ledger.arrive(Party::Engine(port), &frame, routed);
            }
        }
    }

    /// Receives frames at all parties that read at present.
    fn read(&mut self) {
        for link in 0..LINKS {
            if self.fars[link].reads {
                self.read_link(link, usize::MAX);
            }
        }
        if self.told.swap(false, Ordering::Relaxed) {
            self.read_engine(0);
        }
    }

    /// Runs a round of the switch, and asserts that the round takes a bounded number of frames.
    fn round(&mut self) {
        let taken = |switch: &SteppedSwitch| {
            let stats = switch.stats().into_iter();
            let taken = stats.map(|stats| stats.received + stats.refused + stats.errors);
            taken.collect::<Vec<u64>>()
        };
        let before = taken(&self.switch);
        self.switch.round(self.now);
        let after = taken(&self.switch);
        for (source, (before, after)) in before.into_iter().zip(after).enumerate() {
            // A port has two sources: its network interface and its engine.
            let limit = match source {
                0..PORTS => 2 * BATCH,
                _ => BATCH,
            };
            let taken = after - before;
            assert!(taken <= limit, "{taken} frames of {source} in a round");
        }
        let known = self.switch.addresses();
        assert!(known <= self.ledger.sources().min(UPLINKS * CAPACITY));
    }

    /// Runs rounds until the switch sleeps, without advancing the clock.
    fn work(&mut self) {
        for _ in 0..ENDLESS {
            self.read();
            if !self.switch.is_awake(self.now) {
                return;
            }
            self.round();
        }
        panic!("the switch never sleeps");
    }

    /// Number of frames that the switch has sent to honest parties and that have yet to arrive.
    fn waiting(&self) -> u64 {
        let stats = self.switch.stats();
        let sent = stats[0].sent + stats[PORTS].sent;
        let arrived = HONEST_PARTIES.map(|party| self.ledger.arrivals(party));
        sent - arrived.iter().sum::<u64>()
    }

    /// Runs the switch until no frame waits. Asserts that every due frame has arrived once.
    fn run_until_idle(&mut self) {
        for _ in 0..SLEEPS {
            self.work();
            if self.waiting() == 0 {
                break;
            }
            self.sleep();
        }
        for (frame, to) in std::mem::take(&mut self.due) {
            assert_eq!(self.ledger.times(&frame, to), 1, "of a frame for {to:?}");
        }
        self.flood = 0;
    }

    /// Advances the clock to the end of the switch's sleep. Asserts that this sleep is short enough
    /// for waiting frames.
    fn sleep(&mut self) {
        let alarm = self.switch.alarm().expect("sleeps with work at hand");
        assert!(alarm <= self.now + STALE, "oversleeps");
        self.now = self.now.max(alarm);
    }

    /// Makes all parties return and read. Asserts that the switch then releases all buffers.
    fn come_home(&mut self) {
        let home = [0, 0, 1, 1, 1, 1, 1];
        for link in [1, 3, 4] {
            self.fars[link].open();
            self.fars[link].reads = true;
        }
        for _ in 0..SLEEPS {
            self.work();
            self.read_engine(1);
            if self.switch.frames() == home {
                return;
            }
            self.now = self
                .now
                .max(self.switch.alarm().expect("peers are looked for"));
        }
        panic!("frames in use: {:?}", self.switch.frames());
    }
}
