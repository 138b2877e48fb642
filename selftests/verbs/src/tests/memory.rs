// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory regions of every kind.

use std::fs;
use std::time::Instant;

use anyhow::{ensure, Context as _, Result};

use crate::endpoint::{Endpoint, Options};
use crate::pattern::{bytes, compare, Random};
use crate::rdma::{access, ffi, Mr, Op, Sge};
use crate::session::{errno, refused, Session};

const EFAULT: i32 = 14;

/// The peer writes to all bytes of regions that start and end anywhere in a page.
pub fn unaligned(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let source = end.memory(3 * 4096)?;
    let regions = [
        (1, 1),
        (0, 4095),
        (4095, 1),
        (4095, 2),
        (4095, 4098),
        (17, 4096),
        (123, 2 * 4096 + 7),
    ];
    for (seed, (offset, length)) in (100..).zip(regions) {
        let mr = Mr::at(&end.pd, offset, length, access::ALL)?;
        let remote = session.swap_memory(&mr)?;
        let message = bytes(seed, length);
        if session.active() {
            source.write(0, &message);
            end.run(
                Op::Write(remote.addr, remote.rkey),
                &[source.sge(0, length)],
            )?
            .ok()?;
            session.peer.meet()?;
        } else {
            session.peer.meet()?;
            compare(
                &format!("{length} bytes at {offset}"),
                &mr.read(0, length),
                &message,
            )?;
        }
        // The region must exist until the peer has written to it.
        session.peer.meet()?;
    }
    Ok(())
}

/// A region of many pages, accessed at both ends and at offsets in between.
pub fn large(session: &mut Session) -> Result<()> {
    const LENGTH: usize = 64 << 20;
    let end = Endpoint::connect(session, &Options::default())?;
    let mr = Mr::at(&end.pd, 100, LENGTH, access::ALL)?;
    let source = end.memory(8192)?;
    let remote = session.swap_memory(&mr)?;
    let mut random = Random::new(1);
    let mut places = vec![0, LENGTH - 5000];
    places.extend((0..30).map(|_| random.below(LENGTH - 5000)));
    for (seed, place) in (1..).zip(places) {
        let message = bytes(seed, 5000);
        if session.active() {
            source.write(0, &message);
            end.run(
                Op::Write(remote.addr + place as u64, remote.rkey),
                &[source.sge(0, 5000)],
            )?
            .ok()?;
            source.write(0, &[0; 5000]);
            end.run(
                Op::Read(remote.addr + place as u64, remote.rkey),
                &[source.sge(0, 5000)],
            )?
            .ok()?;
            compare(
                &format!("read back at {place}"),
                &source.read(0, 5000),
                &message,
            )?;
            session.peer.meet()?;
        } else {
            session.peer.meet()?;
            compare(
                &format!("written at {place}"),
                &mr.read(place, 5000),
                &message,
            )?;
        }
    }
    Ok(())
}

/// Bytes of memory to leave for other uses, in [`gigabytes`].
const RESERVE: usize = 256 << 20;

/// Available memory of the machine in bytes.
fn available_memory() -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no MemAvailable")?.parse::<usize>()? << 10)
}

