// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The TCP connection over which the two sides of a test synchronize.
//!
//! The protocol consists of lines: `run NAME ROUNDS` starts a test, `say HEX…` carries numbers,
//! and `end` or `fail REASON` ends the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{bail, ensure, Context as _, Result};

/// Longest time that the other side may take for one step. Under emulation, 16 MiB take seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// The other side of a test.
pub struct Peer {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

/// Result of one side of a test.
pub enum End {
    /// This side passed.
    Passed,
    /// This side failed for this reason.
    Failed(String),
}

impl Peer {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            reader: BufReader::new(stream.try_clone()?),
            writer: stream,
        })
    }

    /// Connects to the server at `address` and requests its side of a test.
    pub fn connect(address: impl ToSocketAddrs, test: &str, rounds: u32) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connect to the server")?;
        let mut peer = Self::new(stream)?;
        peer.put(&format!("run {test} {rounds}"))?;
        Ok(peer)
    }

    /// Receives a client's request. Returns the name of the test and the number of rounds.
    pub fn accept(stream: TcpStream) -> Result<(Self, String, u32)> {
        let mut peer = Self::new(stream)?;
        let line = peer.get()?;
        let mut words = line.split(' ');
        ensure!(words.next() == Some("run"), "not a client: {line}");
        let name = words.next().context("no name")?.to_owned();
        let rounds = words.next().context("no rounds")?.parse()?;
        Ok((peer, name, rounds))
    }

    fn put(&mut self, line: &str) -> Result<()> {
        self.writer
            .write_all(format!("{}\n", line.replace('\n', "; ")).as_bytes())
            .context("tell the peer")
    }

    fn get(&mut self) -> Result<String> {
        let mut line = String::new();
        let length = self
            .reader
            .read_line(&mut line)
            .context("hear from the peer")?;
        ensure!(length != 0, "the peer hung up");
        line.truncate(line.trim_end().len());
        Ok(line)
    }

    /// Sends numbers.
    pub fn say(&mut self, numbers: &[u64]) -> Result<()> {
        let line = numbers.iter().fold("say".to_owned(), |line, number| {
            format!("{line} {number:x}")
        });
        self.put(&line)
    }

    /// Receives numbers.
    pub fn hear<const N: usize>(&mut self) -> Result<[u64; N]> {
        let line = self.get()?;
        let Some(numbers) = line.strip_prefix("say") else {
            bail!("the peer: {line}");
        };
        let numbers: Result<Vec<u64>, _> = numbers
            .split_whitespace()
            .map(|word| u64::from_str_radix(word, 16))
            .collect();
        let numbers = numbers.with_context(|| format!("not numbers: {line}"))?;
        <[u64; N]>::try_from(numbers)
            .map_err(|got| anyhow::anyhow!("{} numbers instead of {N}", got.len()))
    }

    /// Sends `N` numbers and receives `N` numbers.
    pub fn swap<const N: usize>(&mut self, numbers: [u64; N]) -> Result<[u64; N]> {
        self.say(&numbers)?;
        self.hear()
    }

    /// Waits until the other side calls this function too.
    pub fn meet(&mut self) -> Result<()> {
        self.swap([]).map(|[]| ())
    }

    /// Sends the result of this side and receives that of the other side. Skips earlier messages of
    /// the other side.
    pub fn end(&mut self, end: &End) -> Result<End> {
        self.put(&match end {
            End::Passed => "end".to_owned(),
            End::Failed(reason) => format!("fail {reason}"),
        })?;
        loop {
            let line = self.get()?;
            match line.split_once(' ').unwrap_or((&line, "")) {
                ("end", _) => return Ok(End::Passed),
                ("fail", reason) => return Ok(End::Failed(reason.to_owned())),
                _ => (),
            }
        }
    }
}
