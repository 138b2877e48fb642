// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use budget::{LongCallStats, LongCalls};
use crossbeam_utils::CachePadded;

use crate::engine_queues::RECEIVE_QUEUE;
use crate::link::BACKLOG;

macro_rules! counters {
    ($($(#[$meta:meta])* $field:ident: $counter:ty,)*) => {
        /// Values of the counters of one port or uplink. They are read one after the other, not at
        /// one moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            /// Name of the port or uplink.
            pub name: String,
            /// Frames that wait for the engine of a port.
            pub engine_queue: Queue,
            /// Frames that wait for room in the socket.
            pub socket_queue: Queue,
            /// Long system calls for the socket of a network interface.
            pub long_calls: LongCallStats,
            $($(#[$meta])* pub $field: u64,)*
        }

        /// The live counters, from which [`Stats`] are read. The sender's thread counts `received`.
        /// The threads of other ports count the frames to the port. So these counters are on
        /// different cache lines.
        #[derive(Debug, Default)]
        pub(crate) struct FrameCounters {
            pub(crate) name: String,
            /// The maximum length of the queue to the engine.
            pub(crate) engine_longest: Longest,
            /// Frames that waited for room in the socket at the end of the last round.
            pub(crate) socket_frames: AtomicU64,
            /// The maximum of `socket_frames`.
            pub(crate) socket_longest: Longest,
            /// System calls for the socket of a network interface.
            pub(crate) calls: OnceLock<Arc<LongCalls>>,
            $(pub(crate) $field: $counter,)*
        }

        impl FrameCounters {
            /// Sets the system calls for the socket of a network interface.
            pub(crate) fn set_calls(&self, calls: Arc<LongCalls>) {
                // Fails if they are set already, which are then the same.
                let _ = self.calls.set(calls);
            }

            /// The values now, when `engine_frames` frames wait for the engine.
            pub(crate) fn snapshot(&self, engine_frames: usize) -> Stats {
                Stats {
                    name: self.name.clone(),
                    engine_queue: Queue {
                        frames: engine_frames as u64,
                        longest: self.engine_longest.get(),
                        limit: RECEIVE_QUEUE as u64,
                    },
                    socket_queue: Queue {
                        frames: self.socket_frames.load(Ordering::Relaxed),
                        longest: self.socket_longest.get(),
                        limit: BACKLOG as u64,
                    },
                    long_calls: self.calls.get().map(|calls| calls.stats()).unwrap_or_default(),
                    $($field: self.$field.0.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counters! {
    /// Frames accepted from this port or uplink.
    received: CachePadded<Counter>,
    /// Frames delivered to this port (its network interface or engine) or uplink.
    sent: Counter,
    /// Frames from this port or uplink that were refused: of a wrong length, with a source address
    /// that is not the sender's, with a claim of another port's IP address, or RoCE from a network
    /// interface.
    refused: Counter,
    /// Frames from this port or uplink that had no destination.
    no_route: Counter,
    /// Frames to this port or uplink that were dropped because the receiver was full or absent, and
    /// frames from here for which there was no buffer.
    dropped: Counter,
    /// Frames to this port that were dropped because its network interface has used up its share of
    /// the switch's time.
    over_share: Counter,
    /// Errors of the socket while reading frames from this port or uplink, for example those that
    /// ICMP messages cause.
    errors: Counter,
}

/// Depth of a queue of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// Frames that wait now.
    pub frames: u64,
    /// Maximum number of frames that waited at a time.
    pub longest: u64,
    /// Number of waiting frames at which later frames are dropped. In the queue of a socket, the
    /// limit applies to each source (a port or an uplink), and frames of engines may exceed it.
    pub limit: u64,
}

/// The maximum of a queue's length.
#[derive(Debug, Default)]
pub(crate) struct Longest(AtomicU64);

impl Longest {
    /// Records a length. Rarely writes to memory, because new maxima are rare.
    pub(crate) fn note(&self, length: usize) {
        let length = length as u64;
        if length > self.0.load(Ordering::Relaxed) {
            self.0.fetch_max(length, Ordering::Relaxed);
        }
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A counter that only the switch changes.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }
}
