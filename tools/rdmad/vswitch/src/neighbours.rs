// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lists of engines that deliver frames to each other without the switch's thread.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use roce::net::Mac;

use crate::engine_queues::EngineQueues;

/// An engine to which other engines deliver frames without the switch's thread.
#[derive(Clone)]
pub(crate) struct Neighbour {
    pub(crate) mac: Mac,
    pub(crate) engine: Arc<EngineQueues>,
}

/// The engines of an isolation group. Senders read the list without a lock.
#[derive(Default)]
pub(crate) struct Neighbours {
    engines: ArcSwap<Vec<Neighbour>>,
    /// Serialises changes of the list.
    changes: Mutex<()>,
}

impl Neighbours {
    /// Adds an engine.
    pub(crate) fn add(&self, neighbour: Neighbour) {
        self.change(|engines| engines.push(neighbour));
    }

    /// Removes an engine. Senders that have read the old list may still deliver a frame to it.
    pub(crate) fn remove(&self, engine: &Arc<EngineQueues>) {
        self.change(|engines| engines.retain(|other| !Arc::ptr_eq(&other.engine, engine)));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Neighbour>)) {
        let _change = self.changes.lock();
        let mut engines = Vec::clone(&self.engines.load());
        change(&mut engines);
        self.engines.store(Arc::new(engines));
    }

    /// Calls `found` with the engine that has this address, if there is one.
    pub(crate) fn with(&self, mac: &Mac, found: impl FnOnce(&EngineQueues)) {
        let engines = self.engines.load();
        if let Some(other) = engines.iter().find(|other| other.mac == *mac) {
            found(&other.engine);
        }
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} neighbours", self.engines.load().len())
    }
}
