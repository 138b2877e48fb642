// SPDX-License-Identifier: GPL-2.0

//! A task tells its process.

pub fn probe(task: &kernel::task::Task) -> kernel::task::Pid {
    task.tgid()
}
