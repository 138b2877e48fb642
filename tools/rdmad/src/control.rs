// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Control of a running daemon: commands and their execution.
//!
//! A client writes a command as one line of JSON and reads a [`Reply`]. The permissions of the
//! socket determine the users who may connect. Without `--ctl-group`, only root and the daemon's
//! user may control the daemon, even if the permissions of the socket are changed later.

use std::io::{self, Write};
use std::iter;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::{bail, ensure, Context, Error, Result};
use chaos::{RuleCounts, Scenario};
use recorder::Traced;
use rustix::process::geteuid;
use sandbox::Kind;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sockets::{peer, ROOT};
use supervisor::Supervision;
use virtio_rdma_abi::number::{Cqn, Qpn, Srqn};
use vswitch::pcap::Captured;

use crate::cli::SocketArgs;
use crate::events::Events;
use crate::line_server::{whole, Answers, Pieces};
use crate::log::{parse_level, Level};
use crate::long_commands::LongCommands;
use crate::objects;
use crate::ports::{PortState, Ports};
use crate::qps::Listed;
use crate::rates::{self, parse_bytes, parse_messages};
use crate::workers::WorkerNow;

/// Maximum length of a request in bytes.
pub const MAX_REQUEST: usize = 4096;

/// A command to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum CtlCommand {
    /// Lists the ports.
    Ports {},
    /// Tells what each worker does and what waits for it.
    Workers {},
    /// Adds a port. The port's sockets are passed as descriptors.
    AddPort {
        /// The port in the syntax of `--port`.
        port: String,
        /// Users who may connect to the sockets. Recorded in the state file, so that restored
        /// sockets have the same permissions.
        #[serde(default, skip_serializing_if = "SocketArgs::is_default")]
        sockets: SocketArgs,
    },
    /// Removes a port.
    RemovePort {
        /// Name of the port.
        port: String,
    },
    /// Captures the frames of a port. The file is passed as a descriptor.
    Capture {
        /// Name of the port.
        port: String,
    },
    /// Ends the capture of a port.
    EndCapture {
        /// Name of the port.
        port: String,
    },
    /// Changes the rate limits of a port. A limit that is absent does not change.
    Limit {
        /// Name of the port.
        port: String,
        /// Bytes per second, in the form of the key `rate` of a port, or "none".
        rate: Option<String>,
        /// Messages per second, in the form of the key `messages` of a port, or "none".
        messages: Option<String>,
    },
    /// Describes QPs.
    Qp {
        /// Name of the port.
        port: String,
        /// Number of the QP. All QPs of the port without it.
        qpn: Option<u32>,
    },
    /// Describes CQs.
    Cq {
        /// Name of the port.
        port: String,
        /// Number of the CQ. All CQs of the port without it.
        cqn: Option<u32>,
    },
    /// Describes SRQs.
    Srq {
        /// Name of the port.
        port: String,
        /// Number of the SRQ. All SRQs of the port without it.
        srqn: Option<u32>,
    },
    /// Describes MRs.
    Mr {
        /// Name of the port.
        port: String,
        /// An L_Key or R_Key of the MR. All MRs of the port without it.
        key: Option<u32>,
    },
    /// Lists the rules of the scenario of a port.
    Rules {
        /// Name of the port.
        port: String,
    },
    /// Adds rules to the scenario of a port.
    AddRules {
        /// Name of the port.
        port: String,
        /// The text of a scenario.
        rules: String,
    },
    /// Removes a rule from the scenario of a port.
    RemoveRule {
        /// Name of the port.
        port: String,
        /// Name of the rule.
        rule: String,
    },
    /// Tells the last events of a port.
    Events {
        /// Name of the port.
        port: String,
        /// Number of the first event.
        from: u64,
        /// The QP whose events are returned; without it, the port and all its QPs.
        qpn: Option<u32>,
    },
    /// Logs events of a port when they occur.
    Trace {
        /// Name of the port.
        port: String,
        /// The QP whose events are logged; without it, the port and all its QPs.
        qpn: Option<u32>,
        /// Whether logging starts or ends.
        on: bool,
    },
    /// Replaces the running program by the one at its path. If that succeeds, the connection ends
    /// without an answer.
    Upgrade {},
    /// Changes the level of the log.
    LogLevel {
        /// Minimum severity of logged lines: off, error, warn, info, debug or trace.
        level: String,
    },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// The command was executed.
    Done,
    /// The request was refused for this reason.
    Error(String),
    /// The state of all ports.
    Ports(Vec<PortState>),
    /// The activity of each worker, and the work that waits for it.
    Workers(Vec<WorkerNow>),
    /// Descriptions of the QPs that were asked for.
    Qps(Vec<Value>),
    /// Descriptions of the CQs, SRQs or MRs that were asked for.
    Objects(Vec<Value>),
    /// The rules of the scenario of a port, and their counts.
    Rules(Vec<RuleCounts>),
    /// The events that were asked for.
    Events(Events),
    /// The capture of a port has ended.
    Captured {
        /// Number of frames that were captured.
        frames: u64,
        /// Number of frames that were left out, since the reader was too slow.
        left_out: u64,
    },
}

