// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Monitors that truncate the memory of their VMs, or fill the memory of the host.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use rustix::fs::ftruncate;
use rustix::fs::memfd_create;
use rustix::fs::MemfdFlags;
use testkit::skipped;

use crate::driver::Driver;
use crate::endpoint::Endpoint;
use crate::endpoint::DEPTH;
use crate::endpoint::PLAIN;
use crate::memory::PAGE;
use crate::process::Daemon;
use crate::region::access_flags;
use crate::wire::*;

/// DMA address of the memory that the monitor takes away.
const FRAGILE: u64 = 1 << 40;
/// Address of its MR.
const START: u64 = 0x7f00_0000_0000;
/// Distance between the accessed pages. Pages next to each other would share a mapping.
const STRIDE: u64 = 3 * PAGE;
/// Number of work requests in a turn, and of SGEs in a work request.
const REQUESTS: u64 = DEPTH as u64 - 4;
const SGES: u64 = 2;
const PAGES: u64 = REQUESTS * SGES * STRIDE / PAGE;
/// Size of the file of an MR, with its page list.
const SIZE: u64 = 2 * PAGES * PAGE;

/// A file of memory without pages.
fn sparse(len: u64) -> File {
    let file = File::from(memfd_create("sparse", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, len).unwrap();
    file
}

/// An MR in a file that can shrink.
struct Fragile {
    file: File,
    handle: u32,
    lkey: u32,
}

impl Fragile {
    fn new(driver: &mut Driver, pd: u32) -> Self {
        Self::try_new(driver, pd).unwrap()
    }

    /// Like [`new`](Self::new), or the errno of the registration, if the file could not be mapped.
    fn try_new(driver: &mut Driver, pd: u32) -> Result<Self, u8> {
        let file = sparse(SIZE);
        driver.map_more(FRAGILE, SIZE, &file);
        // The page list is past the MR.
        let len = PAGES * PAGE;
        let list = (0..PAGES).flat_map(|page| (FRAGILE + page * PAGE).to_le_bytes());
        let list = Vec::from_iter(list);
        file.write_all_at(&list, len).unwrap();
        let request = Fields::default()
            .le32(pd)
            .le32(LOCAL_WRITE | access_flags(driver.features))
            .le64(START)
            .le64(len)
            .le64(START)
            .le64(FRAGILE + len)
            .le32(PAGES as u32);
        let keys = driver.command(command::REG_USER_MR, &request.0, 12);
        let keys = keys?;
        Ok(Self {
            file,
            handle: le32(&keys, 0),
            lkey: le32(&keys, 4),
        })
    }

    /// SGEs of work request `number`. Each has a byte of two pages.
    fn sges(&self, number: u64) -> Vec<Sge> {
        let sge = |at: u64| Sge {
            address: START + at * STRIDE + PAGE - 1,
            length: 2,
            lkey: self.lkey,
        };
        (0..SGES).map(|n| sge(number * SGES + n)).collect()
    }

    fn truncate(&self) {
        ftruncate(&self.file, 0).unwrap();
    }
}

/// Number of mappings of a process.
fn mappings(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().count()
}

/// Each lost page may cost mappings of the daemon, of which the kernel allows a limited number.
#[test]
fn lost_memory_costs_the_daemon_few_mappings() {
    /// Mappings that each VM may cost, beside those of its regions.
    const FEW: usize = 40;
    for path in ["direct", "wire"] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
        let names = ["a", "b", "c", "d", "witness"];
        for (number, name) in names.into_iter().enumerate() {
            let socket = dir.path().join(name);
            let mac = format!("52:54:00:09:00:{number:02x}");
            let port = format!("{name},vfio={},mac={mac}", socket.display());
            command.args(["--port", &port]);
        }
        command.args(["--ready-fd", "1", "--path", path]);
        let daemon = Daemon::start(command);
        let pid = daemon.engine();
        let mut sides = names.map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
        let [a, b, c, d, witness] = &mut sides;
        for [from, to] in [[a, b], [c, d]] {
            to.connect(from.peer(), 2, 1);
            from.connect(to.peer(), 1, 2);
            let ours = Fragile::new(&mut from.driver, from.pd);
            let theirs = Fragile::new(&mut to.driver, to.pd);
            let before = mappings(pid);
            for number in 0..REQUESTS {
                to.rq.put(&receive(number, &theirs.sges(number)));
                let send = Send::new(opcode::SEND, number).flags(0);
                from.sq.put(&send.with(&ours.sges(number)));
            }
            to.rq.publish(&mut to.driver);
            ours.truncate();
            theirs.truncate();
            from.sq.publish(&mut from.driver);
            from.driver.await_failure();
            let after = mappings(pid);
            assert!(after <= before + 2 * FEW, "{path}: {before}, then {after}");
            // With whole memory, the port works again.
            ftruncate(&ours.file, SIZE).unwrap();
            from.driver.initialize();
            assert_eq!(from.state(), Err(EINVAL));
        }
        assert_eq!(witness.state(), Ok(state::RESET));
    }
}

/// A page is charged to the process that accesses it first. A monitor passes one sparse file after
/// the other, and keeps all of them.
#[test]
fn a_monitor_fills_no_more_files_than_its_limit() {
    const LIMIT: u64 = 16 << 20;
    /// Bytes that one work request fills.
    const LEN: u64 = crate::region::LEN as u64 / PAGE * PAGE;
    if let Err(error) = dma::count_filled_pages() {
        skipped(format_args!("no userfaultfd: {error}"));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtio-rdmad"));
    for (number, name) in ["a", "b"].into_iter().enumerate() {
        let socket = dir.path().join(name);
        let mac = format!("52:54:00:09:00:{number:02x}");
        let port = format!(
            "{name},vfio={},mac={mac},guest-memory=16M",
            socket.display()
        );
        command.args(["--port", &port]);
    }
    command.args(["--ready-fd", "1"]);
    let _daemon = Daemon::start(command);
    let [mut a, mut b] = ["a", "b"].map(|name| Endpoint::new(&dir.path().join(name), PLAIN));
    b.connect(a.peer(), 2, 1);
    a.connect(b.peer(), 1, 2);
    let mut kept = Vec::new();
    let refused = (0..100).any(|_| {
        let Ok(filled) = Fragile::try_new(&mut a.driver, a.pd) else {
            return true;
        };
        for offset in (0..PAGES * PAGE - LEN).step_by(LEN as usize) {
            let sge = Sge {
                address: START + offset,
                length: LEN as u32,
                lkey: filled.lkey,
            };
            let read = Send::new(opcode::RDMA_READ, offset);
            let read = read.to(b.region.address, b.region.rkey);
            a.post_send(&read.with(&[sge]));
            assert_eq!(a.send_cq.wait().status, SUCCESS);
            a.sq.done += 1;
        }
        a.destroy(command::DEREG_MR, filled.handle).unwrap();
        a.driver.unmap(FRAGILE, SIZE);
        kept.push(filled.file);
        false
    });
    assert!(refused);
    let held: u64 = kept
        .iter()
        .map(|file| file.metadata().unwrap().blocks() * 512)
        .sum();
    assert!(held > LIMIT && held <= 2 * LIMIT, "{held:#x}");
    // The VM itself and its neighbour work.
    assert_eq!(a.state(), Ok(state::RTS));
    assert_eq!(b.state(), Ok(state::RTS));
}
