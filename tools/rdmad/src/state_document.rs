// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The content of the state file: the changes by `ctl`, as JSON with a version.
//!
//! A change of a configured port or of the level of the log also records the configuration at the
//! time of the change. So the daemon can tell whether the configuration was edited since.

use std::fmt;

use anyhow::{anyhow, bail, Context, Error, Result};
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use tracing_subscriber::filter::LevelFilter;

use crate::cli::{PortArgs, SocketArgs};
use crate::log::parse_level;

/// The version of the format.
const VERSION: u32 = 1;

/// The changes by `ctl`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    #[serde(rename = "virtio-rdmad-state")]
    version: Version,
    /// The level of the log, if it was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
    /// Changed ports. If a port was removed and another port of the same name was added, the
    /// removal comes first.
    pub ports: Vec<Change>,
}

/// A changed level of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// The value of `RUST_LOG` when the level was changed.
    pub environment: Option<String>,
    #[serde(serialize_with = "level_text", deserialize_with = "read_level")]
    pub level: LevelFilter,
}

/// A changed port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
pub enum Change {
    /// A port was added, which the command line does not contain.
    Added {
        port: PortArgs,
        /// Users who may connect to the port's sockets.
        #[serde(default, skip_serializing_if = "SocketArgs::is_default")]
        sockets: SocketArgs,
    },
    /// The limits of a port of the command line were changed.
    Changed {
        /// The port in the command line.
        command_line: Box<PortArgs>,
        /// The port with its new limits.
        port: PortArgs,
    },
    /// A port of the command line was removed.
    Removed {
        /// The port in the command line.
        command_line: Box<PortArgs>,
    },
}

impl Change {
    /// The changed port, unless it was removed.
    pub fn port(&self) -> Option<&PortArgs> {
        match self {
            Self::Added { port, .. } | Self::Changed { port, .. } => Some(port),
            Self::Removed { .. } => None,
        }
    }
}

impl Document {
    /// Parses the content of a state file.
    ///
    /// # Errors
    ///
    /// The content is damaged, is not a state, or has a newer version. The error contains the
    /// number of the line.
    pub fn parse(text: &[u8]) -> Result<Self> {
        /// The part of the content that all versions have.
        #[derive(Deserialize)]
        struct Head {
            #[serde(rename = "virtio-rdmad-state")]
            _version: Version,
        }
        serde_json::from_slice(text)
            .and_then(|_: Head| serde_json::from_slice(text))
            .map_err(with_line)
    }

    /// Records that a port was added, in place of one of this name that could not be restored.
    pub fn add(&mut self, port: PortArgs, sockets: SocketArgs) {
        self.take(&port.name);
        self.ports.push(Change::Added { port, sockets });
    }

    /// Records that the port with this name was removed. `configured` are the ports of the command
    /// line.
    pub fn remove(&mut self, name: &str, configured: &[PortArgs]) {
        let command_line = match self.take(name) {
            Some(Change::Added { .. }) => return,
            Some(Change::Changed { command_line, .. }) => Some(command_line),
            _ => find(configured, name),
        };
        let removed = command_line.map(|command_line| Change::Removed { command_line });
        self.ports.extend(removed);
    }

    /// Records that a port has other limits. `configured` are the ports of the command line.
    pub fn change(&mut self, port: PortArgs, configured: &[PortArgs]) {
        let command_line = match self.take(&port.name) {
            Some(Change::Added { sockets, .. }) => return self.add(port, sockets),
            Some(Change::Changed { command_line, .. }) => Some(command_line),
            _ => find(configured, &port.name),
        };
        let changed = command_line.filter(|command_line| **command_line != port);
        let changed = changed.map(|command_line| Change::Changed { command_line, port });
        self.ports.extend(changed);
    }

    /// Removes and returns the change that added the port with this name or changed its limits.
    fn take(&mut self, name: &str) -> Option<Change> {
        let is_port = |change: &Change| change.port().is_some_and(|port| port.name == name);
        let at = self.ports.iter().position(is_port)?;
        Some(self.ports.remove(at))
    }
}

fn find(ports: &[PortArgs], name: &str) -> Option<Box<PortArgs>> {
    let port = ports.iter().find(|port| port.name == name);
    port.cloned().map(Box::new)
}

/// Formats the content of a state file.
impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = serde_json::to_string_pretty(self).map_err(|_| fmt::Error)?;
        writeln!(f, "{text}")
    }
}

/// The version of a document: always [`VERSION`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version;

impl TryFrom<u32> for Version {
    type Error = Error;

    fn try_from(version: u32) -> Result<Self> {
        match version {
            VERSION => Ok(Self),
            newer if newer > VERSION => {
                bail!("version {newer} is newer than this daemon, which knows version {VERSION}")
            }
            unknown => bail!("there is no version {unknown}"),
        }
    }
}

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        VERSION
    }
}

impl TryFrom<String> for PortArgs {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse().with_context(|| format!("port {text:?}"))
    }
}

impl From<PortArgs> for String {
    fn from(port: PortArgs) -> Self {
        port.to_string()
    }
}

fn level_text<S: Serializer>(level: &LevelFilter, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(level)
}

fn read_level<'de, D: Deserializer<'de>>(from: D) -> Result<LevelFilter, D::Error> {
    parse_level(&String::deserialize(from)?).map_err(de::Error::custom)
}

