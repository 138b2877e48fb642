// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The files of the checkout and their languages.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The language of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Rust,
    /// C, headers included.
    C,
    /// Shell scripts.
    Shell,
    Python,
    /// Makefiles and configuration files, with comments that begin with `#`.
    Hash,
    Markdown,
    /// Man pages.
    Man,
}

impl Language {
    /// Returns the language of a file, or `None` for data.
    pub fn of(path: &str, text: &str) -> Option<Self> {
        if path.starts_with("LICENSES/") {
            return None;
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        match (name, extension) {
            ("Makefile" | "Kbuild", _) | (_, "toml" | "yml") => return Some(Self::Hash),
            (_, "rs") => return Some(Self::Rust),
            (_, "c" | "h") => return Some(Self::C),
            (_, "sh") => return Some(Self::Shell),
            (_, "py") => return Some(Self::Python),
            (_, "md") => return Some(Self::Markdown),
            (_, "1" | "3" | "7") if path.contains("/man/") => return Some(Self::Man),
            _ => {}
        }
        let first = text.lines().next().unwrap_or_default();
        match first.strip_prefix("#!") {
            Some(program) if program.contains("python") => Some(Self::Python),
            Some(program) if program.ends_with("sh") => Some(Self::Shell),
            _ => None,
        }
    }

    /// Whether a file of this language is prose as a whole.
    pub fn is_document(self) -> bool {
        matches!(self, Self::Markdown | Self::Man)
    }
}

pub struct SourceFile {
    /// The path, relative to the top of the checkout.
    pub path: String,
    pub language: Language,
    /// The content of the file.
    pub text: String,
}

/// A directory and the paths of its files.
pub struct Tree {
    top: PathBuf,
    paths: Vec<String>,
}

impl Tree {
    /// Opens a checkout. `list` is a file with the paths of its files, one per line.
    pub fn open(top: PathBuf, list: &Path) -> Result<Self> {
        let list = std::fs::read_to_string(list).with_context(|| list.display().to_string())?;
        let exists = |path: &&str| top.join(path).is_file();
        let paths = list.lines().filter(exists).map(String::from).collect();
        Ok(Self { top, paths })
    }

    /// The top directory.
    pub fn top(&self) -> &Path {
        &self.top
    }

    /// The paths of all files below the top directory.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }

    /// All files with a known language. If `only` is not empty, only files in these files and
    /// folders.
    pub fn sources(&self, only: &[PathBuf]) -> Result<Vec<SourceFile>> {
        let mut sources = Vec::new();
        for path in &self.paths {
            if !only.is_empty() && !only.iter().any(|file| Path::new(path).starts_with(file)) {
                continue;
            }
            let bytes = std::fs::read(self.top.join(path)).with_context(|| path.clone())?;
            let Ok(text) = String::from_utf8(bytes) else {
                continue;
            };
            if let Some(language) = Language::of(path, &text) {
                sources.push(SourceFile {
                    path: path.clone(),
                    language,
                    text,
                });
            }
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_by_name_and_interpreter() {
        assert_eq!(Language::of("a/b.rs", ""), Some(Language::Rust));
        assert_eq!(
            Language::of("tools/x", "#!/bin/bash\n"),
            Some(Language::Shell)
        );
        assert_eq!(
            Language::of("tools/x", "#!/usr/bin/env python3\n"),
            Some(Language::Python)
        );
        assert_eq!(
            Language::of("Documentation/man/x.7", ""),
            Some(Language::Man)
        );
        assert_eq!(Language::of("tools/data.7", ""), None);
        assert_eq!(Language::of("LICENSES/x.md", ""), None);
        assert_eq!(Language::of("Kbuild", ""), Some(Language::Hash));
    }
}
