// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The command `ctl`, which controls a running daemon.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Subcommand;

use crate::control::{Reply, Request, MAX_REQUEST};
use crate::line_server;

/// The request, and the socket of the daemon.
#[derive(Debug, clap::Args)]
pub struct CtlArgs {
    /// Control socket of the daemon: the value of its option --ctl.
    #[arg(long, value_name = "SOCKET")]
    pub socket: PathBuf,

    /// Print the daemon's reply as a line of JSON.
    #[arg(long)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

/// The request.
#[derive(Debug, Subcommand)]
enum Command {
    /// List the ports.
    Ports,
    /// Change the rate limits of a port. A limit that is not given does not change.
    Limit {
        /// Name of the port.
        port: String,

        /// Bytes per second, and of a burst (by default those of 5 ms); or none.
        #[arg(long, value_name = "BYTES[:BURST]|none")]
        rate: Option<String>,

        /// Messages per second, and of a burst (by default those of 5 ms); or none.
        #[arg(
            long,
            value_name = "COUNT[:BURST]|none",
            required_unless_present = "rate"
        )]
        messages: Option<String>,
    },
    /// Change the level of the daemon's log.
    LogLevel {
        /// Minimum severity of logged lines: off, error, warn, info, debug or trace.
        level: String,
    },
}

impl Command {
    fn request(&self) -> Request {
        match self {
            Self::Ports => Request::Ports {},
            Self::Limit {
                port,
                rate,
                messages,
            } => Request::Limit {
                port: port.clone(),
                rate: rate.clone(),
                messages: messages.clone(),
            },
            Self::LogLevel { level } => Request::LogLevel {
                level: level.clone(),
            },
        }
    }
}

/// Sends the request in `args` to the daemon, and prints the reply to `to`.
pub fn run(args: &CtlArgs, to: &mut impl Write) -> Result<()> {
    let line = ask(&args.socket, &args.command.request())?;
    let reply = serde_json::from_slice(&line).context("the daemon's answer is unknown")?;
    if let Reply::Error(error) = reply {
        bail!("{error}");
    }
    if args.json {
        to.write_all(&line)?;
        return Ok(());
    }
    match reply {
        Reply::Done | Reply::Error(_) => {}
        Reply::Ports(ports) => {
            for port in ports {
                writeln!(to, "{port}")?;
            }
        }
    }
    Ok(())
}

fn ask(socket: &Path, request: &Request) -> Result<Vec<u8>> {
    let context = || format!("no answer from {}", socket.display());
    let request = serde_json::to_string(request)?;
    if request.len() > MAX_REQUEST {
        bail!("the request is longer than {MAX_REQUEST} bytes");
    }
    let mut answer = Vec::new();
    line_server::ask(socket, &request, &mut answer).with_context(context)?;
    Ok(answer)
}
