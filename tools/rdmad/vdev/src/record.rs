// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Records of functions: what the next engine needs to go on serving a client whose engine has
//! died.
//!
//! A record has the numbers of the descriptors that came from the client, what they are for, and
//! registers that the client or the guest will not write again. It does not have the state of the
//! device, which is lost: the function asks the driver for a reset.
//!
//! Records are in memory that all engines share. An engine can die at any instruction, so each step
//! leaves a record valid: a descriptor is recorded after it was opened and erased before it is
//! closed, and what belongs to it is written before. The socket thread of the function writes the
//! record, except during [`Records::open`].
//!
//! The former engine may have written anything, so a record is checked like the messages of a
//! client.

use std::collections::BTreeMap;
use std::io;
use std::mem::replace;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use dma::{Region, MAX_REGIONS};
use parking_lot::Mutex;
use supervisor::{Inherited, Start, Store};
use vm_memory::{MmapRegion, VolatileMemory};

use crate::message::{Header, Payload, Structure};
use crate::pci::{CONFIG_LEN, MAX_VECTORS};
use crate::reply_pipe::ReplyPipe;
use crate::saved::{FunctionSaved, Saved};

/// Maximum length of a function's name in bytes. The next engine finds a record by this name.
pub const MAX_NAME: usize = 64;
const WORD: usize = size_of::<u64>();

// Words of the memory: how many records were ever used at most, and the records.
const USED: usize = 0;
const RECORDS: usize = 1;

// Words of a record. The word of a descriptor is that of the `Store`, and 0 is none.
const NAME: usize = 0;
const CONNECTION: usize = NAME + MAX_NAME / WORD;
/// The ends of the pipe of replies.
const PIPE: usize = CONNECTION + 1;
/// The vector of configuration changes, the status and [`IS_USED`].
const FUNCTION: usize = PIPE + 2;
/// The header of a command to reset the function that was not answered yet, in two words, after
/// [`IS_RESETTING`].
const RESET: usize = FUNCTION + 1;
/// The message that is being executed, and the number of engines that have died at it.
const MESSAGE: usize = RESET + 3;
const DEATHS: usize = MESSAGE + 1;
const CONFIG: usize = DEATHS + 1;
const REGIONS: usize = CONFIG + CONFIG_LEN / WORD;
const VECTORS: usize = REGIONS + MAX_REGIONS * REGION;
const WORDS: usize = VECTORS + MAX_VECTORS as usize;

// Words of a region.
const REGION_FILE: usize = 0;
const REGION_IOVA: usize = 1;
const REGION_OFFSET: usize = 2;
const REGION_LEN: usize = 3;
const REGION_WRITABLE: usize = 4;
const REGION: usize = 5;

/// First bit of the status in [`FUNCTION`].
const STATUS: u32 = 16;
/// Bit of [`FUNCTION`]: a driver has set the function up.
const IS_USED: u64 = 1 << 24;
/// First word of [`RESET`] if there is such a command.
const IS_RESETTING: u64 = 1;

/// The connection of a client whose engine has died, and the function that the client uses.
#[derive(Debug)]
pub(crate) struct Former {
    pub(crate) connection: UnixStream,
    pub(crate) replies: ReplyPipe,
    pub(crate) function: FormerFunction,
    /// Dropped when the function is restored.
    pub(crate) restoring: Arc<()>,
}

/// A function that the last engine has left.
#[derive(Debug)]
pub(crate) struct FormerFunction {
    pub(crate) config: [u8; CONFIG_LEN],
    pub(crate) config_vector: u16,
    /// The device status: 0 if no driver used the function, or a reset was under way.
    pub(crate) status: u8,
    /// Whether a driver had set the function up since its client connected.
    pub(crate) is_used: bool,
    /// A command to reset the function that was not answered.
    pub(crate) reset: Option<Header>,
    /// Regions of the client's memory and their files.
    pub(crate) regions: Vec<(Region, OwnedFd)>,
    /// Vectors and their eventfds.
    pub(crate) vectors: Vec<(u16, OwnedFd)>,
    /// The state of the function and its device, if the last engine has handed them over.
    pub(crate) saved: Option<FunctionSaved>,
}

