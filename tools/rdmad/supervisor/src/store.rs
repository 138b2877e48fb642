// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Descriptors that the service manager keeps besides, in its descriptor store, so that they
//! outlive the supervisor too.
//!
//! A descriptor is recorded by a word with its number and with the *name* of its file in the store,
//! by which the engine of the next supervisor finds the file. No other file ever gets this name, so
//! a recorded name never leads to another file, wherever the daemon dies and whatever the manager
//! has not received. The memory of all engines lists the names that may be in the store; the next
//! engine lets the manager forget those that no record has.
//!
//! The threads that open and close descriptors only note what is to be stored. One thread
//! [writes](Store::write) to the manager.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{fcntl_getfl, fstat, FileType, OFlags};

use crate::inherited::Inherited;
use crate::manager::Manager;
use crate::supervision::{Supervision, MAX_STORED};

/// Messages to the manager in an [`INTERVAL`]: a client could make it work without a pause.
const BURST: u32 = 256;
const INTERVAL: Duration = Duration::from_secs(1);

/// The descriptor store of the service manager.
#[derive(Debug)]
pub struct Store {
    /// `None` if no service manager keeps descriptors.
    manager: Option<Manager>,
    files: Mutex<Files>,
    supervision: Supervision,
    /// An eventfd that tells of files to be stored or forgotten.
    changed: OwnedFd,
}

#[derive(Debug)]
struct Files {
    /// The memory of the engines and its name, if the manager is yet to be given it.
    memory: Option<(String, OwnedFd)>,
    /// The places that were ever used.
    places: Vec<Place>,
    /// Maximum number of places.
    most: usize,
    /// Whether a file was not stored since all places were in use, or no descriptor was left.
    lacked: bool,
    /// Where the next write begins, so that each place gets its turn.
    next: usize,
    /// Messages that may be sent in this interval, and its beginning.
    left: u32,
    since: Instant,
}

/// A file in the store.
#[derive(Debug, Default)]
struct Place {
    /// 0 if the place is free.
    name: u32,
    /// Number of records that have the name.
    uses: u32,
    /// The file, if the manager is yet to be given it.
    unsent: Option<OwnedFd>,
    /// Whether the manager may have the file.
    is_stored: bool,
    /// When the manager was told to forget the file. The place is free a while later: if the engine
    /// dies meanwhile, the manager may have ignored it, and the next engine tells it again.
    told: Option<Instant>,
    identity: Option<Identity>,
}

/// Device, inode and access mode of a file of memory, which a client passes once for each region.
/// For the manager, descriptors of one such file are mostly the same, and it keeps one.
type Identity = (u64, u64, OFlags);

impl Place {
    fn is_left(&self) -> bool {
        self.name != 0 && self.uses == 0
    }

    /// Whether the manager is to be told to forget the file.
    fn is_to_be_forgotten(&self) -> bool {
        self.is_left() && self.is_stored && self.told.is_none()
    }

    /// Whether the manager is to be given the file.
    fn is_new(&self) -> bool {
        self.unsent.is_some()
    }
}

impl Files {
    fn named(&mut self, name: u32) -> Option<&mut Place> {
        let mut places = self.places.iter_mut();
        places.find(|place| name != 0 && place.name == name)
    }

    /// Finds a place for a file. Returns its name, or 0 if there is no place.
    fn keep(&mut self, file: Duplicate, supervision: &Supervision) -> u32 {
        let Duplicate { file, identity } = file;
        let is_same =
            |place: &&mut Place| identity.is_some() && place.uses > 0 && place.identity == identity;
        if let Some(place) = self.places.iter_mut().find(is_same) {
            place.uses += 1;
            return place.name;
        }
        let at = self.places.iter().position(|place| place.name == 0);
        let at = at.unwrap_or(self.places.len());
        let Some(file) = file.filter(|_| at < self.most) else {
            self.lacked = true;
            return 0;
        };
        let place = Place {
            name: supervision.store(at),
            uses: 1,
            unsent: Some(file),
            identity,
            ..Place::default()
        };
        let name = place.name;
        match self.places.get_mut(at) {
            Some(free) => *free = place,
            None => self.places.push(place),
        }
        name
    }

