// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The ports of the running daemon.

use std::collections::HashMap;
use std::fmt;
use std::iter;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use vdev::{Listener, Saved};
use verbs::{Hca, PortRates};
use virtio_rdma_abi::number::Qpn;
use vswitch::pcap::Captured;

use crate::cli::{check_guest_memory, Args, PortArgs, SocketArgs};
use crate::daemon::Former;
use crate::host::{self, Host, ServedPort};
use crate::in_use::InUse;
use crate::qps;
use crate::rates;
use crate::report::{EngineReport, Report};
use crate::state::{Changes, State};
use crate::watchdog::{Stuck, Watchdog};
use crate::workers::WorkerNow;

/// How long ports wait for each other at the begin and at the end of an engine.
const PATIENCE: Duration = Duration::from_secs(1);

/// A port of the running daemon.
struct Port {
    /// The port's configuration.
    args: PortArgs,
    /// Number of the port's isolation group; 0 is the group of ports without `group=`.
    group: u32,
    served: ServedPort,
}

/// All ports.
///
/// Each change locks the state first. So the list of ports is locked for a short time only, and the
/// status waits neither for the file of the state nor for a client.
pub struct Ports {
    state: State,
    list: Mutex<List>,
    host: Host,
}

/// The ports of the daemon, and the numbers of their groups.
#[derive(Default)]
struct List {
    /// The ports in the order in which they were added.
    ports: Vec<Port>,
    /// Ports that are being removed. Until that is done, their VMs may still be connected, so
    /// nothing of them is given to another port.
    leaving: Vec<PortArgs>,
    groups: Groups,
}

impl List {
    /// All ports that exist.
    fn present(&self) -> impl Iterator<Item = &PortArgs> {
        let served = self.ports.iter().map(|port| &port.args);
        served.chain(&self.leaving)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.args.name == name)
    }

    /// The number of the isolation group of a port that is to be added.
    fn group_number(&mut self, port: &PortArgs) -> Result<u32> {
        let served = self.ports.iter().map(|port| (&port.args, port.group));
        self.groups.number(served, port)
    }
}

/// Numbers of isolation groups.
#[derive(Default)]
struct Groups {
    /// The number that was given last.
    last: u32,
}

impl Groups {
    /// The number of the isolation group of `port`. `served` has the other ports with the numbers
    /// of their groups. The number of a group without ports is not used again: a port of it may
    /// still be on its way out.
    fn number<'a>(
        &mut self,
        mut served: impl Iterator<Item = (&'a PortArgs, u32)>,
        port: &PortArgs,
    ) -> Result<u32> {
        if port.group.is_none() {
            return Ok(0);
        }
        if let Some((_, number)) = served.find(|(other, _)| other.group == port.group) {
            return Ok(number);
        }
        let next = self.last.checked_add(1);
        self.last = next.context("all numbers of groups were used; restart the daemon")?;
        Ok(self.last)
    }
}

/// The state of a port that `ctl ports` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    pub name: String,
    /// MAC address of the port.
    pub mac: String,
    /// Socket that the port's QEMU connects to.
    pub vfio: PathBuf,
    /// Whether a driver has set the device up.
    pub driver: bool,
    /// Why the device has failed; `None` if it has not.
    #[serde(default)]
    pub failed: Option<String>,
    /// Name of the isolation group. `None` for the group of ports without `group=`.
    pub group: Option<String>,
    /// Limit of bytes per second, or "none".
    pub rate: String,
    /// Limit of messages per second, or "none".
    pub messages: String,
}

