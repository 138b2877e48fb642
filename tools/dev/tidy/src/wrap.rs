// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Wraps paragraphs of comments and documents that have a long line.

use crate::comments::{paragraphs, Paragraph};
use crate::prose::{columns, COLUMNS};
use crate::sources::{Language, SourceFile, Tree};
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Wraps files and returns the paths of the changed files.
pub fn wrap(tree: &Tree, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    for source in tree.sources(files)? {
        if let Some(text) = wrapped(&source) {
            std::fs::write(tree.top().join(&source.path), text).context(source.path.clone())?;
            changed.push(source.path);
        }
    }
    Ok(changed)
}

/// The wrapped text of a source, or `None` if nothing changes.
fn wrapped(source: &SourceFile) -> Option<String> {
    let mut lines: Vec<String> = source.text.lines().map(String::from).collect();
    let mut changed = false;
    let paragraphs = match source.language {
        // In a man page, each line is wrapped on its own: by roff's custom it is a sentence or a
        // clause.
        Language::Man => paragraphs(source)
            .iter()
            .flat_map(|whole| by_line(whole, &lines))
            .collect(),
        _ => paragraphs(source),
    };
    // Start from the end, so that the indices of earlier lines stay valid.
    for paragraph in paragraphs.into_iter().rev() {
        let range = paragraph.line..paragraph.line + paragraph.lines;
        let is_long = lines[range.clone()]
            .iter()
            .any(|line| columns(line, source.language) > COLUMNS);
        // Block comments are not wrapped: their end is not a word.
        let is_block = lines[range.clone()]
            .iter()
            .any(|line| line.trim_end().ends_with("*/"));
        if is_long && paragraph.alone && !is_block {
            let new = fill(&paragraph, source.language);
            if lines[range.clone()] != new {
                lines.splice(range, new);
                changed = true;
            }
        }
    }
    changed.then(|| lines.join("\n") + "\n")
}

/// Splits a paragraph into one paragraph for each line.
fn by_line(whole: &Paragraph, lines: &[String]) -> Vec<Paragraph> {
    let of_line = |line: usize| Paragraph {
        line,
        lines: 1,
        text: lines[line].clone(),
        ..whole.clone()
    };
    (whole.line..whole.line + whole.lines)
        .map(of_line)
        .collect()
}

/// Wraps a paragraph and returns its lines.
fn fill(paragraph: &Paragraph, language: Language) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = paragraph.first.clone();
    let mut is_empty = true;
    for word in paragraph.text.split_whitespace() {
        let is_bound = binds(word, language);
        let width = columns(&line, language) + 1 + columns(word, language);
        if !is_empty && !is_bound && width > COLUMNS {
            lines.push(std::mem::replace(&mut line, paragraph.rest.clone()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

/// Whether a line that begins with this word would be markup instead of text.
fn binds(word: &str, language: Language) -> bool {
    let is_number = word
        .strip_suffix('.')
        .is_some_and(|digits| digits.parse::<u32>().is_ok());
    match language {
        Language::Man => word.starts_with(['.', '\'']),
        _ => ["-", "*", "+", ">", "|"].contains(&word) || word.starts_with('#') || is_number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap_text(language: Language, text: &str) -> Option<String> {
        wrapped(&SourceFile {
            path: "x".into(),
            language,
            text: text.into(),
        })
    }

    #[test]
    fn only_paragraphs_with_a_long_line_change() {
        let long = "word ".repeat(25);
        let long = long.trim_end();
        let text =
            format!("    /// A\n    /// b.\n    ///\n    /// - {long}\n    /// - c\nfn d() {{}}\n");
        let expected = format!(
            "    /// A\n    /// b.\n    ///\n    /// - {}\n    ///   {}\n    /// - c\nfn d() {{}}\n",
            "word ".repeat(18).trim_end(),
            "word ".repeat(7).trim_end(),
        );
        assert_eq!(wrap_text(Language::Rust, &text), Some(expected.clone()));
        assert_eq!(wrap_text(Language::Rust, &expected), None);
    }

    #[test]
    fn lines_of_man_pages_are_wrapped_one_by_one() {
        let long = "word ".repeat(25);
        let expected = format!(
            "A.\n{}\n{}\nB.\n",
            long[..99].trim_end(),
            long[100..].trim_end()
        );
        assert_eq!(
            wrap_text(Language::Man, &format!("A.\n{}\nB.\n", long.trim_end())),
            Some(expected)
        );
    }

    #[test]
    fn no_line_begins_with_a_marker() {
        let text = format!("{} - 7. #1 end\n", "x".repeat(98));
        assert_eq!(
            wrap_text(Language::Markdown, &text),
            Some(format!("{} - 7. #1\nend\n", "x".repeat(98)))
        );
        let text = format!("# {} {}\n", "y ".repeat(48).trim_end(), "zz zz");
        assert_eq!(
            wrap_text(Language::Shell, &text),
            Some(format!("# {} zz\n# zz\n", "y ".repeat(48).trim_end()))
        );
    }

    #[test]
    fn comments_after_code_and_tables_stay() {
        let long = "word ".repeat(25);
        assert_eq!(
            wrap_text(Language::Rust, &format!("let a = 1; // {long}\n")),
            None
        );
        assert_eq!(wrap_text(Language::Markdown, &format!("| {long}|\n")), None);
        assert_eq!(
            wrap_text(Language::Markdown, &format!("```\n{long}\n```\n")),
            None
        );
    }
}