/// The records of all functions.
#[derive(Debug)]
pub struct Records {
    memory: Arc<MmapRegion>,
    store: Arc<Store>,
    states: Mutex<Vec<State>>,
    /// The functions that the last engine has handed over.
    saved: Mutex<Option<Saved>>,
    /// Shared by all clients whose functions are yet to be restored.
    restoring: Arc<()>,
}

/// State of a record in this engine.
#[derive(Debug)]
enum State {
    /// No function of this engine uses the record.
    Free,
    /// The last engine had a function with a client. No function of this engine has its name yet.
    Former(Box<Former>),
    Taken,
}

impl Records {
    /// Version of what a record contains, and of the number of records. To be increased with each
    /// change: a program does not take over from one with another format.
    pub const FORMAT: u32 = 3;

    /// Number of bytes of memory for `count` records.
    pub const fn len(count: usize) -> usize {
        (RECORDS + count * WORDS) * WORD
    }

    /// `count` records at the beginning of `memory`, which is zero in the first engine. Takes the
    /// descriptors that they name, and keeps them in the `store`.
    pub fn new(
        memory: Arc<MmapRegion>,
        count: usize,
        inherited: &mut Inherited,
        store: Arc<Store>,
    ) -> Self {
        let used = word(&memory, USED).load(Ordering::Acquire);
        let state = |index| {
            // Most records stay untouched, so that they take neither memory nor time.
            if index as u64 >= used {
                return State::Free;
            }
            let (memory, store) = (&*memory, &*store);
            let words = Words {
                memory,
                store,
                index,
            };
            let Some(former) = words.former(inherited) else {
                // It must not refer to descriptors that others get later.
                words.erase();
                return State::Free;
            };
            State::Former(Box::new(former))
        };
        let states = Mutex::new((0..count).map(state).collect());
        Self {
            memory,
            store,
            states,
            saved: Mutex::default(),
            restoring: Arc::default(),
        }
    }

    /// Adds the state of the functions that the last engine has handed over.
    pub fn hand_over(&self, saved: Saved) {
        *self.saved.lock() = Some(saved).filter(|saved| !saved.is_empty());
    }

    /// When the last engine has held its threads to hand functions over; `None` if there are none.
    pub fn held_at(&self) -> Option<Duration> {
        self.saved.lock().as_ref().map(|saved| saved.held_at)
    }

    /// Whether all functions that were [opened](Self::open) are restored.
    pub fn are_restored(&self) -> bool {
        Arc::strong_count(&self.restoring) == 1
    }

    /// Records that no other engine sees.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub fn alone(count: usize) -> io::Result<Arc<Self>> {
        let start = Start::alone(Self::len(count))?;
        Ok(Arc::new(Self::new(
            start.memory,
            count,
            &mut Inherited::default(),
            start.store,
        )))
    }

    /// Disconnects the clients of functions that this engine has not [opened](Self::open).
    pub fn forget_others(&self) {
        for (index, state) in self.states.lock().iter_mut().enumerate() {
            if matches!(state, State::Former(_)) {
                self.at(index).erase();
                *state = State::Free;
            }
        }
    }

    /// The record of the function `name`, with what the last engine has left of it. Names differ in
    /// their first [`MAX_NAME`] bytes.
    ///
    /// # Errors
    ///
    /// All records are in use.
    pub(crate) fn open(self: &Arc<Self>, name: &str) -> io::Result<(Record, Option<Former>)> {
        let mut states = self.states.lock();
        let full = name;
        let name = name_words(name);
        let named = |(index, state): (usize, &State)| match state {
            State::Former(_) => self.at(index).name() == name,
            State::Free | State::Taken => false,
        };
        let is_free = |state: &State| matches!(state, State::Free);
        let index = states.iter().enumerate().position(named);
        let index = index.or_else(|| states.iter().position(is_free));
        let index = index.ok_or_else(|| io::Error::other("all records of functions are in use"))?;
        let former = match replace(&mut states[index], State::Taken) {
            // The record stays as it is, since this engine may die before it serves the client.
            State::Former(mut former) => {
                let mut saved = self.saved.lock();
                former.function.saved = saved.as_mut().and_then(|saved| saved.take(full));
                former.restoring = self.restoring.clone();
                Some(*former)
            }
            State::Free | State::Taken => {
                word(&self.memory, USED).fetch_max(index as u64 + 1, Ordering::AcqRel);
                self.at(index).erase();
                self.at(index).set_name(name);
                None
            }
        };
        let records = self.clone();
        Ok((Record { records, index }, former))
    }

    fn at(&self, index: usize) -> Words<'_> {
        Words {
            memory: &self.memory,
            store: &self.store,
            index,
        }
    }
}

