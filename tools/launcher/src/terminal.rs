// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The user's terminal while a guest's shell uses it.

use std::io::{stdin, stdout, IsTerminal};

use rustix::termios::{tcgetattr, tcgetwinsize, tcsetattr, OptionalActions, Termios};

/// Raw mode: every key, including Ctrl-C, is passed to the guest. Ends on drop.
pub struct Raw(Termios);

impl Raw {
    /// Switches standard input to raw mode, if it is a terminal.
    pub fn enter() -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// Rows and columns of the terminal, or 24 and 80 without a terminal.
pub fn size() -> (u16, u16) {
    match tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => (24, 80),
    }
}
