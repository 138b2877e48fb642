// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Formats the status as metrics, in the text format of OpenMetrics.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use virtio_rdma_abi::ctrl::RspQueryCounters;

use crate::report::{Frames, LongCallsReport, PortReport, QueueReport, Report, Worker};

/// Prefix of the names of all metrics.
const PREFIX: &str = "virtio_rdmad";

/// Description of a metric for a limit of memory. The metric for the used memory precedes it.
const LIMIT: &str = "Limit of that memory";

/// Name and description of a metric, and its value for a port or a link.
type Metric<T> = (&'static str, &'static str, fn(&T) -> u64);

/// Formats a report as OpenMetrics text.
pub fn text(report: Report) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(report));
    let mut text = String::new();
    // Writing to a string can't fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collector for Report {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(encoder);
        families.info(
            "build",
            "Version of the daemon",
            [("version", self.version)],
        )?;
        families.counter(
            "engine_deaths",
            "Engines that have died and were replaced by another one",
            None,
            [([("", ""); 0], self.engine.deaths)],
        )?;
        workers(&mut families, self)?;
        ports(&mut families, &self.ports)?;
        switch(&mut families, &self.switch)
    }
}

fn workers(families: &mut Families<'_>, report: &Report) -> fmt::Result {
    let workers = &report.workers;
    let seconds = |microseconds: u64| microseconds as f64 / 1e6;
    let each = |value: fn(&Worker) -> u64| {
        let numbered = workers.each.iter().enumerate();
        numbered.map(move |(number, worker)| ([("worker", number)], value(worker)))
    };
    families.counter(
        "worker_busy",
        "Time of the rounds in which there was work",
        Some(Unit::Seconds),
        each(|worker| worker.busy_us).map(|(labels, busy)| (labels, seconds(busy))),
    )?;
    families.gauge(
        "worker_longest_round",
        "Longest time from one look at deadlines and watched queues to the next",
        Some(Unit::Seconds),
        each(|worker| worker.longest_round_us).map(|(labels, time)| (labels, seconds(time))),
    )?;
    families.counter(
        "worker_steals",
        "Flows, QPs most of them, that it took over from other workers",
        None,
        each(|worker| worker.steals),
    )?;
    families.counter(
        "worker_stand_ins",
        "Times that the switch's thread did its work while it slept",
        None,
        each(|worker| worker.stand_ins),
    )?;
    families.gauge(
        "worker_longest_turn",
        "Cost of the longest turn, in copied bytes",
        None,
        each(|worker| worker.longest_turn),
    )?;
    families.gauge(
        "turn_budget",
        "Cost of a turn to be kept to, in copied bytes",
        None,
        [([("", ""); 0], workers.turn_budget)],
    )
}

fn ports(families: &mut Families<'_>, ports: &[PortReport]) -> fmt::Result {
    let labels = || ports.iter().map(|port| [("port", &*port.name)]);
    let each = |value: fn(&PortReport) -> u64| labels().zip(ports.iter().map(value));
    families.gauge(
        "port_link_up",
        "Whether the link is up",
        None,
        each(|port| port.link.into()),
    )?;
    families.gauge(
        "port_driver_up",
        "Whether a driver has set the device up",
        None,
        each(|port| port.driver.into()),
    )?;
    let objects = ports.iter().flat_map(|port| {
        let counts = [
            ("pd", port.pds),
            ("cq", port.cqs),
            ("mr", port.mrs),
            ("qp", port.qp_count),
        ];
        // `usize` fits u64.
        counts.map(|(kind, count)| ([("port", &*port.name), ("kind", kind)], count as u64))
    });
    families.gauge("port_objects", "Objects of the VM", None, objects)?;
    let own = "Memory that is allocated for the VM";
    let mapped = "Memory of the VM that is mapped";
    let memory: [Metric<PortReport>; 5] = [
        ("port_memory", own, |port| port.memory.used),
        ("port_memory_limit", LIMIT, |port| port.memory.limit),
        ("port_guest_memory", mapped, |port| port.guest_memory.used),
        ("port_guest_memory_limit", LIMIT, |port| {
            port.guest_memory.limit
        }),
        (
            "port_guest_memory_in_huge_pages",
            "Mapped memory of the VM in files of huge pages",
            |port| port.guest_memory_in_huge_pages,
        ),
    ];
    for (name, help, value) in memory {
        families.gauge(name, help, Some(Unit::Bytes), each(value))?;
    }
    let limits = || {
        ports.iter().flat_map(|port| {
            let limits = [
                ("bytes", &port.limits.bytes),
                ("messages", &port.limits.messages),
            ];
            limits.map(|(kind, limit)| ([("port", &*port.name), ("kind", kind)], limit))
        })
    };
    families.gauge(
        "port_limit",
        "Limit of what the QPs send in a second, in bytes or messages",
        None,
        limits().filter_map(|(labels, limit)| Some((labels, limit.per_second?))),
    )?;
    families.counter(
        "port_throttled",
        "Time for which a limit held work back",
        Some(Unit::Seconds),
        limits().map(|(labels, limit)| (labels, limit.throttled_us as f64 / 1e6)),
    )?;
    let long_calls = || ports.iter().map(|port| &port.interrupts.long_calls);
    long(families, "port_interrupt", "interrupts", || {
        labels().zip(long_calls())
    })?;
    families.counter(
        "port_deferred_interrupts",
        "Interrupts that were left to the port's own thread, since their signals take long",
        None,
        each(|port| port.interrupts.deferred),
    )?;
    families.counter(
        "port_refused_gids",
        "Addresses that the driver asked for and the port may not have",
        None,
        each(|port| port.refused_gids),
    )?;
    for (number, name) in RspQueryCounters::NAMES.iter().enumerate() {
        let name = name.to_string_lossy();
        let counts = ports.iter().map(|port| port.counters.0.values()[number]);
        let samples = labels().zip(counts);
        families.counter(
            &format!("port_{name}"),
            &format!("Counter {name} of the device, as the VM sees it too"),
            None,
            samples,
        )?;
    }
    Ok(())
}

