// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Checks in the sources of the daemon that it starts threads only by `sandbox::spawn`.

use std::fs;
use std::path::{Path, PathBuf};

/// Functions of the standard library that start a thread.
const STARTS: [&str; 3] = ["thread::spawn(", "thread::Builder", "thread::scope("];
/// Source files of the daemon and its crates, except this crate.
fn sources() -> Vec<PathBuf> {
    let daemon = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let crates = fs::read_dir(daemon)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let crates = crates.filter(|path| !path.ends_with("sandbox"));
    let mut folders: Vec<_> = crates.map(|path| path.join("src")).collect();
    folders.push(daemon.join("src"));
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Whether a file consists only of tests or models, according to its name or that of its folder.
fn is_test(file: &Path) -> bool {
    let name = |path: &Path| path.file_stem().map(|name| name.to_owned());
    let parent = file.parent().and_then(name);
    ["tests", "panics", "testing", "model"].iter().any(|test| {
        name(file).is_some_and(|name| name == *test) || parent.as_deref() == Some(test.as_ref())
    })
}

/// The part of a file before its unit tests, which may start threads in any way.
fn without_tests(text: &str) -> &str {
    let is_condition = |line: &str| line.starts_with("#[cfg(") && line.contains("test");
    let mut end = 0;
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek();
        if is_condition(line) && next.is_some_and(|next| next.starts_with("mod ")) {
            break;
        }
        end += line.len();
    }
    &text[..end]
}

#[test]
fn threads_are_started_confined() {
    let files = sources();
    assert!(files
        .iter()
        .any(|file| file.ends_with("vdev/src/server.rs")));
    let mut confined = 0;
    for file in files.iter().filter(|file| !is_test(file)) {
        let text = fs::read_to_string(file).unwrap();
        let code = without_tests(&text);
        confined += code.matches("sandbox::spawn(").count();
        confined += code.matches("Reserve::new(").count();
        let code = code.replace("sandbox::spawn(", "");
        for start in STARTS {
            assert!(
                !code.contains(start),
                "{} starts a thread by {start}",
                file.display()
            );
        }
    }
    // At least these threads are started: workers, the two threads of a port, switch, capture, log
    // and status.
    assert!(confined >= 7, "{confined}");
}
