// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The paragraphs of comments and documents.

use crate::sources::{Language, SourceFile};
use crate::tokens::{split, Class};

/// A paragraph or list item of one or several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paragraph {
    /// Index of the first line, from 0.
    pub line: usize,
    /// The text. Its lines are joined by spaces.
    pub text: String,
    /// Whether the paragraph is the first one of a comment.
    pub begins: bool,
    /// Whether its lines have no code.
    alone: bool,
}

/// A line of a comment or document, without markers.
struct Line<'a> {
    number: usize,
    text: &'a str,
    /// Whether a comment may begin in this line.
    begins: bool,
    /// Whether the line has no code.
    alone: bool,
}

/// Returns the paragraphs of a source, without code blocks, tables, headings and directives.
pub fn paragraphs(source: &SourceFile) -> Vec<Paragraph> {
    let lines = lines(source);
    let mut found: Vec<Paragraph> = Vec::new();
    // Whether the next line may continue the last paragraph.
    let mut open = false;
    let mut fence = false;
    let mut first_of_comment = true;
    let mut item_indent: Option<usize> = None;
    for line in &lines {
        let indent = line.text.len() - line.text.trim_start().len();
        let text = line.text.trim();
        if line.begins {
            (open, fence, first_of_comment, item_indent) = (false, false, true, None);
        }
        if is_fence(source.language, text) {
            fence = !fence;
            open = false;
            continue;
        }
        if fence || text.is_empty() {
            open = false;
            continue;
        }
        if is_no_prose(source.language, text) {
            open = false;
            first_of_comment = false;
            continue;
        }
        let marker = item_marker(text);
        if !open && indent == 0 && marker == 0 {
            item_indent = None;
        }
        // Indented text is code, unless it continues a list item.
        let is_code = match item_indent {
            _ if marker > 0 => indent >= 4 && item_indent.is_none(),
            None => indent >= if source.language.is_document() { 4 } else { 2 },
            Some(item) => !open && indent >= item + 4,
        };
        if is_code {
            open = false;
            first_of_comment = false;
            continue;
        }
        match found.last_mut() {
            Some(last) if open && marker == 0 && last.alone && line.alone => {
                last.text.push(' ');
                last.text.push_str(text);
            }
            _ => {
                if marker > 0 {
                    item_indent = Some(indent + marker);
                }
                found.push(Paragraph {
                    line: line.number,
                    text: text[marker..].to_owned(),
                    begins: first_of_comment,
                    alone: line.alone,
                });
            }
        }
        first_of_comment = false;
        open = true;
    }
    found
}

/// The length of the marker of a list item, including the space after it; 0 without a marker.
fn item_marker(text: &str) -> usize {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let marker = match &text[digits..] {
        rest if digits > 0 && rest.starts_with(". ") => digits + 1,
        rest if digits == 0 && (rest.starts_with("- ") || rest.starts_with("* ")) => 1,
        _ => return 0,
    };
    marker + text[marker..].len() - text[marker..].trim_start().len()
}

/// Whether a block of code begins or ends with this line.
fn is_fence(language: Language, text: &str) -> bool {
    match language {
        Language::Man => [".nf", ".fi", ".EX", ".EE", ".TS", ".TE"].contains(&text),
        _ => text.starts_with("```"),
    }
}

/// Whether a line is a heading, a part of a table, or a directive.
fn is_no_prose(language: Language, text: &str) -> bool {
    if language == Language::Man {
        return text.starts_with(['.', '\'']);
    }
    let is_directive = [
        "abi: ",
        "testbed: ",
        "more: ",
        "shellcheck ",
        "SPDX-",
        "///",
        "rustfmt::",
    ]
    .iter()
    .any(|word| text.starts_with(word));
    let is_heading = text.starts_with('#') && text.trim_start_matches('#').starts_with(' ');
    let is_definition = text.starts_with('[') && text.contains("]: ");
    is_directive || is_heading || is_definition || text.starts_with('|') || text.starts_with("<!--")
}

