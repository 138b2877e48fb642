// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The status of a running daemon: the server, and the command that requests the status.
//!
//! A client writes one word, `text`, `json` or `metrics`. The daemon reads the state of devices
//! without delaying their workers.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use anyhow::{bail, Context, Result};
use sandbox::Kind;

use crate::line_server::{self, whole, Answers, Pieces};
use crate::metrics;
use crate::report::Report;

/// Format of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Tables.
    Text,
    Json,
    /// OpenMetrics.
    Metrics,
}

impl Form {
    const fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Metrics => "metrics",
        }
    }

    fn of(word: &[u8]) -> Option<Self> {
        [Self::Text, Self::Json, Self::Metrics]
            .into_iter()
            .find(|form| form.word().as_bytes() == word)
    }
}

/// Answers requests with the report that the given function returns. Its argument is whether the
/// report has the QPs: the metrics have only their number, and JSON gets their descriptions in
/// pieces.
pub struct Status<F>(pub F);

impl<F: Fn(bool) -> Report + Send + 'static> Answers for Status<F> {
    const KIND: Kind = Kind::Status;
    const MAX_REQUEST: usize = 16;
    const TAKES_DESCRIPTORS: bool = false;

    fn answer(
        &mut self,
        _: &Arc<UnixStream>,
        request: &[u8],
        _: Vec<OwnedFd>,
    ) -> io::Result<Option<Pieces>> {
        let look = &self.0;
        Ok(Some(match Form::of(request) {
            Some(Form::Text) => whole(look(true).to_string().into_bytes()),
            Some(Form::Json) => look(false).json(),
            Some(Form::Metrics) => whole(metrics::text(look(false)).into_bytes()),
            None => return Err(io::Error::other("unknown request")),
        }))
    }
}

/// Requests the status of the daemon that listens at `socket`, and copies it to `to`.
pub fn show(socket: &Path, form: Form, to: &mut impl Write) -> Result<()> {
    let context = || format!("no status from {}", socket.display());
    let copied = line_server::ask(socket, form.word(), &[], to).with_context(context)?;
    if copied == 0 {
        bail!("{}: the server does not know the request", context());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_server::LineServer;
    use crate::report::EngineReport;
    use sockets::Access;
    use verbs::RuntimeStatus;

    #[test]
    fn a_question_has_three_forms() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status");
        let look = |has_qps| {
            let (engine, runtime) = (EngineReport::default(), RuntimeStatus::default());
            Report::new(engine, runtime, vec![], vec![], has_qps)
        };
        let _server = LineServer::start(&path, &Access::default(), Status(look)).unwrap();
        for (form, begins) in [
            (Form::Text, "virtio-rdmad"),
            (Form::Json, "{"),
            (Form::Metrics, "# "),
        ] {
            let mut answer = Vec::new();
            show(&path, form, &mut answer).unwrap();
            assert!(answer.starts_with(begins.as_bytes()), "{form:?}");
        }
    }
}
