// SPDX-License-Identifier: GPL-2.0

//! Compiles only if a task has a method that returns its process.

pub fn probe(task: &kernel::task::Task) -> kernel::task::Pid {
    task.tgid()
}
