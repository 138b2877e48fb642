// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Each target on its corpus, and on bytes that no corpus has.

use std::fs;

use fuzz::corpus::{Corpus, Input};
use fuzz::{Target, TARGETS};

#[test]
fn targets_hold_on_their_corpora() {
    for target in TARGETS {
        let corpus = target.corpus().unwrap();
        assert!(
            !corpus.inputs().is_empty(),
            "{} has an empty corpus",
            target.name
        );
        for input in corpus.inputs() {
            target
                .check(&input.bytes)
                .unwrap_or_else(|why| panic!("{}, {input:02x?}: {why}", target.name));
        }
    }
}

#[test]
fn targets_take_any_bytes() {
    for target in TARGETS {
        for len in [0, 1, 7, 100, 600] {
            for byte in [0x00, 0x01, 0x5a, 0xff] {
                let done = target.check(&vec![byte; len]);
                done.unwrap_or_else(|why| panic!("{}, {len} x {byte:#x}: {why}", target.name));
            }
        }
    }
}

#[test]
fn corpora_are_small() {
    let bytes = |target: &Target| -> usize {
        let corpus = target.corpus().unwrap();
        corpus.inputs().iter().map(|input| input.bytes.len()).sum()
    };
    let bytes: usize = TARGETS.iter().map(bytes).sum();
    assert!(bytes <= 600 << 10, "{bytes} bytes in all corpora");
}

#[test]
fn corpora_are_written_as_they_are_read() {
    for target in TARGETS {
        let text = fs::read_to_string(target.corpus_file()).unwrap();
        assert!(
            target.corpus().unwrap().text() == text,
            "{}: run fuzz merge",
            target.name
        );
    }
}

#[test]
fn a_line_that_is_no_input_is_named() {
    let why = Corpus::parse("# a comment\n00ff # two bytes\n0x12\n").unwrap_err();
    assert!(why.starts_with("line 3: "), "{why}");
}

#[test]
fn files_are_unpacked_and_added_again() {
    let directory = tempfile::tempdir().unwrap();
    let input = |name: &str, bytes: &[u8]| Input {
        name: name.to_owned(),
        bytes: bytes.to_owned(),
    };
    let named = input("by-hand", b"second");
    let corpus = Corpus::new(vec![
        input("", b"first"),
        named.clone(),
        input("", b"second"),
    ]);
    assert_eq!(corpus.inputs(), [named, input("", b"first")]);
    let files = corpus.unpack(directory.path()).unwrap();
    assert_eq!(files.len(), 2);
    assert_eq!(corpus.clone().with_files(&files, false).unwrap(), corpus);
    let named = Corpus::default().with_files(&files[..1], true).unwrap();
    assert_eq!(named.inputs(), &corpus.inputs()[..1]);
}
