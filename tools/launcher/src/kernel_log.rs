// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Complaints in a guest kernel's messages.

/// Beginnings of complaints. The kernel prints them at level warning or above, so they appear on
/// the console at the log levels that tests set.
const COMPLAINTS: &[&str] = &[
    "WARNING: ",
    "BUG: ",
    "BUG kmalloc",
    "kernel BUG at",
    "Oops: ",
    "Kernel panic",
    "general protection fault",
    "unable to handle",
    "soft lockup",
    "hard LOCKUP",
    "rcu_preempt detected stalls",
    "rcu_sched detected stalls",
    "self-detected stall",
    "blocked for more than",
    "refcount_t: ",
    "list_add corruption",
    "list_del corruption",
    "UBSAN: ",
    "possible circular locking",
    "inconsistent lock state",
    "suspicious RCU usage",
    "scheduling while atomic",
    "nobody cared",
    "swiotlb buffer is full",
];

/// The complaints in a log. Only lines of the kernel count: they begin with a time.
pub fn complaints(log: &str) -> Vec<String> {
    log.lines()
        .map(str::trim_end)
        .filter(|line| line.starts_with('['))
        .filter(|line| COMPLAINTS.iter().any(|what| line.contains(what)))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_of_the_kernel_are_found() {
        let log = "[    1.5] Linux version\r\n\
            [    2.0] WARNING: drivers/x.c:1 at f+0x1/0x2, CPU#0: cat/12\r\n\
            a test that prints WARNING: itself\n\
            [    3.0] BUG: KASAN: use-after-free in f\n\
            [    4.0] watchdog: BUG: soft lockup - CPU#1 stuck for 26s!\n";
        let found = complaints(log);
        assert_eq!(found.len(), 3);
        assert!(found[0].contains("drivers/x.c:1"));
    }

    #[test]
    fn a_clean_log_is_clean() {
        let log = "[    0.1] BIOS-e820: reserved\n[    0.2] warning: nothing, debug: 1\n\u{fffd}";
        assert!(complaints(log).is_empty());
    }
}
