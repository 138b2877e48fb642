// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The command `ctl`, which controls a running daemon.

use std::fs;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use chaos::{RuleCounts, Scenario};
use clap::Subcommand;
use sockets::broker;

use crate::cli::{PortArgs, SocketArgs, BROKER};
use crate::control::{self, CtlCommand, Reply, MAX_REQUEST};
use crate::events::Events;
use crate::host;
use crate::line_server;
use crate::objects;
use crate::qps;

/// Interval at which `ctl` asks for new events.
const FOLLOW: Duration = Duration::from_millis(200);

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
    /// Show what each worker does now, since when, and what waits for it.
    Workers,
    /// Add a port. This command makes the sockets, with the rights of its user, and passes them to
    /// the daemon.
    AddPort {
        /// The port in the syntax of --port.
        #[arg(value_name = "NAME,vfio=SOCKET,net=SOCKET,mac=MAC[,KEY=VALUE...]")]
        port: PortArgs,

        /// Users who may connect to the sockets.
        #[command(flatten)]
        sockets: SocketArgs,
    },
    /// Remove a port. Its VM loses the device.
    RemovePort {
        /// Name of the port.
        port: String,
    },
    /// Capture the frames from and to a port. Data that is copied from memory to memory has no
    /// frames, so it is not captured.
    Capture {
        /// Name of the port.
        port: String,

        /// The capture file, which must not exist; - is standard output.
        #[arg(long, value_name = "FILE|-", required_unless_present = "stop")]
        file: Option<PathBuf>,

        /// End the capture.
        #[arg(long, conflicts_with = "file")]
        stop: bool,
    },
    /// Change the rate limits of a port. A limit that is not given does not change.
    Limit {
        /// Name of the port.
        port: String,

        /// Bytes per second, and bytes in a burst (default: the bytes of 5 ms); or none.
        #[arg(long, value_name = "BYTES[:BURST]|none")]
        rate: Option<String>,

        /// Messages per second, and messages in a burst (default: the messages of 5 ms); or none.
        #[arg(
            long,
            value_name = "COUNT[:BURST]|none",
            required_unless_present = "rate"
        )]
        messages: Option<String>,
    },
    /// Describe the QPs of a port: what each waits for, and why its work does not proceed.
    Qp {
        /// Name of the port.
        port: String,

        /// Number of a QP, of which all is printed. Without it, each QP gets a line.
        qpn: Option<u32>,

        /// Leave out QPs without work, and those whose work proceeds within MS milliseconds.
        #[arg(
            long,
            value_name = "MS",
            num_args = 0..=1,
            default_missing_value = "1000",
            conflicts_with = "qpn"
        )]
        why: Option<u64>,
    },
    /// Describe the CQs of a port: how far device and driver are, and the event that is requested.
    Cq {
        /// Name of the port.
        port: String,

        /// Number of a CQ.
        cqn: Option<u32>,
    },
    /// Describe the SRQs of a port.
    Srq {
        /// Name of the port.
        port: String,

        /// Number of an SRQ.
        srqn: Option<u32>,
    },
    /// Describe the MRs of a port: range, access flags, pages.
    Mr {
        /// Name of the port.
        port: String,

        /// An L_Key or R_Key of an MR, decimal or hexadecimal with 0x.
        #[arg(value_parser = parse_key)]
        key: Option<u32>,
    },
    /// List the rules of the scenario of a port, how often each has applied and what the driver did
    /// next; or change the rules.
    Chaos {
        /// Name of the port.
        port: String,

        /// Add rules behind the others: the text of a rule, a file or the name of a scenario.
        #[arg(long, value_name = "RULE|FILE|NAME", conflicts_with = "remove")]
        add: Option<String>,

        /// Remove the rule with this name.
        #[arg(long, value_name = "RULE")]
        remove: Option<String>,
    },
    /// Print the last events of a port: commands, states and errors of its QPs, timeouts, NAKs,
    /// dropped packets.
    Events {
        /// Name of the port.
        port: String,

        /// Print only the events of this QP.
        #[arg(long, value_name = "QPN")]
        qp: Option<u32>,

        /// Go on with each event that occurs.
        #[arg(long)]
        follow: bool,
    },
    /// Log the events of a port when they occur, with those of each packet that is sent again or
    /// comes out of sequence.
    Trace {
        /// Name of the port.
        port: String,

        /// Number of the only QP whose events are logged.
        qpn: Option<u32>,

        /// Log no more events.
        #[arg(long, conflicts_with = "qpn")]
        off: bool,
    },
    /// Replace the running program by the one that is at its path now, for example after an update
    /// of its package. VMs keep their devices, whose drivers recover them.
    Upgrade,
    /// Change the level of the daemon's log.
    LogLevel {
        /// Minimum severity of logged lines: off, error, warn, info, debug or trace.
        level: String,
    },
}

