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

    /// Its name, the head of its column, and its unit.
    const fn texts(self) -> [&'static str; 3] {
        match self {
            Self::Rate => ["bulk messages", "M/s", "M/s"],
            Self::ProcessorTime => ["processor time of a bulk message", "CPU ns", "ns"],
            Self::Busy => ["workers on a processor", "busy", "of workers"],
            Self::QpFairness => ["fairness of QPs", "fair QPs", "of 1"],
            Self::GuestFairness => ["fairness of guests", "guests", "of 1"],
            Self::Median => ["latency of a sparse sender, 50 %", "50 % µs", "µs"],
            Self::Percentile99 => ["latency of a sparse sender, 99 %", "99 %", "µs"],
            Self::Percentile999 => ["latency of a sparse sender, 99.9 %", "99.9 %", "µs"],
            Self::Memory => ["memory of a pair of QPs", "B per pair", "B"],
        }
    }

    pub const fn name(self) -> &'static str {
        self.texts()[0]
    }

    /// The head of the quantity's column.
    pub const fn head(self) -> &'static str {
        self.texts()[1]
    }

    pub const fn unit(self) -> &'static str {
        self.texts()[2]
    }
}
