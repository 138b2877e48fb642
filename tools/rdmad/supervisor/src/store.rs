// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptors that the service manager keeps besides, in its descriptor store, so that they
//! outlive the supervisor too.
//!
//! Each file in the store has a *slot*, whose number is its name there. A descriptor is recorded by
//! a word with its number and its slot, by which the engine of the next supervisor finds the file.
//! A slot is not used for another file before the manager was told to forget the last one. So a
//! recorded slot never leads to another file, wherever the daemon dies. The store may have files
//! that no record names; the next engine lets the manager forget them.
//!
//! The threads that open and close descriptors only note what is to be stored. One thread, which
//! alone may pass descriptors to others, [writes](Store::write) to the manager.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{fstat, FileType};

use crate::inherited::Inherited;
use crate::manager::Manager;
use crate::supervision::Supervision;

/// Messages to the manager in an [`INTERVAL`]: a client could make it work without a pause.
const BURST: u32 = 256;
const INTERVAL: Duration = Duration::from_secs(1);

/// The descriptor store of the service manager.
#[derive(Debug)]
pub struct Store {
    /// `None` if no service manager keeps descriptors.
    manager: Option<Manager>,
    slots: Mutex<Slots>,
    supervision: Supervision,
    /// An eventfd that tells of files to be stored or forgotten.
    changed: OwnedFd,
}

#[derive(Debug)]
struct Slots {
    /// The slots that were ever used. The first one has the number 1.
    each: Vec<Slot>,
    /// Maximum number of slots.
    most: usize,
    /// Whether a file was not stored since all slots were in use.
    lacked: bool,
    /// Where the next write begins, so that each slot gets its turn.
    next: usize,
    /// Messages that may be sent in this interval, and its beginning.
    left: u32,
    since: Instant,
}

#[derive(Debug, Default)]
struct Slot {
    /// Number of records that name the slot.
    uses: u32,
    /// The file, if the manager is yet to be given it.
    unsent: Option<OwnedFd>,
    /// Whether the manager may have a file of this name.
    is_stored: bool,
    identity: Option<Identity>,
}

/// Device and inode of a file whose descriptors are equal for the manager, and for clients. Sockets
/// and eventfds have none.
type Identity = (u64, u64);

impl Slot {
    /// Whether the slot can be used for another file.
    fn is_free(&self) -> bool {
        self.uses == 0 && !self.is_stored
    }

    fn is_kept(&self) -> bool {
        self.uses > 0 && self.unsent.is_none()
    }

    /// Whether the manager is to forget the file.
    fn is_left(&self) -> bool {
        self.uses == 0 && self.is_stored
    }

    /// Whether the manager is to keep the file.
    fn is_new(&self) -> bool {
        self.unsent.is_some()
    }
}

impl Slots {
    fn with(&mut self, number: u32) -> Option<&mut Slot> {
        self.each.get_mut((number as usize).checked_sub(1)?)
    }

    /// Finds a slot for a file. Returns its number, or 0 if there is none.
    fn keep(&mut self, file: BorrowedFd<'_>) -> u32 {
        let identity = identity(file);
        let same = |slot: &Slot| identity.is_some() && slot.uses > 0 && slot.identity == identity;
        if let Some(at) = self.each.iter().position(same) {
            self.each[at].uses += 1;
            return number(at);
        }
        let at = self.each.iter().position(Slot::is_free);
        let at = at.unwrap_or(self.each.len());
        let file = file.try_clone_to_owned().ok().filter(|_| at < self.most);
        if file.is_none() {
            self.lacked = true;
            return 0;
        }
        let slot = Slot {
            uses: 1,
            unsent: file,
            is_stored: false,
            identity,
        };
        match self.each.get_mut(at) {
            Some(free) => *free = slot,
            None => self.each.push(slot),
        }
        number(at)
    }

