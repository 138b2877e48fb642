// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Work of workers, as the scheduler knows it.

use std::time::Instant;

use virtio_rdma_abi::number::PortId;

use super::flow::{FlowKey, PortFlows};
use super::timer::QpKey;
use super::Scheduler;

/// The end of a turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TurnEnd {
    /// The flow has more to do at once.
    pub again: bool,
    /// Cost of what was done.
    pub cost: usize,
}

/// The next step after a round.
pub(crate) enum Next {
    /// Another one.
    Round,
    /// Another one, for what is watched.
    Watch,
    /// Nothing, until the worker is woken or a deadline is over.
    Sleep,
}

/// Work of one worker.
pub(crate) trait Work: Send + 'static {
    /// The ports as they are at some time.
    type Places;

    /// State that the worker shares with others.
    fn scheduler(&self) -> &Scheduler;

    /// The ports as they are now.
    fn places(&self) -> Self::Places;

    /// The flows of a port, if it is there.
    fn flows(places: &Self::Places, port: PortId) -> Option<&PortFlows>;

    /// The other end of a direct connection, if the flow is one.
    fn peer(&self, places: &Self::Places, flow: FlowKey) -> Option<FlowKey>;

    /// Whether the flow has a turn now.
    fn is_served(&self, places: &Self::Places, flow: FlowKey) -> bool;

    /// The deadline of this QP is over.
    fn expired(&self, key: QpKey);

    /// A round begins at `now`.
    fn begin(&mut self, now: Instant);

    /// Gives a flow a turn.
    fn serve(&mut self, places: &Self::Places, flow: FlowKey) -> TurnEnd;

    /// The round ends.
    fn end(&mut self) -> Next;
}
