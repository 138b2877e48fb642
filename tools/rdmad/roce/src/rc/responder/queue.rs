// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The queue of answers that wait to be sent.

use std::collections::VecDeque;

use super::job::Job;

/// The answers that wait to be sent, oldest first. Counts those that `max_dest_rd_atomic` limits,
/// so that the cost of a request does not depend on the length of the queue.
#[derive(Debug, Default)]
pub(super) struct JobQueue {
    jobs: VecDeque<Job>,
    limited: usize,
}

impl JobQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Number of answers that `max_dest_rd_atomic` limits.
    pub(super) fn limited(&self) -> usize {
        self.limited
    }

    /// Number of answers that `max_dest_rd_atomic` does not limit.
    pub(super) fn unlimited(&self) -> usize {
        self.jobs.len() - self.limited
    }

    /// The answers, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.jobs.iter()
    }

    /// The next answer to send. The caller must not change its kind.
    pub(super) fn front_mut(&mut self) -> Option<&mut Job> {
        self.jobs.front_mut()
    }

    pub(super) fn push(&mut self, job: Job) {
        self.limited += usize::from(job.is_limited());
        self.jobs.push_back(job);
    }

    pub(super) fn pop_front(&mut self) {
        let job = self.jobs.pop_front();
        self.forget(job);
    }

    /// Adds an answer before the one at `index`, or after all.
    pub(super) fn insert(&mut self, index: Option<usize>, job: Job) {
        self.limited += usize::from(job.is_limited());
        self.jobs.insert(index.unwrap_or(self.jobs.len()), job);
    }

    /// The answer at `index`. The caller must not change its kind.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Job> {
        self.jobs.get_mut(index)
    }

    /// Removes the oldest of the answers that `max_dest_rd_atomic` limits, if it is the answer to a
    /// duplicate. Returns whether it was removed.
    pub(super) fn drop_oldest_duplicate(&mut self) -> bool {
        let oldest = self.jobs.iter().position(Job::is_limited);
        let Some(oldest) = oldest.filter(|&oldest| self.jobs[oldest].duplicate) else {
            return false;
        };
        let job = self.jobs.remove(oldest);
        self.forget(job);
        true
    }

    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.limited = 0;
    }

    /// Number of answers for which memory is allocated.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.jobs.capacity()
    }

    /// Stops counting an answer that was removed.
    fn forget(&mut self, job: Option<Job>) {
        self.limited -= usize::from(job.is_some_and(|job| job.is_limited()));
    }
}

impl FromIterator<Job> for JobQueue {
    fn from_iter<I: IntoIterator<Item = Job>>(jobs: I) -> Self {
        let mut queue = Self::default();
        jobs.into_iter().for_each(|job| queue.push(job));
        queue
    }
}
