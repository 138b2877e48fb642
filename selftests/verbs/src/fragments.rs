// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Fragmentation of this machine's memory: each free page is between pages that the kernel can't
//! move.

use std::fs;
use std::os::fd::OwnedFd;

use anyhow::{ensure, Context as _, Result};
use rustix::pipe::{fcntl_setpipe_size, pipe_with, PipeFlags};
use rustix::process::{getrlimit, setrlimit, Resource};

use crate::mappings::PAGE;

/// Pages of a pipe: the default limit of the kernel.
const PIPE_PAGES: usize = 256;

/// Free memory of the machine, in bytes.
fn free_memory() -> Result<usize> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemFree:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no MemFree")?.parse::<usize>()? << 10)
}

/// A pipe of [`PIPE_PAGES`] pages.
fn pipe() -> Result<[OwnedFd; 2]> {
    let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).context("make a pipe")?;
    fcntl_setpipe_size(&writer, PIPE_PAGES * PAGE).context("enlarge a pipe")?;
    Ok([reader, writer])
}

/// Allocated pages between free pages.
///
/// The allocated pages are contents of pipes, which the kernel can't move. It could move pages of
/// processes and files to create longer runs of free pages.
pub struct Fragments {
    _pipes: Vec<[OwnedFd; 2]>,
}

impl Fragments {
    /// Allocates the free memory page by page, except for `reserve` bytes, and frees every second
    /// page.
    pub fn new(reserve: usize) -> Result<Self> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).context("open more files")?;
        let page = [0; PAGE];
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        while free_memory()? > reserve {
            let pair = [pipe()?, pipe()?];
            for _ in 0..PIPE_PAGES {
                for [_, writer] in &pair {
                    let written = rustix::io::write(writer, &page).context("fill a pipe")?;
                    ensure!(written == PAGE, "{written} bytes in a pipe");
                }
            }
            let [first, second] = pair;
            kept.push(first);
            freed.push(second);
        }
        println!(
            "# {} MiB of single pages",
            (freed.len() * PIPE_PAGES * PAGE) >> 20
        );
        Ok(Self { _pipes: kept })
    }
}
