// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Permissions of files as octal text, on the command line and in JSON.

use anyhow::{Context, Result};
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};

/// Parses permissions, such as 660.
pub fn parse_mode(text: &str) -> Result<u32> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .with_context(|| format!("{text:?} is not an octal number up to 777"))
}

pub fn serialize<S: Serializer>(mode: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
    mode.map(|mode| format!("{mode:o}")).serialize(to)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    let mode = text.map(|text| parse_mode(&text)).transpose();
    mode.map_err(de::Error::custom)
}