impl Command {
    fn request(&self) -> Result<CtlCommand> {
        Ok(match self {
            Self::Ports => CtlCommand::Ports {},
            Self::Workers => CtlCommand::Workers {},
            Self::AddPort { port, sockets } => CtlCommand::AddPort {
                port: port.to_string(),
                sockets: sockets.clone(),
            },
            Self::Capture { port, file, .. } => match file {
                Some(_) => CtlCommand::Capture { port: port.clone() },
                None => CtlCommand::EndCapture { port: port.clone() },
            },
            Self::RemovePort { port } => CtlCommand::RemovePort { port: port.clone() },
            Self::Limit {
                port,
                rate,
                messages,
            } => CtlCommand::Limit {
                port: port.clone(),
                rate: rate.clone(),
                messages: messages.clone(),
            },
            Self::Qp { port, qpn, .. } => CtlCommand::Qp {
                port: port.clone(),
                qpn: *qpn,
            },
            Self::Cq { port, cqn } => CtlCommand::Cq {
                port: port.clone(),
                cqn: *cqn,
            },
            Self::Srq { port, srqn } => CtlCommand::Srq {
                port: port.clone(),
                srqn: *srqn,
            },
            Self::Mr { port, key } => CtlCommand::Mr {
                port: port.clone(),
                key: *key,
            },
            Self::Events { port, qp, .. } => CtlCommand::Events {
                port: port.clone(),
                from: 0,
                qpn: *qp,
            },
            Self::Trace { port, qpn, off } => CtlCommand::Trace {
                port: port.clone(),
                qpn: *qpn,
                on: !off,
            },
            Self::Chaos { port, add, remove } => {
                let port = port.clone();
                match (add, remove) {
                    (Some(rules), _) => CtlCommand::AddRules {
                        port,
                        rules: scenario_text(rules)?,
                    },
                    (_, Some(rule)) => CtlCommand::RemoveRule {
                        port,
                        rule: rule.clone(),
                    },
                    _ => CtlCommand::Rules { port },
                }
            }
            Self::Upgrade => CtlCommand::Upgrade {},
            Self::LogLevel { level } => CtlCommand::LogLevel {
                level: level.clone(),
            },
        })
    }
}

/// The text of a scenario that is given as itself, by its name, or in a file. One word is no rule.
fn scenario_text(given: &str) -> Result<String> {
    if let Some(preset) = Scenario::preset(given) {
        return Ok(preset);
    }
    match fs::read_to_string(given) {
        Err(_) if given.contains(char::is_whitespace) => Ok(given.to_owned()),
        read => read.with_context(|| {
            let names = Scenario::names();
            format!("{given} is no rule, no scenario ({names}), and no file that can be read")
        }),
    }
}

fn parse_key(text: &str) -> Result<u32, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Sends the request in `args` to the daemon, and prints the reply to `to`.
pub fn run(args: &CtlArgs, to: &mut impl Write) -> Result<()> {
    let (line, reply) = match &args.command {
        Command::Events {
            port,
            qp,
            follow: true,
        } => return follow(args, port, *qp, to),
        Command::Upgrade => upgrade(&args.socket, &args.command.request()?)?,
        Command::AddPort { port, sockets } => add_port(&args.socket, port, sockets)?,
        Command::Capture {
            file: Some(file), ..
        } => {
            let file = capture_file(file)?;
            ask(&args.socket, &args.command.request()?, &[file.as_fd()])?
        }
        Command::Qp {
            why: Some(time), ..
        } => {
            let look = || ask(&args.socket, &args.command.request()?, &[]);
            let (_, before) = look()?;
            thread::sleep(Duration::from_millis(*time));
            let stuck = qps::stuck(before, look()?.1);
            if matches!(&stuck, Reply::Qps(qps) if qps.is_empty()) {
                eprintln!("no QP has work that stood still for {time} ms");
            }
            (control::line(Ok(stuck.clone()))?, stuck)
        }
        command => ask(&args.socket, &command.request()?, &[])?,
    };
    if args.json {
        to.write_all(&line)?;
        return Ok(());
    }
    match reply {
        Reply::Done | Reply::Error(_) => {}
        Reply::Captured { frames, left_out } => {
            writeln!(to, "{frames} frames, {left_out} left out")?;
        }
        Reply::Qps(qps) => {
            let is_one = matches!(args.command, Command::Qp { qpn: Some(_), .. });
            for qp in &qps {
                write!(to, "{}", qps::text(qp, is_one))?;
            }
        }
        Reply::Objects(objects) => {
            for object in &objects {
                writeln!(to, "{}", objects::line(object))?;
            }
        }
        Reply::Rules(rules) => {
            for RuleCounts {
                rule,
                seen,
                applied,
                by_time,
                next,
                ..
            } in rules
            {
                write!(to, "{rule}: applied to {applied} of {seen}")?;
                if by_time {
                    write!(to, " by time")?;
                }
                match next {
                    Some(next) => writeln!(to, ", {next}")?,
                    None => writeln!(to)?,
                }
            }
        }
        Reply::Events(told) => print(&told, to)?,
        Reply::Ports(ports) => {
            for port in ports {
                writeln!(to, "{port}")?;
            }
        }
        Reply::Workers(workers) => {
            for worker in workers {
                write!(to, "{worker}")?;
            }
        }
    }
    Ok(())
}

