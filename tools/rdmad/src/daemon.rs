// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Assembles the daemon: the ports, the status socket and the control socket.

use std::sync::Arc;

use anyhow::{Context, Result};
use supervisor::{Deaths, Store, Supervision};
use vdev::{Records, Saved};

use crate::cli::{Args, PortArgs, SocketArgs};
use crate::control::Control;
use crate::kept_captures::KeptCaptures;
use crate::kept_events::KeptEvents;
use crate::line_server::LineServer;
use crate::log::Level;
use crate::long_commands::LongCommands;
use crate::ports::Ports;
use crate::report::EngineReport;
use crate::state::State;
use crate::status::Status;
use crate::watchdog::Watchdog;

/// Earlier engines of this daemon.
pub struct Former {
    /// Whether one was ready, also of another supervisor.
    pub is_any: bool,
    /// The clients of the last one.
    pub records: Arc<Records>,
    /// The events that they have recorded.
    pub events: KeptEvents,
    /// The captures that the last one had.
    pub captures: KeptCaptures,
    pub deaths: Deaths,
    /// The descriptors of their clients that the service manager keeps.
    pub store: Arc<Store>,
}

/// All running parts of the daemon. Dropping this value ends first the ports, which the guests use,
/// and then the servers.
pub struct Daemon {
    /// The servers of the status and control sockets, which share `ports`.
    _servers: [Option<LineServer>; 2],
    ports: Arc<Ports>,
}

impl Daemon {
    /// Starts all threads, takes over devices from the last engine, and opens the sockets. The
    /// daemon serves the ports of `args` and the ports `added`, which `state` contains. The workers
    /// run on the CPUs `dedicated`, if there are any. `level` changes the level of the log.
    pub fn start(
        args: &Args,
        state: State,
        added: Vec<(PortArgs, SocketArgs)>,
        dedicated: Vec<usize>,
        level: Level,
        former: &Former,
        supervision: &Supervision,
    ) -> Result<Self> {
        let ports = Arc::new(Ports::start(args, state, added, dedicated, former)?);
        former.records.forget_others();
        former.events.forget_others();
        former.captures.forget_others();
        ports.begin(former);
        // The VMs of the last engine have waited until here.
        let long_commands = LongCommands::new();
        sandbox::fill_reserves().context("can't start spare threads")?;
        let status = args.status.as_ref().map(|path| {
            let ports = ports.clone();
            let (deaths, store) = (former.deaths.clone(), former.store.clone());
            let look = move |has_qps| ports.report(EngineReport::new(&deaths, &store), has_qps);
            LineServer::start(path, &args.status_access(), Status(look))
        });
        let control = args.ctl.as_ref().map(|path| {
            let control = Control {
                ports: ports.clone(),
                supervision: supervision.clone(),
                long_commands,
                level,
                has_group: args.ctl_group.is_some(),
            };
            LineServer::start(path, &args.ctl_access(), control)
        });
        Ok(Self {
            _servers: [status.transpose()?, control.transpose()?],
            ports,
        })
    }

    /// Stops all work and calls `write` with the state of all devices. See [`Ports::hand_over`].
    pub fn hand_over(&self, write: impl FnOnce(Saved) -> Result<()>) -> Result<()> {
        self.ports.hand_over(write)
    }

    /// A thread that serves all ports and runs without end, and what it does.
    pub fn stuck(&self, watchdog: &mut Watchdog) -> Option<String> {
        self.ports.stuck(watchdog)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The servers share `ports`, so it does not suffice to drop `ports`.
        self.ports.clear();
    }
}
