// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The work of workers: giving turns to the flows of HCAs.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::Guard;
use scheduler::{shard, FlowKey, Next, PortFlows, Scheduler, TurnEnd, TurnStart, Work};
use virtio_rdma_abi::number::PortId;

use super::hcas::Hcas;
use super::{Patience, SharedRuntime, Watch};

/// The work of one worker.
pub(super) struct Server {
    shared: Arc<SharedRuntime>,
    /// The worker's number, from 0.
    worker: usize,
    watch: Watch,
    /// Start of the current round. Between rounds: start of the last round, if that round had
    /// work.
    began: Option<Instant>,
    /// Whether this round had work.
    worked: bool,
}

impl Server {
    /// The work of worker `worker`.
    pub(super) fn new(shared: Arc<SharedRuntime>, worker: usize) -> Self {
        Self {
            worker,
            watch: Watch::new(shared.patience),
            began: None,
            worked: false,
            shared,
        }
    }

    /// Polls the watched QPs. Returns whether any QP was watched.
    fn look(&self) -> bool {
        if self.watch.is_empty() {
            return false;
        }
        let scheduler = &self.shared.scheduler;
        let hcas = self.shared.hcas.load();
        let _turn = scheduler.quiesce.begin(self.worker);
        self.watch.look(
            scheduler.clock.now(),
            |qp| hcas.at(qp.port).is_none_or(|hca| hca.has_posted(qp.qpn)),
            |qp| {
                if let Some(hca) = hcas.at(qp.port) {
                    hca.qp_ready(qp.qpn);
                }
            },
        );
        true
    }
}

impl Work for Server {
    type Places = Guard<Arc<Hcas>>;

    fn scheduler(&self) -> &Scheduler {
        &self.shared.scheduler
    }

    fn places(&self) -> Self::Places {
        self.shared.hcas.load()
    }

    #[inline]
    fn flows(hcas: &Self::Places, port: PortId) -> Option<&PortFlows> {
        hcas.at(port).map(|hca| &hca.flows.port)
    }

    fn peer(&self, hcas: &Self::Places, key: FlowKey) -> Option<FlowKey> {
        hcas.at(key.port)?.direct_peer_of(key.flow)
    }

    fn is_served(&self, hcas: &Self::Places, key: FlowKey) -> bool {
        hcas.at(key.port).is_some_and(|hca| hca.is_served(key.flow))
    }

    fn expired(&self, FlowKey { port, flow }: FlowKey) {
        // Searches the current HCAs: the flow's HCA may have been added during this round.
        if let Some(hca) = self.shared.hcas.load().at(port) {
            hca.timer_expired(flow);
        }
    }

    fn begin(&mut self, now: Instant) {
        if let Some(began) = self.began {
            let time = now.saturating_duration_since(began);
            self.shared.loads.note_round(shard(), time);
        }
        self.began = Some(now);
        self.worked = false;
    }

    #[inline]
    fn serve(&mut self, hcas: &Self::Places, key: FlowKey, start: TurnStart) -> TurnEnd {
        self.worked = true;
        let Some(hca) = hcas.at(key.port) else {
            return TurnEnd::default();
        };
        let turn = self.shared.scheduler.quiesce.begin(self.worker);
        let end = hca.serve(key.flow, start, &self.watch);
        drop(turn);
        hca.virtqueues().send_interrupts();
        end
    }

    fn end(&mut self) -> Next {
        // Watched QPs are polled even if there was other work, since their doorbells don't ring.
        let watching = self.look();
        if self.worked {
            return Next::Round;
        }
        self.began = None;
        if watching || self.shared.patience == Patience::Unlimited {
            Next::Watch
        } else {
            Next::Sleep
        }
    }
}
