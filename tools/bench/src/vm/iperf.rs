// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! iperf3: one TCP connection over the same switch.

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

/// Maximum number of bytes that iperf3 writes with one call.
pub const LARGEST: u64 = 1 << 20;
/// Duration of a stream.
const SECONDS: u32 = 1;

/// The command line of the server, or of the sending client if `server` is given.
pub fn argv(size: u64, port: u16, server: Option<&str>) -> Vec<String> {
    let words = match server {
        None => format!("iperf3 -s -1 -p {port}"),
        Some(server) => format!(
            "iperf3 -c {server} -p {port} -t {SECONDS} -l {} -J",
            size.min(LARGEST)
        ),
    };
    words.split(' ').map(str::to_owned).collect()
}

/// The received data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    /// Total number of bytes.
    pub bytes: f64,
    /// Rate in MB/s (10^6 bytes).
    pub megabytes: f64,
}

/// Parses the report of the sending client.
pub fn received(printed: &str) -> Result<Received> {
    let report: Value = serde_json::from_str(printed).context("no report was printed")?;
    if let Some(error) = report["error"].as_str() {
        bail!("{error}");
    }
    let sum = &report["end"]["sum_received"];
    let field = |name: &str| {
        sum[name]
            .as_f64()
            .with_context(|| format!("no {name} in the report"))
    };
    let (bytes, bits) = (field("bytes")?, field("bits_per_second")?);
    ensure!(bytes > 0.0 && bits > 0.0, "nothing was received");
    Ok(Received {
        bytes,
        megabytes: bits / 8e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_received_counts() {
        let report = r#"{"end": {"sum_sent": {"bytes": 9, "bits_per_second": 9},
            "sum_received": {"bytes": 2000000, "bits_per_second": 16000000}}}"#;
        assert_eq!(
            received(report).unwrap(),
            Received {
                bytes: 2e6,
                megabytes: 2.0
            }
        );
    }

    #[test]
    fn an_error_is_no_figure() {
        assert!(received("").is_err());
        assert!(received("{}").is_err());
        let error = received(r#"{"error": "unable to connect"}"#).unwrap_err();
        assert!(error.to_string().contains("unable to connect"));
        let none = r#"{"end": {"sum_received": {"bytes": 0, "bits_per_second": 0}}}"#;
        assert!(received(none).is_err());
    }

    #[test]
    fn it_writes_a_mebibyte_at_most() {
        assert!(argv(8 << 20, 1, Some("vm2")).contains(&"1048576".to_owned()));
        assert_eq!(argv(2, 7, None).join(" "), "iperf3 -s -1 -p 7");
    }
}
