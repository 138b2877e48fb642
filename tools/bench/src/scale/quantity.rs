// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The measured quantities of a load.

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Bulk messages per second.
    Rate,
    /// Processor time of the device's threads per bulk message.
    ProcessorTime,
    /// Share of time in which the workers were on a processor.
    Busy,
    /// Jain's fairness index of the bulk QPs' messages: 1 if all QPs have sent the same number, 1/n
    /// if one QP has sent all.
    QpFairness,
    /// Jain's fairness index of the guests' messages.
    GuestFairness,
    /// Median latency of the sparse sender with the bulk QPs.
    Median,
    /// 99th percentile of the sparse sender's latency.
    Percentile99,
    /// 99.9th percentile of the sparse sender's latency.
    Percentile999,
    /// Memory that is charged to the device for a bulk QP and its peer.
    Memory,
}

impl Quantity {
    /// All quantities, in the order of the table's columns.
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

    /// The name of the quantity.
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

    /// The head of the quantity's column.
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

    /// The unit of the quantity.
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