/// The answer to a request.
enum Answer {
    Reply(Reply),
    /// [`Reply::Qps`] with all QPs of a port, whose descriptions are made as the client reads them.
    AllQps(Listed),
    /// Another thread will reply to the client.
    Later,
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Reply(reply)
    }
}

/// Executes commands and answers them.
pub struct Control {
    /// The ports of the daemon.
    pub ports: Arc<Ports>,
    /// The supervisor, who upgrades the daemon.
    pub supervision: Supervision,
    /// The threads for commands that may take long.
    pub long_commands: LongCommands,
    /// The level of the log.
    pub level: Level,
    /// Whether users other than root and the daemon's user may control the daemon, if the
    /// permissions of the socket allow them to connect.
    pub has_group: bool,
}

impl Control {
    /// Executes a request.
    fn reply(
        &mut self,
        client: &Arc<UnixStream>,
        request: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Answer> {
        let client_is = peer(client).context("can't read the client's credentials")?;
        check_user(client_is.user, geteuid().as_raw(), self.has_group)?;
        ensure!(
            request.len() <= MAX_REQUEST,
            "the request is longer than {MAX_REQUEST} bytes"
        );
        let request = serde_json::from_slice(request).context("the command is malformed")?;
        let reply = match request {
            CtlCommand::Ports {} => Reply::Ports(self.ports.states()),
            CtlCommand::Workers {} => Reply::Workers(self.ports.workers()),
            CtlCommand::AddPort { port, sockets } => {
                self.ports.add(port.parse()?, &sockets, fds)?;
                Reply::Done
            }
            CtlCommand::RemovePort { port } => {
                let ports = self.ports.clone();
                return self.reply_later(client, move || {
                    ports.remove(&port)?;
                    tracing::info!(port, "removed");
                    Ok(Reply::Done)
                });
            }
            CtlCommand::Capture { port } => {
                self.ports.capture(&port, fds)?;
                tracing::info!(port, "its frames are captured");
                Reply::Done
            }
            CtlCommand::EndCapture { port } => {
                let Captured { frames, left_out } = self.ports.end_capture(&port)?;
                tracing::info!(port, "{frames} frames were captured, {left_out} left out");
                Reply::Captured { frames, left_out }
            }
            CtlCommand::Limit {
                port,
                rate,
                messages,
            } => {
                let bytes = rate.map(|text| rates::parse_or_none(&text, parse_bytes));
                let messages = messages.map(|text| rates::parse_or_none(&text, parse_messages));
                let (bytes, messages) = (bytes.transpose()?, messages.transpose()?);
                let rates = self.ports.limit(&port, |rates| {
                    rates.bytes = bytes.unwrap_or(rates.bytes);
                    rates.messages = messages.unwrap_or(rates.messages);
                })?;
                tracing::info!(
                    port,
                    "limits: {} bytes/s, {} messages/s",
                    rates::text(rates.bytes),
                    rates::text(rates.messages)
                );
                Reply::Done
            }
            CtlCommand::Qp { port, qpn: None } => {
                return Ok(Answer::AllQps(Listed::new(self.ports.hca(&port)?)));
            }
            CtlCommand::Qp {
                port,
                qpn: Some(qpn),
            } => Reply::Qps(vec![self.ports.qp(&port, Qpn::new(qpn))?]),
            CtlCommand::Cq { port, cqn } => {
                let found = self.ports.hca(&port)?.cq_details(cqn.map(Cqn::new));
                Reply::Objects(objects::describe(&port, "CQ", cqn, found)?)
            }
            CtlCommand::Srq { port, srqn } => {
                let found = self.ports.hca(&port)?.srq_details(srqn.map(Srqn::new));
                Reply::Objects(objects::describe(&port, "SRQ", srqn, found)?)
            }
            CtlCommand::Mr { port, key } => {
                let found = self.ports.hca(&port)?.mr_details(key);
                Reply::Objects(objects::describe(&port, "MR with key", key, found)?)
            }
            CtlCommand::Rules { port } => Reply::Rules(self.ports.hca(&port)?.rules().list()),
            CtlCommand::AddRules { port, rules } => {
                let scenario: Scenario = rules.parse()?;
                let _changes = self.ports.changes();
                let hca = self.ports.hca(&port)?;
                hca.rules().add(&scenario).map_err(Error::msg)?;
                tracing::info!(
                    port,
                    "{} rules were added to the scenario",
                    scenario.0.len()
                );
                Reply::Done
            }
            CtlCommand::RemoveRule { port, rule } => {
                let _changes = self.ports.changes();
                let hca = self.ports.hca(&port)?;
                hca.rules().remove(&rule).map_err(Error::msg)?;
                tracing::info!(port, "rule {rule} was removed from the scenario");
                Reply::Done
            }
            CtlCommand::Events { port, from, qpn } => {
                Reply::Events(Events::of(&*self.ports.hca(&port)?, from, qpn))
            }
            CtlCommand::Trace { port, qpn, on } => {
                let traced = match (on, qpn) {
                    (false, _) => Traced::Nothing,
                    (true, Some(qpn)) => Traced::Qp(qpn),
                    (true, None) => Traced::All,
                };
                self.ports.hca(&port)?.recorder().set_traced(traced);
                tracing::info!(port, qpn, "tracing is {}", if on { "on" } else { "off" });
                Reply::Done
            }
            CtlCommand::Upgrade {} => {
                tracing::info!("an upgrade was requested");
                let supervision = self.supervision.clone();
                return self.reply_later(client, move || {
                    bail!("nothing has changed: {}", supervision.upgrade())
                });
            }
            CtlCommand::LogLevel { level } => {
                let level = parse_level(&level)?;
                self.ports.changes().set_level(level)?;
                self.level.set(level)?;
                tracing::info!("the log level is {level}");
                Reply::Done
            }
        };
        Ok(reply.into())
    }

    /// Executes a command that may take long in another thread, which replies to the client.
    fn reply_later(
        &mut self,
        client: &Arc<UnixStream>,
        execute: impl FnOnce() -> Result<Reply> + Send + 'static,
    ) -> Result<Answer> {
        let client = client.clone();
        self.long_commands.run(move || {
            // The client may have gone.
            let _ = line(execute()).and_then(|line| (&*client).write_all(&line));
        })?;
        Ok(Answer::Later)
    }
}

/// Fails unless `user` may control the daemon of user `own`. With a group, every user who can
/// connect may control the daemon.
fn check_user(user: u32, own: u32, has_group: bool) -> Result<()> {
    ensure!(
        has_group || user == ROOT || user == own,
        "user {user} may not control the daemon (--ctl-group)"
    );
    Ok(())
}

impl Answers for Control {
    const KIND: Kind = Kind::Control;
    const MAX_REQUEST: usize = MAX_REQUEST;
    const TAKES_DESCRIPTORS: bool = true;

