// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Captures of ports by `ctl`, in the memory of all engines: the next engine goes on with those
//! that write to a file.
//!
//! An engine may die while it writes. A record tells the length of the file up to which all frames
//! are whole; what comes after it is cut off.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use anyhow::{ensure, Result};
use parking_lot::Mutex;
use rustix::fs::{fcntl_getfl, fstat, FileType, OFlags};
use supervisor::{Inherited, Store};
use vdev::{name_words, MAX_NAME};
use vm_memory::{MmapRegion, VolatileMemory};
use vswitch::pcap;

/// Maximum number of ports whose frames are captured at a time.
pub const PLACES: usize = 4;

const WORD: usize = size_of::<u64>();

// Words of a record. The word of the file is that of the `Store`; 0 if the place is free.
const NAME: usize = 0;
const FILE: usize = NAME + MAX_NAME / WORD;
/// Bytes of the file that are whole frames.
const END: usize = FILE + 1;
const FRAMES: usize = END + 1;
const WORDS: usize = FRAMES + 1;
/// Number of bytes of memory for all records.
pub const LEN: usize = PLACES * WORDS * WORD;

/// The records of captures.
#[derive(Clone)]
pub struct KeptCaptures(Arc<Kept>);

struct Kept {
    memory: Arc<MmapRegion>,
    at: usize,
    store: Arc<Store>,
    places: Mutex<[Place; PLACES]>,
}

/// State of a record in this engine.
enum Place {
    Free,
    /// A capture of the last engine, whose port this engine does not have yet.
    Former(File),
    Taken,
}

/// The file or pipe of a capture.
pub struct Output {
    file: File,
    /// The records and the place of this one, if the next engine can go on with it.
    record: Option<(Arc<Kept>, usize)>,
    /// Number of frames that earlier engines have written, after the header of the file. `None` if
    /// the file is empty.
    pub begun: Option<u64>,
}

impl KeptCaptures {
    /// The records in the [`LEN`] bytes from `at` on, a multiple of 8. The last engine may have
    /// written anything. Takes the files that they name.
    pub fn new(
        memory: Arc<MmapRegion>,
        at: usize,
        inherited: &mut Inherited,
        store: Arc<Store>,
    ) -> Self {
        let mut kept = Kept {
            memory,
            at,
            store,
            places: Mutex::new([const { Place::Free }; PLACES]),
        };
        let places = std::array::from_fn(|place| {
            let taken = kept.store.take(kept.word(place, FILE), inherited);
            let Some(file) = taken else {
                return Place::Free;
            };
            Place::Former(file.into())
        });
        kept.places = Mutex::new(places);
        Self(Arc::new(kept))
    }

    /// Begins the capture of `port` to `file`.
    ///
    /// # Errors
    ///
    /// It is no file or pipe that can be written.
    pub fn begin(&self, port: &str, file: File) -> Result<Output> {
        let stat = fstat(&file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let access = fcntl_getfl(&file)? & OFlags::RWMODE;
        ensure!(
            matches!(kind, FileType::RegularFile | FileType::Fifo) && access != OFlags::RDONLY,
            "the descriptor for the capture is not a writable file or pipe"
        );
        let mut places = self.0.places.lock();
        let free = places.iter().position(|it| matches!(it, Place::Free));
        // Half a frame in a pipe can't be cut off.
        let place = free.filter(|_| kind == FileType::RegularFile && stat.st_size == 0);
        if let Some(place) = place {
            places[place] = Place::Taken;
            for (at, word) in (NAME..).zip(name_words(port)) {
                self.0.set(place, at, word);
            }
            self.0.set(place, END, 0);
            self.0.set(place, FRAMES, 0);
            let word = self.0.word(place, FILE);
            self.0.store.record(word, Some(file.as_fd()));
        }
        Ok(Output {
            file,
            record: place.map(|place| (self.0.clone(), place)),
            begun: None,
        })
    }

    /// The capture of `port` that the last engine had, to go on with it.
    ///
    /// # Errors
    ///
    /// The file can't be cut off after its last whole frame. Its record is erased.
    pub fn resume(&self, port: &str) -> Result<Option<Output>> {
        let mut places = self.0.places.lock();
        let name = name_words(port);
        let is_of_port = |place: usize| {
            let mut words = (NAME..).zip(name);
            words.all(|(at, word)| self.0.get(place, at) == word)
        };
        for (place, state) in places.iter_mut().enumerate() {
            if !matches!(state, Place::Former(_)) || !is_of_port(place) {
                continue;
            }
            if let Place::Former(file) = mem::replace(state, Place::Taken) {
                drop(places);
                let end = self.0.get(place, END);
                // Dropping this value erases the record.
                let mut output = Output {
                    file,
                    record: Some((self.0.clone(), place)),
                    begun: (end > 0).then(|| self.0.get(place, FRAMES)),
                };
                let len = fstat(&output.file)?.st_size;
                ensure!(i64::try_from(end)? <= len, "it was shortened");
                output.file.set_len(end)?;
                output.file.seek(SeekFrom::Start(end))?;
                return Ok(Some(output));
            }
        }
        Ok(None)
    }

    /// Ends captures of the last engine whose ports this engine does not have.
    pub fn forget_others(&self) {
        for (place, state) in self.0.places.lock().iter_mut().enumerate() {
            if matches!(state, Place::Former(_)) {
                self.0.erase(place);
                *state = Place::Free;
            }
        }
    }
}

impl Kept {
    fn word(&self, place: usize, word: usize) -> &AtomicU64 {
        let at = self.at + (place * WORDS + word) * WORD;
        let word = self.memory.get_atomic_ref(at);
        word.expect("the memory has a part for the captures")
    }

    fn get(&self, place: usize, word: usize) -> u64 {
        self.word(place, word).load(Ordering::Acquire)
    }

    fn set(&self, place: usize, word: usize, value: u64) {
        self.word(place, word).store(value, Ordering::Release);
    }

    /// Forgets a file, which is then closed.
    fn erase(&self, place: usize) {
        self.store.record(self.word(place, FILE), None);
    }
}

impl Write for Output {
    /// Writes whole frames.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        if let Some((kept, place)) = &self.record {
            let begin = match kept.get(*place, END) {
                0 => pcap::FILE_HEADER as usize,
                _ => 0,
            };
            let frames = pcap::frames(bytes.get(begin..).unwrap_or_default());
            kept.word(*place, FRAMES)
                .fetch_add(frames, Ordering::AcqRel);
            kept.word(*place, END)
                .fetch_add(bytes.len() as u64, Ordering::AcqRel);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some((kept, place)) = &self.record {
            kept.erase(*place);
            kept.places.lock()[*place] = Place::Free;
        }
    }
}
