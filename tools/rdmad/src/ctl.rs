// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The command that controls a running daemon.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use clap::Subcommand;

use crate::control::{Reply, Request, MAX_REQUEST};
use crate::line_server;

/// The request and the daemon.
#[derive(Debug, clap::Args)]
pub struct CtlArgs {
    /// The socket that the daemon was given as --ctl.
    #[arg(long, value_name = "SOCKET")]
    pub socket: PathBuf,

    /// Print the answer as the daemon gives it, a line of JSON.
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
    /// Change the limits of a port. A limit that is not named stays.
    Limit {
        /// Name of the port.
        port: String,

        /// Bytes a second and, by default those of 5 ms, bytes of a burst; or none.
        #[arg(long, value_name = "BYTES[:BURST]|none")]
        rate: Option<String>,

        /// Messages a second and, by default those of 5 ms, messages of a burst; or none.
        #[arg(
            long,
            value_name = "COUNT[:BURST]|none",
            required_unless_present = "rate"
        )]
        messages: Option<String>,
    },
    /// Change which lines the daemon's log has.
    LogLevel {
        /// The least severity: off, error, warn, info, debug or trace.
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

/// Has the daemon do what `args` tell, and prints its answer to `to`.
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
