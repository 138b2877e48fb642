// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Greetings and batches of frames: datagrams between two switches that Unix sockets join.
//!
//! These datagrams begin like an Ethernet frame with source address zero. A switch does not forward
//! such a frame, so no host behind a switch can forge these datagrams. A switch of an older version
//! refuses them, like any frame with source address zero. All numbers are in network byte order.
//!
//! | Bytes | Greeting | Batch |
//! |---|---|---|
//! | 0–13 | destination 01:80:c2:00:00:0e, source 0, type 0x88b5 | same |
//! | 14–17 | `vrdm` | same |
//! | 18 | highest version that the sender supports | version: 1 |
//! | 19 | 0 | 1 |
//! | 20–27 | token of the sender | token of the receiver |
//! | 28–35 | token of the receiver, 0 if unknown | |
//! | 28–29 | | number of frames |
//! | 30– | | length (16 bits) and flags (16 bits) of each frame, then the frames |
//!
//! Flag 0 means that a frame [lacks](Frame::lacks_icrc) its ICRC. The other flags are zero.

use roce::Frame;

use crate::frames::is_valid_length;

/// Maximum number of frames of a batch.
pub(crate) const FRAMES: usize = 64;
/// Maximum length of a batch in bytes. For longer datagrams the kernel would allocate long lists of
/// pages.
pub(crate) const BYTES: usize = 64 << 10;
/// Maximum length of the head of a batch in bytes: everything before the frames.
pub(crate) const HEAD: usize = FIXED + ENTRY * FRAMES;
/// Length of a greeting in bytes.
pub(crate) const GREETING: usize = 36;

const VERSION: u8 = 1;
/// Length in bytes of the common start of greetings and batches: addresses, type, name, version,
/// kind, token.
const COMMON: usize = 28;
const FIXED: usize = COMMON + 2;
const ENTRY: usize = 4;

/// The first bytes of greetings and batches. The destination is the address of the nearest bridge
/// (IEEE 802.1Q, table 8-1), which is never forwarded. The EtherType is for local experiments.
const MARK: [u8; 18] = *b"\x01\x80\xc2\x00\x00\x0e\0\0\0\0\0\0\x88\xb5vrdm";
const IS_GREETING: u8 = 0;
const IS_BATCH: u8 = 1;

const LACKS_ICRC: u16 = 1;

/// A datagram between two switches, classified by its head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Datagram<'a> {
    /// A single frame.
    Frame,
    Greeting {
        /// Token of the sender, which batches to the sender must carry.
        token: u64,
        /// The receiver's token, if the sender has received it, else 0.
        heard: u64,
    },
    Batch {
        /// Token of the receiver.
        token: u64,
        entries: Entries<'a>,
    },
    /// A malformed datagram, or one that this version does not support.
    Unknown,
}

/// The lengths and flags of the frames in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entries<'a>(&'a [u8]);

impl<'a> Datagram<'a> {
    /// Classifies a datagram of `total` bytes. `head` has its first [`HEAD`] bytes, or all if it is
    /// shorter.
    pub(crate) fn of(head: &'a [u8], total: usize) -> Self {
        let Some(rest) = head.strip_prefix(&MARK) else {
            return Self::Frame;
        };
        Self::decode(rest, total).unwrap_or(Self::Unknown)
    }

    fn decode(rest: &'a [u8], total: usize) -> Option<Self> {
        let (&[version, kind], rest) = rest.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let token = u64::from_be_bytes(*token);
        match (version, kind) {
            (VERSION.., IS_GREETING) => {
                let heard = u64::from_be_bytes(*rest.first_chunk()?);
                Some(Self::Greeting { token, heard })
            }
            (VERSION, IS_BATCH) => {
                let (count, rest) = rest.split_first_chunk()?;
                let count = usize::from(u16::from_be_bytes(*count));
                let entries = Entries(rest.get(..ENTRY * count)?);
                let bytes: usize = entries.iter().map(|(len, _)| len).sum();
                let fits = (1..=FRAMES).contains(&count)
                    && entries.iter().all(|(len, _)| is_valid_length(len))
                    && entries.head() + bytes == total;
                fits.then_some(Self::Batch { token, entries })
            }
            _ => None,
        }
    }
}

impl Entries<'_> {
    /// Length of the head of the batch in bytes.
    pub(crate) const fn head(&self) -> usize {
        FIXED + self.0.len()
    }

    /// The length of each frame, and whether it lacks an ICRC.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (usize, bool)> + Clone + '_ {
        self.0.chunks_exact(ENTRY).map(|entry| {
            let half = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
            (usize::from(half(0)), half(2) & LACKS_ICRC != 0)
        })
    }
}

/// Encodes a greeting.
pub(crate) fn greeting(token: u64, heard: u64) -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    put_common(&mut bytes, IS_GREETING, token);
    bytes[COMMON..].copy_from_slice(&heard.to_be_bytes());
    bytes
}

/// Number of frames at the front of `frames` that fit one batch.
pub(crate) fn fitting<'a>(frames: impl Iterator<Item = &'a Frame>) -> usize {
    let mut bytes = FIXED;
    let fits = |frame: &&Frame| {
        bytes += ENTRY + frame.len();
        bytes <= BYTES
    };
    frames.take(FRAMES).take_while(fits).count()
}

