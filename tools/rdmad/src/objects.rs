// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptions of CQs, SRQs and MRs: the daemon's answers, and their text form.

use anyhow::{ensure, Result};
use serde::Serialize;
use serde_json::Value;

/// The objects that were found.
///
/// # Errors
///
/// The object with this number was asked for, and the port has none.
pub fn describe(
    port: &str,
    kind: &str,
    number: Option<u32>,
    found: Vec<impl Serialize>,
) -> Result<Vec<Value>> {
    if let Some(number) = number {
        ensure!(!found.is_empty(), "port {port} has no {kind} {number}");
    }
    let values = found.iter().map(serde_json::to_value);
    Ok(values.collect::<serde_json::Result<_>>()?)
}

/// A line: each value after its name.
pub fn line(object: &Value) -> String {
    let mut parts = Vec::new();
    add(&mut parts, object);
    parts.join(", ")
}

fn add(parts: &mut Vec<String>, object: &Value) {
    let mut fields: Vec<_> = object.as_object().into_iter().flatten().collect();
    // The object's own number first; JSON has no order.
    fields.sort_by_key(|(name, _)| !matches!(name.as_str(), "cqn" | "srqn" | "mrn"));
    for (name, value) in fields {
        let name = name.strip_prefix("is_").unwrap_or(name);
        match value {
            Value::Object(_) => add(parts, value),
            Value::String(text) => parts.push(format!("{name} {text}")),
            Value::Array(list) => {
                let words = list.iter().map(|word| match word.as_str() {
                    Some(word) => word.to_owned(),
                    None => word.to_string(),
                });
                let words: Vec<_> = words.collect();
                parts.push(format!("{name} {}", words.join(" ")));
            }
            Value::Bool(false) => parts.push(format!("not {name}")),
            Value::Bool(true) => parts.push(name.to_owned()),
            Value::Null => {}
            Value::Number(number) => parts.push(format!("{name} {number}")),
        }
    }
}
