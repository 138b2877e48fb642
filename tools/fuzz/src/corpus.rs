// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Corpora: one text file for each target. A line is an input in hexadecimal digits, and after `#`
//! its name, if somebody wrote the input for a purpose. libFuzzer wants files instead: see
//! [`Corpus::unpack`].

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;

const LICENCE: &str = "# SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause\n";

/// An input of a corpus.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Input {
    /// Of an input that the engine found: empty.
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The inputs of a target, ordered and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Corpus(Vec<Input>);

impl Corpus {
    /// A corpus of these inputs. An input that is there with and without a name keeps the name.
    /// Each target runs on the empty input anyway: it is left out.
    pub fn new(mut inputs: Vec<Input>) -> Self {
        inputs.retain(|input| !input.bytes.is_empty());
        inputs.sort_by(|a, b| a.bytes.cmp(&b.bytes).then_with(|| b.name.cmp(&a.name)));
        inputs.dedup_by(|a, b| a.bytes == b.bytes);
        inputs.sort_by_key(|input| input.name.is_empty());
        Self(inputs)
    }

    pub fn inputs(&self) -> &[Input] {
        &self.0
    }

    /// The corpus in the text of a file.
    ///
    /// # Errors
    /// Names the first line that is not an input.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = (1..).zip(text.lines());
        let inputs = lines.filter(|(_, line)| !line.starts_with('#'));
        let parsed = inputs.map(|(number, line)| {
            let (digits, name) = line.split_once('#').unwrap_or((line, ""));
            let bytes = HEXLOWER.decode(digits.trim_end().as_bytes());
            let bytes = bytes.map_err(|why| format!("line {number}: {why}"))?;
            let name = name.trim().to_owned();
            Ok(Input { name, bytes })
        });
        Ok(Self::new(parsed.collect::<Result<_, String>>()?))
    }

    /// The text of the file: what [`parse`](Self::parse) reads.
    pub fn text(&self) -> String {
        let mut text = LICENCE.to_owned();
        for Input { name, bytes } in &self.0 {
            text.push_str(&HEXLOWER.encode(bytes));
            if !name.is_empty() {
                write!(text, " # {name}").expect("a String takes it");
            }
            text.push('\n');
        }
        text
    }

    /// Reads the corpus in a file.
    ///
    /// # Errors
    /// The file can't be read, or a line of it is not an input.
    pub fn read(path: &Path) -> io::Result<Self> {
        let of_file = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let text =
            fs::read_to_string(path).map_err(|why| io::Error::new(why.kind(), of_file(&why)))?;
        Self::parse(&text).map_err(|why| io::Error::other(of_file(&why)))
    }

    /// Writes the inputs to files of a directory, which is emptied before. Returns their paths.
    ///
    /// # Errors
    /// The directory can't be emptied or a file can't be written.
    pub fn unpack(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        if directory.exists() {
            fs::remove_dir_all(directory)?;
        }
        fs::create_dir_all(directory)?;
        let write = |(at, input): (usize, &Input)| {
            let path = if input.name.is_empty() {
                directory.join(format!("{at:04}"))
            } else {
                directory.join(&input.name)
            };
            fs::write(&path, &input.bytes).map(|()| path)
        };
        self.0.iter().enumerate().map(write).collect()
    }

    /// The corpus with the bytes of further files: each without a name, or with that of its file.
    ///
    /// # Errors
    /// A file can't be read, or its name can't stand in a line.
    pub fn with_files(mut self, files: &[PathBuf], are_named: bool) -> io::Result<Self> {
        for path in files {
            let name = path.file_name().filter(|_| are_named).unwrap_or_default();
            let name = name.to_str().filter(|name| !name.contains(['#', '\n']));
            self.0.push(Input {
                name: name.ok_or_else(|| unfit(path))?.to_owned(),
                bytes: fs::read(path)?,
            });
        }
        Ok(Self::new(self.0))
    }
}

fn unfit(path: &Path) -> io::Error {
    io::Error::other(format!("{}: a name that fits no line", path.display()))
}
