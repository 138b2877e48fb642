// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of the daemon, and its text form.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::iter;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use budget::LongCallStats;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use supervisor::{Death, Deaths, Store};
use vdev::InterruptStats;
use verbs::{DataPath, Hca, MemoryStatus, QpStatus, Rate, RuntimeStatus, WorkerStatus};
use virtio_rdma_abi::ctrl::RspQueryCounters;
use vswitch::stats::{Queue, Stats};

use crate::cli::Mac;
use crate::events::{time_of_day, Told};
use crate::line_server::Pieces;
use crate::qps::Listed;
use crate::size::mib;
use virtio_rdma_abi::feature::{Feature, Features};

/// The status of the daemon.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of the daemon.
    pub version: &'static str,
    pub engine: EngineReport,
    /// The workers: threads that serve the devices.
    pub workers: Workers,
    /// Ports, in the order in which they were added: those of the command line first.
    #[serde(skip)]
    pub ports: Vec<PortReport>,
    /// Counters of frames at the switch: of each port, then of each uplink.
    pub switch: Vec<Frames>,
}

/// The process that does the work of the daemon.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EngineReport {
    /// Number of engines that have died since the start of the daemon.
    pub deaths: u64,
    last_death: Option<DeathReport>,
    /// Number of files of VMs that the service manager keeps too; `None` if it keeps none.
    stored_files: Option<usize>,
}

#[derive(Clone, Debug, Serialize)]
struct DeathReport {
    /// Microseconds since 1970.
    time_us: u64,
    cause: String,
}

impl EngineReport {
    pub fn new(deaths: &Deaths, store: &Store) -> Self {
        let report = |death: &Death| DeathReport {
            time_us: microseconds(death.time.duration_since(UNIX_EPOCH).unwrap_or_default()),
            cause: death.cause.clone(),
        };
        Self {
            deaths: deaths.count,
            last_death: deaths.last.as_ref().map(report),
            stored_files: store.manager().map(|_| store.count()),
        }
    }
}

/// The workers: threads that serve the devices.
#[derive(Debug, Serialize)]
pub struct Workers {
    count: usize,
    /// Budget of a turn for each half of a QP, in units of the cost of copying one byte.
    pub turn_budget: u64,
    /// Cost of the longest turn, in units of the budget.
    longest_turn: u64,
    /// Longest time in µs between a worker's checks of deadlines and watched queues.
    longest_round_us: u64,
    /// The workers, in the order of their numbers.
    pub each: Vec<Worker>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Total time of the rounds with work, in µs.
    pub busy_us: u64,
    pub longest_turn: u64,
    pub longest_round_us: u64,
    /// Number of flows, mostly QPs, that the worker took over from other workers.
    pub steals: u64,
    /// Number of times that the switch's thread did work in place of the worker, which slept.
    pub stand_ins: u64,
}

/// A port and its device.
#[derive(Serialize)]
pub struct PortReport {
    #[serde(skip)]
    hca: Arc<Hca>,
    pub name: String,
    mac: String,
    /// Whether the link is up.
    pub link: bool,
    /// Whether a driver has set the device up.
    pub driver: bool,
    /// Names of the negotiated features of the device type.
    features: Vec<&'static str>,
    pub pds: usize,
    pub cqs: usize,
    pub mrs: usize,
    /// Number of GIDs that the driver requested and the daemon refused.
    pub refused_gids: u64,
    /// The last command that the device refused.
    last_refusal: Option<RefusalReport>,
    /// Memory that the daemon has allocated for the VM.
    pub memory: MemoryReport,
    /// The VM's own memory that the daemon has mapped.
    pub guest_memory: MemoryReport,
    /// Bytes of the mapped memory that are in files of huge pages.
    pub guest_memory_in_huge_pages: u64,
    /// Number of QPs.
    #[serde(skip)]
    pub qp_count: usize,
    /// The QPs, for the text. JSON has their [descriptions](Listed).
    #[serde(skip)]
    qps: Vec<QpReport>,
    /// Rate limits that all QPs of the port share.
    pub limits: LimitsReport,
    /// Signals of the VM's interrupts that took long.
    pub interrupts: InterruptsReport,
    pub counters: QueriedCounters,
}

/// The refusal of a command.
#[derive(Debug, Serialize)]
struct RefusalReport {
    /// Microseconds since 1970.
    time_us: u64,
    command: Option<Value>,
    errno: Option<Value>,
    /// The QP that the command named.
    qpn: Option<u32>,
    text: String,
    #[serde(skip)]
    line: String,
}