/// Writes the head of a batch of `count` frames to `out`. Returns its length.
pub(crate) fn put_head<'a>(
    out: &mut [u8; HEAD],
    token: u64,
    count: usize,
    frames: impl Iterator<Item = &'a Frame>,
) -> usize {
    put_common(out, IS_BATCH, token);
    // `count` is at most `FRAMES`, which fits.
    out[COMMON..FIXED].copy_from_slice(&(count as u16).to_be_bytes());
    let entries = out[FIXED..].chunks_exact_mut(ENTRY).take(count);
    for (entry, frame) in entries.zip(frames) {
        let flags = if frame.lacks_icrc() { LACKS_ICRC } else { 0 };
        // A frame has at most `MAX_FRAME` bytes, less than 64 KiB.
        entry[..2].copy_from_slice(&(frame.len() as u16).to_be_bytes());
        entry[2..].copy_from_slice(&flags.to_be_bytes());
    }
    FIXED + ENTRY * count
}

fn put_common(out: &mut [u8], kind: u8, token: u64) {
    out[..MARK.len()].copy_from_slice(&MARK);
    out[MARK.len()..][..2].copy_from_slice(&[VERSION, kind]);
    out[COMMON - 8..COMMON].copy_from_slice(&token.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use roce::FramePool;

    use super::*;

    fn frames(lengths: &[usize]) -> Vec<Frame> {
        let pool = FramePool::new(lengths.len());
        lengths.iter().map(|len| pool.take(*len).unwrap()).collect()
    }

    /// The head of a batch of frames of these lengths, and the length of the whole batch in bytes.
    fn head(lengths: &[usize]) -> (Vec<u8>, usize) {
        let mut frames = frames(lengths);
        frames[0].set_lacks_icrc(true);
        let mut out = [0; HEAD];
        let head = put_head(&mut out, 7, frames.len(), frames.iter());
        (out[..head].to_vec(), head + lengths.iter().sum::<usize>())
    }

    #[test]
    fn greetings_and_batches_are_read_as_they_were_written() {
        let bytes = greeting(5, 6);
        let expected = Datagram::Greeting { token: 5, heard: 6 };
        assert_eq!(Datagram::of(&bytes, GREETING), expected);
        let (bytes, total) = head(&[100, 60]);
        let Datagram::Batch { token: 7, entries } = Datagram::of(&bytes, total) else {
            panic!("no batch");
        };
        assert_eq!(entries.head(), bytes.len());
        assert_eq!(Vec::from_iter(entries.iter()), [(100, true), (60, false)]);
    }

    #[test]
    fn a_greeting_of_a_later_version_is_one() {
        let mut bytes = greeting(5, 6).to_vec();
        bytes[MARK.len()] = VERSION + 1;
        bytes.push(0);
        let expected = Datagram::Greeting { token: 5, heard: 6 };
        assert_eq!(Datagram::of(&bytes, bytes.len()), expected);
        let (mut bytes, total) = head(&[100]);
        bytes[MARK.len()] = VERSION + 1;
        assert_eq!(Datagram::of(&bytes, total), Datagram::Unknown);
    }

    #[test]
    fn a_batch_whose_lengths_disagree_is_none() {
        let (bytes, total) = head(&[100, 60]);
        for total in [total - 1, total + 1] {
            assert_eq!(Datagram::of(&bytes, total), Datagram::Unknown);
        }
        for len in MARK.len()..bytes.len() {
            assert_eq!(Datagram::of(&bytes[..len], total), Datagram::Unknown);
        }
        // Batches with a frame that is too short, with a frame that is too long, and without frames
        // are invalid.
        let (mut bytes, total) = head(&[13, 60]);
        assert_eq!(Datagram::of(&bytes, total), Datagram::Unknown);
        bytes[FIXED..][..2].copy_from_slice(&[0xff; 2]);
        assert_eq!(Datagram::of(&bytes, total - 13 + 0xffff), Datagram::Unknown);
        bytes[COMMON..FIXED].copy_from_slice(&[0; 2]);
        assert_eq!(Datagram::of(&bytes, FIXED), Datagram::Unknown);
    }

    #[test]
    fn a_frame_is_a_frame() {
        let mut bytes = greeting(5, 6);
        bytes[6] = 2;
        assert_eq!(Datagram::of(&bytes, GREETING), Datagram::Frame);
        assert_eq!(Datagram::of(&[], 0), Datagram::Frame);
    }

    #[test]
    fn a_batch_has_as_many_frames_as_fit() {
        let fitting = |lengths: &[usize]| fitting(frames(lengths).iter());
        assert_eq!(fitting(&[100]), 1);
        assert_eq!(fitting(&[60; FRAMES + 1]), FRAMES);
        assert_eq!(fitting(&[9000; 10]), BYTES / 9000);
        let longest = (BYTES - FIXED) / 8 - ENTRY;
        assert_eq!(fitting(&[longest; 9]), 8);
        assert_eq!(fitting(&[longest + 1; 9]), 7);
    }
}
