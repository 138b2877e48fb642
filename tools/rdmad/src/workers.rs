// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The activity of the workers, and the work that waits for them: the daemon's answer, and its text
//! form.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use verbs::{Doing, Flow, Waiting, WorkerActivity, WorkerStatus};
use virtio_rdma_abi::number::{PortId, Qpn};

use crate::report::{microseconds, Worker};

/// The activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Does {
    Sleeps,
    /// It was woken, and its thread has not run yet.
    Wakes,
    /// It gives a turn.
    Turn,
    /// It handles deadlines, polls watched QPs, or looks for work.
    BetweenTurns,
}

/// A QP, or work of a port that belongs to no QP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Work {
    port: String,
    /// `qp`, `frames` or `notifications`.
    work: String,
    qpn: Option<u32>,
}

/// The work of a port that waits for a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Queued {
    /// Number of entries: QPs, and other work of the port.
    count: usize,
    /// The entry that has waited longest.
    oldest: Work,
    /// How long it has waited, to a few ms.
    since_us: u64,
}

/// A worker: what it does now, what waits for it, and what it has done so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerNow {
    worker: usize,
    does: Does,
    turn: Option<Work>,
    /// How long it has done so. Time since the last round of a worker that sleeps or wakes.
    since_us: u64,
    waiting: Vec<Queued>,
    #[serde(flatten)]
    so_far: Worker,
}

impl WorkerNow {
    /// The description of a worker. `name` returns the name of a port; a port without a name was
    /// removed meanwhile.
    pub fn new(
        worker: usize,
        WorkerActivity {
            doing,
            since,
            waiting,
        }: WorkerActivity,
        status: &WorkerStatus,
        name: &impl Fn(PortId) -> Option<String>,
    ) -> Self {
        let work = |port, flow| Some(Work::new(name(port)?, flow));
        let (does, turn) = match doing {
            Doing::Sleeping => (Does::Sleeps, None),
            Doing::Waking => (Does::Wakes, None),
            Doing::BetweenTurns => (Does::BetweenTurns, None),
            Doing::Turn(key) => (Does::Turn, work(key.port, key.flow)),
        };
        let queued = |waiting: Waiting| {
            Some(Queued {
                count: waiting.flows,
                oldest: work(waiting.port, waiting.oldest)?,
                since_us: microseconds(waiting.since),
            })
        };
        Self {
            worker,
            does,
            turn,
            since_us: microseconds(since),
            waiting: waiting.into_iter().filter_map(queued).collect(),
            so_far: Worker::from(status),
        }
    }
}

impl Work {
    fn new(port: String, flow: Flow) -> Self {
        let qpn = flow.qpn().map(Qpn::get);
        let work = match (qpn, flow) {
            (Some(_), _) => "qp",
            (None, Flow::FRAMES) => "frames",
            (None, _) => "notifications",
        };
        Self {
            port,
            work: work.to_owned(),
            qpn,
        }
    }
}

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.qpn {
            Some(qpn) => write!(f, "QP {qpn} of port {}", self.port),
            None => write!(f, "{} of port {}", self.work, self.port),
        }
    }
}

/// A worker in a line, and a line for each port with work that waits.
impl Display for WorkerNow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = |us: u64| us as f64 / 1e6;
        let since = seconds(self.since_us);
        write!(f, "worker {}: ", self.worker)?;
        match (self.does, &self.turn) {
            (Does::Sleeps, _) => write!(f, "sleeps, its last round was {since:.3} s ago")?,
            (Does::Wakes, _) => write!(
                f,
                "was woken, but its thread has no CPU yet; its last round was {since:.3} s ago"
            )?,
            (Does::Turn, Some(work)) => write!(f, "in a turn of {work} for {since:.3} s")?,
            (Does::Turn, None) => write!(f, "in a turn of a removed port for {since:.3} s")?,
            (Does::BetweenTurns, _) => {
                write!(f, "between turns, in a round that began {since:.3} s ago")?;
            }
        }
        writeln!(f, "; busy {:.1} s so far", seconds(self.so_far.busy_us))?;
        for Queued {
            count,
            oldest,
            since_us,
        } in &self.waiting
        {
            writeln!(
                f,
                "  port {}: {count} wait, the oldest is {oldest} for {:.3} s",
                oldest.port,
                seconds(*since_us)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use verbs::FlowKey;

    use super::*;

    #[test]
    fn a_worker_is_told_in_words_and_numbers() {
        let [a, gone] = [1, 2].map(PortId::new);
        let ms = Duration::from_millis;
        let waiting = |port, flows, oldest| Waiting {
            port,
            flows,
            oldest,
            since: ms(1500),
        };
        let status = WorkerStatus {
            busy: ms(12_300),
            ..WorkerStatus::default()
        };
        let told = |doing, waiting| {
            let activity = WorkerActivity {
                doing,
                since: ms(3204),
                waiting,
            };
            let name = |port| (port == a).then(|| "a".to_owned());
            WorkerNow::new(1, activity, &status, &name)
        };
        let flow = Flow::of(Qpn::new(17));
        let held = told(
            Doing::Turn(FlowKey { port: a, flow }),
            vec![waiting(a, 2, Flow::FRAMES), waiting(gone, 1, flow)],
        );
        assert_eq!(
            held.to_string(),
            "worker 1: in a turn of QP 17 of port a for 3.204 s; busy 12.3 s so far\n  port a: 2 \
             wait, the oldest is frames of port a for 1.500 s\n"
        );
        let json = serde_json::to_value(&held).unwrap();
        let expected = serde_json::json!({
            "worker": 1,
            "does": "turn",
            "turn": {"port": "a", "work": "qp", "qpn": 17},
            "since_us": 3_204_000,
            "waiting": [{
                "count": 2,
                "oldest": {"port": "a", "work": "frames", "qpn": null},
                "since_us": 1_500_000,
            }],
            "busy_us": 12_300_000,
            "longest_turn": 0,
            "longest_round_us": 0,
            "steals": 0,
            "stand_ins": 0,
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<WorkerNow>(json).unwrap(), held);
        for (doing, words) in [
            (Doing::Sleeping, "sleeps, its last round was 3.204 s ago"),
            (Doing::Waking, "was woken, but its thread has no CPU yet"),
            (Doing::BetweenTurns, "in a round that began 3.204 s ago"),
            (
                Doing::Turn(FlowKey { port: gone, flow }),
                "in a turn of a removed port for 3.204 s",
            ),
        ] {
            let text = told(doing, vec![]).to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
