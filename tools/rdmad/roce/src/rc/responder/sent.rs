// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The answers to READs that were sent last, which may still wait in the own host.

use crate::psn::Psn;

/// Number of answers that are remembered.
const LIMIT: usize = 4;

/// The packets of an answer that were sent.
#[derive(Clone, Copy, Debug)]
struct SentAnswer {
    first: Psn,
    /// PSN after the last packet that was sent.
    end: Psn,
    /// The ticket of the first packet.
    ticket: u64,
}

/// The answers that were sent last.
#[derive(Debug, Default)]
pub(super) struct SentAnswers {
    answers: [Option<SentAnswer>; LIMIT],
    /// Index of the newest answer.
    newest: usize,
}

impl SentAnswers {
    /// Records that the first packet of an answer was sent, with this PSN and ticket.
    pub(super) fn begin(&mut self, first: Psn, ticket: u64) {
        self.newest = (self.newest + 1) % LIMIT;
        self.answers[self.newest] = Some(SentAnswer {
            first,
            end: first.add(1),
            ticket,
        });
    }

    /// Records that the next packet of the newest answer was sent, with this PSN.
    pub(super) fn go_on(&mut self, psn: Psn) {
        if let Some(newest) = self.answers[self.newest].as_mut() {
            if newest.end == psn {
                newest.end = psn.add(1);
            }
        }
    }

    /// The ticket of the first packet of the answer that has the packet `psn`. If several answers
    /// have it, the ticket of the newest one.
    pub(super) fn ticket(&self, psn: Psn) -> Option<u64> {
        let having = self.answers.iter().flatten();
        let having = having.filter(|sent| psn.since(sent.first) >= 0 && sent.end.since(psn) > 0);
        having.map(|sent| sent.ticket).max()
    }
}
