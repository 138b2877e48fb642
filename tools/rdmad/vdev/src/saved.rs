// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! The saved state of functions: what another process needs besides the [records](crate::record) to
//! go on without a reset.
//!
//! It is written when the threads of the function rest. The next engine checks it like messages
//! of a client.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::common::RegistersState;
use crate::queue::RingState;

/// The state of a function and of its device.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FunctionSaved {
    pub(crate) registers: RegistersState,
    /// The rings of the queues that run.
    pub(crate) rings: Vec<Option<RingState>>,
    pub(crate) generation: u8,
    pub(crate) isr: u8,
    /// The state of the device, if a driver has activated it.
    pub(crate) device: Option<Vec<u8>>,
}

/// The state of the functions of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    /// By name.
    functions: BTreeMap<String, FunctionSaved>,
    /// When the first thread was held, as time of the host's monotonic clock.
    pub held_at: Duration,
}

impl Saved {
    /// Version of the state, without that of devices.
    pub const FORMAT: u32 = 1;

    /// No functions yet, of a process whose first thread was held at `held_at`.
    pub fn new(held_at: Duration) -> Self {
        Self {
            held_at,
            ..Self::default()
        }
    }

    /// Whether there are no functions.
    pub(crate) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    pub(crate) fn add(&mut self, name: &str, function: FunctionSaved) {
        self.functions.insert(name.to_owned(), function);
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<FunctionSaved> {
        self.functions.remove(name)
    }

    /// The state as bytes.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub fn to_bytes(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_stdvec(self)
    }

    /// Inverse of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    ///
    /// The bytes are not a state.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, postcard::Error> {
        postcard::from_bytes(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::CommonConfig;

    /// A change of the format must change its number too.
    #[test]
    fn the_state_has_the_format_of_its_number() {
        let ring = RingState {
            next_available: 3,
            next_used: 2,
            quiet: true,
        };
        let registers = CommonConfig::new(1 << 32, &[16, 32], 2).save().unwrap();
        let function = FunctionSaved {
            registers,
            rings: vec![Some(ring), None],
            generation: 4,
            isr: 1,
            device: Some(vec![5, 6]),
        };
        let mut saved = Saved::new(Duration::new(7, 8));
        saved.add("name", function);
        let bytes = saved.to_bytes().unwrap();
        assert_eq!(Saved::FORMAT, 1);
        let expected = [
            1, 4, 110, 97, 109, 101, 0, 255, 255, 3, 0, 0, 0, 0, 2, 16, 0, 0, 0, 255, 255, 3, 0,
            32, 0, 0, 0, 255, 255, 3, 0, 2, 1, 3, 2, 1, 0, 4, 1, 1, 2, 5, 6, 7, 8,
        ];
        assert_eq!(bytes, expected, "FORMAT must be increased");
        let mut again = Saved::from_bytes(&bytes).unwrap();
        assert_eq!(again.held_at, Duration::new(7, 8));
        assert_eq!(again.functions.len(), 1);
        assert_eq!(again.take("name").unwrap().device, Some(vec![5, 6]));
        assert!(Saved::from_bytes(&bytes[1..]).is_err());
    }
}
