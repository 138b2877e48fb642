// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The work of the workers: the interface to the objects that they serve.

use std::time::Instant;

use virtio_rdma_abi::number::PortId;

use crate::flow::{FlowKey, PortFlows};
use crate::Scheduler;

/// The result of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnEnd {
    /// Whether the flow has more work, which can be done at once.
    pub again: bool,
    /// Cost of the turn, in the unit of the turn budget.
    pub cost: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct TurnStart {
    pub now: Instant,
    /// Cost at which the turn ends.
    pub budget: usize,
}

/// The next action of a worker after a round.
pub enum Next {
    /// Starts another round.
    Round,
    /// Starts another round, only to poll the watched QPs.
    Watch,
    /// Sleeps until it is woken or a deadline passes.
    Sleep,
}

/// The work of one worker, as a set of flows to serve.
pub trait Work: Send + 'static {
    /// A snapshot of the ports.
    type Places;

    /// Scheduling state, shared by all workers.
    fn scheduler(&self) -> &Scheduler;

    /// The current ports.
    fn places(&self) -> Self::Places;

    /// The flows of a port, if the port exists.
    fn flows(places: &Self::Places, port: PortId) -> Option<&PortFlows>;

    /// The flow of the peer QP, if `flow` is a QP with a direct route.
    fn peer(&self, places: &Self::Places, flow: FlowKey) -> Option<FlowKey>;

    /// Whether a thread is giving the flow a turn now.
    fn is_served(&self, places: &Self::Places, flow: FlowKey) -> bool;

    /// Handles a deadline of flow `key` that has passed.
    fn expired(&self, key: FlowKey);

    /// Begins a round at `now`.
    fn begin(&mut self, now: Instant);

    /// Gives a flow a turn.
    fn serve(&mut self, places: &Self::Places, flow: FlowKey, start: TurnStart) -> TurnEnd;

    /// Ends the round.
    fn end(&mut self) -> Next;
}
