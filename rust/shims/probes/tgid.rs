// SPDX-License-Identifier: GPL-2.0

//! A task has a method that returns its process.

pub fn probe(task: &kernel::task::Task) -> kernel::task::Pid {
    task.tgid()
}
