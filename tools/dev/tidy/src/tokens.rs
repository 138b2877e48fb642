// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Splits a source into comments, space and code. In shell scripts, makefiles and Python, only
//! whole lines and docstrings are comments; a comment after code counts as code.

use ra_ap_rustc_lexer as lexer;

use crate::sources::Language;

/// The class of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Code: a token of the language, or a line where the language is split by lines.
    Code,
    /// A comment or a doc comment with its markers.
    Comment,
    /// White space.
    Space,
}

/// A piece of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub class: Class,
    pub text: &'a str,
    /// Offset of the first byte in the source.
    pub start: usize,
}

/// Splits the text of a source. The tokens cover the text without gaps.
pub fn split(language: Language, text: &str) -> Vec<Token<'_>> {
    match language {
        Language::Rust => rust(text),
        Language::C => c(text),
        Language::Shell => lines(text, Blocks::Heredocs),
        Language::Python => lines(text, Blocks::Docstrings),
        Language::Hash => lines(text, Blocks::None),
        Language::Markdown | Language::Man => {
            vec![Token {
                class: Class::Comment,
                text,
                start: 0,
            }]
        }
    }
}

fn rust(text: &str) -> Vec<Token<'_>> {
    let mut start = 0;
    lexer::tokenize(text)
        .map(|token| {
            let piece = &text[start..start + token.len as usize];
            let class = match token.kind {
                lexer::TokenKind::LineComment { .. } | lexer::TokenKind::BlockComment { .. } => {
                    Class::Comment
                }
                lexer::TokenKind::Whitespace => Class::Space,
                _ => Class::Code,
            };
            let token = Token {
                class,
                text: piece,
                start,
            };
            start += piece.len();
            token
        })
        .collect()
}

fn c(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let rest = &text[start..];
        let first = rest.chars().next().unwrap_or_default();
        let (class, length) = if rest.starts_with("//") {
            (Class::Comment, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (
                Class::Comment,
                rest.find("*/").map_or(rest.len(), |at| at + 2),
            )
        } else if first == '"' || first == '\'' {
            (Class::Code, quoted(rest, first))
        } else if first.is_whitespace() {
            (
                Class::Space,
                rest.find(|c: char| !c.is_whitespace())
                    .unwrap_or(rest.len()),
            )
        } else if is_word(first) {
            (
                Class::Code,
                rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            )
        } else {
            (Class::Code, first.len_utf8())
        };
        tokens.push(Token {
            class,
            text: &rest[..length],
            start,
        });
        start += length;
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a C string or character literal, including its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            '\n' => return at,
            _ => {}
        }
    }
    text.len()
}

/// Constructs that may span several lines in a language that is split by lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    None,
    /// Here-documents, in which lines that begin with `#` are not comments.
    Heredocs,
    /// Docstrings: strings that are statements of their own.
    Docstrings,
}

fn lines(text: &str, blocks: Blocks) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut start = 0;
    // The line that ends the current here-document, or the quotes that end the docstring.
    let mut until: Option<(String, Class)> = None;
    for line in text.split_inclusive('\n') {
        let content = line.trim();
        let class = if let Some((end, class)) = &until {
            let class = *class;
            let is_over = match blocks {
                Blocks::Docstrings => content.contains(end.as_str()),
                _ => content == end,
            };
            if is_over {
                until = None;
            }
            class
        } else if content.is_empty() {
            Class::Space
        } else if content.starts_with('#') && !(start == 0 && content.starts_with("#!")) {
            Class::Comment
        } else {
            match blocks {
                Blocks::None => Class::Code,
                Blocks::Heredocs => {
                    until = heredoc(content).map(|end| (end, Class::Code));
                    Class::Code
                }
                Blocks::Docstrings => {
                    let is_statement = content.starts_with("\"\"\"");
                    let class = if is_statement {
                        Class::Comment
                    } else {
                        Class::Code
                    };
                    if content.matches("\"\"\"").count() % 2 == 1 {
                        until = Some(("\"\"\"".into(), class));
                    }
                    class
                }
            }
        };
        tokens.push(Token {
            class,
            text: line,
            start,
        });
        start += line.len();
    }
    tokens
}

/// The end word of the here-document that begins in a line of shell, if any.
fn heredoc(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("<<")?;
    if rest.starts_with('<') {
        return None;
    }
    let rest = rest.strip_prefix('-').unwrap_or(rest).trim_start();
    let rest = rest.trim_start_matches(['\'', '"', '\\']);
    let word: String = rest.chars().take_while(|c| is_word(*c)).collect();
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
        .then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comments(language: Language, text: &str) -> Vec<&str> {
        let tokens = split(language, text);
        assert_eq!(
            tokens.iter().map(|token| token.text).collect::<String>(),
            text
        );
        let is_comment = |token: &&Token<'_>| token.class == Class::Comment;
        tokens
            .iter()
            .filter(is_comment)
            .map(|token| token.text.trim())
            .collect()
    }

    #[test]
    fn comments_of_rust_are_none_in_strings() {
        let text = "//! a\nlet b = \"// no\"; // c\nlet d = r#\"/* no\"#; /* e /* f */ */ 'x'";
        assert_eq!(
            comments(Language::Rust, text),
            ["//! a", "// c", "/* e /* f */ */"]
        );
    }

    #[test]
    fn comments_of_c_are_none_in_strings() {
        let text = "/* a\n * b */\nint c = '\"'; char *d = \"\\\"/* no\"; // e\n";
        assert_eq!(comments(Language::C, text), ["/* a\n * b */", "// e"]);
    }

    #[test]
    fn lines_of_a_here_document_are_no_comments() {
        let text =
            "#!/bin/sh\n# a\ncat <<-EOF\n\t# no\n\tEOF\nb <<<\"$c\"\n# d\nx=$((1 << 2))\n# e\n";
        assert_eq!(comments(Language::Shell, text), ["# a", "# d", "# e"]);
    }

    #[test]
    fn docstrings_are_comments_and_other_strings_are_not() {
        let text =
            "\"\"\"A\n\nb\"\"\"\nc = \"\"\"\n# no\n\"\"\"\ndef d():\n    \"\"\"E.\"\"\"\n# f\n";
        let found = comments(Language::Python, text);
        assert_eq!(found, ["\"\"\"A", "", "b\"\"\"", "\"\"\"E.\"\"\"", "# f"]);
    }
}