impl From<Told> for RefusalReport {
    fn from(told: Told) -> Self {
        let value = |name| told.values.get(name).cloned();
        Self {
            time_us: told.time_us,
            command: value("command"),
            errno: value("errno"),
            qpn: told.qpn,
            line: told.line(),
            text: told.text,
        }
    }
}

/// Signals of a VM's interrupts that its QEMU has made long.
#[derive(Debug, Serialize)]
pub struct InterruptsReport {
    /// Signals in threads that serve all VMs.
    pub long_calls: LongCallsReport,
    /// Number of interrupts that were left to the port's own thread.
    pub deferred: u64,
}

/// System calls that a QEMU has made long.
#[derive(Debug, Serialize)]
pub struct LongCallsReport {
    pub calls: u64,
    /// Processor time of these calls in µs.
    pub time_us: u64,
    /// Processor time of the longest call in µs.
    pub longest_us: u64,
}

impl From<LongCallStats> for LongCallsReport {
    fn from(stats: LongCallStats) -> Self {
        Self {
            calls: stats.calls,
            time_us: microseconds(stats.time),
            longest_us: microseconds(stats.longest),
        }
    }
}

impl fmt::Display for LongCallsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, longest) = (self.time_us as f64 / 1e6, self.longest_us as f64 / 1e3);
        write!(
            f,
            "{} long calls, {total:.3} s, the longest {longest:.1} ms",
            self.calls
        )
    }
}

/// Rate limits of a port.
#[derive(Debug, Serialize)]
pub struct LimitsReport {
    pub bytes: LimitReport,
    pub messages: LimitReport,
}

/// A rate limit of a port.
#[derive(Debug, Serialize)]
pub struct LimitReport {
    /// Limit of bytes or messages per second. `None` without a limit.
    pub per_second: Option<u64>,
    /// Maximum number of bytes or messages in a burst, if configured.
    burst: Option<u64>,
    /// How long the limit has delayed work, in µs.
    pub throttled_us: u64,
}

impl LimitReport {
    fn new(rate: Option<Rate>, throttled: Duration) -> Self {
        Self {
            per_second: rate.map(|rate| rate.per_second),
            burst: rate.and_then(|rate| rate.burst),
            throttled_us: microseconds(throttled),
        }
    }
}

/// Converts a duration to microseconds. A u64 is enough for half a million years.
pub fn microseconds(time: Duration) -> u64 {
    time.as_micros() as u64
}

/// Number of used bytes of memory, and the limit of this number.
#[derive(Debug, Serialize)]
pub struct MemoryReport {
    pub used: u64,
    pub limit: u64,
}

impl From<MemoryStatus> for MemoryReport {
    fn from(MemoryStatus { used, limit }: MemoryStatus) -> Self {
        Self { used, limit }
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", mib(self.used), mib(self.limit))
    }
}

#[derive(Debug, Serialize)]
pub struct QpReport {
    qpn: u32,
    #[serde(rename = "type")]
    qp_type: &'static str,
    state: &'static str,
    /// Owner of the QP: `user` or `kernel`.
    owner: &'static str,
    /// QPN of the peer, if the QP is connected.
    peer: Option<u32>,
    /// Path of data, `direct` or `wire`, if the QP is connected.
    path: Option<&'static str>,
    rate_limit_kbps: Option<u32>,
}

/// Counters of the frames of a port or uplink at the switch.
#[derive(Debug, Serialize)]
pub struct Frames {
    pub name: String,
    pub received: u64,
    pub sent: u64,
    pub refused: u64,
    pub no_route: u64,
    pub dropped: u64,
    pub over_share: u64,
    pub errors: u64,
    /// System calls for the network interface of a port.
    pub long_calls: LongCallsReport,
    /// Frames that wait for the engine of a port.
    pub engine_queue: QueueReport,
    /// Frames that wait for room in the socket.
    pub socket_queue: QueueReport,
}

/// Depth of a queue of frames.
#[derive(Debug, Serialize)]
pub struct QueueReport {
    pub frames: u64,
    pub longest: u64,
    pub limit: u64,
}

impl From<Queue> for QueueReport {
    fn from(queue: Queue) -> Self {
        Self {
            frames: queue.frames,
            longest: queue.longest,
            limit: queue.limit,
        }
    }
}

impl Report {
    /// Makes a report of the workers, the HCAs and the switch. Each item of `hcas` is the
    /// name of a port, the port's HCA and its interrupts. The QPs are left out unless `has_qps`.
    pub fn new(
        engine: EngineReport,
        workers: RuntimeStatus,
        hcas: Vec<(String, Arc<Hca>, InterruptStats)>,
        switch: Vec<Stats>,
        has_qps: bool,
    ) -> Self {
        let port = |(name, hca, interrupts): (String, Arc<Hca>, InterruptStats)| {
            PortReport::new(name, hca, interrupts, has_qps)
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            engine,
            workers: Workers::from(workers),
            ports: hcas.into_iter().map(port).collect(),
            switch: switch.into_iter().map(Frames::from).collect(),
        }
    }
}

