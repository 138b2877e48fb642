// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The state: the changes by `ctl`, which are written to a file and restored at the next start.
//! Without a file they are kept for the next engine of the daemon alone.
//!
//! The command line and the file may disagree about a port or the level of the log. Then the later
//! change wins. The file is written before a command is answered.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use parking_lot::{Mutex, MutexGuard};
use sockets::KeptFile;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::EnvFilter;

use crate::added::Scope;
use crate::cli::{Args, PortArgs, SocketArgs};
use crate::kept_text::KeptText;
use crate::state_document::{Change, Document, LogLevel};

/// The changes by `ctl`, and where they are recorded. The lock serializes changes.
pub struct State(Mutex<Changes>);

/// Where changes are recorded.
enum Storage {
    File(PathBuf, KeptFile),
    /// Memory of this daemon's engines.
    Memory(KeptText),
}

/// The locked [`State`].
pub struct Changes {
    document: Document,
    /// The ports of the command line.
    configured: Vec<PortArgs>,
    /// The value of `RUST_LOG` at the start of the daemon.
    environment: Option<String>,
    storage: Storage,
    /// Where the sockets of added ports may be.
    scope: Scope,
    /// Whether the recorded content differs from `document`.
    is_stale: bool,
}

/// The configuration that a file restores.
#[derive(Debug, Default, PartialEq)]
pub struct Restored {
    /// The ports of the command line, with the changes by `ctl`.
    pub configured: Vec<PortArgs>,
    /// Ports that `ctl` has added.
    pub added: Vec<(PortArgs, SocketArgs)>,
    /// The level of the log, if it was changed.
    pub level: Option<LevelFilter>,
    /// Messages about changes by `ctl` that are dropped, because the command line was edited later
    /// or because `ctl` can't have made them.
    pub superseded: Vec<String>,
    /// Messages about ports that stay in the file and are not restored.
    pub left_out: Vec<String>,
}

impl State {
    /// Reads the state file that `args` names, or the `memory` of the last engine without a file,
    /// and applies the changes to the ports in `args`. Does not write.
    ///
    /// # Errors
    ///
    /// The file can't be read, or its changes contradict the command line.
    pub fn restore(args: &mut Args, memory: KeptText) -> Result<(Self, Restored)> {
        if let Some(path) = args.state.clone() {
            let (file, content) = KeptFile::open(&path).with_context(|| told(&path))?;
            return Self::apply(args, Storage::File(path, file), content);
        }
        let storage = || Storage::Memory(memory.clone());
        let before = (args.ports.clone(), args.spare_ports);
        Self::apply(args, storage(), memory.read()).or_else(|error| {
            // The last engine may have written anything, and the next ones must start.
            (args.ports, args.spare_ports) = before;
            let (state, mut restored) = Self::apply(args, storage(), None)?;
            restored
                .left_out
                .push(format!("changes by ctl are lost: {error:#}"));
            Ok((state, restored))
        })
    }

    /// Applies the recorded `content` to the ports in `args`.
    fn apply(
        args: &mut Args,
        storage: Storage,
        content: Option<Vec<u8>>,
    ) -> Result<(Self, Restored)> {
        let name = storage.name();
        let context = || name.clone();
        let most_ports = args.most_ports();
        let scope = Scope::of(args).with_context(context)?;
        let environment = env::var(EnvFilter::DEFAULT_ENV).ok();
        let before = content.map(|content| Document::parse(&content));
        let before = before.transpose().with_context(context)?;
        let mut document = before.clone().unwrap_or_default();
        let mut restored = merge(&mut document, &args.ports, environment.as_deref());
        let left_out = &mut restored.left_out;
        restored.added.retain(|(port, sockets)| {
            let checked = scope.check(port, sockets);
            let message = |error| format!("{name}: port {} is left out: {error:#}", port.name);
            left_out.extend(checked.as_ref().err().map(message));
            checked.is_ok()
        });
        let configured = std::mem::replace(&mut args.ports, restored.configured.clone());
        // Other ports can be added in the place of removed ones.
        args.spare_ports = u16::try_from(most_ports - args.ports.len()).ok();
        args.check().with_context(context)?;
        let changes = Changes {
            is_stale: before.as_ref() != Some(&document),
            document,
            configured,
            environment,
            storage,
            scope,
        };
        Ok((Self(Mutex::new(changes)), restored))
    }

    pub fn file(&mut self) -> Option<&mut KeptFile> {
        match &mut self.0.get_mut().storage {
            Storage::File(_, file) => Some(file),
            Storage::Memory(_) => None,
        }
    }

