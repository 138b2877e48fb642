// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The text form of the daemon's answers about QPs.

use std::fmt::Write;

use serde_json::Value;

use crate::control::Reply;

/// The QPs of the second look that had work at both looks, none of which went on in between.
pub fn stuck(before: Reply, after: Reply) -> Reply {
    let (Reply::Qps(before), Reply::Qps(mut after)) = (before, after) else {
        return Reply::Qps(Vec::new());
    };
    after.retain(|qp| {
        let is_same = |old: &&Value| old["qpn"] == qp["qpn"];
        let old = before.iter().find(is_same);
        let stood_still = |old: &Value| !old["why"].is_null() && old["progress"] == qp["progress"];
        !qp["why"].is_null() && old.is_some_and(stood_still)
    });
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