impl Report {
    /// The report as a line of JSON, in pieces: a port without its QPs, or some QPs of a port.
    pub fn json(self) -> Pieces {
        let begin = open(&self, "ports");
        let mut is_first = true;
        let ports = self.ports.into_iter().flat_map(move |port| {
            let begin = open(&port, "qps").map(|mut begin| {
                if !mem::take(&mut is_first) {
                    begin.insert(0, b',');
                }
                begin
            });
            iter::once(begin)
                .chain(Listed::new(port.hca))
                .chain([Ok(b"]}".to_vec())])
        });
        let end = Ok(b"]}\n".to_vec());
        Box::new(iter::once(begin).chain(ports).chain([end]))
    }
}

/// The JSON of an object, to which `list` is added up to its opening bracket.
fn open(object: &impl Serialize, list: &str) -> io::Result<Vec<u8>> {
    let mut json = serde_json::to_string(object)?;
    json.truncate(json.len() - "}".len());
    json += &format!(",\"{list}\":[");
    Ok(json.into_bytes())
}

impl From<RuntimeStatus> for Workers {
    fn from(status: RuntimeStatus) -> Self {
        let each = Vec::from_iter(status.workers.iter().map(Worker::from));
        Self {
            count: each.len(),
            turn_budget: status.turn_budget,
            longest_turn: status.longest_turn,
            longest_round_us: each
                .iter()
                .map(|worker| worker.longest_round_us)
                .max()
                .unwrap_or(0),
            each,
        }
    }
}

impl From<&WorkerStatus> for Worker {
    fn from(status: &WorkerStatus) -> Self {
        Self {
            busy_us: microseconds(status.busy),
            longest_turn: status.longest_turn,
            longest_round_us: microseconds(status.longest_round),
            steals: status.steals,
            stand_ins: status.stand_ins,
        }
    }
}

/// Collectors of metrics must have this.
impl fmt::Debug for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut report = f.debug_struct("PortReport");
        report.field("name", &self.name).finish_non_exhaustive()
    }
}

impl PortReport {
    fn new(name: String, hca: Arc<Hca>, interrupts: InterruptStats, has_qps: bool) -> Self {
        let status = hca.status();
        let qps = match has_qps {
            true => hca.qp_status(),
            false => Vec::new(),
        };
        Self {
            name,
            mac: Mac(status.mac).to_string(),
            link: status.link,
            driver: status.features != Features::NONE,
            features: status.features.iter().map(Feature::name).collect(),
            pds: status.pds,
            cqs: status.cqs,
            mrs: status.mrs,
            refused_gids: status.refused_gids,
            last_refusal: Told::last_refusal(&hca).map(RefusalReport::from),
            memory: status.memory.into(),
            guest_memory: status.guest_memory.into(),
            guest_memory_in_huge_pages: status.huge_pages,
            qp_count: status.qps,
            qps: qps.iter().map(QpReport::from).collect(),
            limits: LimitsReport {
                bytes: LimitReport::new(status.rates.bytes, status.throttled.bytes),
                messages: LimitReport::new(status.rates.messages, status.throttled.messages),
            },
            interrupts: InterruptsReport {
                long_calls: interrupts.long_calls.into(),
                deferred: interrupts.deferred,
            },
            counters: QueriedCounters(status.counters),
            hca,
        }
    }
}

fn word(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or_default()
}

impl From<&QpStatus> for QpReport {
    fn from(qp: &QpStatus) -> Self {
        Self {
            qpn: qp.qpn.get(),
            qp_type: word(qp.qp_type.c_name()),
            state: word(qp.state.c_name()),
            owner: if qp.user { "user" } else { "kernel" },
            peer: qp.peer.map(|peer| peer.qpn.get()),
            path: qp.peer.map(|peer| match peer.path {
                DataPath::Direct => "direct",
                DataPath::Wire => "wire",
            }),
            rate_limit_kbps: qp.rate_limit,
        }
    }
}

impl From<Stats> for Frames {
    fn from(stats: Stats) -> Self {
        Self {
            name: stats.name,
            received: stats.received,
            sent: stats.sent,
            refused: stats.refused,
            no_route: stats.no_route,
            dropped: stats.dropped,
            over_share: stats.over_share,
            errors: stats.errors,
            long_calls: stats.long_calls.into(),
            engine_queue: stats.engine_queue.into(),
            socket_queue: stats.socket_queue.into(),
        }
    }
}