/// The record of a function of this engine. Dropping it erases the record.
#[derive(Debug)]
pub(crate) struct Record {
    records: Arc<Records>,
    index: usize,
}

/// The words of a record.
#[derive(Clone, Copy)]
struct Words<'a> {
    memory: &'a MmapRegion,
    store: &'a Store,
    index: usize,
}

impl Words<'_> {
    fn word(&self, index: usize) -> &AtomicU64 {
        word(self.memory, RECORDS + self.index * WORDS + index)
    }

    fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    fn set(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Replaces the descriptor at a word, also in the store.
    fn set_file(&self, index: usize, file: Option<BorrowedFd<'_>>) {
        self.store.record(self.word(index), file);
    }

    fn name(&self) -> [u64; MAX_NAME / WORD] {
        std::array::from_fn(|at| self.get(NAME + at))
    }

    fn set_name(&self, name: [u64; MAX_NAME / WORD]) {
        for (at, word) in name.into_iter().enumerate() {
            self.set(NAME + at, word);
        }
    }

    /// The region at a [place](region_places), if there is one.
    fn region(&self, at: usize) -> Option<Region> {
        (self.get(at + REGION_FILE) != 0).then(|| Region {
            iova: self.get(at + REGION_IOVA),
            offset: self.get(at + REGION_OFFSET),
            len: self.get(at + REGION_LEN),
            writable: self.get(at + REGION_WRITABLE) != 0,
        })
    }

    fn forget_client(&self) {
        for word in file_words() {
            self.set_file(word, None);
        }
        for word in CONNECTION..WORDS {
            self.set(word, 0);
        }
    }

    fn erase(&self) {
        self.forget_client();
        for word in NAME..CONNECTION {
            self.set(word, 0);
        }
    }

    /// The client of the last engine. `None` without a client, or if the record is invalid.
    fn former(&self, inherited: &mut Inherited) -> Option<Former> {
        // All are taken, so that the record then has only what is open and in the store.
        let recorded = file_words().filter(|word| self.get(*word) != 0);
        let taken = recorded.map(|word| (word, self.store.take(self.word(word), inherited)));
        let taken: Vec<_> = taken.collect();
        let files = taken.into_iter().map(|(word, file)| Some((word, file?)));
        let mut files: BTreeMap<usize, OwnedFd> = files.collect::<Option<_>>()?;
        let connection = files.remove(&CONNECTION)?;
        let [output, input] = [PIPE, PIPE + 1].map(|word| files.remove(&word));
        let mut config = [0; CONFIG_LEN];
        for (at, bytes) in config.chunks_exact_mut(WORD).enumerate() {
            bytes.copy_from_slice(&self.get(CONFIG + at).to_ne_bytes());
        }
        let regions = region_places().filter_map(|at| {
            let file = files.remove(&(at + REGION_FILE))?;
            Some((self.region(at)?, file))
        });
        let regions = regions.collect();
        let vectors = (0..MAX_VECTORS)
            .filter_map(|vector| Some((vector, files.remove(&(VECTORS + usize::from(vector)))?)));
        let vectors = vectors.collect();
        let function = self.get(FUNCTION);
        let reset = [1, 2].map(|at| self.get(RESET + at).to_ne_bytes()).concat();
        let reset = Header::decode(&mut Payload(&reset)).ok();
        let reset = reset.filter(|_| self.get(RESET) == IS_RESETTING);
        Some(Former {
            connection: connection.into(),
            replies: [output?, input?].into(),
            restoring: Arc::default(),
            function: FormerFunction {
                config,
                config_vector: (function & 0xffff) as u16,
                status: (function >> STATUS) as u8,
                is_used: function & IS_USED != 0,
                reset,
                regions,
                vectors,
                saved: None,
            },
        })
    }
}

