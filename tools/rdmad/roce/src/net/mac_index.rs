// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! A map whose keys are the MAC addresses of ports.

use super::Mac;

/// A map from MAC addresses to values, for look-ups of the addresses of each packet. The list is
/// sorted: a search takes 12 steps for the maximum of 4,096 ports. There is no way to visit all
/// values.
#[derive(Clone, Debug)]
pub struct MacIndex<T>(Vec<(u64, T)>);

impl<T> Default for MacIndex<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> MacIndex<T> {
    /// Adds a value, which replaces an earlier value of the address.
    pub fn insert(&mut self, mac: &Mac, value: T) {
        match self.search(mac) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (number(mac), value)),
        }
    }

    /// Removes the value of an address if `is_it` returns true for the value.
    pub fn remove_if(&mut self, mac: &Mac, is_it: impl FnOnce(&T) -> bool) {
        if let Ok(at) = self.search(mac) {
            if is_it(&self.0[at].1) {
                self.0.remove(at);
            }
        }
    }

    /// The value of an address.
    #[inline]
    pub fn get(&self, mac: &Mac) -> Option<&T> {
        self.search(mac).ok().map(|at| &self.0[at].1)
    }

    #[inline]
    fn search(&self, mac: &Mac) -> Result<usize, usize> {
        let wanted = number(mac);
        self.0.binary_search_by_key(&wanted, |(number, _)| *number)
    }
}

#[inline]
const fn number([a, b, c, d, e, f]: &Mac) -> u64 {
    u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_and_go() {
        let mac = |last| [0x52, 0x54, 0, 9, 0, last];
        let mut index = MacIndex::default();
        assert_eq!(index.get(&mac(0)), None);
        for last in [7, 3, 255, 0, 5] {
            index.insert(&mac(last), last);
        }
        for last in 0..=255 {
            let expected = [0, 3, 5, 7, 255].contains(&last).then_some(&last).copied();
            assert_eq!(index.get(&mac(last)).copied(), expected);
        }
        index.insert(&mac(3), 4);
        assert_eq!(index.get(&mac(3)), Some(&4));
        index.remove_if(&mac(3), |value| *value == 3);
        assert_eq!(index.get(&mac(3)), Some(&4));
        index.remove_if(&mac(3), |value| *value == 4);
        index.remove_if(&mac(4), |_| true);
        assert_eq!(index.get(&mac(3)), None);
        assert_eq!(index.get(&mac(5)), Some(&5));
        // A search compares all six bytes of the address.
        assert_eq!(index.get(&[0x53, 0x54, 0, 9, 0, 5]), None);
    }
}