    /// Waits until no other change is in progress. The caller records its change before making it,
    /// or undoes it if it can't be recorded.
    pub fn lock(&self) -> MutexGuard<'_, Changes> {
        self.0.lock()
    }

    /// Like [`lock`](Self::lock), but `None` if another change is still in progress at `deadline`.
    pub fn lock_until(&self, deadline: Instant) -> Option<MutexGuard<'_, Changes>> {
        self.0.try_lock_until(deadline)
    }
}

impl Changes {
    /// The name of the place where changes are recorded, for messages.
    pub fn name(&self) -> String {
        self.storage.name()
    }

    /// Records the present state, unless it is recorded.
    pub fn flush(&mut self) -> Result<()> {
        if self.is_stale {
            self.record(|_, _| {})?;
        }
        Ok(())
    }

    /// Checks whether a later daemon will restore an added port.
    pub fn check_added(&self, port: &PortArgs, sockets: &SocketArgs) -> Result<()> {
        match self.storage {
            Storage::File(..) => self.scope.check(port, sockets),
            // There may be no other engine. If there is one, it leaves the port out.
            Storage::Memory(_) => Ok(()),
        }
    }

    /// Records an added port.
    pub fn add(&mut self, port: &PortArgs, sockets: &SocketArgs) -> Result<()> {
        self.record(|document, _| document.add(port.clone(), sockets.clone()))
    }

    /// Records that the port with this name is removed.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        self.record(|document, configured| document.remove(name, configured))
    }

    /// Records the limits of a port.
    pub fn change(&mut self, port: &PortArgs) -> Result<()> {
        self.record(|document, configured| document.change(port.clone(), configured))
    }

    /// Records the level of the log.
    pub fn set_level(&mut self, level: LevelFilter) -> Result<()> {
        let environment = self.environment.clone();
        self.record(|document, _| document.log_level = Some(LogLevel { environment, level }))
    }

    /// Changes the document, and writes it. On failure nothing has changed.
    fn record(&mut self, change: impl FnOnce(&mut Document, &[PortArgs])) -> Result<()> {
        let mut document = self.document.clone();
        change(&mut document, &self.configured);
        let text = document.to_string();
        let replaced = match &self.storage {
            Storage::File(_, file) => file.replace(text.as_bytes()),
            Storage::Memory(memory) => memory.replace(text.as_bytes()),
        };
        let name = || self.storage.name();
        replaced.with_context(|| format!("{} can't be written, so nothing has changed", name()))?;
        self.document = document;
        self.is_stale = false;
        Ok(())
    }
}

impl Storage {
    /// The name of the place, for messages.
    fn name(&self) -> String {
        match self {
            Self::File(path, _) => told(path),
            Self::Memory(_) => "the record of changes by ctl".to_owned(),
        }
    }
}

fn told(path: &Path) -> String {
    format!("state file {}", path.display())
}

/// Applies the changes in `document` to the ports of the command line. Removes changes from the
/// document if the command line or `RUST_LOG` was changed later.
pub fn merge(
    document: &mut Document,
    configured: &[PortArgs],
    environment: Option<&str>,
) -> Restored {
    let mut restored = Restored::default();
    let mut ports: Vec<_> = configured.iter().cloned().map(Some).collect();
    let mut is_current = |change: &Change| {
        let (name, is_current) = match change {
            Change::Added { port, sockets } => {
                let is_other = |taken: &PortArgs| taken.name != port.name;
                let is_free = ports.iter().flatten().all(is_other);
                if is_free {
                    restored.added.push((port.clone(), sockets.clone()));
                }
                (&port.name, is_free)
            }
            Change::Changed { command_line, port } if !differs_in_limits(port, command_line) => {
                restored.superseded.push(format!(
                    "port {}: ctl limit does not change what the state file changes, so the \
                     command line holds",
                    command_line.name
                ));
                return false;
            }
            Change::Changed { command_line, .. } | Change::Removed { command_line } => {
                let at = configured.iter().position(|port| *port == **command_line);
                if let Some(at) = at {
                    ports[at] = change.port().cloned();
                }
                (&command_line.name, at.is_some())
            }
        };
        if !is_current {
            restored.superseded.push(format!(
                "port {name}: the command line was changed after ctl had changed the port, and \
                 holds"
            ));
        }
        is_current
    };
    document.ports.retain(&mut is_current);
    let level = document.log_level.take();
    document.log_level = level.filter(|level| {
        let is_current = level.environment.as_deref() == environment;
        if !is_current {
            let name = EnvFilter::DEFAULT_ENV;
            restored.superseded.push(format!(
                "log: {name} was changed after ctl had changed the level, and holds"
            ));
        }
        is_current
    });
    restored.level = document.log_level.as_ref().map(|level| level.level);
    restored.configured = ports.into_iter().flatten().collect();
    restored
}

