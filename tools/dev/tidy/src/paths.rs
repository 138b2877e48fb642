// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks references in documents and comments: files, functions in files, links and their anchors.
//!
//! A code span is a reference to a file if it has a source's extension, or begins with a folder of
//! this checkout. Leading folders may be omitted. `FILE:NAME` refers to a function or type that the
//! file defines.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::sources::{Language, SourceFile, Tree};
use crate::tokens::{split, Class};

/// Extensions of sources.
const EXTENSIONS: &[&str] = &[".rs", ".c", ".h", ".sh", ".py", ".md", ".edit", ".patch"];

/// Top-level folders with which no path of another project begins.
const FOLDERS: &[&str] = &[
    "Documentation/",
    "rust/",
    "samples/",
    "selftests/",
    "tools/",
];

/// Beginnings of paths in other projects or on a user's machine.
const FOREIGN: &[&str] = &[
    "include/",
    "drivers/infiniband/core/",
    "tools/testing/",
    "infiniband/",
    "rxe_",
];

/// Returns a complaint for each broken reference.
pub fn check(tree: &Tree) -> Result<Vec<String>> {
    let paths = tree.paths();
    let sources = tree.sources(&[])?;
    let texts: BTreeMap<&str, &str> = sources
        .iter()
        .map(|source| (&*source.path, &*source.text))
        .collect();
    let mut complaints = Vec::new();
    for source in &sources {
        let is_markdown = source.language == Language::Markdown;
        for (number, line) in prose_lines(source) {
            let place = format!("{}:{}", source.path, number + 1);
            for span in spans(line) {
                if let Some(fault) = span_fault(paths, &texts, span) {
                    complaints.push(format!("{place}: `{span}`: {fault}"));
                }
            }
            if is_markdown {
                for target in links(line) {
                    if let Some(fault) = link_fault(&texts, paths, &source.path, target) {
                        complaints.push(format!("{place}: link {target}: {fault}"));
                    }
                }
            }
        }
    }
    Ok(complaints)
}

/// The lines of a document, or of a source's comments, with their numbers.
fn prose_lines(source: &SourceFile) -> Vec<(usize, &str)> {
    if source.language.is_document() {
        let mut fence = false;
        let mut is_text = |line: &str| {
            let is_fence = line.trim_start().starts_with("```");
            fence ^= is_fence;
            !is_fence && !fence
        };
        return source
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| is_text(line))
            .collect();
    }
    let mut line = 0;
    let mut lines = Vec::new();
    for token in split(source.language, &source.text) {
        if token.class == Class::Comment {
            lines.extend(
                token
                    .text
                    .lines()
                    .enumerate()
                    .map(|(at, text)| (line + at, text)),
            );
        }
        line += token.text.matches('\n').count();
    }
    lines
}

/// The code spans of a line.
fn spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// The targets of links in a line.
fn links(line: &str) -> Vec<&str> {
    let end = |rest: &str| rest.find(')');
    line.match_indices("](")
        .filter_map(|(at, _)| end(&line[at + 2..]).map(|end| &line[at + 2..at + 2 + end]))
        .collect()
}