impl Ports {
    /// Opens all sockets, and serves the ports of `args` and the ports `added`, which `state`
    /// contains. The workers run on the CPUs `dedicated`, if there are any.
    pub fn start(
        args: &Args,
        state: State,
        added: Vec<(PortArgs, SocketArgs)>,
        dedicated: Vec<usize>,
        former: &Former,
    ) -> Result<Self> {
        // The sockets are opened first: this fails if another daemon is running already.
        let bind = |port: &PortArgs| {
            Listener::bind(&port.vfio, &args.sockets.access(port))
                .with_context(|| format!("port {}", port.name))
        };
        let listeners = args.ports.iter().map(bind).collect::<Result<Vec<_>>>()?;
        let mut list = List::default();
        let mut numbers = Vec::new();
        for port in &args.ports {
            let numbered = args.ports.iter().zip(numbers.iter().copied());
            numbers.push(list.groups.number(numbered, port)?);
        }
        let (host, engines) = Host::start(args, dedicated, &numbers, former)?;
        let configured = args.ports.iter().zip(numbers);
        for (((args, group), listener), frames) in configured.zip(listeners).zip(engines) {
            list.ports.push(Port {
                args: args.clone(),
                group,
                served: host.serve(args, group, listener, frames)?,
            });
        }
        let ports = Self {
            state,
            list: Mutex::new(list),
            host,
        };
        let mut changes = ports.state.lock();
        for (port, sockets) in added {
            // The port stays in the file, so that the next start can restore it.
            if let Err(error) = ports.restore(&port, &sockets) {
                let name = changes.name();
                tracing::error!("{name}: port {} is left out: {error:#}", port.name);
            }
        }
        changes.flush()?;
        drop(changes);
        Ok(ports)
    }

