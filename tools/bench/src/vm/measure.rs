// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The measurements between two machines, each with a program on both sides.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{anyhow, bail, Error, Result};

use super::devices::{Device, Devices, Exits};
use super::peer::Peer;
use super::perftest::{self, Run, Verb};
use super::plan::{Case, Memory, Which, SMALL};
use super::process::Process;
use super::{
    folios, iperf, load, objects, own_file, registration, syscalls, Options, Subject, RXE, TCP,
};
use crate::event::{Event, Sink, Traffic};
use crate::figure::{Key, Report};

/// The other machine's name.
const SERVER: &str = "vm2";
/// The first TCP port for a pair of programs. Each pair has its own port, so that it need not wait
/// until the last pair's port is free.
const FIRST_PORT: u16 = 18600;
/// Time limit of a program.
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of starts of a program that can't calibrate its clock.
const ATTEMPTS: usize = 3;
/// Intended duration of a stream, in seconds.
const SPAN: f64 = 1.0;
/// Number of messages of a stream: FIRST if no rate is known, else between LEAST and MOST.
const FIRST: f64 = 500.0;
const LEAST: f64 = 5.0;
const MOST: f64 = 200_000.0;
/// Minimum and maximum number of round trips. The maximum is enough for a meaningful 99.9th
/// percentile.
const FEW_ROUND_TRIPS: u64 = 500;
const MANY_ROUND_TRIPS: u64 = 5000;

/// The state of a run.
pub struct Bench {
    configuration: String,
    suffix: String,
    sink: Sink,
    own: Devices,
    peers: Devices,
    peer: Peer,
    log: PathBuf,
    port: u16,
    /// Measured rates of cases: messages or half round trips per second.
    rates: HashMap<Case, f64>,
    /// Failed cases. They are not repeated, since each may take its whole time limit.
    failed: HashSet<Case>,
}

impl Bench {
    /// Connects to the other machine and finds the devices of both.
    pub fn new(options: &Options, sink: Sink) -> Result<Self> {
        let mut peer = Peer::connect("2")?;
        Ok(Self {
            configuration: options.configuration.clone(),
            suffix: options.suffix.clone(),
            sink,
            own: Devices::find()?,
            peers: peer.devices()?,
            peer,
            log: own_file("log"),
            port: FIRST_PORT,
            rates: HashMap::new(),
            failed: HashSet::new(),
        })
    }

    /// The report; empty if the events were sent to the host.
    pub fn into_report(self) -> Report {
        self.sink.into_report()
    }

    /// Makes the measurement of a case.
    pub fn measure(&mut self, case: Case, round: u32) -> Result<()> {
        let what = format!("{}: {}", self.configuration_of(case), describe(case));
        self.sink
            .tell(Event::Step(format!("{what}, round {round}")))?;
        if self.failed.contains(&case) {
            return Ok(());
        }
        self.port += 1;
        let result = match case {
            Case::Stream { memory, .. } => self.stream_in(memory, case),
            Case::RoundTrips { .. } => self.round_trips(case),
            Case::Tcp { size } => self.tcp(case, size),
        };
        if result.is_err() {
            self.failed.insert(case);
        }
        self.tell_failure(what, result)
    }

    /// Measures a subject other than traffic.
    pub fn once(&mut self, subject: Subject, rounds: u32) -> Result<()> {
        let what = format!("{}: {subject:?}", self.configuration).to_lowercase();
        self.sink.tell(Event::Step(what.clone()))?;
        let (device, name) = (&self.own.own, &self.configuration);
        let result = match subject {
            Subject::Registration => {
                registration::measure(device, name, rounds, &mut self.sink).map_err(Failed::from)
            }
            Subject::Objects => {
                objects::measure(device, name, &mut self.sink).map_err(Failed::from)
            }
            Subject::Load => load::measure(name, rounds, &mut self.sink).map_err(Failed::from),
            Subject::Syscalls => self.syscalls(),
            Subject::Traffic => Ok(()),
        };
        self.tell_failure(what, result)
    }

    /// Reports a failure as an event. An error means that events can't be sent.
    fn tell_failure(&mut self, what: String, result: Result<(), Failed>) -> Result<()> {
        let Err(failed) = result else {
            return Ok(());
        };
        self.sink.tell(Event::Failure {
            what,
            error: format!("{:#}", failed.error),
            log: failed.log,
        })
    }

