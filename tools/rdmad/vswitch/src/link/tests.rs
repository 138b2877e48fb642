// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use roce::FramePool;
use sockets::Access;

use crate::index::SourceIndex;

use super::send::{RETRY, STALE, STALL};
use super::{DatagramPath, Delivery, Link, Sender, Uplink, Waits, BACKLOG};

const SENDER: Sender<'_> = Sender {
    source: SourceIndex(0),
    pool: None,
};

/// A link over which `frames` frames were sent at `now`, more than the receiving socket holds.
/// Returns the link and that socket.
fn full(now: Instant, frames: usize) -> (Link, UnixDatagram, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let far = UnixDatagram::bind(path("far")).unwrap();
    far.set_nonblocking(true).unwrap();
    let path = DatagramPath {
        local: path("near"),
        remote: path("far"),
    };
    let mut link = Link::open(Uplink::Unix(path), &Access::default()).unwrap();
    let pool = FramePool::new(frames);
    for _ in 0..frames {
        let sent = link.send(pool.take(100).unwrap(), SENDER, now);
        assert_eq!(sent, Delivery::Done);
    }
    assert_eq!(link.waits, Waits::ForRoom);
    (link, far, dir)
}

#[test]
fn the_longer_a_socket_takes_nothing_the_later_it_is_tried() {
    let now = Instant::now();
    let (mut link, far, _dir) = full(now, 100);
    let after = |time| now + time;
    assert_eq!(link.retry_in(now), Some(STALE));
    // epoll reports nothing if memory was short.
    link.waits = Waits::ForTime;
    assert_eq!(link.retry_in(now), Some(RETRY));
    let second = Duration::from_secs(1);
    assert_eq!(link.retry_in(after(second)), Some(second / 8));
    assert_eq!(link.retry_in(after(100 * second)), Some(STALE));
    // The receiver reads a frame.
    far.recv(&mut [0; 200]).unwrap();
    link.retry(after(100 * second));
    link.waits = Waits::ForTime;
    assert_eq!(link.retry_in(after(100 * second)), Some(RETRY));
}

#[test]
fn a_socket_that_takes_a_frame_now_and_then_counts_as_stalled() {
    let start = Instant::now();
    let frames = 2 * BACKLOG;
    let (mut link, far, _dir) = full(start, frames);
    let others = FramePool::new(20);
    let mut dropped = 0;
    for half in 1..=10 {
        let now = start + half * STALL / 2;
        far.recv(&mut [0; 200]).unwrap();
        dropped += link.retry(now).dropped;
        // Frames are added too, but the age of the oldest frame decides.
        link.send(others.take(100).unwrap(), SENDER, now);
    }
    assert!(dropped > BACKLOG - 50, "{dropped} of {frames}");
    // The link is stalled, so only few of these patient frames are accepted.
    let pool = FramePool::new(BACKLOG);
    let late = start + 6 * STALL;
    let taken = (0..BACKLOG)
        .map(|_| link.send(pool.take(100).unwrap(), SENDER, late))
        .filter(|sent| *sent == Delivery::Done)
        .count();
    assert!(taken < 50, "{taken}");
    // The receiver reads all frames again.
    let later = start + 11 * STALL;
    while far.recv(&mut [0; 200]).is_ok() {
        link.retry(later);
    }
    let sent = link.send(pool.take(100).unwrap(), SENDER, later);
    assert_eq!((sent, link.stalled), (Delivery::Done, false));
}

/// Sources with waiting frames divide the number of frames from which on new ones are marked.
#[test]
fn sources_share_the_frames_that_wait_without_a_mark() {
    const SOURCES: usize = 4;
    const EACH: usize = 30;
    /// A quarter of the frames of a single source.
    const SHARE: usize = 16;
    let now = Instant::now();
    let (mut link, far, _dir) = full(now, 50);
    let pool = FramePool::new(SOURCES * EACH);
    for _ in 0..EACH {
        for source in 1..SOURCES {
            let mut frame = pool.take(100).unwrap();
            frame.fill(0);
            // The number of the source, and an IPv6 header with ECT(0).
            frame[11..16].copy_from_slice(&[source as u8, 0x86, 0xdd, 0x60, 0x20]);
            let sender = Sender {
                source: SourceIndex(source),
                ..SENDER
            };
            assert_eq!(link.send(frame, sender, now), Delivery::Done);
        }
    }
    let mut marked = [0; SOURCES];
    let mut bytes = [0; 200];
    while far.recv(&mut bytes).is_ok() {
        marked[usize::from(bytes[11]) % SOURCES] += usize::from(bytes[15] == 0x30);
        link.retry(now);
    }
    assert_eq!(marked[1..], [EACH - SHARE - 1; SOURCES - 1]);
}
