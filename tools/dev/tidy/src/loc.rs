// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Counts lines by part of the project. Tests are counted separately: test files, and modules under
//! `#[cfg(test)]` in Rust files.

use crate::sources::{Language, SourceFile, Tree};
use crate::tokens::{split, Class, Token};
use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::{AddAssign, Range};

/// Line counts of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lines {
    files: usize,
    code: usize,
    comments: usize,
    blank: usize,
    tests: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.code += other.code;
        self.comments += other.comments;
        self.blank += other.blank;
        self.tests += other.tests;
    }
}

/// Returns a table of the parts, with a line of totals.
pub fn table(tree: &Tree) -> Result<String> {
    let mut parts: BTreeMap<String, Lines> = BTreeMap::new();
    for source in tree.sources(&[])? {
        if source.language.is_document() || source.language == Language::Hash {
            continue;
        }
        if let Some(part) = part(&source.path) {
            *parts.entry(part).or_default() += count(&source);
        }
    }
    let mut table = String::new();
    if parts.is_empty() {
        return Ok(table);
    }
    let mut total = Lines::default();
    let head = ["files", "code", "comments", "blank", "tests"];
    write!(table, "{:<20}", "part")?;
    for name in head {
        write!(table, "{name:>10}")?;
    }
    table.push('\n');
    for lines in parts.values() {
        total += *lines;
    }
    for (name, lines) in parts
        .iter()
        .map(|(name, lines)| (&**name, lines))
        .chain([("total", &total)])
    {
        write!(table, "{name:<20}")?;
        for number in [
            lines.files,
            lines.code,
            lines.comments,
            lines.blank,
            lines.tests,
        ] {
            write!(table, "{number:>10}")?;
        }
        table.push('\n');
    }
    Ok(table)
}

/// The part of the project that a file belongs to. The table is sorted by these names.
fn part(path: &str) -> Option<String> {
    let folders: Vec<&str> = path.split('/').collect();
    let part = match folders[..] {
        ["rust" | "drivers" | "samples" | "selftests", ..] if folders[0] != "rust" => folders[0],
        ["rust", kind, folder, ..] => return Some(format!("rust/{kind}/{folder}")),
        ["include", ..] => "drivers",
        ["tools", "rdmad", "src" | "tests", ..] => "tools/rdmad",
        ["tools", "rdmad", folder, ..] => return Some(format!("tools/rdmad/{folder}")),
        ["tools", folder, ..] => return Some(format!("tools/{folder}")),
        _ => return None,
    };
    Some(part.to_owned())
}

/// Whether a file has only tests.
fn is_test(path: &str) -> bool {
    path.starts_with("selftests/")
        || path.split('/').any(|folder| folder == "tests")
        || path.ends_with("/tests.rs")
        || path.ends_with("/testing.rs")
}

fn count(source: &SourceFile) -> Lines {
    let tokens = split(source.language, &source.text);
    let mut classes = vec![Class::Space; source.text.lines().count()];
    let mut line = 0;
    for token in &tokens {
        for text in token.text.split_inclusive('\n') {
            let class = match token.class {
                _ if text.trim().is_empty() => Class::Space,
                class => class,
            };
            match (class, classes.get_mut(line)) {
                (Class::Code, Some(found)) => *found = Class::Code,
                (Class::Comment, Some(found)) if *found == Class::Space => *found = Class::Comment,
                _ => {}
            }
            line += usize::from(text.ends_with('\n'));
        }
    }
    let tests = match source.language {
        Language::Rust => test_modules(&source.text, &tokens),
        _ => Vec::new(),
    };
    let mut lines = Lines {
        files: 1,
        ..Lines::default()
    };
    for (at, class) in classes.iter().enumerate() {
        let is_test = is_test(&source.path) || tests.iter().any(|range| range.contains(&at));
        match class {
            Class::Code if is_test => lines.tests += 1,
            Class::Code => lines.code += 1,
            Class::Comment => lines.comments += 1,
            Class::Space => lines.blank += 1,
        }
    }
    lines
}

/// The lines of modules under `#[cfg(test)]`.
fn test_modules(text: &str, tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let code: Vec<&Token<'_>> = tokens
        .iter()
        .filter(|token| token.class == Class::Code)
        .collect();
    let line = |token: &Token<'_>| text[..token.start].matches('\n').count();
    let mut found = Vec::new();
    for at in 0..code.len() {
        if !starts_with(
            &code[at..],
            &["#", "[", "cfg", "(", "test", ")", "]", "mod"],
        ) {
            continue;
        }
        let end = after_block(&code[at..]).map_or(code.len() - 1, |length| at + length - 1);
        found.push(line(code[at])..line(code[end]) + 1);
    }
    found
}

/// Whether the tokens begin with these words.
pub fn starts_with(tokens: &[&Token<'_>], words: &[&str]) -> bool {
    tokens.len() >= words.len()
        && tokens
            .iter()
            .zip(words)
            .all(|(token, word)| token.text == *word)
}

/// The number of tokens of the item with which the tokens begin, up to its `;` or the end of its
/// block.
pub fn after_block(tokens: &[&Token<'_>]) -> Option<usize> {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            ";" if depth == 0 => return Some(at + 1),
            _ => continue,
        }
        if depth == 0 {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, language: Language, text: &str) -> Lines {
        count(&SourceFile {
            path: path.into(),
            language,
            text: text.into(),
        })
    }

    #[test]
    fn lines_of_a_file() {
        let text =
            "//! A\n\nfn b() {} // c\n\n#[cfg(test)]\nmod tests {\n    // d\n    fn e() {}\n}\n";
        let expected = Lines {
            files: 1,
            code: 1,
            comments: 2,
            blank: 2,
            tests: 4,
        };
        assert_eq!(of("rust/a/b.rs", Language::Rust, text), expected);
        let expected = Lines {
            files: 1,
            code: 0,
            comments: 1,
            blank: 0,
            tests: 2,
        };
        assert_eq!(
            of("selftests/a.sh", Language::Shell, "#!/bin/sh\n# a\nb\n"),
            expected
        );
        let expected = Lines {
            files: 1,
            code: 2,
            comments: 0,
            blank: 0,
            tests: 0,
        };
        assert_eq!(
            of("tools/a.rs", Language::Rust, "let a = \"b\nc\";\n"),
            expected
        );
    }

    #[test]
    fn parts() {
        assert_eq!(
            part("rust/shared/abi/a/b.rs").as_deref(),
            Some("rust/shared/abi")
        );
        assert_eq!(
            part("tools/rdmad/src/main.rs").as_deref(),
            Some("tools/rdmad")
        );
        assert_eq!(
            part("tools/rdmad/verbs/src/lib.rs").as_deref(),
            Some("tools/rdmad/verbs")
        );
        assert_eq!(part("drivers/a/b.rs").as_deref(), Some("drivers"));
        assert_eq!(part("x.py"), None);
    }
}
