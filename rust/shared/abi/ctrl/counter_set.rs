// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Commands for counter sets. They need
//! [`Feature::CounterSets`](super::super::feature::Feature::CounterSets).

use super::super::number::{CounterSetNumber, Qpn};
use super::super::wire::Wire;
use super::{Command, ControlCommand, Empty, RspQueryCounters, MAX_REQUEST, MAX_RESPONSE};

wire_struct! {
    /// Request of CREATE_COUNTER_SET.
    pub struct CmdCreateCounterSet: 1 {
        /// Port whose QPs can be bound to the set.
        0 => port: u8,
    }
}

wire_struct! {
    /// Response of CREATE_COUNTER_SET.
    pub struct RspCreateCounterSet: 4 {
        /// Handle, never 0.
        0 => csn: CounterSetNumber,
    }
}
request!(CmdCreateCounterSet, CreateCounterSet, RspCreateCounterSet, new csn);

wire_struct! {
    /// Request of DESTROY_COUNTER_SET.
    pub struct CmdDestroyCounterSet: 4 {
        /// Handle.
        0 => csn: CounterSetNumber,
    }
}
request!(CmdDestroyCounterSet, DestroyCounterSet, Empty, of csn);

wire_struct! {
    /// Request of BIND_COUNTER_SET.
    pub struct CmdBindCounterSet: 8 {
        /// QP.
        0 => qpn: Qpn,
        /// The QP's counter set from now on, or 0 for none.
        4 => csn: CounterSetNumber,
    }
}
request!(CmdBindCounterSet, BindCounterSet, Empty, of qpn);

wire_struct! {
    /// Request of QUERY_COUNTER_SET.
    pub struct CmdQueryCounterSet: 4 {
        /// Handle, or 0 for the events that no counter set counted.
        0 => csn: CounterSetNumber,
    }
}
request!(CmdQueryCounterSet, QueryCounterSet, RspQueryCounters, of csn);