    fn configuration_of(&self, case: Case) -> String {
        let name = match case {
            Case::Stream {
                memory: Memory::Folios,
                ..
            } => return format!("{}, large folios", self.configuration),
            Case::Stream { device, .. } | Case::RoundTrips { device, .. } => match device {
                Which::Own => return self.configuration.clone(),
                Which::Rxe => RXE,
            },
            Case::Tcp { .. } => TCP,
        };
        format!("{name}{}", self.suffix)
    }

    fn devices(&self, which: Which) -> Result<[&Device; 2]> {
        match (which, &self.own.rxe, &self.peers.rxe) {
            (Which::Own, ..) => Ok([&self.own.own, &self.peers.own]),
            (Which::Rxe, Some(here), Some(there)) => Ok([here, there]),
            _ => bail!("no rxe: start the machines with --rxe-beside"),
        }
    }

    /// A stream of one polling QP.
    fn run(&self, verb: Verb, size: u64, iterations: u64) -> Run {
        Run {
            verb,
            latency: false,
            events: false,
            size,
            iterations,
            qps: 1,
            port: self.port,
        }
    }

    /// Runs both sides, again if perftest could not calibrate its clock. Returns the output of the
    /// active side.
    fn pair(&mut self, passive: &[String], active: &[String]) -> Result<String, Failed> {
        for _ in 1..ATTEMPTS {
            match self.pair_once(passive, active) {
                Ok(printed) if perftest::lacks_clock(&printed) => {}
                Err(failed) if perftest::lacks_clock(&failed.log) => {}
                ended => return ended,
            }
        }
        self.pair_once(passive, active)
    }

    fn pair_once(&mut self, passive: &[String], active: &[String]) -> Result<String, Failed> {
        self.peer.start(passive, self.port)?;
        let begun = Process::start(active, &self.log);
        let ended = begun.and_then(|process| {
            let ended = process.finish(LIMIT);
            if ended.is_err() {
                // The program was killed: only its log is left.
                return Ok((None, process.printed()));
            }
            ended.map(|(status, printed)| (Some(status), printed))
        });
        let kill = !matches!(&ended, Ok((Some(status), _)) if status.success());
        let (good, said) = self.peer.finish(kill)?;
        let (status, printed) = ended?;
        let log = || {
            format!(
                "$ {}\n{printed}\non the other machine:\n$ {}\n{said}",
                active.join(" "),
                passive.join(" ")
            )
        };
        let fail = |error: String| failed(&log())(anyhow!(error));
        match status {
            None => Err(fail(format!("not finished after {} s", LIMIT.as_secs()))),
            Some(status) if !status.success() => Err(fail(format!("{}: {status}", active[0]))),
            Some(_) if !good => Err(fail(format!("{} failed on the other machine", passive[0]))),
            Some(_) => Ok(printed),
        }
    }

    /// Measures a stream of programs with this kind of memory.
    fn stream_in(&mut self, memory: Memory, case: Case) -> Result<(), Failed> {
        match memory {
            Memory::Pages => self.stream(case),
            Memory::Folios => {
                self.give_folios(true)?;
                let result = self.stream(case);
                self.give_folios(false)?;
                result
            }
        }
    }

    fn give_folios(&mut self, large: bool) -> Result<()> {
        folios::set(large)?;
        self.peer.folios(large)
    }

    fn stream(&mut self, case: Case) -> Result<(), Failed> {
        let Case::Stream {
            verb,
            device,
            size,
            qps,
            memory,
        } = case
        else {
            return Ok(());
        };
        let run = Run {
            qps,
            ..self.run(verb, size, self.iterations(case))
        };
        let [here, there] = self.devices(device)?;
        let (active, passive) = (run.argv(here, Some(SERVER)), run.argv(there, None));
        let here = here.clone();
        let before = exits(device, &here)?;
        self.sink.tell(Event::Begin)?;
        let printed = self.pair(&passive, &active)?;
        let result = perftest::bandwidth(&printed, size).map_err(failed(&printed))?;
        self.rates.insert(case, result.rate);
        let configuration = self.configuration_of(case);
        let key = |name: &str, count, unit| Key {
            count,
            how: "active side polls".into(),
            ..Key::new(name, &configuration, unit).size(size)
        };
        let bandwidth = key(&format!("{} bandwidth", verb.name()), None, "MB/s");
        let rate = key("message rate by QPs", Some(qps), "messages/s");
        let mut figures = Vec::new();
        if qps == 1 {
            figures.push((bandwidth, result.megabytes));
        }
        if verb == Verb::Write && size == SMALL {
            figures.push((rate, result.rate));
        }
        if let Some((key, _)) = figures.first() {
            self.sink.tell(Event::End(Traffic {
                key: key.clone(),
                bytes: run.iterations as f64 * qps as f64 * size as f64,
            }))?;
        }
        for (key, value) in figures {
            self.sink.tell(Event::Value(key, value))?;
        }
        if let (Some(before), true) = (before, qps == 1 && memory == Memory::Pages) {
            let how = "active side polls";
            self.tell_exits(&here, before, &run, how)?;
        }
        Ok(())
    }

