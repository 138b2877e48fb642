// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! perftest's programs: their command lines, and the parsing of their tables.

use anyhow::{bail, ensure, Context, Result};

use super::devices::Device;

/// The verb that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    Send,
}

impl Verb {
    /// The verb's part of the programs' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

/// One run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The verb of the program: ib_VERB_bw or ib_VERB_lat.
    pub verb: Verb,
    /// Whether to measure round trips (ib_VERB_lat) instead of a stream (ib_VERB_bw).
    pub latency: bool,
    /// Whether the program sleeps until a completion event, instead of polling.
    pub events: bool,
    /// Bytes of a message.
    pub size: u64,
    pub iterations: u64,
    /// Number of QPs that share the messages.
    pub qps: u64,
    /// TCP port at which the server waits for the client.
    pub port: u16,
}

impl Run {
    /// The command line of the passive side, or of the active side if `server` is given, on a
    /// machine with `device`.
    pub fn argv(&self, device: &Device, server: Option<&str>) -> Vec<String> {
        let kind = if self.latency { "lat" } else { "bw" };
        let mut argv = vec![
            format!("ib_{}_{kind}", self.verb.name()),
            // perftest must not refuse a processor whose clock frequency varies.
            "-F".into(),
        ];
        let mut option = |name: &str, value: String| argv.extend([name.to_owned(), value]);
        option("-d", device.name.clone());
        option("-x", device.gid_index.to_string());
        option("-s", self.size.to_string());
        option("-n", self.iterations.to_string());
        option("-p", self.port.to_string());
        if self.qps > 1 {
            option("-q", self.qps.to_string());
        }
        if self.events {
            argv.push("-e".into());
        }
        if !self.latency {
            // No peak bandwidth: only the mean is used.
            argv.push("-N".into());
        }
        argv.extend(server.map(str::to_owned));
        argv
    }
}

/// The result of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    pub messages: f64,
    /// Rate in messages per second.
    pub rate: f64,
    /// Rate in MB/s (10^6 bytes).
    pub megabytes: f64,
}

/// Durations of round trips in µs, halved for verbs with which both sides send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    pub median: f64,
    /// The 99th percentile.
    pub percentile_99: f64,
    /// The 99.9th percentile.
    pub percentile_999: f64,
}

/// Whether a program reports that it could not calibrate the processor's clock, which happens on a
/// busy machine. Its figures are then missing or wrong.
pub fn lacks_clock(printed: &str) -> bool {
    ["Correlation coefficient", "Can't produce a report"]
        .iter()
        .any(|complaint| printed.contains(complaint))
}

/// Parses the table of a bandwidth program.
pub fn bandwidth(printed: &str, size: u64) -> Result<Bandwidth> {
    let [bytes, iterations, _, mebibytes, millions] = row(
        printed,
        &["#bytes", "#iterations", "BW peak", "BW average", "MsgRate"],
    )?;
    ensure!(bytes == size as f64, "the table is of {bytes} bytes");
    let rate = millions * 1e6;
    ensure!(rate > 0.0, "no message was moved");
    // perftest prints MiB/s with two decimals, which is too coarse for small messages, and Mpps
    // with six, which is too coarse for low rates. Each value is computed from the more exact one.
    let megabytes = match mebibytes {
        exact if exact >= 10.0 => exact * 1.048_576,
        _ => rate * size as f64 / 1e6,
    };
    Ok(Bandwidth {
        messages: iterations,
        rate: if rate >= 1000.0 {
            rate
        } else {
            megabytes * 1e6 / size as f64
        },
        megabytes,
    })
}

/// Parses the table of a latency program.
pub fn latency(printed: &str, size: u64) -> Result<Latency> {
    let [bytes, _, _, _, median, _, _, percentile_99, percentile_999] = row(
        printed,
        &[
            "#bytes",
            "#iterations",
            "t_min",
            "t_max",
            "t_typical",
            "t_avg",
            "t_stdev",
            "99% percentile",
            "99.9% percentile",
        ],
    )?;
    ensure!(bytes == size as f64, "the table is of {bytes} bytes");
    ensure!(median > 0.0, "no time was taken");
    Ok(Latency {
        median,
        percentile_99,
        percentile_999,
    })
}

