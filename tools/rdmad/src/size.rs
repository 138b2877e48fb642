// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Sizes of memory on the command line and in the status.

use anyhow::{Context, Result};

/// Suffixes of units. K is 1,024 bytes, and each unit is 1,024 times the previous unit.
const UNITS: [char; 4] = ['K', 'M', 'G', 'T'];

/// Parses a number of bytes, or a number with a unit such as `256M`.
pub fn parse_size(text: &str) -> Result<u64> {
    let unit = UNITS.iter().position(|unit| text.ends_with(*unit));
    let (digits, shift) = match unit {
        Some(unit) => (&text[..text.len() - 1], 10 * (unit + 1)),
        None => (text, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .with_context(|| format!("{text:?} is not a size like 256M: a number and K, M, G or T"))
}

/// Formats a number of bytes in MiB, rounded up, such as `57M`.
pub fn mib(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256M", 256 << 20),
            ("16T", 16 << 40),
        ] {
            assert_eq!(parse_size(text).unwrap(), bytes);
        }
        for text in ["", "M", "-1", "1.5G", "1 G", "1g", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            (mib(0), mib(1), mib(57 << 20)),
            ("0M".into(), "1M".into(), "57M".into())
        );
    }
}
