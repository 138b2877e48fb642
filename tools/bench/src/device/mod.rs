// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The cost of the device's work, without a VM: the real engine, switch and threads, with guests
//! that are simulated in this process.
//!
//! The cost is the processor time of the device's own threads, not the elapsed time: neither other
//! load of the machine nor the guests' share counts. A sample posts work requests in rounds and
//! divides their number by this processor time. For comparison, libc's copy and a copy with a
//! CRC are measured, from memory like a VM's.

mod cpu;
mod floor;
mod latency;
mod load;

use anyhow::Result;
use clap::Args;
use virtio_rdma_abi::ib::WrOpcode;

use crate::figure::{Key, Report};
use crate::report;
use crate::vm::is_host;
use load::{Load, Pages, Way};

pub use cpu::{on_processor, own_time, rate};

/// The start of the configurations of this part, except those of the floors.
pub const ALONE: &str = "device alone, ";
/// The name of the figure of copying.
pub const FLOOR: &str = "memcpy";
/// The end of the configuration of figures with [`Pages::Apart`].
pub const APART: &str = "pages apart";
/// The configuration of the figure of copying page by page.
pub const HOST_APART: &str = "host, pages apart";
/// The name of the figure of copying with a CRC32 of each packet's payload.
pub const CRC: &str = "memcpy and CRC32";
/// The name of the figure of TCP, by the processor time of both ends.
pub const TCP: &str = "TCP over the loopback";

/// The name of the figure of half a round trip.
pub const LATENCY: &str = "half a round trip, dedicated CPU";

/// Message sizes whose bandwidth is measured.
const SIZES: [u32; 6] = [64, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Numbers of QPs, of MRs per side, and of pairs of VMs over which the smallest messages are
/// spread.
const QPS: [u32; 4] = [1, 10, 100, 1000];
const MRS: [u32; 4] = [1, 100, 1000, 10_000];
const PAIRS: [u32; 3] = [1, 4, 16];
/// Number of idle VMs of each daemon, whose influence on a busy one is measured.
const IDLE: u32 = 127;
/// Size of the smallest messages, in bytes.
const SMALL: u32 = 64;
/// Size of a page, in bytes: longer messages need several pages.
const PAGE: u32 = 4096;

/// Options of `bench device`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Samples of each figure
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Measure only figures whose name, configuration and size, separated by blanks as in the
    /// table, contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
}

/// A figure to measure.
struct Subject {
    key: Key,
    measure: Box<dyn Fn() -> f64>,
}

/// Measures all figures, one after the other in each round.
pub fn run(options: &Options) -> Result<Report> {
    let mut figures = Report::default();
    let subjects: Vec<Subject> = subjects()
        .filter(|subject| row(&subject.key).contains(&options.only))
        .collect();
    for _ in 0..options.rounds {
        for Subject { key, measure } in &subjects {
            figures.add(key.clone(), measure());
        }
    }
    Ok(figures)
}

/// The start of a figure's row in the table.
fn row(key: &Key) -> String {
    let size = key.size.map_or_else(String::new, report::bytes);
    format!("{} {} {size}", key.what(), key.configuration)
}

/// The keys of all figures.
#[cfg(test)]
pub fn keys() -> impl Iterator<Item = Key> {
    subjects().map(|subject| subject.key)
}

fn subjects() -> impl Iterator<Item = Subject> {
    unnamed().map(|mut subject| {
        let configuration = &mut subject.key.configuration;
        if !is_host(configuration) {
            configuration.insert_str(0, ALONE);
        }
        subject
    })
}

