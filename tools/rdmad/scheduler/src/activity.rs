// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Notes of each worker about its activity, for people who look from outside.
//!
//! A worker notes the start of each round, and each turn by one relaxed store to a cache line that
//! nobody else writes. A flow's state has the time at which the flow last became ready, which is
//! one relaxed store too. Looking takes no lock and reads no more than these words and the ready
//! sets, so it works while a worker is held in a turn. Notes decide nothing: the atomics are std's,
//! and loom's models do not see them.

use std::sync::atomic::{AtomicU64, Ordering};

use sandbox::Pulse;
use virtio_rdma_abi::number::{Number, PortId};

use crate::flow::{Flow, FlowKey, MAX_PORTS};

/// Bits of the time of a turn: µs since the start of its round, at most a minute.
const TIME_BITS: u32 = 26;
/// Bits of a flow: a QPN has 24 bits, and there is a flow more than QPNs.
const FLOW_BITS: u32 = 25;
const FLOW_SHIFT: u32 = TIME_BITS;
const PORT_SHIFT: u32 = FLOW_SHIFT + FLOW_BITS;
const _: () = assert!(MAX_PORTS < 1 << (u64::BITS - PORT_SHIFT));

/// The worker is between turns. No port is numbered 0, so no turn has this value or the next.
const NO_TURN: u64 = 0;
/// The worker has lain down to sleep.
const ASLEEP: u64 = 1;

/// The activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It sleeps.
    Sleeping,
    /// It was woken, and its thread has not run yet.
    Waking,
    /// It gives this flow a turn.
    Turn(FlowKey),
    /// It handles deadlines, polls watched QPs, or looks for a flow.
    BetweenTurns,
}

/// The notes of one worker.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    /// Start of the last round, in ns since the start of the scheduler.
    round: AtomicU64,
    /// [`NO_TURN`], [`ASLEEP`], or port, flow and time of the turn in progress.
    turn: AtomicU64,
    pub(crate) pulse: Pulse,
}

impl Activity {
    /// Notes the start of a round.
    #[inline]
    pub(crate) fn begin(&self, nanos: u64) {
        self.pulse.beat();
        self.turn.store(NO_TURN, Ordering::Relaxed);
        self.round.store(nanos, Ordering::Relaxed);
    }

    /// Start of the last round, in ns since the start of the scheduler.
    #[inline]
    pub(crate) fn round(&self) -> u64 {
        self.round.load(Ordering::Relaxed)
    }

    /// Notes the start of a turn.
    #[inline]
    pub(crate) fn turn(&self, FlowKey { port, flow }: FlowKey, nanos: u64) {
        let micros = nanos.saturating_sub(self.round()) / 1000;
        let micros = micros.min((1 << TIME_BITS) - 1);
        let (port, flow) = (u64::from(port.get()), u64::from(flow.get()));
        let key = (port << PORT_SHIFT) | (flow << FLOW_SHIFT);
        self.turn.store(key | micros, Ordering::Relaxed);
    }

    /// Notes the end of the last turn of a round.
    #[inline]
    pub(crate) fn end_turns(&self) {
        self.turn.store(NO_TURN, Ordering::Relaxed);
    }

    /// Notes that the worker has lain down.
    pub(crate) fn lie_down(&self) {
        self.turn.store(ASLEEP, Ordering::Relaxed);
    }

    /// The activity of a worker that is not marked as a sleeper, and its begin in ns since the
    /// start of the scheduler. The worker sleeps, or is being woken, since the end of its last
    /// round.
    pub(crate) fn read(&self) -> (Doing, u64) {
        let (turn, round) = (self.turn.load(Ordering::Relaxed), self.round());
        match turn {
            NO_TURN => (Doing::BetweenTurns, round),
            ASLEEP => (Doing::Waking, round),
            turn => {
                let micros = turn & ((1 << TIME_BITS) - 1);
                // The masks leave at most 32 bits.
                let port = PortId::new((turn >> PORT_SHIFT) as u32);
                let flow = Flow::new((turn >> FLOW_SHIFT) as u32 & ((1 << FLOW_BITS) - 1));
                (Doing::Turn(FlowKey { port, flow }), round + micros * 1000)
            }
        }
    }
}
