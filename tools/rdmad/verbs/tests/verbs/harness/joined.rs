// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Subscriptions of a port.

use std::collections::BTreeMap;
use std::sync::Mutex;

/// The multicast addresses that a port has joined.
#[derive(Default)]
pub struct Joined {
    /// Addresses with the number of their subscriptions, which is never 0.
    pub counts: Mutex<BTreeMap<[u8; 6], usize>>,
}

impl Joined {
    pub fn join(&self, mac: [u8; 6]) {
        *self.counts.lock().unwrap().entry(mac).or_default() += 1;
    }

    /// Ends a subscription. Panics if there is none.
    pub fn leave(&self, mac: [u8; 6]) {
        let mut joined = self.counts.lock().unwrap();
        let count = joined.get_mut(&mac).expect("an address that was joined");
        *count -= 1;
        if *count == 0 {
            joined.remove(&mac);
        }
    }

    pub fn contains(&self, mac: [u8; 6]) -> bool {
        self.counts.lock().unwrap().contains_key(&mac)
    }
}