/// The error with the number of the line at the front.
fn with_line(error: serde_json::Error) -> Error {
    let text = error.to_string();
    let (line, column) = (error.line(), error.column());
    let place = format!(" at line {line} column {column}");
    let text = text.strip_suffix(&place).unwrap_or(&text);
    anyhow!("line {line}: {text}; correct the file or remove it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, number: u8, more: &str) -> PortArgs {
        let text = format!("{name},vfio=/run/{name},mac=52:54:00:09:00:0{number}{more}");
        text.parse().unwrap()
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let configured = [port("a", 1, ""), port("b", 2, ",rate=1M")];
        let mut document = Document::default();
        let check = |document: &Document, lines: &[&str]| {
            let text = document.to_string();
            assert_eq!(&Document::parse(text.as_bytes()).unwrap(), document);
            for line in lines {
                assert!(text.lines().any(|known| known.trim() == *line), "{text}");
            }
        };
        check(&document, &["\"virtio-rdmad-state\": 1,", "\"ports\": []"]);
        document.remove("a", &configured);
        document.change(port("b", 2, ""), &configured);
        document.add(port("c", 3, ",group=x,ip=fd09::1"), SocketArgs::default());
        document.log_level = Some(LogLevel {
            environment: None,
            level: LevelFilter::DEBUG,
        });
        check(&document, &["\"level\": \"debug\"", "\"removed\": {"]);
        let sockets = serde_json::from_str("{\"mode\":\"660\",\"group\":36}").unwrap();
        document.add(port("d", 4, ",net=/run/x"), sockets);
        check(&document, &["\"mode\": \"660\",", "\"group\": 36"]);
    }

    #[test]
    fn changes_of_one_port_become_one() {
        let configured = [port("a", 1, "")];
        let mut document = Document::default();
        let (slow, fast) = (port("a", 1, ",rate=1M"), port("a", 1, ",rate=2M"));
        document.change(slow, &configured);
        document.change(fast.clone(), &configured);
        let command_line = Box::new(configured[0].clone());
        let changed = Change::Changed {
            command_line: command_line.clone(),
            port: fast,
        };
        assert_eq!(document.ports, [changed]);
        document.remove("a", &configured);
        let removed = Change::Removed { command_line };
        assert_eq!(document.ports, [removed.clone()]);
        // A port of the same name is added, changed and removed.
        let other = port("a", 7, "");
        document.add(other.clone(), SocketArgs::default());
        let limited = port("a", 7, ",messages=9");
        document.change(limited.clone(), &configured);
        let added = Change::Added {
            port: limited,
            sockets: SocketArgs::default(),
        };
        assert_eq!(document.ports, [removed.clone(), added]);
        document.remove("a", &configured);
        assert_eq!(document.ports, [removed]);
        // Limits that equal the configured ones are not recorded.
        let mut document = Document::default();
        document.change(port("a", 1, ",rate=1M"), &configured);
        document.change(configured[0].clone(), &configured);
        assert_eq!(document, Document::default());
    }

    #[test]
    fn a_bad_document_gets_the_line() {
        let with_ports = |ports: &str| {
            format!("{{\n  \"virtio-rdmad-state\": 1,\n  \"ports\": [\n    {ports}\n  ]\n}}\n")
        };
        let port = "a,vfio=/a,mac=52:54:00:09:00:01";
        let whole = with_ports(&format!(
            "{{\"removed\": {{\"command-line\": \"{port}\"}}}}"
        ));
        let loud = "\"log-level\": {\"environment\": null, \"level\": \"loud\"},\n\"ports\"";
        Document::parse(whole.as_bytes()).unwrap();
        for (text, complaint) in [
            (String::new(), "line 1: EOF"),
            (
                "{\n\"ports\": []\n}".into(),
                "line 3: missing field `virtio-rdmad-state`",
            ),
            ("[1]\n".into(), "line 1: "),
            ("\0\0\0\0".into(), "line 1: "),
            (whole.replace("1,\n", "2,\n"), "line 2: version 2 is newer"),
            (
                whole.replace("1,\n", "0,\n"),
                "line 2: there is no version 0",
            ),
            (
                whole.replace("1,\n", "1,\n\"more\": 1,\n"),
                "line 3: unknown field `more`",
            ),
            // A newer version is reported as such, even if it also has unknown fields.
            (
                whole.replace("1,\n", "2,\n\"more\": 1,\n"),
                "line 2: version 2",
            ),
            (
                whole.replace("removed", "bent"),
                "line 4: unknown variant `bent`",
            ),
            (
                with_ports("{\"added\": {\"port\": \"a\"}}"),
                "line 4: port \"a\"",
            ),
            (
                with_ports("{\"added\": {\"more\": 1}}"),
                "line 4: unknown field",
            ),
            (
                whole.replace("\"ports\"", loud),
                "line 3: \"loud\" is not a log level",
            ),
        ] {
            let error = format!("{:#}", Document::parse(text.as_bytes()).unwrap_err());
            assert!(error.starts_with(complaint), "{text}: {error}");
            assert!(error.contains("correct the file or remove it"), "{error}");
        }
        for end in 0..whole.trim_end().len() {
            let error = Document::parse(&whole.as_bytes()[..end]).unwrap_err();
            assert!(error.to_string().starts_with("line "), "{end}: {error}");
        }
    }
}