/// The numbers of the line after the heading with these columns.
fn row<const N: usize>(printed: &str, columns: &[&str; N]) -> Result<[f64; N]> {
    let mut lines = printed.lines();
    let heading = lines
        .find(|line| line.trim_start().starts_with("#bytes"))
        .context("no table was printed")?;
    let mut rest = heading;
    for column in columns {
        let at = rest
            .find(column)
            .with_context(|| format!("no column {column:?} in {heading:?}"))?;
        rest = &rest[at + column.len()..];
    }
    let line = lines.next().context("the table is empty")?;
    let values = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()
        .with_context(|| format!("not figures: {line:?}"))?;
    let Ok(values) = <[f64; N]>::try_from(values) else {
        bail!("{line:?} does not have the columns of {heading:?}");
    };
    ensure!(
        values.iter().all(|value| value.is_finite()),
        "not finite: {line:?}"
    );
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str =
        " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n \
        65536      1000             0.00               9.75                 0.000156\n---\n";
    const LATENCY: &str =
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
        t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n \
        2       1000          10.49          70.50        12.55              13.04  \
        1.64            20.50                  60.25  \n";

    #[test]
    fn bandwidth_is_read_from_the_exacter_column() {
        let result = bandwidth(BANDWIDTH, 65536).unwrap();
        assert!((result.megabytes - 10.22).abs() < 0.01, "{result:?}");
        assert_eq!(result.messages, 1000.0);
        let large = BANDWIDTH.replace("9.75", "977.25");
        let result = bandwidth(&large, 65536).unwrap();
        assert!((result.megabytes - 1024.7).abs() < 0.1, "{result:?}");
    }

    #[test]
    fn percentiles_are_read() {
        assert_eq!(
            latency(LATENCY, 2).unwrap(),
            Latency {
                median: 12.55,
                percentile_99: 20.5,
                percentile_999: 60.25
            }
        );
    }

    #[test]
    fn whatever_else_is_printed_is_no_figure() {
        let wrong = [
            "".to_owned(),
            "Couldn't connect to vm2:18515\n".to_owned(),
            BANDWIDTH.lines().next().unwrap().to_owned(),
            BANDWIDTH.replace("9.75", "9.75 1"),
            BANDWIDTH.replace("9.75", "-nan"),
            BANDWIDTH.replace("9.75", "nothing"),
            BANDWIDTH.replace("0.000156", "0.000000"),
            BANDWIDTH.replace("BW average", "BW mean"),
        ];
        for text in wrong {
            assert!(bandwidth(&text, 65536).is_err(), "{text}");
        }
        assert!(bandwidth(BANDWIDTH, 4096).is_err());
        assert!(latency(BANDWIDTH, 65536).is_err());
    }

    #[test]
    fn a_program_says_when_it_has_no_clock() {
        let complaint = "Correlation coefficient r^2: 0.807042 < 0.9\n";
        assert!(lacks_clock(&format!("{complaint}{LATENCY}")));
        assert!(lacks_clock("Can't produce a report\n"));
        assert!(!lacks_clock(LATENCY));
    }

    #[test]
    fn the_sides_differ_by_the_server_alone() {
        let device = Device {
            name: "rxe1".into(),
            gid_index: 1,
        };
        let run = Run {
            verb: Verb::Send,
            latency: true,
            events: true,
            size: 2,
            iterations: 1000,
            qps: 1,
            port: 18600,
        };
        assert_eq!(
            run.argv(&device, Some("vm2")).join(" "),
            "ib_send_lat -F -d rxe1 -x 1 -s 2 -n 1000 -p 18600 -e vm2"
        );
        let stream = Run {
            verb: Verb::Write,
            latency: false,
            events: false,
            qps: 8,
            ..run
        };
        assert_eq!(
            stream.argv(&device, None).join(" "),
            "ib_write_bw -F -d rxe1 -x 1 -s 2 -n 1000 -p 18600 -q 8 -N"
        );
    }
}
