// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Comparators that move the same bytes without a device: libc's copy from a VM's memory by one
//! thread, such a copy page by page, or with a CRC32 of each packet's payload, and TCP.

use std::hint::black_box;
use std::io::{Read, Write};
use std::thread;

use dma::{DmaSlice, DmaSpace};

use super::cpu;
use super::load::area;
use crate::loopback;
use crate::memory::{self, OwnMemory};

/// Payload of a packet, in bytes.
const PACKET: usize = 4096;

/// The rate in MB/s of libc's copies of this size from a VM.
pub fn copy(size: u32) -> f64 {
    let mut target = OwnMemory::new(area(size));
    let target = target.bytes();
    rate(size, |at, message| {
        let target = &mut target[at as usize..][..message.len()];
        message.read(0, target).expect("inside");
    })
}

/// The rate in MB/s of libc's copies of the buffers for this size from a VM, page by page. The
/// pages have the same order as those of the measured messages, and their addresses are known
/// before.
pub fn copy_pages(size: u32) -> f64 {
    memory::copy_pages(area(size))
}

/// The rate in MB/s of copies of this size from a VM. After each packet's payload is copied, its
/// CRC is computed.
pub fn copy_with_crc(size: u32) -> f64 {
    let mut target = vec![0; area(size) as usize];
    rate(size, |at, message| {
        let target = &mut target[at as usize..][..message.len()];
        for (index, packet) in target.chunks_mut(PACKET).enumerate() {
            message.read(index * PACKET, packet).expect("inside");
            black_box(crc32fast::hash(packet));
        }
    })
}

/// Bytes of a stream.
const STREAM: usize = 256 << 20;

/// The rate of TCP over the host's loopback, with writes and reads of `size` bytes: MB per second
/// of the processor time of both ends.
pub fn tcp(size: u32) -> f64 {
    let [mut from, mut to] = loopback::connection().expect("a connection");
    let mut message = vec![0; size as usize];
    let mut buffer = message.clone();
    let reader = thread::spawn(move || {
        let began = cpu::own_time();
        while to.read(&mut buffer).expect("a stream") > 0 {}
        cpu::own_time() - began
    });
    // The first access allocates the memory, which is not measured.
    message.fill(1);
    let began = cpu::own_time();
    for _ in 0..STREAM / message.len() {
        from.write_all(&message).expect("a stream");
    }
    let time = cpu::own_time() - began;
    drop(from);
    let time = time + reader.join().expect("an end of the stream");
    STREAM as f64 / time.as_secs_f64() / 1e6
}

/// The rate in MB/s at which `step` processes messages of `size` bytes, one after the other in the
/// buffers of a VM.
fn rate(size: u32, mut step: impl FnMut(u64, DmaSlice<'_>)) -> f64 {
    let len = area(size);
    let memory = DmaSpace::anonymous(0, len);
    let memory = memory.enter();
    cpu::rate(len, || {
        for at in (0..len).step_by(size as usize) {
            step(at, memory.slice(at, size as usize).expect("memory"));
        }
    })
}