/// The subjects, whose configurations have no [`ALONE`] yet.
fn unnamed() -> impl Iterator<Item = Subject> {
    let floors = SIZES.into_iter().flat_map(|size| {
        let floor = |name, measure: fn(u32) -> f64| Subject {
            key: Key::new(name, "host", "MB/s").size(size.into()),
            measure: Box::new(move || measure(size)),
        };
        [floor(FLOOR, floor::copy), floor(CRC, floor::copy_with_crc)]
    });
    let bandwidths = [Way::Direct, Way::Wire, Way::Udp, Way::Unix]
        .into_iter()
        .flat_map(|way| SIZES.into_iter().map(move |size| (way, size)))
        .flat_map(|(way, size)| {
            [WrOpcode::RdmaWrite, WrOpcode::RdmaRead, WrOpcode::Send].map(|opcode| {
                let load = Load {
                    way,
                    opcode,
                    size,
                    ..Load::SMALL
                };
                bandwidth(load, configuration(way))
            })
        });
    let crowded = Load {
        way: Way::Unix,
        size: PAGE,
        idle: IDLE,
        ..Load::SMALL
    };
    let crowd = format!("{}, {IDLE} idle ports", configuration(Way::Unix));
    let crowded = bandwidth(crowded, &crowd);
    let apart = SIZES
        .into_iter()
        .filter(|size| *size > PAGE)
        .flat_map(|size| {
            let floor = Subject {
                key: Key::new(FLOOR, HOST_APART, "MB/s").size(size.into()),
                measure: Box::new(move || floor::copy_pages(size)),
            };
            let [write, read] = [WrOpcode::RdmaWrite, WrOpcode::RdmaRead].map(|opcode| {
                let load = Load {
                    opcode,
                    size,
                    pages: Pages::Apart,
                    ..Load::SMALL
                };
                bandwidth(load, &format!("direct, {APART}"))
            });
            [floor, write, read]
        });
    let spreads = QPS
        .map(|qps| ("QPs", qps, Load { qps, ..Load::SMALL }))
        .into_iter()
        .chain(MRS.map(|mrs| ("MRs", mrs, Load { mrs, ..Load::SMALL })))
        .chain(PAIRS.map(|pairs| {
            (
                "VMs",
                2 * pairs,
                Load {
                    pairs,
                    ..Load::SMALL
                },
            )
        }))
        .map(|(what, count, load)| {
            let name = format!("messages over so many {what}");
            let mut key = Key::new(&name, "direct", "M/s").size(SMALL.into());
            key.count = Some(count.into());
            Subject {
                key,
                measure: Box::new(move || load.cost().rate(1.0) / 1e6),
            }
        });
    let streams = SIZES
        .into_iter()
        .filter(|size| *size >= PAGE)
        .map(|size| Subject {
            key: Key::new(TCP, "host", "MB/s").size(size.into()),
            measure: Box::new(move || floor::tcp(size)),
        });
    let latencies = latency::cpu().into_iter().flat_map(|cpu| {
        [Way::Direct, Way::Wire].map(|way| Subject {
            key: Key::new(LATENCY, configuration(way), "µs").size(latency::SIZE.into()),
            measure: Box::new(move || latency::half_round_trip(way.policy(), cpu)),
        })
    });
    floors
        .chain(streams)
        .chain(latencies)
        .chain(bandwidths)
        .chain([crowded])
        .chain(apart)
        .chain(spreads)
}

/// The figure of a load's bandwidth.
fn bandwidth(load: Load, configuration: &str) -> Subject {
    let Load { opcode, size, .. } = load;
    Subject {
        key: Key::new(operation(opcode), configuration, "MB/s").size(size.into()),
        measure: Box::new(move || load.cost().rate(f64::from(size)) / 1e6),
    }
}

fn operation(opcode: WrOpcode) -> &'static str {
    match opcode {
        WrOpcode::RdmaRead => "RDMA READ",
        WrOpcode::Send => "SEND",
        _ => "RDMA WRITE",
    }
}

fn configuration(way: Way) -> &'static str {
    match way {
        Way::Direct => "direct",
        Way::Wire => "wire",
        Way::Udp => "two daemons",
        Way::Unix => "two daemons, Unix sockets",
    }
}
