// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The latency of a worker with a CPU of its own (`virtio-rdmad --dedicate`).
//!
//! One thread acts as both guests, and spins until a message has arrived. No thread sleeps, so the
//! figure is the time that the device takes for a message.

use std::time::Duration;

use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};
use testkit::engine::Daemon;
use verbs::{PathPolicy, RuntimeConfig};
use vswitch::Config;

use crate::scale::{percentile, Probe};

/// Bytes of a message.
pub const SIZE: u32 = Probe::SIZE;
/// Time until the worker watches both QPs.
const WARM_UP: Duration = Duration::from_millis(20);
/// Time of a sample.
const SPAN: Duration = Duration::from_millis(200);

/// The CPU for the worker: the last that this thread may use. `None` if it is the only one.
pub fn cpu() -> Option<usize> {
    let usable = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| usable.is_set(*cpu));
    cpus.next()?;
    cpus.last()
}

/// Half of the time of a round trip of RDMA WRITEs between two VMs, in µs: the median of a sample.
/// The worker owns the CPU `cpu`. Meanwhile, this thread runs only on other CPUs.
pub fn half_round_trip(path: PathPolicy, cpu: usize) -> f64 {
    let usable = sched_getaffinity(None).expect("the CPUs of this thread");
    let mut others = usable;
    others.unset(cpu);
    sched_setaffinity(None, &others).expect("another CPU");
    let time = measure(path, cpu);
    sched_setaffinity(None, &usable).expect("the CPUs of before");
    time
}

fn measure(path: PathPolicy, cpu: usize) -> f64 {
    let runtime = RuntimeConfig {
        path,
        dedicated: vec![cpu],
        ..RuntimeConfig::default()
    };
    let daemon = Daemon::with_runtime(1..=2, runtime, Config::default(), |_| {});
    let [one, two] = daemon.vms.as_slice() else {
        unreachable!("two VMs")
    };
    let mut probe = Probe::new([one, two]);
    probe.run_without_pauses(WARM_UP);
    let mut times = probe.run_without_pauses(SPAN);
    times.sort_by(f64::total_cmp);
    percentile(&times, 0.5).expect("a message")
}
