// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Parses and prints the rate limits of a port.

use anyhow::{ensure, Context, Result};
use verbs::Rate;

use crate::size::parse_size;

/// Parses a limit of bytes per second, such as 100M, or 100M:1M with a burst.
pub fn parse_bytes(text: &str) -> Result<Rate> {
    parse(text, parse_size)
}

/// Parses a limit of messages per second, such as 5000, or 5000:100 with a burst.
pub fn parse_messages(text: &str) -> Result<Rate> {
    let number = |text: &str| {
        text.parse()
            .with_context(|| format!("{text:?} is not a number"))
    };
    parse(text, number)
}

fn parse(text: &str, number: impl Fn(&str) -> Result<u64>) -> Result<Rate> {
    let (per_second, burst) = match text.split_once(':') {
        Some((per_second, burst)) => (per_second, Some(number(burst)?)),
        None => (text, None),
    };
    let per_second = number(per_second)?;
    ensure!(per_second > 0, "a limit of 0 lets nothing through");
    ensure!(burst != Some(0), "a burst of 0 lets nothing through");
    Ok(Rate { per_second, burst })
}

/// Parses a limit, or "none".
pub fn parse_or_none(text: &str, parse: impl FnOnce(&str) -> Result<Rate>) -> Result<Option<Rate>> {
    match text {
        "none" => Ok(None),
        text => parse(text).map(Some),
    }
}

/// Formats a limit in the form that can be parsed. Bytes are not rounded.
pub fn text(rate: Option<Rate>) -> String {
    match rate {
        None => "none".to_owned(),
        Some(Rate {
            per_second,
            burst: None,
        }) => per_second.to_string(),
        Some(Rate {
            per_second,
            burst: Some(burst),
        }) => format!("{per_second}:{burst}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_bursts_if_told() {
        let rate = |per_second, burst| Rate { per_second, burst };
        assert_eq!(parse_bytes("100M").unwrap(), rate(100 << 20, None));
        let with_burst = rate(1 << 30, Some(64 << 10));
        assert_eq!(parse_bytes("1G:64K").unwrap(), with_burst);
        assert_eq!(parse_messages("50:7").unwrap(), rate(50, Some(7)));
        assert_eq!(text(Some(rate(50, Some(7)))), "50:7");
        assert_eq!(text(None), "none");
        for wrong in ["", "0", "5:0", "5:", ":5", "-1", "5:6:7", "x"] {
            assert!(parse_messages(wrong).is_err(), "{wrong}");
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
