// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The rate at which a VM may map memory.
//!
//! The kernel changes one mapping of a process at a time. A monitor can make the changes for its
//! own file take long, for example by truncating the file in a loop while many processes map it.
//! So a VM that has used the kernel for some time waits for a multiple of this time before it maps
//! the next region. Unmapping does not wait, since QEMU waits only a few seconds for its answer;
//! its time delays the next mapping.
//!
//! The page tables of a large VM take the kernel seconds to remove. They are removed piece by
//! piece, and other VMs change their mappings in between. A piece takes less than the free time of
//! a change, so a VM that is honest does not wait for its next mapping.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Time of a change that costs nothing. Other VMs do not notice such a delay.
const FREE: Duration = Duration::from_millis(1);
/// Pause after longer changes, as a multiple of the rest of their time. From a change to the end of
/// its pause, others thus wait for a tenth of the time at most.
const PAUSE: u32 = 9;
/// Longest pause, which no real change reaches: the end of a pause must be a valid time.
const MAX_PAUSE: Duration = Duration::from_secs(24 * 3600);

/// Held during a change of mappings. The kernel would make other threads wait as well, but here
/// the wait does not count as time of their VMs.
static CHANGE: Mutex<()> = Mutex::new(());

/// The pace of one VM.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Time from which on the VM may map memory.
    next: Option<Instant>,
    #[cfg(any(test, feature = "testing"))]
    pub(crate) changes: usize,
}

impl Pace {
    /// Waits until the VM may map memory, then runs `map` as a [change](Self::change).
    pub(crate) fn map<T>(&mut self, map: impl FnOnce() -> T) -> T {
        if let Some(pause) = self.pause(Instant::now()) {
            thread::sleep(pause);
        }
        self.change(map)
    }

    /// Runs `change`, which changes mappings and nothing else, while no other VM changes its own.
    /// Charges the VM for its time.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce() -> T) -> T {
        #[cfg(any(test, feature = "testing"))]
        {
            self.changes += 1;
        }
        let turn = CHANGE.lock();
        let start = Instant::now();
        let result = change();
        let end = Instant::now();
        // The VM's next change follows all that wait already.
        MutexGuard::unlock_fair(turn);
        self.charge(end, end - start);
        result
    }

    /// Remaining pause at `now`, if there is one.
    pub(crate) fn pause(&self, now: Instant) -> Option<Duration> {
        let rest = self.next?.saturating_duration_since(now);
        Some(rest).filter(|rest| !rest.is_zero())
    }

    /// Charges a change that took this time and ended at `now`.
    pub(crate) fn charge(&mut self, now: Instant, took: Duration) {
        let rest = self.pause(now).unwrap_or_default();
        let pause = took.saturating_sub(FREE).saturating_mul(PAUSE);
        let pause = pause.saturating_add(rest);
        self.next = Some(now + pause.min(MAX_PAUSE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_vm_uses_a_tenth_of_the_time() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.pause(start), None);
        pace.charge(start, FREE);
        assert_eq!(pace.pause(start), None);
        pace.charge(start, FREE + MS);
        assert_eq!(pace.pause(start), Some(9 * MS));
        assert_eq!(pace.pause(start + 4 * MS), Some(5 * MS));
        // Unmapping does not wait, and adds to the pause.
        pace.charge(start + 4 * MS, FREE + 2 * MS);
        assert_eq!(pace.pause(start + 4 * MS), Some(23 * MS));
        assert_eq!(pace.pause(start + 27 * MS), None);
    }

    #[test]
    fn no_change_is_too_long_for_its_pause() {
        let start = Instant::now();
        let mut pace = Pace::default();
        pace.charge(start, FREE + 3000 * MS);
        assert_eq!(pace.pause(start), Some(27_000 * MS));
        pace.charge(start, FREE + 18_000 * MS);
        assert_eq!(pace.pause(start), Some(189_000 * MS));
        pace.charge(start, Duration::MAX);
        assert_eq!(pace.pause(start), Some(MAX_PAUSE));
    }
}