    /// Waits until no other change is in progress, and begins a change that concerns no port.
    pub fn changes(&self) -> MutexGuard<'_, Changes> {
        self.state.lock()
    }

    /// Serves a port that the state file contains.
    fn restore(&self, args: &PortArgs, sockets: &SocketArgs) -> Result<()> {
        let group = self.admit(args)?;
        let sockets = host::make_sockets(args, sockets)?;
        let served = self.host.add(args, group, sockets)?;
        self.push(args, group, served);
        Ok(())
    }

    /// Adds a port. `fds` are its sockets. `sockets` are the users who may connect to these.
    pub fn add(&self, args: PortArgs, sockets: &SocketArgs, fds: Vec<OwnedFd>) -> Result<()> {
        let mut changes = self.state.lock();
        changes.check_added(&args, sockets)?;
        let group = self.admit(&args)?;
        let made = host::passed_sockets(&args, fds)?;
        let served = self.host.add(&args, group, made)?;
        if let Err(error) = changes.add(&args, sockets) {
            self.host.remove(served)?;
            return Err(error);
        }
        self.push(&args, group, served);
        Ok(())
    }

    fn push(&self, args: &PortArgs, group: u32, served: ServedPort) {
        self.list.lock().ports.push(Port {
            args: args.clone(),
            group,
            served,
        });
    }

    /// Checks whether a port can be added. Returns the number of its group.
    fn admit(&self, args: &PortArgs) -> Result<u32> {
        let mut list = self.list.lock();
        {
            let mut in_use = InUse::default();
            let mut paths = self.host.paths.iter();
            paths.try_for_each(|path| in_use.path(path))?;
            let mut ports = list.present().chain([args]);
            ports.try_for_each(|port| in_use.port(port))?;
        }
        let count = list.present().count();
        ensure!(
            count < self.host.most_ports,
            "there are {count} ports, and the daemon was started for no more (--spare-ports)"
        );
        let mapped = list.present().chain([args]);
        check_guest_memory(mapped.map(PortArgs::most_guest_memory))?;
        list.group_number(args)
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let mut changes = self.state.lock();
        self.with(name, |_| Ok(()))?;
        changes.remove(name)?;
        let mut list = self.list.lock();
        let at = list.find(name).with_context(|| no_port(name))?;
        let port = list.ports.remove(at);
        list.leaving.push(port.args);
        drop(list);
        // A client may delay the end of its port. No lock is held, so no other client waits.
        drop(changes);
        let removed = self.host.remove(port.served);
        self.list.lock().leaving.retain(|port| port.name != name);
        removed
    }

    /// The state of each port.
    pub fn states(&self) -> Vec<PortState> {
        let list = self.list.lock();
        let state = |port: &Port| PortState {
            name: port.args.name.clone(),
            mac: port.args.mac.to_string(),
            vfio: port.args.vfio.clone(),
            driver: port.served.hca.has_driver(),
            failed: port.served.hca.failure(),
            group: port.args.group.clone(),
            rate: rates::text(port.args.rates.bytes),
            messages: rates::text(port.args.rates.messages),
        };
        list.ports.iter().map(state).collect()
    }

    pub fn limit(&self, name: &str, change: impl FnOnce(&mut PortRates)) -> Result<PortRates> {
        let mut changes = self.state.lock();
        let mut args = self.with(name, |port| Ok(port.args.clone()))?;
        change(&mut args.rates);
        changes.change(&args)?;
        self.with(name, |port| {
            port.args.rates = args.rates;
            port.served.hca.set_rates(args.rates);
            Ok(args.rates)
        })
    }

    /// Captures the frames of the port with this name to a file.
    pub fn capture(&self, name: &str, fds: Vec<OwnedFd>) -> Result<()> {
        self.with(name, |port| self.host.capture(name, &port.served, fds))
    }

    pub fn end_capture(&self, name: &str) -> Result<Captured> {
        self.with(name, |port| self.host.end_capture(&port.served))
    }

    fn with<T>(&self, name: &str, work: impl FnOnce(&mut Port) -> Result<T>) -> Result<T> {
        let mut list = self.list.lock();
        let at = list.find(name).with_context(|| no_port(name))?;
        work(&mut list.ports[at]).with_context(|| format!("port {name}"))
    }

    /// A report of all ports, with the status of the workers and the counters of the switch. The
    /// QPs are left out unless `has_qps`.
    pub fn report(&self, engine: EngineReport, has_qps: bool) -> Report {
        // There may be thousands of QPs, so the list is not locked while they are visited.
        let named = |port: &Port| {
            let ServedPort { hca, server, .. } = &port.served;
            (port.args.name.clone(), hca.clone(), server.interrupts())
        };
        let devices = self.list.lock().ports.iter().map(named).collect();
        let workers = self.host.runtime.status();
        let switch = self.host.switch.stats();
        Report::new(engine, workers, devices, switch, has_qps)
    }

    /// A thread that serves all ports and runs without end, and what it does.
    pub fn stuck(&self, watchdog: &mut Watchdog) -> Option<String> {
        let pulses = iter::once(self.host.switch.pulse()).chain(self.host.runtime.pulses());
        let Stuck { thread, busy } = watchdog.look(pulses)?;
        // Without names of ports: the thread may hold up one that has locked their list.
        let runtime = &self.host.runtime;
        let doing = |worker: usize| Some(runtime.activities().get(worker)?.doing);
        let thread = match thread.checked_sub(1) {
            None => "the switch's thread".to_owned(),
            Some(worker) => format!("worker {worker}, {:?}", doing(worker)),
        };
        Some(format!(
            "{busy:.1?} of processor time without a new round: {thread}"
        ))
    }

    /// The activity of each worker, and the work that waits for it.
    pub fn workers(&self) -> Vec<WorkerNow> {
        let name = |port: &Port| (port.served.hca.port(), port.args.name.clone());
        let names: HashMap<_, _> = self.list.lock().ports.iter().map(name).collect();
        let name = |port| names.get(&port).cloned();
        let runtime = &self.host.runtime;
        let workers = runtime.activities().into_iter();
        let workers = workers.zip(runtime.status().workers).enumerate();
        workers
            .map(|(worker, (activity, status))| WorkerNow::new(worker, activity, &status, &name))
            .collect()
    }

    pub fn hca(&self, name: &str) -> Result<Arc<Hca>> {
        self.with(name, |port| Ok(port.served.hca.clone()))
    }

    /// The description of QP `qpn` of the port with this name.
    pub fn qp(&self, name: &str, qpn: Qpn) -> Result<Value> {
        let details = self.hca(name)?.qp_details(qpn, true);
        qps::describe(details.with_context(|| format!("port {name} has no QP {qpn}"))?)
    }

    /// Lets the ports take over devices from the last engine, and then begins all work.
    pub fn begin(&self, former: &Former) {
        self.host.pool.sockets.open();
        let until = Instant::now() + PATIENCE;
        while !former.records.are_restored() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        // A VM that goes on could take an address before its owner has it back.
        self.host.release();
        if let Some(held_at) = former.records.held_at() {
            let pause = self.host.runtime.since_boot().saturating_sub(held_at);
            tracing::info!("took over from the last engine, whose VMs waited for {pause:.1?}");
        }
    }

    /// Stops all work between two of its steps, and calls `write` with the state of all devices.
    /// If that succeeds, nothing goes on: the process is to end.
    ///
    /// # Errors
    ///
    /// A thread does not come to the end of its step, a change by `ctl` is in progress, or `write`
    /// has failed. All work goes on.
    pub fn hand_over(&self, write: impl FnOnce(Saved) -> Result<()>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let changes = self.state.lock_until(until);
        let changes = changes.context("a change of the configuration is in progress")?;
        let list = self.list.lock();
        let handed_over = self.hold(&list, until).and_then(write);
        if handed_over.is_ok() {
            // Changes that wait for them would begin.
            mem::forget((changes, list));
        } else {
            self.host.release();
        }
        handed_over
    }

    fn hold(&self, list: &List, until: Instant) -> Result<Saved> {
        let Host {
            pool,
            runtime,
            switch,
            ..
        } = &self.host;
        ensure!(list.leaving.is_empty(), "a port is being removed");
        let mut saved = Saved::new(runtime.since_boot());
        for (gate, threads) in [
            (&pool.sockets, "sockets of VMs"),
            (&pool.services, "commands of VMs"),
        ] {
            gate.close();
            list.ports.iter().for_each(|port| port.served.server.wake());
            ensure!(gate.holds_all(until), "a thread of {threads} is busy");
        }
        ensure!(runtime.hold(until), "a worker is busy");
        ensure!(switch.hold(until), "the switch is busy");
        for port in &list.ports {
            ensure!(Instant::now() < until, "the VMs have too much state");
            if let Err(why) = port.served.server.save(&mut saved) {
                let name = &port.args.name;
                tracing::warn!("port {name}: its objects are lost by the upgrade: {why}");
            }
        }
        Ok(saved)
    }

    /// Drops all ports, which ends their threads.
    pub fn clear(&self) {
        self.list.lock().ports.clear();
    }
}