fn print(told: &Events, to: &mut impl Write) -> Result<()> {
    for event in &told.events {
        writeln!(to, "{}", event.line())?;
    }
    Ok(to.flush()?)
}

/// Prints the events of a port, one per line, as long as the port exists. With `--json`, the lines
/// are JSON.
fn follow(args: &CtlArgs, port: &str, qpn: Option<u32>, to: &mut impl Write) -> Result<()> {
    let mut from = 0;
    loop {
        let request = CtlCommand::Events {
            port: port.to_owned(),
            from,
            qpn,
        };
        let (_, reply) = ask(&args.socket, &request, &[])?;
        let Reply::Events(told) = reply else {
            bail!("the daemon's reply has no events");
        };
        if args.json {
            for event in &told.events {
                writeln!(to, "{}", serde_json::to_string(event)?)?;
            }
            to.flush()?;
        } else {
            print(&told, to)?;
        }
        from = told.next;
        thread::sleep(FOLLOW);
    }
}

/// Makes the sockets of a port, and requests that the daemon serve the port.
fn add_port(socket: &Path, port: &PortArgs, sockets: &SocketArgs) -> Result<(Vec<u8>, Reply)> {
    let port = port.absolute()?;
    let broker = broker::start(&[BROKER], Stdio::null()).context("can't start the broker")?;
    let made = host::make_sockets(&port, sockets)?;
    broker.seal().context("the broker")?;
    let broker = broker.socket()?;
    let request = CtlCommand::AddPort {
        port: port.to_string(),
        sockets: sockets.clone(),
    };
    let answer = ask(socket, &request, &made.descriptors(&broker))?;
    made.leave();
    Ok(answer)
}

/// Requests an upgrade, and waits until the new program answers.
fn upgrade(socket: &Path, request: &CtlCommand) -> Result<(Vec<u8>, Reply)> {
    let mut answer = Vec::new();
    let request = serde_json::to_string(request)?;
    let asked = line_server::ask(socket, &request, &[], &mut answer);
    // The connection ends with the engine.
    match asked.map_err(|error| error.kind()) {
        Ok(_) | Err(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
        Err(kind) => bail!("no answer from {}: {kind}", socket.display()),
    }
    if answer.is_empty() {
        ask(socket, &CtlCommand::Ports {}, &[]).context("the new program does not answer")?;
        return Ok((control::line(Ok(Reply::Done))?, Reply::Done));
    }
    parse(answer)
}

/// Opens the file of a capture, which only its owner may read.
fn capture_file(path: &Path) -> Result<OwnedFd> {
    if path == Path::new("-") {
        let out = std::io::stdout();
        ensure!(
            !out.is_terminal(),
            "standard output is a terminal: redirect the capture to a file or a pipe"
        );
        return Ok(out.as_fd().try_clone_to_owned()?);
    }
    let file = vswitch::pcap::create(path);
    let file = file.with_context(|| format!("capture file {}", path.display()))?;
    Ok(file.into())
}

/// Sends a request with descriptors. Returns the daemon's reply, as text and parsed. Fails if the
/// daemon refuses the request.
fn ask(socket: &Path, request: &CtlCommand, fds: &[BorrowedFd<'_>]) -> Result<(Vec<u8>, Reply)> {
    let context = || format!("no answer from {}", socket.display());
    let request = serde_json::to_string(request)?;
    if request.len() > MAX_REQUEST {
        bail!("the request is longer than {MAX_REQUEST} bytes");
    }
    let mut answer = Vec::new();
    line_server::ask(socket, &request, fds, &mut answer).with_context(context)?;
    parse(answer)
}

/// The daemon's reply, as text and parsed. Fails if the daemon has refused the request.
fn parse(answer: Vec<u8>) -> Result<(Vec<u8>, Reply)> {
    match serde_json::from_slice(&answer).context("can't parse the daemon's reply")? {
        Reply::Error(error) => bail!("{error}"),
        reply => Ok((answer, reply)),
    }
}
