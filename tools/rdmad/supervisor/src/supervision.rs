// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Memory by which an engine and its supervisor tell each other of readiness and upgrades.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vm_memory::{FileOffset, MmapRegion, VolatileMemory, VolatileSlice};

/// Bytes of words and text: a page.
const PAGE: usize = 4096;
/// Maximum number of files in the service manager's store.
pub(crate) const MAX_STORED: usize = 4096;
/// Bytes of the memory: the page, and a word for each file in the store.
pub(crate) const LEN: usize = PAGE + MAX_STORED * WORD;
/// How long an engine waits for the answer to a request for an upgrade. The supervisor waits less
/// long for the new program, and clients of the engine longer.
const PATIENCE: Duration = Duration::from_secs(7);
const INTERVAL: Duration = Duration::from_millis(10);

// Words.
const READY: usize = 0;
const REFUSALS: usize = 1;
/// Bytes of the state that the engine has handed over; 0 for none.
const STATE_LEN: usize = 2;
/// Whether the present engine works.
const WORKS: usize = 3;
/// Number of words for files in the store that were ever used, and the last name that was given.
const STORED: usize = 4;
const LAST_NAME: usize = 5;
/// Whether recorded numbers of descriptors are those of an earlier supervisor.
const RENUMBERING: usize = 6;
const TEXT_LEN: usize = 7;
const TEXT: usize = 8;
const WORD: usize = size_of::<u64>();
/// Maximum length of a state in bytes.
const MAX_STATE: u64 = 1 << 30;
const MAX_TEXT: usize = PAGE - TEXT * WORD;

/// The means of an engine and its supervisor to tell each other something.
#[derive(Clone, Debug)]
pub struct Supervision {
    memory: Arc<MmapRegion>,
    /// An eventfd by which an engine requests an upgrade. It is the supervisor's descriptor, which
    /// the engine must not close.
    pub(crate) request: Arc<ManuallyDrop<OwnedFd>>,
    /// The file of the state that an engine hands over, which belongs to the supervisor too.
    pub(crate) state: Arc<ManuallyDrop<File>>,
}

impl Supervision {
    /// The memory is the beginning of `file`.
    pub(crate) fn new(file: &File, request: OwnedFd, state: File) -> io::Result<Self> {
        let file = FileOffset::new(file.try_clone()?, 0);
        let memory = MmapRegion::from_file(file, LEN).map_err(io::Error::other)?;
        Ok(Self {
            memory: Arc::new(memory),
            request: Arc::new(ManuallyDrop::new(request)),
            state: Arc::new(ManuallyDrop::new(state)),
        })
    }

    /// Tells that the engine works, so that another one is started if it ends unexpectedly.
    pub fn tell_ready(&self) {
        self.word(READY).store(1, Ordering::Release);
        self.word(WORKS).store(1, Ordering::Release);
    }

    /// A new engine starts. Requests of the last one are forgotten.
    pub(crate) fn begin(&self) {
        let _ = rustix::io::read(&**self.request, &mut [0; 8]);
        self.word(WORKS).store(0, Ordering::Release);
    }

    /// The last supervisor has ended, and what its last engine has handed over or refused is lost.
    pub(crate) fn begin_again(&self) {
        for word in [READY, STATE_LEN] {
            self.word(word).store(0, Ordering::Release);
        }
        self.word(RENUMBERING).store(1, Ordering::Release);
    }

    /// The names of files that may be in the store, at their places; 0 for none.
    pub(crate) fn stored(&self) -> Vec<u32> {
        let used = self.word(STORED).load(Ordering::Acquire);
        let used = usize::try_from(used).map_or(MAX_STORED, |used| used.min(MAX_STORED));
        let names = (0..used).map(|place| self.name(place).load(Ordering::Acquire));
        names.map(|name| name as u32).collect()
    }

    /// Notes that a file at this place may be in the store. Returns its name, which no file had.
    pub(crate) fn store(&self, place: usize) -> u32 {
        // The manager may still have files of another memory.
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let first = now.map_or(1, |now| now.as_micros() as u64);
        let last = self.word(LAST_NAME);
        let _ = last.compare_exchange(0, first, Ordering::AcqRel, Ordering::Acquire);
        let last = last.fetch_add(1, Ordering::AcqRel) as u32;
        // After 4,294,967,295 names the first ones return, without 0.
        let name = last.wrapping_add(1).max(1);
        self.word(STORED)
            .fetch_max(place as u64 + 1, Ordering::AcqRel);
        self.name(place).store(name.into(), Ordering::Release);
        name
    }

