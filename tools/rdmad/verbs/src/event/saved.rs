// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of event queues: the events that wait for buffers.

use serde::{Deserialize, Serialize};
use virtio_rdma_abi::event::Event;

use super::{EventQueues, EventSource};
use crate::encoding::wire;
use crate::error::{refusal, Reason, Result, What};

/// An event that waits for a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventState {
    queue: u16,
    source: EventSource,
    #[serde(with = "wire")]
    event: Event,
}

impl EventQueues {
    /// The waiting events, those of each queue in their order.
    pub(crate) fn save(&self) -> Vec<EventState> {
        let mut events = Vec::new();
        for (queue, backlog) in (super::FIRST_EVENT_QUEUE..).zip(&self.backlogs) {
            let backlog = backlog.lock();
            for (source, kind) in backlog.order.values() {
                let cookie = backlog.waiting.get(source).map(|waiting| waiting.cookie);
                events.push(EventState {
                    queue,
                    source: *source,
                    event: Event::new(*kind, cookie.unwrap_or_default()),
                });
            }
        }
        events
    }

    /// Adds the events that waited in another process. They are sent when the notifications of the
    /// HCA have their next turn.
    ///
    /// # Errors
    ///
    /// There is no such queue, or no such event.
    pub(crate) fn restore(&self, events: &[EventState]) -> Result<()> {
        for EventState {
            queue,
            source,
            event,
        } in events
        {
            let undefined = || refusal(Reason::Undefined, What::EventQueue, *queue);
            let backlog = self.backlog(*queue).ok_or_else(undefined)?;
            let kind = event.kind().map_err(|_| undefined())?;
            backlog.lock().add(*source, kind, event.cookie);
        }
        Ok(())
    }
}
