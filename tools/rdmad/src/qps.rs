// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptions of QPs: the daemon's answers, and their text form.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use verbs::{QpDetails, QpStatus};

use crate::control::Reply;
use crate::report::QpReport;

/// All that is told of a QP.
#[derive(Serialize)]
struct Description {
    #[serde(flatten)]
    report: QpReport,
    /// Numbers that change when work of the QP goes on.
    progress: [u64; 3],
    #[serde(flatten)]
    details: QpDetails,
}

/// Describes a QP. The state of a QP has thousands of bytes, most of them unused lists, so each is
/// converted before the next one is read.
pub fn describe((status, details): (QpStatus, QpDetails)) -> Result<Value> {
    let description = Description {
        report: QpReport::from(&status),
        progress: details.progress(),
        details,
    };
    Ok(serde_json::to_value(description)?)
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
        (None, false) => format!(": {}\n", waits(&qp["send"])),
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

/// The text for a side without work.
fn waits(side: &Value) -> String {
    let callers = side["waits_for"].as_array().into_iter().flatten();
    let callers: Vec<_> = callers.map(word).collect();
    match callers.is_empty() {
        true => "has had no turn".to_owned(),
        false => format!("no work; waits for {}", callers.join(", ")),
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