    /// Writes the slots that are `due`, as many as the manager and this interval allow.
    fn write(
        &mut self,
        due: fn(&Slot) -> bool,
        write: impl Fn(&mut Slot, &str) -> io::Result<()>,
    ) -> io::Result<()> {
        for _ in 0..self.each.len() {
            if self.left == 0 {
                break;
            }
            let at = self.next % self.each.len();
            if due(&self.each[at]) {
                match write(&mut self.each[at], &number(at).to_string()) {
                    Ok(()) => self.left -= 1,
                    // It is busy.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            self.next = at + 1;
        }
        Ok(())
    }
}

impl Store {
    /// A store for at most `most` files, of a supervisor whose earlier engines may have used it.
    pub(crate) fn new(
        manager: Option<Manager>,
        most: u32,
        supervision: Supervision,
    ) -> io::Result<Self> {
        let used = supervision.slots().min(most) as usize;
        let before = || Slot {
            is_stored: true,
            ..Slot::default()
        };
        Ok(Self {
            manager,
            slots: Mutex::new(Slots {
                each: (0..used).map(|_| before()).collect(),
                most: most as usize,
                lacked: false,
                next: 0,
                left: BURST,
                since: Instant::now(),
            }),
            supervision,
            changed: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The connection to the service manager, if there is a store.
    pub fn manager(&self) -> Option<&Manager> {
        self.manager.as_ref()
    }

    /// A descriptor that is readable when there is something to [write](Self::write).
    pub fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    /// Number of files that the manager keeps for clients.
    pub fn count(&self) -> usize {
        let slots = self.slots();
        let kept = slots.each.iter().filter(|slot| slot.is_kept());
        kept.count()
    }

    /// Stores a file that is about to be recorded, if there is one, in place of that of the word
    /// `before`, which is recorded no longer. Returns the word to be recorded, 0 for no file.
    ///
    /// If one socket or eventfd is recorded twice, the manager keeps it in the first slot alone.
    pub fn record(&self, before: u64, file: Option<BorrowedFd<'_>>) -> u64 {
        // A recorded descriptor is open, so it is the same if it has the same number.
        if number_in(before).is_some() && number_in(before) == file.map(|file| file.as_raw_fd()) {
            return before;
        }
        let slot = match self.manager {
            Some(_) => self.replace(slot_in(before), file),
            None => 0,
        };
        file.map_or(0, |file| word(file, slot))
    }

    fn replace(&self, before: u32, file: Option<BorrowedFd<'_>>) -> u32 {
        let mut slots = self.slots();
        if let Some(slot) = slots.with(before) {
            slot.uses = slot.uses.saturating_sub(1);
            if slot.uses == 0 {
                slot.unsent = None;
            }
        }
        let slot = file.map_or(0, |file| slots.keep(file));
        self.supervision.use_slots(slots.each.len() as u32);
        self.notify(&slots);
        slot
    }

    /// Takes the descriptor that an earlier engine has recorded by `before`, if it is one of the
    /// `inherited` ones and was not taken yet. Returns the word to be recorded instead.
    pub fn take(&self, before: u64, inherited: &mut Inherited) -> Option<(OwnedFd, u64)> {
        let slot = slot_in(before);
        let file = inherited.take_recorded(number_in(before)?, slot)?;
        let word = word(file.as_fd(), self.keep_again(slot, file.as_fd()));
        Some((file, word))
    }

    /// Stores a file that an earlier engine has recorded with this slot. Returns the number of its
    /// slot; 0 if it is not stored.
    fn keep_again(&self, slot: u32, file: BorrowedFd<'_>) -> u32 {
        let identity = identity(file);
        let mut slots = self.slots();
        let Some(found) = slots.with(slot) else {
            return 0;
        };
        match (found.uses, file.try_clone_to_owned()) {
            (0, Ok(file)) => {
                // The manager ignores it if it has it.
                found.unsent = Some(file);
                found.identity = identity;
            }
            (1.., _) if identity.is_some() && identity == found.identity => {}
            // The record is false, or there are too many descriptors.
            _ => return 0,
        }
        found.uses += 1;
        self.notify(&slots);
        slot
    }

    /// Tells the manager what has changed. To be called at each change, and once a second.
    ///
    /// # Errors
    ///
    /// The manager can't be told, or does not keep so many files.
    pub fn write(&self) -> io::Result<()> {
        let Some(manager) = &self.manager else {
            return Ok(());
        };
        let _ = rustix::io::read(&self.changed, &mut [0; 8]);
        let mut slots = self.slots();
        if slots.since.elapsed() >= INTERVAL {
            slots.since = Instant::now();
            slots.left = BURST;
        }
        // The manager ignores a file that it still keeps by another name.
        slots.write(Slot::is_left, |slot, name| {
            manager.forget(name)?;
            slot.is_stored = false;
            Ok(())
        })?;
        slots.write(Slot::is_new, |slot, name| {
            slot.is_stored = true;
            let file = slot.unsent.as_ref();
            file.map_or(Ok(()), |file| manager.keep(name, file.as_fd()))?;
            slot.unsent = None;
            Ok(())
        })?;
        match std::mem::take(&mut slots.lacked) {
            true => Err(io::Error::other(format!(
                "it keeps {} descriptors (FileDescriptorStoreMax=), and more are in use",
                slots.most
            ))),
            false => Ok(()),
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        // Each change is whole before anything can panic.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread that writes, unless it has to wait for the next interval.
    fn notify(&self, slots: &Slots) {
        if slots.left > 0 {
            // Fails only if the thread was woken very often and has not run.
            let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
        }
    }
}

/// The word of a descriptor in this slot.
fn word(file: BorrowedFd<'_>, slot: u32) -> u64 {
    // A valid descriptor is not negative.
    (file.as_raw_fd() as u64 + 1) | (u64::from(slot) << 32)
}

/// The number in a descriptor's word.
fn number_in(word: u64) -> Option<RawFd> {
    (word as u32).checked_sub(1)?.try_into().ok()
}

/// The slot in a descriptor's word.
fn slot_in(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The number of the slot at this place.
fn number(at: usize) -> u32 {
    at as u32 + 1
}

fn identity(file: BorrowedFd<'_>) -> Option<Identity> {
    let stat = fstat(file).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular.then_some((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixDatagram;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::fs::{memfd_create, MemfdFlags};

    use super::*;
    use crate::Start;

    /// A store for `most` files, and the socket of its manager.
    fn store(most: u32, supervision: &Supervision) -> (Store, UnixDatagram) {
        let (own, manager) = UnixDatagram::pair().unwrap();
        for socket in [&own, &manager] {
            socket.set_nonblocking(true).unwrap();
        }
        let store = Store::new(Some(own.into()), most, supervision.clone()).unwrap();
        // The interval does not end.
        store.slots().since = Instant::now() + Duration::from_secs(3600);
        (store, manager)
    }

    fn supervision() -> Supervision {
        Start::alone(1).unwrap().supervision
    }

    /// Records a file in place of that in the slot `before`. Returns its slot.
    fn replace(store: &Store, before: u32, file: Option<BorrowedFd<'_>>) -> u32 {
        // The number is that of no open file.
        let before = u64::from(before) << 32 | u64::from(RawFd::MAX as u32);
        slot_in(store.record(before, file))
    }

    fn file() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    /// The messages to the manager since the last time, such as `+1 -2`.
    fn told(manager: &UnixDatagram) -> String {
        let mut bytes = [0; 128];
        let mut words = Vec::new();
        while let Ok(len) = manager.recv(&mut bytes) {
            let message = std::str::from_utf8(&bytes[..len]).unwrap();
            let message = message.replace("FDSTORE=1\nFDNAME=", "+");
            words.push(message.replace("FDSTOREREMOVE=1\nFDNAME=", "-"));
        }
        words.join(" ")
    }

    #[test]
    fn a_slot_is_not_used_again_before_its_file_is_forgotten() {
        let (store, manager) = store(8, &supervision());
        assert_eq!(replace(&store, 0, Some(file().as_fd())), 1);
        store.write().unwrap();
        assert_eq!(told(&manager), "+1");
        assert_eq!(replace(&store, 1, Some(file().as_fd())), 2);
        // The manager has the first file, and has never had the second one.
        assert_eq!(replace(&store, 2, Some(file().as_fd())), 2);
        assert_eq!(replace(&store, 0, Some(file().as_fd())), 3);
        store.write().unwrap();
        assert_eq!(told(&manager), "-1 +2 +3");
        assert_eq!(replace(&store, 0, Some(file().as_fd())), 1);
        assert_eq!(replace(&store, 3, None), 0);
        assert_eq!(store.count(), 1);
        store.write().unwrap();
        assert_eq!(told(&manager), "-3 +1");
        assert_eq!(store.count(), 2);
    }

    /// The manager would ignore another descriptor of the file, which then had no slot.
    #[test]
    fn a_file_of_memory_has_one_slot() {
        let (store, manager) = store(8, &supervision());
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        let again = memory.try_clone().unwrap();
        assert_eq!(replace(&store, 0, Some(memory.as_fd())), 1);
        assert_eq!(replace(&store, 0, Some(again.as_fd())), 1);
        replace(&store, 1, None);
        store.write().unwrap();
        assert_eq!(told(&manager), "+1");
        replace(&store, 1, None);
        store.write().unwrap();
        assert_eq!(told(&manager), "-1");
    }

    #[test]
    fn too_many_files_are_told() {
        let (store, manager) = store(1, &supervision());
        assert_eq!(replace(&store, 0, Some(file().as_fd())), 1);
        assert_eq!(replace(&store, 0, Some(file().as_fd())), 0);
        let error = store.write().unwrap_err().to_string();
        assert!(error.starts_with("it keeps 1 descriptors"), "{error}");
        store.write().unwrap();
        assert_eq!(told(&manager), "+1");
    }

    /// The last engine may have died before the manager was told, or just afterwards.
    #[test]
    fn the_next_engine_tells_what_is_in_use() {
        let supervision = supervision();
        let (last, _) = store(8, &supervision);
        let files: Vec<_> = (0..4).map(|_| file()).collect();
        for (number, file) in (1..).zip(&files) {
            assert_eq!(replace(&last, 0, Some(file.as_fd())), number);
        }
        let (next, manager) = store(8, &supervision);
        assert_eq!(next.keep_again(2, files[1].as_fd()), 2);
        // False records: slots that were not used, or by two files.
        for slot in [0, 2, 5, u32::MAX] {
            assert_eq!(next.keep_again(slot, files[2].as_fd()), 0);
        }
        assert_eq!(replace(&next, 0, Some(files[3].as_fd())), 5);
        next.write().unwrap();
        assert_eq!(told(&manager), "-1 -3 -4 +2 +5");
    }

    #[test]
    fn a_busy_manager_is_told_later() {
        let (store, manager) = store(100, &supervision());
        let mut all = Vec::new();
        for _ in 0..50 {
            replace(&store, 0, Some(file().as_fd()));
        }
        while all.len() < 50 {
            store.write().unwrap();
            let more = told(&manager);
            assert!(!more.is_empty(), "{} of 50 are told", all.len());
            all.extend(more.split(' ').map(str::to_owned));
        }
        let expected: Vec<_> = (1..=50).map(|number| format!("+{number}")).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn a_client_does_not_make_the_manager_work_without_a_pause() {
        let (store, manager) = store(8, &supervision());
        let mut slot = 0;
        let mut count = 0;
        for _ in 0..2 * BURST {
            slot = replace(&store, slot, Some(file().as_fd()));
            store.write().unwrap();
            count += told(&manager).split_whitespace().count() as u32;
        }
        assert_eq!(count, BURST);
        let mut fds = [PollFd::new(&store.changed, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&Timespec::default()));
        assert_eq!(ready, Ok(0), "the thread is woken");
        store.slots().since = Instant::now() - INTERVAL;
        store.write().unwrap();
        // The files between the first ones and the last one were never told.
        assert_eq!(told(&manager), format!("+{slot}"));
    }
}