/// The counters that the control command QUERY_COUNTERS returns.
#[derive(Debug)]
pub struct QueriedCounters(pub RspQueryCounters);

impl QueriedCounters {
    /// Names and values of all counters.
    fn named(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        let names = RspQueryCounters::NAMES.map(CStr::to_string_lossy);
        names.into_iter().zip(self.0.values())
    }

    /// Names and values of the counters that are not 0.
    fn counted(&self) -> impl Iterator<Item = (Cow<'static, str>, u64)> {
        self.named().filter(|(_, value)| *value != 0)
    }
}

impl Serialize for QueriedCounters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "virtio-rdmad {}", self.version)?;
        if let Some(last) = &self.engine.last_death {
            writeln!(
                f,
                "engines that died: {}; the last one, at {}, {}",
                self.engine.deaths,
                time_of_day(last.time_us),
                last.cause
            )?;
        }
        if let Some(count) = self.engine.stored_files {
            writeln!(f, "files that the service manager keeps: {count}")?;
        }
        let busy: u64 = self.workers.each.iter().map(|worker| worker.busy_us).sum();
        writeln!(
            f,
            "workers {}  busy {:.1} s  longest turn {} (budget {})  longest round {} us",
            self.workers.count,
            busy as f64 / 1e6,
            self.workers.longest_turn,
            self.workers.turn_budget,
            self.workers.longest_round_us
        )?;
        for port in &self.ports {
            write!(f, "\n{port}")?;
        }
        writeln!(
            f,
            "\n{:<24} {:>12} {:>12} {:>8} {:>8} {:>8} {:>8}",
            "switch", "received", "sent", "refused", "no route", "dropped", "errors"
        )?;
        for frames in &self.switch {
            writeln!(
                f,
                "{:<24} {:>12} {:>12} {:>8} {:>8} {:>8} {:>8}",
                frames.name,
                frames.received,
                frames.sent,
                frames.refused,
                frames.no_route,
                frames.dropped,
                frames.errors
            )?;
            if frames.long_calls.calls > 0 {
                writeln!(
                    f,
                    "  network interface: {}; {} frames dropped over its share",
                    frames.long_calls, frames.over_share
                )?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for PortReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = if self.link { "up" } else { "down" };
        write!(f, "port {}  {}  link {link}", self.name, self.mac)?;
        if !self.driver {
            writeln!(f, "  no driver")?;
        } else {
            writeln!(
                f,
                "  {} PDs, {} CQs, {} MRs, {} QPs",
                self.pds,
                self.cqs,
                self.mrs,
                self.qps.len()
            )?;
        }
        if self.refused_gids > 0 {
            writeln!(f, "  {} GIDs refused", self.refused_gids)?;
        }
        if let Some(refusal) = &self.last_refusal {
            writeln!(f, "  last refusal: {}", refusal.line)?;
        }
        writeln!(
            f,
            "  memory {}, guest memory {}, in huge pages {}",
            self.memory,
            self.guest_memory,
            mib(self.guest_memory_in_huge_pages)
        )?;
        for (unit, limit) in [
            ("bytes", &self.limits.bytes),
            ("messages", &self.limits.messages),
        ] {
            if let Some(per_second) = limit.per_second {
                let throttled = limit.throttled_us as f64 / 1e6;
                writeln!(
                    f,
                    "  limit {per_second} {unit}/s, held back {throttled:.1} s"
                )?;
            }
        }
        if self.interrupts.long_calls.calls > 0 {
            writeln!(
                f,
                "  interrupts: {}; {} left to the port's thread",
                self.interrupts.long_calls, self.interrupts.deferred
            )?;
        }
        if !self.qps.is_empty() {
            writeln!(
                f,
                "  {:>8} {:<4} {:<5} {:<6} {:>8} {:<6} {:>12}",
                "QPN", "type", "state", "owner", "peer", "path", "limit kb/s"
            )?;
        }
        for qp in &self.qps {
            let number = |value: Option<u32>| value.map_or("-".into(), |value| value.to_string());
            writeln!(
                f,
                "  {:>8} {:<4} {:<5} {:<6} {:>8} {:<6} {:>12}",
                qp.qpn,
                qp.qp_type,
                qp.state,
                qp.owner,
                number(qp.peer),
                qp.path.unwrap_or("-"),
                number(qp.rate_limit_kbps)
            )?;
        }
        for (name, value) in self.counters.counted() {
            writeln!(f, "  {name:<24} {value:>20}")?;
        }
        Ok(())
    }
}
