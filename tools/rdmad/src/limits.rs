// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The limit on open files.

use anyhow::{Context, Result};
use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
use verbs::DeviceConfig;

use crate::cli::Args;

/// Open files of the daemon beside those of its ports: workers, switch, uplinks, status, log.
const OWN: u64 = 64;
/// Open files of a port beside those that its client hands over: sockets and eventfds of the
/// daemon.
const OF_A_PORT: u64 = 16;

/// Memory of the daemon beside that of its ports: stacks, the switch, the capture, the log.
const OWN_MEMORY: u64 = 512 << 20;

/// Raises the limit on open files as far as it goes, and says so if that does not suffice for
/// `ports` ports.
pub fn raise(ports: usize) {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let limit = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let needed = needed(ports);
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            "the limit on open files is {limit}, {ports} ports may need {needed}: a VM for which none is left is turned \
             away; raise the hard limit (ulimit -Hn, LimitNOFILE=)"
        );
    }
}

/// Once all is started: no process or thread more, no more open files than there may be now, and no
/// more memory than the ports may have, with as much again for what they share.
pub fn lower(args: &Args) -> Result<()> {
    let ports = args.ports.iter();
    let memory = ports.map(|port| port.memory.unwrap_or(args.memory));
    let memory = memory.fold(OWN_MEMORY, u64::saturating_add);
    let files = getrlimit(Resource::Nofile).current;
    let lowered = [
        (Resource::Nproc, Some(0)),
        (Resource::Nofile, files),
        (Resource::Data, Some(memory.saturating_mul(2))),
    ];
    for (resource, limit) in lowered {
        // Nobody may raise it beyond what it was.
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

/// Open files that so many ports need at most.
fn needed(ports: usize) -> u64 {
    // An interrupt a queue, and one for the configuration.
    let queues = DeviceConfig::new([0; 6]).limits.virtqueue_sizes().len();
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
