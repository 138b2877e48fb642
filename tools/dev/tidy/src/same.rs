// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks that a change affects only prose: without comments, the files have the same tokens.

use crate::sources::{Language, Tree};
use crate::tokens::{split, Class};
use anyhow::{Context, Result};

/// Returns a complaint for each file whose code differs between the trees, or that only one tree
/// has.
pub fn check(new: &Tree, old: &Tree) -> Result<Vec<String>> {
    let is_in = |tree: &Tree, path: &String| tree.paths().contains(path);
    let mut complaints = Vec::new();
    for path in old.paths().iter().filter(|path| !is_in(new, path)) {
        complaints.push(format!("{path}: removed"));
    }
    for path in new.paths() {
        if !is_in(old, path) {
            complaints.push(format!("{path}: added"));
            continue;
        }
        let read = |tree: &Tree| std::fs::read(tree.top().join(path)).context(path.clone());
        let (before, after) = (read(old)?, read(new)?);
        if before != after {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let fault = difference(path, &text(&before), &text(&after));
            complaints.extend(fault.map(|fault| format!("{path}{fault}")));
        }
    }
    Ok(complaints)
}

/// The first difference between the code of two versions of a file, if there is one.
fn difference(path: &str, old: &str, new: &str) -> Option<String> {
    let Some(language) = Language::of(path, new) else {
        return Some(": changed, and no language is known for it".into());
    };
    let (old, new) = (code(language, old), code(language, new));
    if old == new {
        return None;
    }
    let at = old.iter().zip(&new).position(|(old, new)| old.1 != new.1);
    let at = at.unwrap_or(old.len().min(new.len()));
    let line = new.get(at).or(new.last()).map_or(0, |token| token.0);
    Some(format!(":{}: other code", line + 1))
}

/// A token of code, with its line number. Line numbers are not compared, since comments move them.
struct Piece<'a>(usize, &'a str);

impl PartialEq for Piece<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

fn code(language: Language, text: &str) -> Vec<Piece<'_>> {
    let is_code = |class| class == Class::Code;
    let mut line = 0;
    let mut pieces = Vec::new();
    for token in split(language, text) {
        if is_code(token.class) {
            pieces.push(Piece(line, token.text));
        }
        line += token.text.matches('\n').count();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_space_make_no_difference() {
        let old = "/// A\nfn b() { c(\"d\") } // e\n";
        let new = "/// F\n/// g\nfn b() {\n    // h\n    c(\"d\")\n}\n";
        assert_eq!(difference("x.rs", old, new), None);
        assert_eq!(
            difference("x.c", "/* a */ int b;", "int /* c\n */ b;"),
            None
        );
        assert_eq!(difference("x.sh", "# a\nb\n", "# c\n\n# d\nb\n"), None);
        assert_eq!(
            difference("x.py", "\"\"\"a\"\"\"\nb\n", "\"\"\"c\n\nd\n\"\"\"\nb\n"),
            None
        );
        assert_eq!(difference("x.md", "a", "b"), None);
    }

    #[test]
    fn tokens_make_a_difference() {
        let fault = Some(":2: other code".to_owned());
        assert_eq!(
            difference("x.rs", "// a\nlet b = \"// c\";", "// a\nlet b = \"// d\";"),
            fault
        );
        assert_eq!(difference("x.rs", "a\nb", "a\nb c"), fault);
        assert_eq!(difference("x.rs", "a\nb c", "a\nb"), fault);
        assert_eq!(difference("x.c", "\na b", "\nab"), fault);
        assert_eq!(difference("x.sh", "a\n\tb\n", "a\nb\n"), fault);
        assert_eq!(
            difference("x.sh", "a <<E\n# b\nE\n", "a <<E\n# c\nE\n"),
            fault
        );
        assert!(difference("x.bin", "a", "b").is_some());
    }
}
