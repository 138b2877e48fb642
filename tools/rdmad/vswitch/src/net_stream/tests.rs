// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use budget::CallClock;
use roce::frame::MAX_FRAME;
use roce::FramePool;

use super::*;

fn calls() -> Arc<LongCalls> {
    Arc::new(LongCalls::new(CallClock::system()))
}

/// A stream, and QEMU's end of its connection.
fn connected() -> (NetStream, UnixStream) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net");
    let listener = UnixListener::bind(&path).unwrap();
    let mut stream = NetStream::new(listener, None, calls()).unwrap();
    assert_eq!(stream.receive(&mut []).unwrap_err(), Errno::AGAIN);
    let far = UnixStream::connect(&path).unwrap();
    assert!(matches!(stream.receive(&mut []), Ok(Received::Connected)));
    (stream, far)
}

/// The bytes of a frame of `len` bytes on the stream. `number` is in each byte of the frame.
fn packet(number: u8, len: usize) -> Vec<u8> {
    [&(len as u32).to_be_bytes()[..], &vec![number; len]].concat()
}

/// The next frame, or `None` if there is no complete one.
fn take(stream: &mut NetStream) -> Option<Vec<u8>> {
    let mut into = vec![0; MAX_FRAME];
    match stream.receive(&mut into) {
        Ok(Received::Here(len)) => Some(into[..len.min(MAX_FRAME)].to_vec()),
        Err(Errno::AGAIN) => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_arrive_in_any_pieces() {
    let (mut stream, mut far) = connected();
    let sizes = [60, 1, 1514, MAX_FRAME];
    let packets = (1..).zip(sizes).map(|(number, len)| packet(number, len));
    let bytes = packets.collect::<Vec<_>>().concat();
    for piece in [1, 3, 4, 5, 63, 64, 65, 1000, bytes.len()] {
        let mut taken = Vec::new();
        for part in bytes.chunks(piece) {
            far.write_all(part).unwrap();
            while let Some(frame) = take(&mut stream) {
                taken.push(frame);
            }
        }
        let lengths: Vec<_> = taken.iter().map(Vec::len).collect();
        assert_eq!(lengths, sizes, "pieces of {piece} bytes");
        for (frame, number) in taken.iter().zip(1..) {
            assert!(frame.iter().all(|byte| *byte == number));
        }
    }
}

/// A frame at the end of the buffer is completed by the next read.
#[test]
fn more_frames_than_the_buffer_holds_arrive_in_order() {
    let (mut stream, mut far) = connected();
    far.set_nonblocking(true).unwrap();
    let mut bytes = VecDeque::new();
    let (mut sent, mut taken) = (0, 0);
    while taken < 1000 {
        while sent < 1000 && bytes.len() < 2 * ARRIVAL {
            bytes.extend(packet(sent as u8, 1000 + sent));
            sent += 1;
        }
        if let Ok(written) = far.write(bytes.make_contiguous()) {
            bytes.drain(..written);
        }
        while let Some(frame) = take(&mut stream) {
            assert_eq!((frame.len(), frame[0]), (1000 + taken, taken as u8));
            taken += 1;
        }
    }
    assert!(!stream.has_arrived());
}

#[test]
fn a_read_is_saved_once_the_socket_is_empty() {
    let (mut stream, mut far) = connected();
    far.write_all(&packet(1, 60)).unwrap();
    assert!(take(&mut stream).is_some());
    // This frame is left to the next event.
    far.write_all(&packet(2, 60)).unwrap();
    assert!(take(&mut stream).is_none());
    assert_eq!(take(&mut stream).unwrap(), [2; 60]);
}

#[test]
fn a_malformed_length_is_told() {
    for length in [0, MAX_LENGTH as u32 + 1, u32::MAX] {
        let (mut stream, mut far) = connected();
        far.write_all(&packet(1, 60)).unwrap();
        far.write_all(&length.to_be_bytes()).unwrap();
        assert!(take(&mut stream).is_some());
        assert!(stream.has_arrived());
        let told = stream.receive(&mut [0; 100]).unwrap();
        assert!(
            matches!(told, Received::Closed(Some(seen)) if seen == length),
            "{told:?}"
        );
    }
    // Only a frame that is too long for the switch is skipped.
    let (mut stream, mut far) = connected();
    far.write_all(&packet(1, MAX_LENGTH)).unwrap();
    far.write_all(&packet(2, 60)).unwrap();
    let long = stream.receive(&mut [0; 100]).unwrap();
    assert!(matches!(long, Received::Here(MAX_LENGTH)), "{long:?}");
    assert_eq!(take(&mut stream).unwrap(), [2; 60]);
}

/// The first connection has sent a part of a frame when it ends. Nothing of it reaches the second.
#[test]
fn the_next_connection_starts_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net");
    let mut stream = NetStream::new(UnixListener::bind(&path).unwrap(), None, calls()).unwrap();
    let mut first = UnixStream::connect(&path).unwrap();
    let mut second = UnixStream::connect(&path).unwrap();
    second.write_all(&packet(2, 60)).unwrap();
    assert!(matches!(stream.receive(&mut []), Ok(Received::Connected)));
    first.write_all(&packet(1, 60)[..30]).unwrap();
    assert!(take(&mut stream).is_none());
    drop(first);
    assert!(matches!(
        stream.receive(&mut []),
        Ok(Received::Closed(None))
    ));
    stream.disconnect();
    assert!(stream.has_arrived() && !stream.is_connected());
    assert!(matches!(stream.receive(&mut []), Ok(Received::Connected)));
    assert_eq!(take(&mut stream).unwrap(), [2; 60]);
}

fn frames(pool: &FramePool, lengths: impl IntoIterator<Item = usize>) -> VecDeque<Frame> {
    let frame = |(number, len): (usize, usize)| {
        let mut frame = pool.take(len).unwrap();
        frame.fill(number as u8);
        frame
    };
    lengths.into_iter().enumerate().map(frame).collect()
}

fn bytes_of(frames: &VecDeque<Frame>) -> Vec<u8> {
    let packets = frames.iter().map(|frame| {
        let length = (frame.len() as u32).to_be_bytes();
        [&length[..], frame].concat()
    });
    packets.collect::<Vec<_>>().concat()
}

/// Writes end within lengths and within frames.
#[test]
fn a_write_goes_on_where_the_last_one_ended() {
    let pool = FramePool::new(100);
    for most in [1, 2, 3, 5, 7, 60, 63, 64, 65, 129, 1000] {
        let mut left = frames(&pool, (14..100).step_by(2));
        let expected = bytes_of(&left);
        let (mut progress, mut written) = (Progress::default(), Vec::new());
        while !left.is_empty() {
            let sent = progress.send(&left, |parts| {
                let bytes = parts.iter().flat_map(|part| part.iter()).copied();
                let before = written.len();
                written.extend(bytes.take(most));
                Ok(written.len() - before)
            });
            left.drain(..sent.unwrap());
        }
        assert!(written == expected, "writes of {most} bytes");
        assert_eq!(progress.sent, 0);
    }
}

/// QEMU does not read at first. Then all frames arrive, each once.
#[test]
fn frames_wait_for_a_slow_reader() {
    let (mut stream, mut far) = connected();
    let pool = FramePool::new(1000);
    let mut left = frames(&pool, (0..1000).map(|number| 1000 + number));
    let expected = bytes_of(&left);
    while let Ok(sent) = stream.send_first(&left) {
        left.drain(..sent);
    }
    assert!(left.len() > 500);
    let mut read = vec![0; expected.len()];
    let mut count = 0;
    while count < read.len() {
        count += far.read(&mut read[count..]).unwrap();
        if !left.is_empty() {
            if let Ok(sent) = stream.send_first(&left) {
                left.drain(..sent);
            }
        }
    }
    assert!(read == expected);
    drop(far);
    let one = frames(&pool, [60]);
    assert_eq!(stream.send_first(&one), Err(Errno::PIPE));
}