impl Record {
    fn words(&self) -> Words<'_> {
        self.records.at(self.index)
    }

    /// A client has connected.
    pub(crate) fn connected(&self, connection: BorrowedFd<'_>, replies: &ReplyPipe) {
        let words = self.words();
        words.set_file(PIPE, Some(replies.output.as_fd()));
        words.set_file(PIPE + 1, Some(replies.input.as_fd()));
        words.set_file(CONNECTION, Some(connection));
    }

    /// The client is gone, and its descriptors are being closed.
    pub(crate) fn disconnected(&self) {
        self.words().forget_client();
    }

    pub(crate) fn set_config(&self, config: &[u8; CONFIG_LEN]) {
        for (at, bytes) in config.chunks_exact(WORD).enumerate() {
            let mut word = [0; WORD];
            word.copy_from_slice(bytes);
            self.words().set(CONFIG + at, u64::from_ne_bytes(word));
        }
    }

    /// Records the vector of configuration changes, the device status, and whether a driver has set
    /// the function up.
    pub(crate) fn set_function(&self, config_vector: u16, status: u8, is_used: bool) {
        let is_used = if is_used { IS_USED } else { 0 };
        let status = u64::from(status) << STATUS;
        self.words()
            .set(FUNCTION, u64::from(config_vector) | status | is_used);
    }

    /// Records a command to reset the function that will be answered later, or that it was
    /// answered.
    pub(crate) fn set_reset(&self, command: Option<&Header>) {
        let words = self.words();
        words.set(RESET, 0);
        if let Some(command) = command {
            let mut bytes = Vec::new();
            command.encode(&mut bytes);
            for (at, word) in (1..).zip(bytes.chunks_exact(WORD)) {
                let word = word.try_into().unwrap_or_default();
                words.set(RESET + at, u64::from_ne_bytes(word));
            }
            words.set(RESET, IS_RESETTING);
        }
    }

    /// A message of the client will be executed, the first one of this engine or a later one.
    /// Returns the number of engines in a row that have died at it.
    pub(crate) fn begin_message(&self, header: &Header, is_first: bool) -> u64 {
        let words = self.words();
        let deaths = match is_first && self.is_last(header) {
            true => words.get(DEATHS).saturating_add(1),
            false => 0,
        };
        words.set(DEATHS, deaths);
        words.set(MESSAGE, message(header));
        deaths
    }

    /// Whether this message is the last one that was [begun](Self::begin_message).
    pub(crate) fn is_last(&self, header: &Header) -> bool {
        self.words().get(MESSAGE) == message(header)
    }

    /// Whether this region is mapped.
    pub(crate) fn has_region(&self, region: Region) -> bool {
        let words = self.words();
        region_places().any(|at| words.region(at) == Some(region))
    }

    /// Records that a vector is connected to `eventfd`, or to none.
    pub(crate) fn set_vector(&self, vector: u16, eventfd: Option<BorrowedFd<'_>>) {
        self.words()
            .set_file(VECTORS + usize::from(vector), eventfd);
    }

    /// Records a region that was mapped, and its file. The map has room for it.
    pub(crate) fn add_region(&self, region: Region, file: BorrowedFd<'_>) {
        let words = self.words();
        if let Some(at) = region_places().find(|at| words.region(*at).is_none()) {
            words.set(at + REGION_IOVA, region.iova);
            words.set(at + REGION_OFFSET, region.offset);
            words.set(at + REGION_LEN, region.len);
            words.set(at + REGION_WRITABLE, region.writable.into());
            words.set_file(at + REGION_FILE, Some(file));
        }
    }

    /// Forgets the regions in the `len` bytes at `iova`, which are being unmapped.
    pub(crate) fn remove_regions(&self, iova: u64, len: u64) {
        let words = self.words();
        let end = iova.saturating_add(len);
        for at in region_places() {
            let region = words.region(at);
            if region.is_some_and(|region| (iova..end).contains(&region.iova)) {
                words.set_file(at + REGION_FILE, None);
            }
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Record {
    /// A record that no other engine sees.
    pub(crate) fn for_tests() -> Self {
        Records::alone(1).unwrap().open("test").unwrap().0
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.words().erase();
        self.records.states.lock()[self.index] = State::Free;
    }
}

/// A word of the memory.
fn word(memory: &MmapRegion, index: usize) -> &AtomicU64 {
    let word = memory.get_atomic_ref(index * WORD);
    word.expect("`Records::new` counts the records that fit")
}

/// A message as a word.
fn message(header: &Header) -> u64 {
    let command = u64::from(header.command) << 16;
    (u64::from(header.size) << 32) | command | u64::from(header.id)
}

/// The first word of each region.
fn region_places() -> impl Iterator<Item = usize> {
    (0..MAX_REGIONS).map(|number| REGIONS + number * REGION)
}

/// The words of descriptors. That of the connection comes first.
fn file_words() -> impl Iterator<Item = usize> {
    let connection = CONNECTION..CONNECTION + 3;
    let regions = region_places().map(|at| at + REGION_FILE);
    connection.chain(regions).chain(VECTORS..WORDS)
}

/// The first [`MAX_NAME`] bytes of a name as words.
pub fn name_words(name: &str) -> [u64; MAX_NAME / WORD] {
    let mut bytes = [0; MAX_NAME];
    let len = name.len().min(MAX_NAME);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    std::array::from_fn(|at| {
        let mut word = [0; WORD];
        word.copy_from_slice(&bytes[at * WORD..(at + 1) * WORD]);
        u64::from_ne_bytes(word)
    })
}

#[cfg(test)]
mod tests {
    use std::mem::forget;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use rustix::event::{eventfd, EventfdFlags};

    use super::*;

    const RESET_COMMAND: Header = Header {
        id: 1,
        command: 2,
        size: 3,
        flags: 4,
        error: 5,
    };

    /// Memory for the records of several engines.
    fn memory() -> Arc<MmapRegion> {
        Start::alone(Records::len(3)).unwrap().memory
    }

    fn records(memory: &Arc<MmapRegion>, mut inherited: Inherited) -> Arc<Records> {
        let store = Start::alone(1).unwrap().store;
        Arc::new(Records::new(memory.clone(), 3, &mut inherited, store))
    }

    fn file() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    /// Records a client of the function `name` with three regions, of which one is removed, and two
    /// vectors, of which one is disconnected. The engine dies. Returns the descriptors.
    fn engine_that_dies(memory: &Arc<MmapRegion>, name: &str) -> Vec<OwnedFd> {
        let (record, former) = records(memory, Inherited::default()).open(name).unwrap();
        assert!(former.is_none());
        let mut files: Vec<_> = (0..6).map(|_| file()).collect();
        let replies = [file(), file()].into();
        record.connected(files[0].as_fd(), &replies);
        for (number, file) in (1..).zip(&files[1..4]) {
            let region = Region {
                iova: number << 20,
                offset: number,
                len: 4096,
                writable: number == 2,
            };
            record.add_region(region, file.as_fd());
        }
        record.remove_regions(1 << 20, 4096);
        record.set_vector(3, Some(files[4].as_fd()));
        record.set_vector(MAX_VECTORS - 1, Some(files[5].as_fd()));
        record.set_vector(3, None);
        record.set_config(&std::array::from_fn(|at| at as u8));
        record.set_function(7, 15, true);
        record.set_reset(Some(&RESET_COMMAND));
        forget(record);
        files.extend([replies.output, replies.input]);
        files
    }

    #[test]
    fn a_record_has_what_the_client_needs() {
        let memory = memory();
        let files = engine_that_dies(&memory, "a");
        let next = records(&memory, files.into_iter().collect());
        assert!(next.open("b").unwrap().1.is_none());
        let (record, former) = next.open("a").unwrap();
        let former = former.unwrap().function;
        let regions = former.regions.iter();
        let regions = regions.map(|(it, _)| (it.iova, it.offset, it.len, it.writable));
        let expected = [(2 << 20, 2, 4096, true), (3 << 20, 3, 4096, false)];
        assert_eq!(Vec::from_iter(regions), expected);
        let vectors: Vec<_> = former.vectors.iter().map(|(vector, _)| *vector).collect();
        assert_eq!(vectors, [MAX_VECTORS - 1]);
        assert_eq!(former.config, std::array::from_fn(|at| at as u8));
        assert_eq!((former.config_vector, former.status), (7, 15));
        assert_eq!((former.is_used, former.reset), (true, Some(RESET_COMMAND)));
        // A function whose engine has ended in an orderly way leaves nothing.
        drop((record, former));
        let files = [file()].into_iter().collect();
        assert!(records(&memory, files).open("a").unwrap().1.is_none());
    }

    /// The clients of functions that do not exist any more are disconnected.
    #[test]
    fn others_are_forgotten() {
        let memory = memory();
        let files = engine_that_dies(&memory, "a");
        let numbers: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let next = records(&memory, files.into_iter().collect());
        next.forget_others();
        assert!(next.open("a").unwrap().1.is_none());
        assert!(!numbers.is_empty());
        let again = records(&memory, [file()].into_iter().collect());
        assert!(again.open("a").unwrap().1.is_none());
    }

    /// A first engine touches one page of the memory, and the next one the records that were used.
    #[test]
    fn unused_records_take_no_memory() {
        let start = Start::alone(Records::len(100)).unwrap();
        let memory = start.memory;
        let pages = || {
            let file = memory.file_offset().unwrap().file();
            file.metadata().unwrap().blocks() / 8
        };
        let records = |mut inherited| {
            let store = start.store.clone();
            Arc::new(Records::new(memory.clone(), 100, &mut inherited, store))
        };
        let before = pages();
        let of_first = records(Inherited::default());
        assert_eq!(pages(), before + 1);
        forget(of_first.open("a").unwrap());
        let of_one = pages();
        records([file()].into_iter().collect());
        assert_eq!(pages(), of_one);
    }

    /// The last engine may have written anything: descriptors that it did not leave, or one for two
    /// purposes.
    #[test]
    fn a_false_record_is_refused() {
        for false_word in [CONNECTION, REGIONS + REGION + REGION_FILE, VECTORS + 5] {
            for number in [1, 0, u64::MAX, u64::from(u32::MAX)] {
                let memory = memory();
                let files = engine_that_dies(&memory, "a");
                // Standard input, none, and numbers that do not fit; or that of a vector.
                let number = match number {
                    0 => files[5].as_raw_fd() as u64 + 1,
                    _ => number,
                };
                let (memory, store, index) = (&memory, &Start::alone(1).unwrap().store, 0);
                let words = Words {
                    memory,
                    store,
                    index,
                };
                words.set(false_word, number);
                let next = records(memory, files.into_iter().collect());
                assert!(
                    next.open("a").unwrap().1.is_none(),
                    "{false_word}, {number}"
                );
            }
        }
    }
}