fn no_port(name: &str) -> String {
    format!("there is no port {name:?}")
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = match (&self.failed, self.driver) {
            (Some(_), _) => "failed",
            (None, true) => "driver",
            (None, false) => "no driver",
        };
        let Self {
            name,
            mac,
            vfio,
            rate,
            messages,
            group,
            ..
        } = self;
        let group = group.as_deref().unwrap_or("-");
        write!(
            f,
            "{name:<16} {mac}  {driver:<9}  group {group:<8}  rate {rate:<12}  messages {messages:<12}  {}",
            vfio.display()
        )?;
        match &self.failed {
            Some(why) => write!(f, "\n    failed: {why}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u8, group: &str) -> PortArgs {
        let text = format!("p{number},vfio=/run/{number},mac=52:54:00:09:00:0{number}{group}");
        text.parse().unwrap()
    }

    #[test]
    fn groups_have_numbers_of_their_own() {
        let names = ["", ",group=x", ",group=y", "", ",group=x"];
        let ports: Vec<_> = (1..).zip(names).map(|(n, group)| port(n, group)).collect();
        let mut groups = Groups::default();
        let mut numbered: Vec<(&PortArgs, u32)> = Vec::new();
        for port in &ports {
            let number = groups.number(numbered.iter().copied(), port).unwrap();
            numbered.push((port, number));
        }
        let numbers: Vec<_> = numbered.iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, [0, 1, 2, 0, 1]);
        // The number of a group without ports is not used again, not even for this group.
        numbered.retain(|(_, number)| *number != 1);
        for (number, group) in [(2, ",group=y"), (3, ",group=z"), (4, ",group=x")] {
            let port = port(6, group);
            let found = groups.number(numbered.iter().copied(), &port);
            assert_eq!(found.unwrap(), number);
        }
        groups.last = u32::MAX;
        let error = groups.number([].into_iter(), &ports[1]).unwrap_err();
        assert!(error.to_string().contains("restart"), "{error}");
    }
}
