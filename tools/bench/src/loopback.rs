// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! One TCP connection between two threads of this machine. The connection is the comparator:
//! without RDMA, messages between two processes pass through the kernel on both sides.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Duration of a stream.
const SPAN: Duration = Duration::from_millis(100);
/// Number of round trips of a sample.
const TRIPS: u32 = 500;
/// Minimum number of bytes that the receiver requests with one call.
const READ: usize = 64 << 10;

/// The rate in MB/s (wall clock) at which one thread writes messages of `size` bytes and another
/// thread reads them.
pub fn bandwidth(size: usize) -> Result<f64> {
    let [mut from, mut to] = connection()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<()> {
            let message = vec![0; size];
            let began = Instant::now();
            while began.elapsed() < SPAN {
                from.write_all(&message)?;
            }
            Ok(())
        });
        let mut buffer = vec![0; size.max(READ)];
        let (mut bytes, mut first) = (0, None);
        loop {
            let read = to.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            first.get_or_insert_with(Instant::now);
            bytes += read;
        }
        sender.join().expect("no panic")?;
        let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        Ok(bytes as f64 / 1e6 / seconds)
    })
}

/// The time in µs of half a round trip of messages of `size` bytes. Both sides sleep until a
/// message arrives.
pub fn latency(size: usize) -> Result<f64> {
    let [mut from, mut to] = connection()?;
    thread::scope(|scope| {
        let peer = scope.spawn(move || -> Result<()> {
            let mut message = vec![0; size];
            for _ in 0..TRIPS {
                to.read_exact(&mut message)?;
                to.write_all(&message)?;
            }
            Ok(())
        });
        let mut message = vec![0; size];
        let mut times = Vec::new();
        for _ in 0..TRIPS {
            let began = Instant::now();
            from.write_all(&message)?;
            from.read_exact(&mut message)?;
            times.push(began.elapsed());
        }
        peer.join().expect("no panic")?;
        times.sort();
        Ok(times[times.len() / 2].as_secs_f64() * 1e6 / 2.0)
    })
}

/// Both ends of a connection.
pub fn connection() -> Result<[TcpStream; 2]> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
    }
    Ok([one, other])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive() {
        let [mut one, mut other] = connection().unwrap();
        one.write_all(b"message").unwrap();
        drop(one);
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "message");
    }

    #[test]
    fn both_figures_are_measured() {
        assert!(bandwidth(64).unwrap() > 0.0);
        assert!(latency(8).unwrap() > 0.0);
    }
}
