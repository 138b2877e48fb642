// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Lists of engines that deliver frames to each other without the switch's thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use roce::net::{Mac, MacIndex};

use crate::engine_queues::EngineQueues;

/// The engines of an isolation group. Senders read the list without a lock.
#[derive(Debug, Default)]
pub(crate) struct Neighbours {
    engines: ArcSwap<MacIndex<Arc<EngineQueues>>>,
    /// Serializes changes of the list.
    changes: Mutex<()>,
}

impl Neighbours {
    /// Adds the engine of the port with this address.
    pub(crate) fn add(&self, mac: &Mac, engine: Arc<EngineQueues>) {
        self.change(|engines| engines.insert(mac, engine));
    }

    /// Removes an engine. Senders that have read the old list may still deliver a frame to it.
    pub(crate) fn remove(&self, mac: &Mac, engine: &Arc<EngineQueues>) {
        self.change(|engines| engines.remove_if(mac, |other| Arc::ptr_eq(other, engine)));
    }

    fn change(&self, change: impl FnOnce(&mut MacIndex<Arc<EngineQueues>>)) {
        let _change = self.changes.lock();
        let mut engines = MacIndex::clone(&self.engines.load());
        change(&mut engines);
        self.engines.store(Arc::new(engines));
    }

    /// Calls `found` with the engine that has this address, if there is one.
    pub(crate) fn with(&self, mac: &Mac, found: impl FnOnce(&EngineQueues)) {
        let engines = self.engines.load();
        if let Some(engine) = engines.get(mac) {
            found(engine);
        }
    }
}