/// The reason why a code span is a broken reference, if it is one.
fn span_fault(paths: &[String], texts: &BTreeMap<&str, &str>, span: &str) -> Option<String> {
    let (file, name) = match span.split_once(':') {
        Some((file, name)) if !name.starts_with(':') => (file, Some(name)),
        _ => (span, None),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    let is_source = EXTENSIONS
        .iter()
        .any(|end| file.ends_with(end) && file.len() > end.len());
    let is_inside = FOLDERS.iter().any(|folder| file.starts_with(folder));
    let is_foreign = FOREIGN.iter().any(|folder| file.starts_with(folder));
    let is_placeholder = file.split(['/', '.', '-', '_']).any(|part| {
        part.len() > 2 && part.chars().all(|c| c.is_ascii_uppercase()) && part != "README"
    });
    let is_ours = (is_source || is_inside) && !is_foreign && !is_placeholder;
    if !is_ours || !file.chars().all(is_plain) || file.starts_with(['/', '.']) {
        return None;
    }
    let found: Vec<&String> = paths.iter().filter(|path| names(path, file)).collect();
    if found.is_empty() {
        return Some("there is no such file".into());
    }
    let name = name?;
    let is_defined = found.iter().any(|path| {
        texts
            .get(path.as_str())
            .is_some_and(|text| defines(text, name))
    });
    (!is_defined).then(|| format!("the file defines no {name}"))
}

/// Whether `file` is `path` without some leading folders, or a folder of `path`.
fn names(path: &str, file: &str) -> bool {
    let file = file.trim_end_matches('/');
    path == file
        || path
            .strip_suffix(file)
            .is_some_and(|before| before.ends_with('/'))
        || path
            .strip_prefix(file)
            .is_some_and(|rest| rest.starts_with('/'))
        || path.contains(&format!("/{file}/"))
}

/// Whether a text defines a function, type or constant.
fn defines(text: &str, name: &str) -> bool {
    let name = name
        .rsplit("::")
        .next()
        .unwrap_or(name)
        .trim_end_matches("()");
    let words = [
        "fn ",
        "struct ",
        "enum ",
        "trait ",
        "const ",
        "static ",
        "mod ",
        "type ",
        "def ",
        "macro_rules! ",
    ];
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    words.iter().any(|word| {
        let definition = format!("{word}{name}");
        text.match_indices(&definition)
            .any(|(at, _)| is_end(&text[at + definition.len()..]))
    }) || text
        .lines()
        .any(|line| line.starts_with(&format!("{name}() {{")))
}

/// The reason why a link of a document is broken, if it is.
fn link_fault(
    texts: &BTreeMap<&str, &str>,
    paths: &[String],
    from: &str,
    target: &str,
) -> Option<&'static str> {
    if target.contains("::") || target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target
        .split_once('#')
        .map_or((target, None), |(f, a)| (f, Some(a)));
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let path = if file.is_empty() {
        from.to_owned()
    } else {
        join(folder, file)
    };
    let folder = format!("{}/", path.trim_end_matches('/'));
    if !paths
        .iter()
        .any(|known| *known == path || known.starts_with(&folder))
    {
        return Some("there is no such file");
    }
    let anchor = anchor?;
    let text = texts.get(path.as_str())?;
    (!anchors(text).contains(anchor)).then_some("the file has no such heading")
}

fn join(folder: &str, file: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in file.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of the headings of a document.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut fence = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        fence ^= line.starts_with("```");
        if fence || !line.starts_with('#') {
            continue;
        }
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let keep = |c: &char| c.is_alphanumeric() || "_- ".contains(*c);
        let anchor: String = heading.chars().filter(keep).collect();
        found.insert(anchor.replace(' ', "-"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(span: &str) -> Option<String> {
        let paths = [
            "tools/a/src/b.rs".to_owned(),
            "Documentation/c.md".to_owned(),
        ];
        let text = "pub fn d() {}\nstruct E<T>;\nimpl E {\n    const fn f() {}\n}\n";
        let texts = BTreeMap::from([("tools/a/src/b.rs", text), ("Documentation/c.md", "")]);
        span_fault(&paths, &texts, span)
    }

    #[test]
    fn spans_that_lead_somewhere() {
        let good = [
            "tools/a/src/b.rs",
            "src/b.rs",
            "b.rs",
            "tools/a",
            "c.md",
            "b.rs:d",
            "src/b.rs:E::f()",
        ];
        let foreign = [
            "a::b",
            "include/x.h",
            "NAME.rs",
            "/etc/x.c",
            "--option",
            "fn x()",
            "*.rs",
        ];
        for span in good.iter().chain(&foreign) {
            assert_eq!(fault(span), None, "{span}");
        }
    }

    #[test]
    fn spans_that_lead_nowhere() {
        for span in [
            "tools/b",
            "rc/b.rs",
            "x.rs",
            "b.rs:g",
            "b.rs:D",
            "b.rs:E::d2",
            "tools/a/src/c.rs",
        ] {
            assert!(fault(span).is_some(), "{span}");
        }
    }

    #[test]
    fn links_and_anchors() {
        let texts = BTreeMap::from([("a/b.md", "# It's `b`: c\n"), ("d.md", "")]);
        let paths = ["a/b.md".to_owned(), "d.md".to_owned()];
        let fault = |from, target| link_fault(&texts, &paths, from, target);
        assert_eq!(links("[a](b.md), [c](d#e)"), ["b.md", "d#e"]);
        for target in [
            "b.md",
            "#its-b-c",
            "../d.md",
            "../a/b.md#its-b-c",
            "https://x/y.md",
            "../a",
        ] {
            assert_eq!(fault("a/b.md", target), None, "{target}");
        }
        for target in ["d.md", "../b.md", "#b", "b.md#c"] {
            assert!(fault("a/b.md", target).is_some(), "{target}");
        }
    }
}