    /// Reports the VM exits and interrupts that a run's messages have caused on this side.
    fn tell_exits(
        &mut self,
        device: &Device,
        before: Exits,
        run: &Run,
        how: &str,
    ) -> Result<(), Failed> {
        let after = Exits::of(device)?;
        for (what, count) in [
            ("doorbells", after.doorbells - before.doorbells),
            ("completion events", after.events - before.events),
        ] {
            let name = format!("{} {what} a message", run.verb.name());
            let key = Key {
                how: how.into(),
                ..Key::new(&name, &self.configuration, what).size(run.size)
            };
            let each = count as f64 / run.iterations as f64;
            self.sink.tell(Event::Value(key, each))?;
        }
        Ok(())
    }

    /// The number of messages or round trips that take about a second, according to the known
    /// rates.
    fn iterations(&self, case: Case) -> u64 {
        let rate = self.rates.get(&case).copied();
        match case {
            Case::Stream { qps, .. } => {
                let rate = rate.or_else(|| guess(&self.rates, case));
                let messages = rate.map_or(FIRST, |rate| rate * SPAN / qps as f64);
                messages.clamp(LEAST, MOST) as u64
            }
            _ => {
                let both_ways = rate.map_or(0.0, |rate| rate * SPAN / 2.0);
                (both_ways as u64).clamp(FEW_ROUND_TRIPS, MANY_ROUND_TRIPS)
            }
        }
    }

    fn round_trips(&mut self, case: Case) -> Result<(), Failed> {
        let Case::RoundTrips {
            verb,
            device,
            size,
            events,
        } = case
        else {
            return Ok(());
        };
        let run = Run {
            latency: true,
            events,
            ..self.run(verb, size, self.iterations(case))
        };
        let [here, there] = self.devices(device)?;
        let (active, passive) = (run.argv(here, Some(SERVER)), run.argv(there, None));
        let here = here.clone();
        let before = exits(device, &here)?;
        let printed = self.pair(&passive, &active)?;
        let result = perftest::latency(&printed, size).map_err(failed(&printed))?;
        self.rates.insert(case, 1e6 / result.median);
        let how = if events { "events" } else { "both sides poll" };
        let configuration = self.configuration_of(case);
        for (part, value) in [
            ("50 %", result.median),
            ("99 %", result.percentile_99),
            ("99.9 %", result.percentile_999),
        ] {
            let name = format!("{} latency, {part}", verb.name());
            let key = Key {
                how: how.into(),
                ..Key::new(&name, &configuration, "µs").size(size)
            };
            self.sink.tell(Event::Value(key, value))?;
        }
        if let Some(before) = before {
            self.tell_exits(&here, before, &run, how)?;
        }
        Ok(())
    }

    /// Measures system calls: runs a shorter and a longer stream of small messages, with the active
    /// side under strace.
    fn syscalls(&mut self) -> Result<(), Failed> {
        let mut counts = Vec::new();
        for iterations in syscalls::MESSAGES {
            self.port += 1;
            let run = self.run(Verb::Write, SMALL, iterations);
            let [here, there] = self.devices(Which::Own)?;
            let (active, file) = syscalls::counted(run.argv(here, Some(SERVER)));
            let passive = run.argv(there, None);
            let printed = self.pair(&passive, &active)?;
            perftest::bandwidth(&printed, SMALL)?;
            counts.push(syscalls::calls(&file)? as f64);
        }
        let more = syscalls::MESSAGES[1] - syscalls::MESSAGES[0];
        let key = Key {
            how: "active side polls".into(),
            ..Key::new("system calls a message", &self.configuration, "calls").size(SMALL)
        };
        self.sink
            .tell(Event::Value(key, (counts[1] - counts[0]) / more as f64))?;
        Ok(())
    }

