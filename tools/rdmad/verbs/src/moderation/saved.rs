// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of the moderation of a CQ.

use std::time::Duration;

use roce::saved::{or_null, Epoch};
use serde::{Deserialize, Serialize};
use virtio_rdma_abi::number::Cqn;

use super::{Delayed, Due, Moderation, Moderator};
use crate::Hca;

/// A CQ's moderation, and its delayed event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ModeratorState {
    /// Number of completions and microseconds.
    moderation: Option<(u32, u32)>,
    delayed: Option<DelayedState>,
}

/// A completion event that is due, but not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DelayedState {
    left: u32,
    #[serde(with = "or_null")]
    deadline: u64,
}

impl Moderator {
    /// The state from which another process can restore the moderation.
    pub(crate) fn save(&self, epoch: Epoch) -> ModeratorState {
        let period = |period: Duration| u32::try_from(period.as_micros()).unwrap_or(u32::MAX);
        let moderation = self.moderation;
        let delayed = self.delayed.as_ref();
        ModeratorState {
            moderation: moderation.map(|values| (values.count, period(values.period))),
            delayed: delayed.map(|delayed| DelayedState {
                left: delayed.left,
                deadline: epoch.nanos(Some(delayed.deadline)),
            }),
        }
    }

    /// The moderation of CQ `cqn` with this state.
    pub(crate) fn restored(hca: &Hca, cqn: Cqn, state: &ModeratorState, epoch: Epoch) -> Self {
        let moderation = state.moderation;
        let moderation = moderation.and_then(|(count, period)| Moderation::new(count, period));
        let delayed = moderation.and(state.delayed.as_ref()).and_then(|delayed| {
            Some(Delayed {
                left: delayed.left,
                deadline: epoch.instant(delayed.deadline)?,
            })
        });
        let entry = delayed.as_ref().map(|delayed| delayed.deadline);
        if entry.is_some() {
            let due = Due::Delayed(cqn);
            hca.objects.deadlines.change(hca, due, None, entry);
        }
        Self {
            moderation,
            delayed,
            entry,
        }
    }
}