    fn answer(
        &mut self,
        client: &Arc<UnixStream>,
        request: &[u8],
        fds: Vec<OwnedFd>,
    ) -> io::Result<Option<Pieces>> {
        let reply = match self.reply(client, request, fds) {
            Ok(Answer::Later) => return Ok(None),
            Ok(Answer::AllQps(qps)) => {
                let [begin, end] = [&b"{\"qps\":["[..], b"]}\n"].map(|text| Ok(text.to_vec()));
                return Ok(Some(Box::new(iter::once(begin).chain(qps).chain([end]))));
            }
            Ok(Answer::Reply(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        line(reply).map(|line| Some(whole(line)))
    }
}

/// Encodes a reply as a line. If the reply is an error, logs the error.
pub fn line(reply: Result<Reply>) -> io::Result<Vec<u8>> {
    let reply = reply.unwrap_or_else(|error| {
        let error = format!("{error:#}");
        tracing::warn!("control: {error}");
        Reply::Error(error)
    });
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemons_user_and_root_control_it_and_a_group_if_it_has_one() {
        for (who, has_group, may) in [
            (0, false, true),
            (1000, false, true),
            (1001, false, false),
            (1001, true, true),
        ] {
            let checked = check_user(who, 1000, has_group);
            assert_eq!(checked.is_ok(), may, "user {who}, group {has_group}");
        }
        // A daemon that runs as root refuses ordinary users too.
        assert!(check_user(1000, ROOT, false).is_err());
    }
}
