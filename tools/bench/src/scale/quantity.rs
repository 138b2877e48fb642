// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Quantities that are measured of each load.

/// A quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bulk messages a second.
    Rate,
    /// Processor time of the daemon's threads for a bulk message.
    ProcessorTime,
    /// Share of the workers' time that they were on a processor.
    Busy,
    /// Jain's index of the messages of each bulk QP: 1 if all have as many, 1/n if one has all.
    QpFairness,
    /// The same of each guest.
    GuestFairness,
    /// Latency of the sparse sender beside the bulk QPs.
    Median,
    /// The same of the slowest hundredth.
    Percentile99,
    /// The same of the slowest thousandth.
    Percentile999,
    /// Memory that the device is charged for a bulk QP and its peer.
    Memory,
}

impl Quantity {
    /// All, in the order of the table's columns.
    pub const ALL: [Self; 9] = [
        Self::Rate,
        Self::ProcessorTime,
        Self::Busy,
        Self::QpFairness,
        Self::GuestFairness,
        Self::Median,
        Self::Percentile99,
        Self::Percentile999,
        Self::Memory,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "bulk messages",
            Self::ProcessorTime => "processor time of a bulk message",
            Self::Busy => "workers on a processor",
            Self::QpFairness => "fairness of QPs",
            Self::GuestFairness => "fairness of guests",
            Self::Median => "latency of a sparse sender, 50 %",
            Self::Percentile99 => "latency of a sparse sender, 99 %",
            Self::Percentile999 => "latency of a sparse sender, 99.9 %",
            Self::Memory => "memory of a pair of QPs",
        }
    }

    /// The head of its column.
    pub fn head(self) -> &'static str {
        match self {
            Self::Rate => "M/s",
            Self::ProcessorTime => "CPU ns",
            Self::Busy => "busy",
            Self::QpFairness => "fair QPs",
            Self::GuestFairness => "guests",
            Self::Median => "50 % µs",
            Self::Percentile99 => "99 %",
            Self::Percentile999 => "99.9 %",
            Self::Memory => "B a pair",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Rate => "M/s",
            Self::ProcessorTime => "ns",
            Self::Busy => "of workers",
            Self::QpFairness | Self::GuestFairness => "of 1",
            Self::Median | Self::Percentile99 | Self::Percentile999 => "µs",
            Self::Memory => "B",
        }
    }
}
