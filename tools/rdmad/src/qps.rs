// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptions of QPs: the daemon's answers, and their text form.

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::mem;
use std::sync::Arc;
use std::vec;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use verbs::{Hca, QpDetails, QpStatus};
use virtio_rdma_abi::number::Qpn;

use crate::control::Reply;
use crate::report::QpReport;

/// The description of a QP in the answer of `ctl qp`.
#[derive(Serialize)]
struct Description {
    #[serde(flatten)]
    report: QpReport,
    /// Numbers that change when work of the QP proceeds.
    progress: [u64; 3],
    #[serde(flatten)]
    details: QpDetails,
}

impl From<(QpStatus, QpDetails)> for Description {
    fn from((status, details): (QpStatus, QpDetails)) -> Self {
        Self {
            report: QpReport::from(&status),
            progress: details.progress(),
            details,
        }
    }
}

/// Describes a QP.
pub fn describe(qp: (QpStatus, QpDetails)) -> Result<Value> {
    Ok(serde_json::to_value(Description::from(qp))?)
}

/// Number of QPs in a piece of a list: the JSON of a QP has about 2 KiB.
const QPS_IN_A_PIECE: usize = 16;

/// All QPs of a port as the items of a JSON array, in pieces. A port may have thousands of QPs, so
/// their descriptions never exist at the same time.
pub struct Listed {
    hca: Arc<Hca>,
    qpns: vec::IntoIter<Qpn>,
    is_first: bool,
}

impl Listed {
    pub fn new(hca: Arc<Hca>) -> Self {
        Self {
            qpns: hca.qpns().into_iter(),
            is_first: true,
            hca,
        }
    }
}

impl Iterator for Listed {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut piece = Vec::new();
        // A QP may have been destroyed since the list began.
        let (hca, qpns) = (&self.hca, &mut self.qpns);
        let found = qpns.filter_map(|qpn| hca.qp_details(qpn, false));
        for details in found.take(QPS_IN_A_PIECE) {
            if !mem::take(&mut self.is_first) {
                piece.push(b',');
            }
            if let Err(error) = serde_json::to_writer(&mut piece, &Description::from(details)) {
                return Some(Err(error.into()));
            }
        }
        (!piece.is_empty()).then_some(Ok(piece))
    }
}

/// The QPs of the second look that had work at both looks, none of which went on in between.
pub fn stuck(before: Reply, after: Reply) -> Reply {
    let (Reply::Qps(before), Reply::Qps(mut after)) = (before, after) else {
        return Reply::Qps(Vec::new());
    };
    let had_work = |qp: &&Value| !qp["why"].is_null();
    let old = before.iter().filter(had_work);
    let old: HashMap<_, _> = old
        .map(|qp| (qp["qpn"].as_u64(), &qp["progress"]))
        .collect();
    after.retain(|qp| had_work(&qp) && old.get(&qp["qpn"].as_u64()) == Some(&&qp["progress"]));
    Reply::Qps(after)
}

/// A line for a QP, and with `all` a line for each value of its state.
pub fn text(qp: &Value, all: bool) -> String {
    let mut text = format!(
        "QP {} {} {}",
        qp["qpn"],
        word(&qp["type"]),
        word(&qp["state"])
    );
    if !qp["peer"].is_null() {
        text += &format!(", peer {} ({})", qp["peer"], word(&qp["path"]));
    }
    text += &match (
        qp["why"].as_str(),
        qp["send"].is_null() || qp["recv"].is_null(),
    ) {
        (Some(why), _) => format!(": {why}\n"),
        (None, true) => ": in a turn\n".to_owned(),
        (None, false) => format!(": {}\n", idle(qp)),
    };
    if all {
        for side in ["send", "recv"] {
            lines(&mut text, side, &qp[side]);
        }
    }
    text
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

/// The text for a QP without work.
fn idle(qp: &Value) -> String {
    let posted = &qp["recv"]["posted"];
    match qp["recv"]["srq"].as_u64() {
        Some(srq) => format!("no work to send; {posted} receives in SRQ {srq}"),
        None => format!("no work to send; {posted} receives posted"),
    }
}

/// Adds a line for each value.
fn lines(text: &mut String, name: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                lines(text, &format!("{name}.{field}"), value);
            }
        }
        // Writing to a string never fails.
        value => drop(writeln!(text, "  {name:<40} {value}")),
    }
}
