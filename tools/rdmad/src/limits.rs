// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Resource limits of the daemon: open files, memory and processes.

use anyhow::{Context, Result};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use verbs::HcaConfig;

use crate::cli::Args;

/// Maximum number of open files of the daemon, except those of its ports. These are files of the
/// workers, the switch, the uplinks, the status and the log.
const OWN: u64 = 64;
/// Maximum number of sockets and eventfds that the daemon opens for a port. The files that the
/// port's client passes are not included.
const OF_A_PORT: u64 = 16;

/// Memory of the daemon in bytes for stacks, switch, capture and log. The memory of ports is not
/// included.
const OWN_MEMORY: u64 = 512 << 20;

/// Raises the limit of open files to its maximum. To be called by the supervisor, since its engines
/// open files in its table.
pub fn raise() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).context("can't raise the limit on open files")
}

/// Logs a warning if the limit of open files does not suffice for `ports` ports.
pub fn check_files(ports: usize) {
    let limit = getrlimit(Resource::Nofile).current;
    let needed = needed(ports);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            "the limit on open files is {limit}, {ports} ports may need {needed}: a VM for which none is left is turned \
             away; raise the hard limit (ulimit -Hn, LimitNOFILE=)"
        );
    }
}

/// Lowers the limits after start-up: no new process or thread, no increase of the limit of open
/// files, and at most twice the memory limits of ports and daemon.
pub fn lower(args: &Args) -> Result<()> {
    let ports = args.ports.iter();
    let memory = ports.map(|port| port.memory.unwrap_or(args.memory));
    // Each port that is added later has at most the default limit.
    let memory = memory.chain((0..args.spare_ports()).map(|_| args.memory));
    let memory = memory.fold(OWN_MEMORY, u64::saturating_add);
    let files = getrlimit(Resource::Nofile).current;
    let lowered = [
        (Resource::Nproc, Some(0)),
        (Resource::Nofile, files),
        (Resource::Data, Some(memory.saturating_mul(2))),
    ];
    for (resource, limit) in lowered {
        // The new limit must not exceed the present maximum of the resource.
        let maximum = getrlimit(resource).maximum;
        let limit = limit.into_iter().chain(maximum).min();
        let limits = Rlimit {
            current: limit,
            maximum: limit,
        };
        setrlimit(resource, limits).with_context(|| format!("can't lower {resource:?}"))?;
    }
    Ok(())
}

/// Maximum number of open files that this number of ports needs.
fn needed(ports: usize) -> u64 {
    // A client passes an eventfd for each queue's interrupt and one for the configuration's.
    let queues = HcaConfig::new([0; 6]).limits.virtqueue_sizes().len();
    let client = queues + 1 + dma::MAX_REGIONS + vdev::MAX_FDS;
    OWN + ports as u64 * (client as u64 + OF_A_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_suffice_for_two_ports() {
        assert!(needed(2) < 1024 && needed(3) > 1024, "{}", needed(2));
    }
}