    /// Tells the manager of the places that are `due`, as many as it and this interval allow.
    /// Returns whether all were told.
    fn write(
        &mut self,
        due: fn(&Place) -> bool,
        tell: impl Fn(&mut Place) -> io::Result<()>,
    ) -> io::Result<bool> {
        for _ in 0..self.places.len() {
            let at = self.next % self.places.len();
            if due(&self.places[at]) {
                if self.left == 0 {
                    return Ok(false);
                }
                match tell(&mut self.places[at]) {
                    Ok(()) => self.left -= 1,
                    // It is busy.
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => {
                        // Others need not fail.
                        self.next = at + 1;
                        return Err(error);
                    }
                }
            }
            self.next = at + 1;
        }
        Ok(true)
    }
}

/// Another descriptor of a file, for the manager.
struct Duplicate {
    file: Option<OwnedFd>,
    identity: Option<Identity>,
}

impl Duplicate {
    fn of(file: BorrowedFd<'_>) -> Self {
        Self {
            file: file.try_clone_to_owned().ok(),
            identity: identity(file),
        }
    }
}

impl Store {
    /// A store for at most `most` files, of a supervisor whose earlier engines may have used it.
    /// The manager is first given `memory`, by this name.
    pub(crate) fn new(
        manager: Option<Manager>,
        most: u32,
        supervision: Supervision,
        memory: Option<(String, OwnedFd)>,
    ) -> io::Result<Self> {
        let place = |name| Place {
            name,
            is_stored: true,
            ..Place::default()
        };
        let places = match manager {
            Some(_) => supervision.stored().into_iter().map(place).collect(),
            None => Vec::new(),
        };
        Ok(Self {
            manager,
            files: Mutex::new(Files {
                memory,
                places,
                most: (most as usize).min(MAX_STORED),
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

    /// Number of files that were given to the manager for clients.
    pub fn count(&self) -> usize {
        let files = self.files();
        let is_kept = |place: &&Place| place.uses > 0 && !place.is_new();
        files.places.iter().filter(is_kept).count()
    }

    /// Records a file that is open, or none, at `word`, in place of another one, and stores it. The
    /// file must have been checked: the manager and this process must be able to close it without
    /// waiting for a client. A word of 0 is no file.
    ///
    /// If one socket or eventfd is recorded twice, the manager keeps it by its first name alone.
    pub fn record(&self, word: &AtomicU64, file: Option<BorrowedFd<'_>>) {
        let before = word.load(Ordering::Acquire);
        let number = file.map(|file| file.as_raw_fd());
        // A recorded descriptor is open, so it is the same if it has the same number.
        if number_in(before) == number {
            return;
        }
        if self.manager.is_none() {
            return word.store(
                number.map_or(0, |number| joined(number, 0)),
                Ordering::Release,
            );
        }
        let duplicate = file.map(Duplicate::of);
        let mut files = self.files();
        let name = duplicate.map_or(0, |duplicate| files.keep(duplicate, &self.supervision));
        // From now on a death finds the new file. Before, the old one has its name.
        word.store(
            number.map_or(0, |number| joined(number, name)),
            Ordering::Release,
        );
        if let Some(place) = files.named(name_in(before)) {
            place.uses = place.uses.saturating_sub(1);
            if place.uses == 0 {
                place.unsent = None;
            }
        }
        self.notify(&files);
    }

    /// Takes the descriptor that an earlier engine has recorded at `word`, if it is one of the
    /// `inherited` ones and was not taken yet, and records it anew. Records none otherwise.
    pub fn take(&self, word: &AtomicU64, inherited: &mut Inherited) -> Option<OwnedFd> {
        let before = word.load(Ordering::Acquire);
        let name = name_in(before);
        let number = number_in(before);
        let file = number.and_then(|number| inherited.take_recorded(number, name));
        let after = file.as_ref().map_or(0, |file| {
            joined(file.as_raw_fd(), self.keep_again(name, file.as_fd()))
        });
        word.store(after, Ordering::Release);
        file
    }

    /// Stores a file that an earlier engine has recorded with this name. Returns the name; 0 if it
    /// is not stored.
    fn keep_again(&self, name: u32, file: BorrowedFd<'_>) -> u32 {
        let Duplicate { file, identity } = Duplicate::of(file);
        let mut files = self.files();
        let Some(place) = files.named(name) else {
            return 0;
        };
        match (place.uses, file) {
            (0, Some(file)) => {
                // The manager ignores it if it has it.
                place.unsent = Some(file);
                place.identity = identity;
            }
            (1.., _) if identity.is_some() && identity == place.identity => {}
            // The record is false, or there are too many descriptors.
            _ => return 0,
        }
        place.uses += 1;
        self.notify(&files);
        name
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
        let mut files = self.files();
        let files = &mut *files;
        if files.since.elapsed() >= INTERVAL {
            files.since = Instant::now();
            files.left = BURST;
        }
        if let Some((name, file)) = &files.memory {
            match manager.keep(name, file.as_fd()) {
                Ok(()) => files.memory = None,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        for (at, place) in files.places.iter_mut().enumerate() {
            let is_told = place.told.is_some_and(|told| told.elapsed() >= INTERVAL);
            if place.is_left() && (is_told || !place.is_stored) {
                self.supervision.forget(at);
                *place = Place::default();
            }
        }
        // First, since the manager ignores a file that it still keeps by another name.
        let all = files.write(Place::is_to_be_forgotten, |place| {
            manager.forget(&place.name.to_string())?;
            place.told = Some(Instant::now());
            Ok(())
        })?;
        if all {
            files.write(Place::is_new, |place| {
                place.is_stored = true;
                let file = place.unsent.as_ref();
                file.map_or(Ok(()), |file| {
                    manager.keep(&place.name.to_string(), file.as_fd())
                })?;
                place.unsent = None;
                Ok(())
            })?;
        }
        match std::mem::take(&mut files.lacked) {
            true => Err(io::Error::other(format!(
                "more are in use than it keeps, {} (FileDescriptorStoreMax=), or than this \
                 process can open",
                files.most
            ))),
            false => Ok(()),
        }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        // Each change is whole before anything can panic.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread that writes, if it has something to tell in this interval.
    fn notify(&self, files: &Files) {
        let is_due = |place: &Place| place.is_to_be_forgotten() || place.is_new();
        if files.left > 0 && files.places.iter().any(is_due) {
            // Fails only if the thread was woken very often and has not run.
            let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
        }
    }
}

/// The word of a descriptor.
fn joined(number: RawFd, name: u32) -> u64 {
    // A valid descriptor is not negative.
    (number as u64 + 1) | (u64::from(name) << 32)
}

/// The number in a descriptor's word.
fn number_in(word: u64) -> Option<RawFd> {
    (word as u32).checked_sub(1)?.try_into().ok()
}

/// The name in a descriptor's word.
fn name_in(word: u64) -> u32 {
    (word >> 32) as u32
}

/// The identity of a file of memory; `None` for sockets and eventfds.
fn identity(file: BorrowedFd<'_>) -> Option<Identity> {
    let stat = fstat(file).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let access = fcntl_getfl(file).ok()? & OFlags::RWMODE;
    is_regular.then_some((stat.st_dev, stat.st_ino, access))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixDatagram;

    use rustix::event::{poll, PollFd, PollFlags, Timespec};
    use rustix::fs::{memfd_create, MemfdFlags};
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::*;
    use crate::Start;

    /// A store, its manager, and words of records.
    struct Rig {
        store: Store,
        manager: UnixDatagram,
        words: [AtomicU64; 60],
        /// The name before the first one of this test.
        base: u32,
    }

    impl Rig {
        fn new(most: u32, supervision: &Supervision) -> Self {
            let (own, manager) = UnixDatagram::pair().unwrap();
            for socket in [&own, &manager] {
                socket.set_nonblocking(true).unwrap();
            }
            let store = Store::new(Some(own.into()), most, supervision.clone(), None).unwrap();
            let rig = Self {
                store,
                manager,
                words: [const { AtomicU64::new(0) }; 60],
                base: 0,
            };
            rig.stop_time();
            rig
        }

        /// The interval does not end.
        fn stop_time(&self) {
            self.store.files().since = Instant::now() + Duration::from_secs(3600);
        }

        /// An interval passes, then none any more.
        fn wait(&self) {
            let mut files = self.store.files();
            files.since = Instant::now() - INTERVAL;
            for place in &mut files.places {
                place.told = place.told.map(|told| told - INTERVAL);
            }
            drop(files);
            self.store.write().unwrap();
            self.stop_time();
        }

        fn keep(&mut self, word: usize, file: &impl AsFd) -> u32 {
            self.store.record(&self.words[word], Some(file.as_fd()));
            let name = self.name(word);
            if self.base == 0 {
                self.base = name - 1;
            }
            self.name(word).saturating_sub(self.base)
        }

        fn forget(&self, word: usize) {
            self.store.record(&self.words[word], None);
        }

        fn name(&self, word: usize) -> u32 {
            name_in(self.words[word].load(Ordering::Acquire))
        }

        /// The messages to the manager since the last time, such as `+1 -2`: the names are counted
        /// from the first one of the test.
        fn told(&self) -> String {
            let mut bytes = [0; 128];
            let mut words = Vec::new();
            while let Ok(len) = self.manager.recv(&mut bytes) {
                let message = std::str::from_utf8(&bytes[..len]).unwrap();
                let (kind, name) = message.split_once("=1\nFDNAME=").unwrap();
                let sign = if kind == "FDSTORE" { '+' } else { '-' };
                words.push(format!(
                    "{sign}{}",
                    name.parse::<u32>().unwrap() - self.base
                ));
            }
            words.join(" ")
        }

        fn write(&self) -> String {
            self.store.write().unwrap();
            self.told()
        }

        fn is_woken(&self) -> bool {
            let mut fds = [PollFd::new(&self.store.changed, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())) == Ok(1)
        }
    }

    fn supervision() -> Supervision {
        Start::alone(1).unwrap().supervision
    }

    fn file() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn no_name_is_given_twice() {
        let mut rig = Rig::new(3, &supervision());
        let files: Vec<_> = (0..5).map(|_| file()).collect();
        assert_eq!(rig.keep(0, &files[0]), 1);
        assert_eq!(rig.write(), "+1");
        assert_eq!(rig.keep(0, &files[1]), 2);
        // The manager has the first file, and never had the second one.
        assert_eq!(rig.keep(0, &files[2]), 3);
        assert_eq!(rig.store.count(), 0);
        assert_eq!(rig.write(), "-1 +3");
        assert_eq!(rig.keep(1, &files[3]), 4);
        // The first place is not free yet: the manager may not know of its end.
        assert_eq!(rig.keep(2, &files[4]), 0);
        rig.store.write().unwrap_err();
        assert_eq!(rig.told(), "+4");
        rig.wait();
        rig.forget(2);
        assert_eq!(rig.keep(2, &files[4]), 5);
        assert_eq!(rig.write(), "+5");
        assert_eq!(rig.store.count(), 3);
        // The same descriptor is not stored again.
        assert_eq!(rig.keep(2, &files[4]), 5);
        assert_eq!(rig.write(), "");
    }

    /// The manager would ignore another descriptor of the file, which then had no name.
    #[test]
    fn a_file_of_memory_has_one_name() {
        let mut rig = Rig::new(8, &supervision());
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        let again = memory.try_clone().unwrap();
        assert_eq!(rig.keep(0, &memory), 1);
        assert_eq!(rig.keep(1, &again), 1);
        rig.forget(0);
        assert_eq!(rig.write(), "+1");
        rig.forget(1);
        assert_eq!(rig.write(), "-1");
    }

    #[test]
    fn too_many_files_are_told() {
        let mut rig = Rig::new(1, &supervision());
        assert_eq!(rig.keep(0, &file()), 1);
        assert_eq!(rig.keep(1, &file()), 0);
        let error = rig.store.write().unwrap_err().to_string();
        assert!(error.contains("than it keeps, 1 (File"), "{error}");
        assert_eq!(rig.write(), "+1");
    }

    /// The last engine may have died before the manager was told, or just afterwards.
    #[test]
    fn the_next_engine_tells_what_is_in_use() {
        let supervision = supervision();
        let mut last = Rig::new(8, &supervision);
        let files: Vec<_> = (0..5).map(|_| file()).collect();
        for (word, file) in files[..4].iter().enumerate() {
            assert_eq!(last.keep(word, file), word as u32 + 1);
        }
        let mut next = Rig::new(8, &supervision);
        next.base = last.base;
        let name = |number| last.base + number;
        let again = |number, file: &OwnedFd| next.store.keep_again(number, file.as_fd());
        assert_eq!(again(name(2), &files[1]), name(2));
        // False records: names that no file has, or of two files.
        for number in [0, name(2), name(5), u32::MAX] {
            assert_eq!(again(number, &files[2]), 0);
        }
        assert_eq!(next.keep(0, &files[4]), 5);
        assert_eq!(next.write(), "-1 -3 -4 +2 +5");
        // It dies before the manager has received that.
        let mut third = Rig::new(8, &supervision);
        third.base = last.base;
        assert_eq!(third.write(), "-1 -2 -3 -4 -5");
        third.wait();
        assert!(supervision.stored().iter().all(|name| *name == 0));
    }

    /// A descriptor that nobody has left is not taken, and not recorded any more.
    #[test]
    fn a_recorded_descriptor_is_taken_once() {
        let rig = Rig::new(8, &supervision());
        let (known, word) = (file(), AtomicU64::new(0));
        let number = known.as_raw_fd();
        let mut inherited: Inherited = [known].into_iter().collect();
        word.store(joined(number, 0), Ordering::Release);
        assert_eq!(
            rig.store.take(&word, &mut inherited).unwrap().as_raw_fd(),
            number
        );
        assert!(rig.store.take(&word, &mut inherited).is_none());
        assert_eq!(word.load(Ordering::Acquire), 0);
    }

    /// An engine has died while it recorded descriptors of the manager: their numbers are unknown.
    #[test]
    fn unknown_numbers_lead_to_no_file() {
        let (known, word) = (file(), AtomicU64::new(0));
        word.store(joined(known.as_raw_fd(), 0), Ordering::Release);
        let open = std::os::fd::IntoRawFd::into_raw_fd(known);
        let mut inherited = Inherited::of([open].into(), None, true);
        let rig = Rig::new(8, &supervision());
        assert!(rig.store.take(&word, &mut inherited).is_none());
    }

    #[test]
    fn a_busy_manager_is_told_later() {
        let mut rig = Rig::new(100, &supervision());
        // There is room for some messages.
        set_socket_send_buffer_size(rig.store.manager().unwrap(), 1).unwrap();
        let files: Vec<_> = (0..50).map(|_| file()).collect();
        for (word, file) in files.iter().enumerate() {
            rig.keep(word, file);
        }
        let mut all = Vec::new();
        while all.len() < 50 {
            let more = rig.write();
            let count = more.split_whitespace().count();
            assert!((1..50).contains(&count), "{more}");
            all.extend(more.split(' ').map(str::to_owned));
        }
        let expected: Vec<_> = (1..=50).map(|number| format!("+{number}")).collect();
        assert_eq!(all, expected);
        // It is given no other file before it was told to forget all that are left.
        for word in 0..49 {
            rig.forget(word);
        }
        assert_eq!(rig.keep(0, &files[0]), 51);
        let first = rig.write();
        assert!(first.starts_with('-') && !first.contains('+'), "{first}");
    }

    #[test]
    fn a_client_does_not_make_the_manager_work_without_a_pause() {
        let mut rig = Rig::new(1000, &supervision());
        let mut count = 0;
        let mut files = Vec::new();
        for _ in 0..2 * BURST {
            files.push(file());
            rig.keep(0, files.last().unwrap());
            count += rig.write().split_whitespace().count() as u32;
        }
        assert_eq!(count, BURST);
        assert!(!rig.is_woken());
        rig.wait();
        // The files between the first ones and the last one were never told.
        assert!(rig.told().ends_with(&format!("+{}", 2 * BURST)));
        assert_eq!(rig.store.count(), 1);
        // Changes that the manager need not know wake nobody.
        let memory = File::from(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        rig.keep(1, &memory);
        rig.write();
        rig.keep(2, &memory.try_clone().unwrap());
        rig.forget(2);
        assert!(!rig.is_woken());
    }
}
