// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! QEMU's arguments that attach a VM to a port of the daemon, also as XML for libvirt.

#![forbid(unsafe_code)]

mod libvirt;
mod memory;
mod port;

pub use libvirt::domain;
pub use memory::{Backend, VmMemory};
pub use port::{interface, Port};

/// An option of QEMU and its value.
pub type Argument = [String; 2];

fn argument(option: &str, value: impl Into<String>) -> Argument {
    [option.to_owned(), value.into()]
}

/// A command line for a shell, with one option on each line.
pub fn shell(arguments: &[Argument]) -> String {
    let lines: Vec<_> = arguments
        .iter()
        .map(|[option, value]| format!("{option} {}", quote(value)))
        .collect();
    lines.join(" \\\n")
}

/// Quotes a word for a shell. The word must not contain a NUL byte, which can't be quoted.
fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into)
}

/// Escapes a value for QEMU's lists of `KEY=VALUE`: each comma is doubled.
fn value(text: &str) -> String {
    text.replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_as_they_are() {
        let arguments = [
            argument("-m", "2G"),
            argument("-device", r#"{"path":"/tmp/a b'c"}"#),
        ];
        let line = shell(&arguments);
        assert_eq!(line.lines().count(), 2);
        let words = shlex::split(&line.replace("\\\n", "")).unwrap();
        assert_eq!(words, arguments.concat());
    }

    #[test]
    fn commas_of_paths_end_no_value() {
        assert_eq!(value("/run/a,b"), "/run/a,,b");
    }
}
