// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Breaches of style that a program can detect: long lines, and sentences that begin with a pronoun
//! or a relative clause instead of a noun.

use std::path::PathBuf;

use anyhow::Result;

use crate::comments::{paragraphs, Paragraph};
use crate::sources::{Language, SourceFile, Tree};

/// The maximum width of a line, in columns.
const COLUMNS: usize = 100;

/// Minimum length, in characters, of a word or quoted text whose line may be longer.
const UNBREAKABLE: usize = 60;

/// First words of a sentence that are pronouns: they leave it to the reader to find the noun.
const PRONOUNS: &[&str] = &[
    "what",
    "who",
    "whom",
    "whose",
    "which",
    "whatever",
    "whoever",
    "whichever",
    "those",
];

/// First words that are wrong only in these phrases.
const PHRASES: &[&str] = &[
    "something that",
    "something which",
    "somebody who",
    "someone who",
    "that which",
    "that one",
    "the one that",
    "the one which",
    "the one who",
    "the ones that",
    "one that",
    "one who",
];

/// Prepositions that may precede a pronoun at the start of a sentence.
const PREPOSITIONS: &[&str] = &[
    "as", "at", "beside", "by", "for", "from", "in", "of", "on", "to", "under", "with",
];

/// Files whose lines may be long. `setup` runs a stage again if the stage's text has changed, so
/// its lines are not wrapped.
const RECIPES: &[&str] = &["tools/dev/setup"];

/// Returns a complaint for each breach.
pub fn check(tree: &Tree, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for source in tree.sources(files)? {
        let path = &source.path;
        for (line, columns) in long_lines(&source) {
            complaints.push(format!("{path}:{}: line of {columns} columns", line + 1));
        }
        for paragraph in paragraphs(&source) {
            for start in bad_starts(&paragraph) {
                let line = paragraph.line + 1;
                complaints.push(format!(
                    "{path}:{line}: sentence without a noun: {start} ..."
                ));
            }
        }
    }
    Ok(complaints)
}

/// The long lines: their numbers and widths. Excluded are tables, links, directives, and lines with
/// a word or message that must not be broken.
fn long_lines(source: &SourceFile) -> Vec<(usize, usize)> {
    let is_long = |(_, line): &(usize, &str)| {
        let text = line.trim_start();
        let is_table = source.language == Language::Markdown && text.starts_with('|')
            || text.starts_with("//! |")
            || text.starts_with("/// |");
        let is_link = line.contains("://") || text.starts_with('[');
        let is_directive = text.starts_with("# more: ") || text.starts_with("# testbed: ");
        let is_unbreakable = |piece: &str| piece.len() > UNBREAKABLE;
        // A message must not be broken, so that a search finds it. Docstrings are not messages.
        let messages = line.replace("\"\"\"", " ");
        let is_quoted = |quote| messages.split(quote).skip(1).step_by(2).any(is_unbreakable);
        let has_single = matches!(source.language, Language::Shell | Language::Hash);
        let is_bound = line.split_whitespace().any(is_unbreakable)
            || is_quoted('"')
            || has_single && is_quoted('\'');
        let is_recipe = RECIPES.contains(&source.path.as_str());
        let is_exempt = is_recipe || is_table || is_link || is_directive || is_bound;
        columns(line, source.language) > COLUMNS && !is_exempt
    };
    let lines = source.text.lines().enumerate().filter(is_long);
    lines
        .map(|(number, line)| (number, columns(line, source.language)))
        .collect()
}

/// The width of a line in columns. A tab has 8 columns as in the kernel's style, or 4 in shell
/// scripts. A character has as many columns as bytes, which is how the kernel's checkpatch counts,
/// except in Markdown.
fn columns(line: &str, language: Language) -> usize {
    let tab = match language {
        Language::Shell => 4,
        _ => 8,
    };
    let step = |at: usize, c: char| match c {
        '\t' => at / tab * tab + tab,
        _ if language == Language::Markdown => at + 1,
        _ => at + c.len_utf8(),
    };
    line.chars().fold(0, step)
}