    fn tcp(&mut self, case: Case, size: u64) -> Result<(), Failed> {
        let (passive, active) = (
            iperf::argv(size, self.port, None),
            iperf::argv(size, self.port, Some(SERVER)),
        );
        self.sink.tell(Event::Begin)?;
        let printed = self.pair(&passive, &active)?;
        let result = iperf::received(&printed).map_err(failed(&printed))?;
        let key = Key::new("bandwidth", &self.configuration_of(case), "MB/s").size(size);
        self.sink.tell(Event::End(Traffic {
            key: key.clone(),
            bytes: result.bytes,
        }))?;
        self.sink.tell(Event::Value(key, result.megabytes))?;
        Ok(())
    }
}

/// The exits of the virtio-rdma device so far. `None` for rxe, which counts none.
fn exits(which: Which, device: &Device) -> Result<Option<Exits>> {
    match which {
        Which::Own => Exits::of(device).map(Some),
        Which::Rxe => Ok(None),
    }
}

/// Estimates the rate of a stream from the known rate of the next smaller messages with one QP.
/// Each additional byte adds a fixed time.
fn guess(rates: &HashMap<Case, f64>, case: Case) -> Option<f64> {
    let Case::Stream {
        verb, device, size, ..
    } = case
    else {
        return None;
    };
    let (smaller, rate) = rates
        .iter()
        .filter_map(|(known, rate)| match *known {
            Case::Stream {
                verb: known_verb,
                device: known_device,
                size: known_size,
                qps: 1,
                ..
            } if (known_verb, known_device) == (verb, device) && known_size <= size => {
                Some((known_size, *rate))
            }
            _ => None,
        })
        .max_by_key(|(size, _)| *size)?;
    let bytes_a_second = match device {
        Which::Own => 1e9,
        Which::Rxe => 1e7,
    };
    Some(1.0 / (1.0 / rate + (size - smaller) as f64 / bytes_a_second))
}

/// The error of a measurement, with the output of the programs.
struct Failed {
    error: Error,
    log: String,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        failed("")(error)
    }
}

/// Adds the output of the programs to an error.
fn failed(log: &str) -> impl Fn(Error) -> Failed + '_ {
    |error| Failed {
        error,
        log: log.to_owned(),
    }
}

fn describe(case: Case) -> String {
    use crate::report::bytes;
    match case {
        Case::Stream {
            verb, size, qps, ..
        } if size == SMALL => format!("{} rate of {}, {qps} QPs", verb.name(), bytes(size)),
        Case::Stream { verb, size, .. } => format!("{} bandwidth, {}", verb.name(), bytes(size)),
        Case::RoundTrips {
            verb,
            size,
            events: false,
            ..
        } => format!("{} latency, {}", verb.name(), bytes(size)),
        Case::RoundTrips { verb, size, .. } => {
            format!("{} latency by events, {}", verb.name(), bytes(size))
        }
        Case::Tcp { size } => format!("bandwidth, {}", bytes(size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn larger_messages_are_guessed_to_be_slower() {
        let stream = |device, size, qps| Case::Stream {
            verb: Verb::Write,
            device,
            size,
            qps,
            memory: Memory::Pages,
        };
        let rates = HashMap::from([
            (stream(Which::Rxe, 2, 1), 4000.0),
            (stream(Which::Own, 2, 1), 100_000.0),
            (stream(Which::Own, 64, 8), 900_000.0),
        ]);
        let rxe = guess(&rates, stream(Which::Rxe, 1 << 20, 1)).unwrap();
        assert!((5.0..10.0).contains(&rxe), "{rxe}");
        let own = guess(&rates, stream(Which::Own, 64 << 10, 1)).unwrap();
        assert!((5_000.0..20_000.0).contains(&own), "{own}");
        // The rate of several QPs is estimated from the rate of one QP.
        let shared = guess(&rates, stream(Which::Own, 64, 64)).unwrap();
        assert!((90_000.0..=100_000.0).contains(&shared), "{shared}");
        assert_eq!(guess(&rates, Case::Tcp { size: 2 }), None);
    }
}