    /// Notes that the file at this place is in the store no longer.
    pub(crate) fn forget(&self, place: usize) {
        self.name(place).store(0, Ordering::Release);
    }

    fn name(&self, place: usize) -> &AtomicU64 {
        self.word(PAGE / WORD + place)
    }

    /// Tells that all recorded descriptors that were left for this engine are recorded anew.
    pub fn tell_recorded(&self) {
        self.word(RENUMBERING).store(0, Ordering::Release);
    }

    /// Whether an engine has ended before it told that.
    pub(crate) fn is_renumbering(&self) -> bool {
        self.word(RENUMBERING).load(Ordering::Acquire) != 0
    }

    /// Whether the present engine works, so it can be asked to hand over.
    pub(crate) fn works(&self) -> bool {
        self.word(WORKS).load(Ordering::Acquire) != 0
    }

    /// Whether an engine has worked.
    pub fn was_ready(&self) -> bool {
        self.word(READY).load(Ordering::Acquire) != 0
    }

    /// Requests that the program be replaced by the one that is at its path now. Does not return if
    /// that succeeds, since this process ends.
    ///
    /// # Errors
    ///
    /// The supervisor refuses the upgrade for this reason.
    pub fn upgrade(&self) -> String {
        let before = self.refusals();
        let until = Instant::now() + PATIENCE;
        if let Err(error) = self.ask() {
            return format!("the supervisor can't be asked: {error}");
        }
        while self.refusals() == before {
            if Instant::now() > until {
                return "the supervisor does not answer".to_owned();
            }
            thread::sleep(INTERVAL);
        }
        self.refusal()
    }

    /// Hands over `state` to the engine of the program that takes over. To be called by an engine
    /// that was asked for it by [`HAND_OVER`](crate::HAND_OVER) and is held: the other engine may
    /// work before this one has ended.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub fn hand_over(&self, state: &[u8]) -> io::Result<()> {
        if state.len() as u64 > MAX_STATE {
            return Err(io::Error::other(format!("{} bytes of state", state.len())));
        }
        self.state.write_all_at(state, 0)?;
        self.word(STATE_LEN)
            .store(state.len() as u64, Ordering::Release);
        // If this fails, the supervisor notices the end of the engine.
        let _ = self.ask();
        Ok(())
    }

    /// Whether the present engine has handed over.
    pub(crate) fn has_handed_over(&self) -> bool {
        self.word(STATE_LEN).load(Ordering::Acquire) != 0
    }

    /// Wakes the supervisor, for an upgrade.
    fn ask(&self) -> rustix::io::Result<()> {
        rustix::io::write(&**self.request, &1u64.to_ne_bytes()).map(drop)
    }

    /// The state that the last engine has handed over to this one, from `file`.
    pub(crate) fn take_state(&self, file: &File) -> io::Result<Option<Vec<u8>>> {
        let len = self.word(STATE_LEN).swap(0, Ordering::Acquire);
        if len == 0 {
            return Ok(None);
        }
        let is_there = len <= file.metadata()?.len().min(MAX_STATE);
        let len = usize::try_from(len).ok().filter(|_| is_there);
        let len = len.ok_or_else(|| io::Error::other("the last engine has left no valid state"))?;
        let mut state = vec![0; len];
        file.read_exact_at(&mut state, 0)?;
        Ok(Some(state))
    }

    /// Refuses an upgrade: called by the supervisor, and by an engine that was asked to hand over.
    pub fn refuse(&self, why: &str) {
        let bytes = &why.as_bytes()[..why.len().min(MAX_TEXT)];
        self.text(bytes.len()).copy_from(bytes);
        self.word(TEXT_LEN)
            .store(bytes.len() as u64, Ordering::Relaxed);
        self.word(REFUSALS).fetch_add(1, Ordering::Release);
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.word(REFUSALS).load(Ordering::Acquire)
    }

    fn refusal(&self) -> String {
        let len = self.word(TEXT_LEN).load(Ordering::Relaxed) as usize;
        let mut bytes = vec![0; len.min(MAX_TEXT)];
        self.text(bytes.len()).copy_to(&mut bytes[..]);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The first bytes of the text, of which there are [`MAX_TEXT`].
    fn text(&self, len: usize) -> VolatileSlice<'_> {
        let text = self.memory.get_slice(TEXT * WORD, len);
        text.expect("the page has the text")
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let word = self.memory.get_atomic_ref(index * WORD);
        word.expect("the memory has this word")
    }
}