fn lines(source: &SourceFile) -> Vec<Line<'_>> {
    let text = &source.text;
    if source.language.is_document() {
        let line = |(number, text)| Line {
            number,
            text,
            begins: number == 0,
            alone: true,
        };
        return text.lines().enumerate().map(line).collect();
    }
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut number = 0;
    let mut is_new = true;
    for token in split(source.language, text) {
        let begin = text[..token.start].rfind('\n').map_or(0, |at| at + 1);
        let before = &text[begin..token.start];
        match token.class {
            Class::Code => is_new = true,
            Class::Space => is_new |= token.text.matches('\n').count() > 1,
            Class::Comment => {
                let alone = before.trim().is_empty();
                is_new |= !alone;
                for (at, line) in token.text.lines().enumerate() {
                    let begins = at == 0 && (is_new || token.text.starts_with("/*"));
                    let marker = marker(source.language, line, at == 0);
                    let end = text[token.start + token.text.len()..].lines().next();
                    let is_last = at + 1 == token.text.lines().count();
                    let is_followed = is_last
                        && !token.text.ends_with('\n')
                        && end.is_some_and(|rest| !rest.trim().is_empty());
                    lines.push(Line {
                        number: number + at,
                        text: content(source.language, &line[marker..]),
                        begins,
                        alone: alone && !is_followed,
                    });
                }
                // Another kind of comment starts a new comment, and so does a comment after code.
                let kind = token.text[..marker(source.language, token.text, true)].trim();
                let rest = text[token.start + token.text.len()..].trim_start();
                let next = rest[..marker(source.language, rest, true)].trim();
                is_new = !alone || kind.starts_with("//") && kind != next;
            }
        }
        number += token.text.matches('\n').count();
    }
    lines
}

/// The length of a line's comment marker, including indentation and one space.
fn marker(language: Language, line: &str, is_first: bool) -> usize {
    let indent = line.len() - line.trim_start().len();
    let text = &line[indent..];
    let markers: &[&str] = match language {
        Language::Rust | Language::C if is_first => &["///", "//!", "//", "/**", "/*!", "/*"],
        Language::Rust | Language::C if text.starts_with("*/") => return line.len(),
        Language::Rust | Language::C => &["*"],
        Language::Python => &["\"\"\"", "#"],
        _ => &["#"],
    };
    let found = markers.iter().find(|marker| text.starts_with(**marker));
    let length = indent + found.map_or(0, |marker| marker.len());
    length + usize::from(found.is_some() && line[length..].starts_with([' ', '\t']))
}

/// The text of a comment line, without the `*/` that ends the comment.
fn content(language: Language, line: &str) -> &str {
    match language {
        Language::C | Language::Rust => line.strip_suffix("*/").unwrap_or(line),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(language: Language, text: &str) -> Vec<Paragraph> {
        paragraphs(&SourceFile {
            path: "x".into(),
            language,
            text: text.into(),
        })
    }

    fn texts(language: Language, text: &str) -> Vec<String> {
        of(language, text)
            .into_iter()
            .map(|paragraph| paragraph.text)
            .collect()
    }

    #[test]
    fn a_doc_comment_has_paragraphs_and_items() {
        let text = "/// A\n/// b.\n///\n/// - C\n///   d\n/// - E\n///\n/// ```\n/// F\n/// ```\nfn g() {}";
        assert_eq!(texts(Language::Rust, text), ["A b.", "C d", "E"]);
        let found = of(Language::Rust, text);
        assert_eq!((found[0].begins, found[1].begins), (true, false));
        assert_eq!(found[1].line, 3);
    }

    #[test]
    fn comments_of_two_kinds_and_with_code_between_are_apart() {
        let text = "//! A\n\n/// B\nstruct C; // d\n// e\n/// f\nx\n    // g\n    // h\n";
        assert_eq!(
            texts(Language::Rust, text),
            ["A", "B", "d", "e", "f", "g h"]
        );
        let found = of(Language::Rust, text);
        assert!(found.iter().all(|paragraph| paragraph.begins));
    }

    #[test]
    fn a_block_comment_of_c() {
        let text = "/*\n * A\n * b.\n *\n * C\n */\nint d; /* e */\n";
        assert_eq!(texts(Language::C, text), ["A b.", "C", "e"]);
    }

    #[test]
    fn documents_without_tables_headings_and_code() {
        let text = "# A\n\nB\nc.\n\n    d\n\n| e |\n|---|\n\n1. F\n   g\n\n   h\n- I\n";
        assert_eq!(texts(Language::Markdown, text), ["B c.", "F g", "h", "I"]);
        let text = ".TH a\nB\n.nf\nc\n.fi\nD\n.B e\nF\n";
        assert_eq!(texts(Language::Man, text), ["B", "D", "F"]);
    }

    #[test]
    fn scripts_have_comments_and_docstrings() {
        let text = "#!/bin/sh\n# A\n# b\n#\n#   c\nd\n# shellcheck disable=SC1\n# e\n";
        assert_eq!(texts(Language::Shell, text), ["A b", "e"]);
        let text = "\"\"\"A\nb\"\"\"\ndef c():\n    # d\n    pass\n";
        assert_eq!(texts(Language::Python, text), ["A b\"\"\"", "d"]);
    }
}