/// Bytes of this process that are in huge pages.
fn huge_pages() -> Result<usize> {
    let text = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text.lines().find_map(|l| l.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no AnonHugePages")?.parse::<usize>()? << 10)
}

/// Checks that a region of `length` bytes has huge pages if the system is configured so.
fn check_page_size(length: usize) -> Result<()> {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let huge = huge_pages()?;
    println!("# {} MiB of huge pages", huge >> 20);
    if setting.contains("[always]") {
        ensure!(huge >= length / 2, "{huge} bytes of {length} are huge");
    } else if setting.contains("[never]") {
        ensure!(huge == 0, "{huge} bytes are huge");
    }
    Ok(())
}

/// A region of 8 GiB or 1 GiB, depending on the available memory, accessed at both ends and at
/// offsets in between. Prints the time of registration, second registration and deregistration.
pub fn gigabytes(session: &mut Session) -> Result<()> {
    let available = available_memory()?;
    let length = [8 << 30, 1 << 30]
        .into_iter()
        .find(|length| length + RESERVE <= available)
        .context("less memory than this test needs")?;
    let end = Endpoint::connect(session, &Options::default())?;
    let started = Instant::now();
    let mr = Mr::at(&end.pd, 100, length - 100, access::ALL)?;
    let registered = started.elapsed();
    println!(
        "# {} GiB touched and registered in {registered:?}",
        length >> 30
    );
    check_page_size(length)?;
    let source = end.memory(8192)?;
    let remote = session.swap_memory(&mr)?;
    let [their_length, _] = session.peer.swap([mr.len() as u64, 0])?;
    let mut random = Random::new(1);
    let places = |length: usize, random: &mut Random| {
        let mut places = vec![0, length - 5000];
        places.extend((0..30).map(|_| random.below(length - 5000)));
        places
    };
    for (seed, place) in (1..).zip(places(usize::try_from(their_length)?, &mut random)) {
        source.write(0, &bytes(seed, 5000));
        end.run(
            Op::Write(remote.addr + place as u64, remote.rkey),
            &[source.sge(0, 5000)],
        )?
        .ok()?;
    }
    session.peer.meet()?;
    for (seed, place) in (1..).zip(places(mr.len(), &mut Random::new(1))) {
        compare(
            &format!("written at {place}"),
            &mr.read(place, 5000),
            &bytes(seed, 5000),
        )?;
    }
    session.peer.meet()?;
    let started = Instant::now();
    let again = mr.register_again(access::REMOTE_READ)?;
    println!("# registered again in {:?}", started.elapsed());
    let started = Instant::now();
    again.deregister()?;
    println!("# deregistered in {:?}", started.elapsed());
    session.peer.meet()
}

/// The same memory is registered several times with different access flags.
pub fn several_access_flags(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let whole = end.memory(3 * 4096)?;
    let readable = whole.register_again(access::REMOTE_READ)?;
    let source = end.memory(4096)?;
    let message = bytes(7, 4096);
    let by_whole = session.swap_memory(&whole)?;
    let by_readable = session.swap_memory(&readable)?;
    ensure!(by_whole.addr == by_readable.addr && by_whole.rkey != by_readable.rkey);
    if session.active() {
        source.write(0, &message);
        let write = Op::Write(by_whole.addr + 50, by_whole.rkey);
        end.run(write, &[source.sge(0, 4096)])?.ok()?;
        source.write(0, &[0; 4096]);
        let read = Op::Read(by_readable.addr + 50, by_readable.rkey);
        end.run(read, &[source.sge(0, 4096)])?.ok()?;
        compare("read by the other key", &source.read(0, 4096), &message)?;
        let write = Op::Write(by_readable.addr, by_readable.rkey);
        end.run(write, &[source.sge(0, 4096)])?
            .expect(ffi::IBV_WC_REM_ACCESS_ERR)?;
    }
    session.peer.meet()?;
    // The second region is deregistered before the first.
    readable.deregister()?;
    session.peer.meet()
}

/// Memory that is read-only for the process can be sent, but can't be registered for writing.
pub fn read_only(session: &mut Session) -> Result<()> {
    static CONSTANT: [u8; 5000] = [0x3d; 5000];
    let end = Endpoint::connect(session, &Options::default())?;
    let source = Mr::constant(&end.pd, &CONSTANT, 0)?;
    let writable = Mr::constant(&end.pd, &CONSTANT, access::LOCAL_WRITE);
    let error = refused("registration of read-only memory for writing", writable)?;
    ensure!(errno(&error) == Some(EFAULT), "{error:#}");
    let mr = end.memory(5000)?;
    if session.active() {
        session.peer.meet()?;
        end.run(Op::Send, &[source.sge(0, 5000)])?.ok()?;
    } else {
        end.qp.recv(1, &[mr.sge(0, 5000)])?;
        session.peer.meet()?;
        end.received()?.ok()?;
        compare("constant", &mr.read(0, 5000), &CONSTANT)?;
    }
    session.peer.meet()
}

/// Many regions at a time, with different keys, accessed in random order.
pub fn many_regions(session: &mut Session) -> Result<()> {
    const COUNT: usize = 128;
    let end = Endpoint::connect(session, &Options::default())?;
    let regions: Vec<Mr> = (0..COUNT)
        .map(|_| end.memory(4096))
        .collect::<Result<_>>()?;
    let mut keys: Vec<u32> = regions.iter().map(Mr::rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    ensure!(
        keys.len() == COUNT,
        "{} different keys of {COUNT} regions",
        keys.len()
    );
    let remotes: Vec<_> = regions
        .iter()
        .map(|mr| session.swap_memory(mr))
        .collect::<Result<_>>()?;
    let mut random = Random::new(2);
    for seed in 0..COUNT as u64 {
        let (from, to) = (random.below(COUNT), random.below(COUNT));
        let message = bytes(seed, 777);
        if session.active() {
            regions[from].write(9, &message);
            let op = Op::Write(remotes[to].addr + 5, remotes[to].rkey);
            end.run(op, &[regions[from].sge(9, 777)])?.ok()?;
            session.peer.meet()?;
        } else {
            session.peer.meet()?;
            compare(&format!("region {to}"), &regions[to].read(5, 777), &message)?;
        }
        session.peer.meet()?;
    }
    Ok(())
}

/// Regions are registered and deregistered while messages are sent. The key of a deregistered
/// region is not reused at once.
pub fn churn(session: &mut Session) -> Result<()> {
    let end = Endpoint::connect(session, &Options::default())?;
    let steady = end.memory(4096)?;
    for round in 0..200_u64 {
        let mr = end.memory(2 * 4096)?;
        let message = bytes(round, 4096);
        if session.active() {
            mr.write(1, &message);
            session.peer.meet()?;
            let pieces: [Sge; 1] = [mr.sge(1, 4096)];
            end.run(Op::Send, &pieces)?.ok()?;
        } else {
            end.qp.recv(round, &[steady.sge(0, 4096)])?;
            session.peer.meet()?;
            end.received()?.ok()?;
            compare(&format!("round {round}"), &steady.read(0, 4096), &message)?;
        }
        let key = mr.lkey();
        mr.deregister()?;
        let next = end.memory(4096)?;
        ensure!(next.lkey() != key, "key {key:#x} is used again at once");
    }
    Ok(())
}