/// Whether `ctl limit` can make this port of `command_line`.
fn differs_in_limits(port: &PortArgs, command_line: &PortArgs) -> bool {
    let limited = PortArgs {
        rates: port.rates,
        ..command_line.clone()
    };
    *port == limited
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, number: u8, more: &str) -> PortArgs {
        let text = format!("{name},vfio=/run/{name},mac=52:54:00:09:00:0{number}{more}");
        text.parse().unwrap()
    }

    /// A document with a removed, a changed and an added port, and a level of the log.
    fn document(configured: &[PortArgs]) -> Document {
        let mut document = Document::default();
        document.remove("a", configured);
        document.change(port("b", 2, ",rate=1M"), configured);
        document.add(port("c", 3, ""), SocketArgs::default());
        document.log_level = Some(LogLevel {
            environment: Some("warn".into()),
            level: LevelFilter::DEBUG,
        });
        document
    }

    #[test]
    fn changes_hold_while_the_command_line_is_the_same() {
        let configured = [port("a", 1, ""), port("b", 2, ""), port("d", 4, "")];
        let before = document(&configured);
        let mut after = before.clone();
        let restored = merge(&mut after, &configured, Some("warn"));
        assert_eq!(after, before);
        let expected = Restored {
            configured: vec![port("b", 2, ",rate=1M"), port("d", 4, "")],
            added: vec![(port("c", 3, ""), SocketArgs::default())],
            level: Some(LevelFilter::DEBUG),
            superseded: Vec::new(),
            left_out: Vec::new(),
        };
        assert_eq!(restored, expected);
    }

    /// A change of a port that `ctl limit` can't make is none, whoever wrote it.
    #[test]
    fn a_changed_port_differs_in_its_limits_alone() {
        let configured = [port("a", 1, ",ip=10.9.0.1,group=x,user=7,socket-group=8")];
        let text = configured[0].to_string();
        let merged = |changed: &str| {
            let mut document = Document::default();
            document.change(changed.parse().unwrap(), &configured);
            let restored = merge(&mut document, &configured, None);
            (restored.configured, restored.superseded.len(), document)
        };
        let limited = text.clone() + ",rate=1M,messages=5";
        let (ports, superseded, _) = merged(&limited);
        assert_eq!(
            (ports[0].to_string(), superseded),
            (limited.parse::<PortArgs>().unwrap().to_string(), 0)
        );
        for (from, to) in [
            ("vfio=/run/a", "vfio=/run/b"),
            ("vfio=/run/a", "vfio=/run/a,net=/run/b"),
            (":01", ":66"),
            ("ip=10.9.0.1,", ""),
            ("group=x", "group=y"),
            ("group=x,", ""),
            ("user=7", "user=9"),
            ("socket-group=8", "socket-group=9"),
            ("speed=100", "speed=400"),
            ("speed=100", "speed=100,net-roce=on"),
            ("speed=100", "speed=100,memory=1G"),
            ("speed=100", "speed=100,guest-memory=1G"),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text);
            let (ports, superseded, document) = merged(&changed);
            assert_eq!(ports, configured, "{changed}");
            assert_eq!((superseded, document), (1, Document::default()));
        }
    }

    #[test]
    fn a_later_command_line_wins() {
        let before = document(&[port("a", 1, ""), port("b", 2, "")]);
        let later = [
            port("a", 1, ",speed=400"),
            port("b", 2, ",rate=2M"),
            port("c", 5, ""),
        ];
        let mut after = before.clone();
        let restored = merge(&mut after, &later, None);
        assert_eq!(after, Document::default());
        assert_eq!(restored.configured, later);
        assert_eq!((restored.added, restored.level), (Vec::new(), None));
        let told = restored.superseded.join("\n");
        for name in ["port a:", "port b:", "port c:", "log: RUST_LOG"] {
            assert!(told.contains(name), "{told}");
        }
        // The command line now lacks port b, so only the change of b is dropped.
        let mut after = before.clone();
        let restored = merge(&mut after, &[port("a", 1, "")], Some("warn"));
        assert!(restored.configured.is_empty());
        assert_eq!(restored.added.len(), 1);
        assert_eq!(restored.superseded.len(), 1);
    }

    #[test]
    fn a_port_that_replaces_one_of_the_same_name_is_restored() {
        let configured = [port("a", 1, "")];
        let mut document = Document::default();
        document.remove("a", &configured);
        document.add(port("a", 7, ""), SocketArgs::default());
        let restored = merge(&mut document, &configured, None);
        assert!(restored.configured.is_empty());
        assert_eq!(restored.added[0].0, port("a", 7, ""));
    }
}