fn switch(families: &mut Families<'_>, links: &[Frames]) -> fmt::Result {
    let each = |value: fn(&Frames) -> u64| {
        links
            .iter()
            .map(move |link| ([("link", &*link.name)], value(link)))
    };
    let received = "Frames accepted from here";
    let sent = "Frames delivered here";
    let refused =
        "Frames refused from here: of a wrong length or source, or RoCE from a network interface";
    let nowhere = "Frames from here that had nowhere to go";
    let dropped =
        "Frames for here whose receiver was full or absent, or from here that found no buffer";
    let errors = "Errors of the socket while frames were read";
    let over = "Frames for here that were dropped because the link had used up its share of time";
    let counters: [Metric<Frames>; 7] = [
        ("switch_received_frames", received, |link| link.received),
        ("switch_sent_frames", sent, |link| link.sent),
        ("switch_refused_frames", refused, |link| link.refused),
        ("switch_unroutable_frames", nowhere, |link| link.no_route),
        ("switch_dropped_frames", dropped, |link| link.dropped),
        ("switch_over_share_frames", over, |link| link.over_share),
        ("switch_socket_errors", errors, |link| link.errors),
    ];
    for (name, help, value) in counters {
        families.counter(name, help, None, each(value))?;
    }
    long(families, "switch_socket", "the network interface", || {
        links
            .iter()
            .map(|link| ([("link", &*link.name)], &link.long_calls))
    })?;
    let queues = |value: fn(&QueueReport) -> u64| {
        links.iter().flat_map(move |link| {
            let queues = [
                ("engine", &link.engine_queue),
                ("socket", &link.socket_queue),
            ];
            queues.map(|(queue, report)| ([("link", &*link.name), ("queue", queue)], value(report)))
        })
    };
    families.gauge(
        "switch_queue_frames",
        "Frames that wait for the engine or for room in the socket",
        None,
        queues(|queue| queue.frames),
    )?;
    families.gauge(
        "switch_queue_longest_frames",
        "Maximum number of frames that waited at a time",
        None,
        queues(|queue| queue.longest),
    )?;
    families.gauge(
        "switch_queue_limit_frames",
        "Number of waiting frames from which on others are dropped",
        None,
        queues(|queue| queue.limit),
    )
}

/// System calls for `what` that a QEMU has made long.
fn long<'a, I>(
    families: &mut Families<'_>,
    name: &str,
    what: &str,
    calls: impl Fn() -> I,
) -> fmt::Result
where
    I: Iterator<Item = ([(&'a str, &'a str); 1], &'a LongCallsReport)>,
{
    families.counter(
        &format!("{name}_long_calls"),
        &format!("System calls for {what} that QEMU has made long"),
        None,
        calls().map(|(labels, calls)| (labels, calls.calls)),
    )?;
    families.counter(
        &format!("{name}_long_call_time"),
        &format!("Processor time of long system calls for {what}"),
        Some(Unit::Seconds),
        calls().map(|(labels, calls)| (labels, calls.time_us as f64 / 1e6)),
    )
}

/// Families of metrics, in the order in which they are written.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn info(&mut self, name: &str, help: &str, labels: impl EncodeLabelSet) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Info)?;
        family.encode_info(&labels)
    }

    fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family =
            self.0
                .encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        for (labels, value) in samples {
            let mut sample = family.encode_family(&labels)?;
            sample.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