/// The wrong first words of sentences.
fn bad_starts(paragraph: &Paragraph) -> Vec<String> {
    let starts_small = paragraph.begins;
    sentences(&paragraph.text)
        .into_iter()
        .enumerate()
        .filter(|(at, sentence)| {
            !sentence.ends_with('?') && {
                let is_capital = sentence.starts_with(char::is_uppercase);
                (is_capital || (*at == 0 && starts_small)) && lacks_noun(sentence)
            }
        })
        .map(|(_, sentence)| {
            let words: Vec<&str> = sentence.split(' ').take(4).collect();
            words.join(" ")
        })
        .collect()
}

fn lacks_noun(sentence: &str) -> bool {
    let lower = sentence.to_lowercase();
    let mut words = lower.split(|c: char| !c.is_alphanumeric() && c != '\'');
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    let begins = |phrase: &str| {
        lower
            .strip_prefix(phrase)
            .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    let is_relative = |word: &str| ["what", "whom", "which"].contains(&word);
    PRONOUNS.contains(&first)
        || PHRASES.iter().any(|phrase| begins(phrase))
        || PREPOSITIONS.contains(&first) && is_relative(second)
}

/// Splits text into sentences: after each full stop, question mark or exclamation mark that is
/// followed by a space and a capital letter.
fn sentences(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices(['.', '?', '!']) {
        let rest = &text[at + 1..];
        let next = rest.trim_start();
        if rest.len() > next.len() && next.starts_with(|c: char| c.is_uppercase()) {
            found.push(text[start..=at].trim());
            start = at + 1;
        }
    }
    found.push(text[start..].trim());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(language: Language, text: &str) -> Vec<String> {
        let source = SourceFile {
            path: "x".into(),
            language,
            text: text.into(),
        };
        paragraphs(&source).iter().flat_map(bad_starts).collect()
    }

    #[test]
    fn sentences_without_a_noun() {
        let text =
            "/// What a queue does.\nx\n// who waits\nx\n/// A queue. Those of a port are few.\n";
        let found = starts(Language::Rust, text);
        assert_eq!(
            found,
            ["What a queue does.", "who waits", "Those of a port"]
        );
        assert_eq!(
            starts(Language::Shell, "# As whom it works.\n"),
            ["As whom it works."]
        );
        assert_eq!(starts(Language::Markdown, "- What it is\n"), ["What it is"]);
        assert_eq!(
            starts(Language::C, "/* Something that is done. */"),
            ["Something that is done."]
        );
    }

    #[test]
    fn sentences_with_a_noun_questions_and_items_in_a_sentence() {
        let text = "/// Whatsoever. Whether it runs. How long it runs. Something else.\nx\n";
        assert_eq!(starts(Language::Rust, text), [""; 0]);
        assert_eq!(starts(Language::Rust, "// What now?\n"), [""; 0]);
        assert_eq!(
            starts(Language::Markdown, "It has\n\n- what is left;\n- more.\n"),
            [""; 0]
        );
        assert_eq!(
            starts(Language::Rust, "let a = \"What \"; // the one\n"),
            [""; 0]
        );
    }

    #[test]
    fn lines_of_more_than_100_columns() {
        let long = format!("a {}", "b ".repeat(50));
        let text = format!(
            "{long}\n| {long}\n{}\n\t{}\n",
            "c".repeat(120),
            "d ".repeat(46)
        );
        let source = SourceFile {
            path: "x".into(),
            language: Language::Markdown,
            text,
        };
        assert_eq!(long_lines(&source), [(0, 102)]);
        let text = format!("# https://{long}\n# {long}\n# more: {long}\n");
        let source = SourceFile {
            path: "x".into(),
            language: Language::Shell,
            text,
        };
        assert_eq!(long_lines(&source), [(1, 104)]);
        let text = format!("\"\"\"{long}\"\"\"\nf(\"{long}\")\n");
        let source = SourceFile {
            path: "x".into(),
            language: Language::Python,
            text,
        };
        assert_eq!(long_lines(&source), [(0, 108)]);
        let all = [Language::Rust, Language::Shell, Language::Markdown];
        assert_eq!(all.map(|language| columns("a\tb", language)), [9, 5, 9]);
        assert_eq!(all.map(|language| columns("µ", language)), [2, 2, 1]);
    }
}
