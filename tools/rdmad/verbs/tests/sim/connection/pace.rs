// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Rate limits of one end of a connection: in any period, at most as many bytes are sent as the
//! rate allows plus one burst.

use std::time::Instant;

use virtio_rdma_abi::ctrl::CmdSetRateLimit;
use virtio_rdma_abi::ib::WrOpcode;
use virtio_rdma_abi::wire::Wire;

use super::end::{End, Sent};
use crate::choices::Choices;

/// Length in bytes of the longest frame. A burst may be exceeded by one frame.
const FRAME: u128 = 4096 + 200;
/// Length in bytes of the smallest default burst: one packet.
const PACKET: u128 = 4096;
/// Time in nanoseconds in which a rate of 1 kb/s allows one byte.
const BYTE: u128 = 8_000_000;
/// Time in nanoseconds in which a rate allows its default burst: 5 ms.
const DEFAULT_BURST: u128 = 5_000_000;

/// A rate limit, and the payload that was sent since it was set.
pub(super) struct Pace {
    rate: u128,
    /// Largest burst that is possible, including tokens of the previous limit.
    burst: u128,
    since: Instant,
    /// Id of the first work request that was posted under this limit.
    first: u64,
    bytes: u128,
}

impl End<'_> {
    /// Sets or removes a rate limit.
    pub(super) fn limit_rate(&mut self, choices: &mut Choices) {
        if self.ending {
            return;
        }
        let rate = choices.of(&[0, 10_000, 100_000, 1_000_000]);
        let burst = match rate {
            0 => 0,
            _ => choices.of(&[0, 2_000, 20_000]),
        };
        let request = CmdSetRateLimit {
            qpn: self.qp.qpn,
            rate_limit: rate,
            max_burst_size: burst,
            ..CmdSetRateLimit::ZERO
        };
        self.guest.vm.call(request).unwrap();
        let (rate, burst) = (u128::from(rate), u128::from(burst));
        let burst = match burst {
            0 => PACKET.max(rate * DEFAULT_BURST / BYTE),
            given => given,
        };
        let left = self.pace.as_ref().map_or(FRAME, |pace| pace.burst);
        self.pace = (rate > 0).then(|| Pace {
            rate,
            burst: burst.max(left),
            since: self.guest.clock.now(),
            first: (self.posted + 1) << 1,
            bytes: 0,
        });
    }

    /// Counts the payload of a successful work request and checks the rate. Only called for
    /// reliable connections: messages that an unreliable peer drops are not charged.
    pub(super) fn check_pace(&mut self, sent: &Sent) {
        let now = self.guest.clock.now();
        let Some(pace) = self.pace.as_mut().filter(|pace| sent.id >= pace.first) else {
            return;
        };
        pace.bytes += match sent.opcode {
            // The peer sends the data of these operations.
            WrOpcode::RdmaRead | WrOpcode::AtomicFetchAndAdd | WrOpcode::AtomicCmpAndSwp => 0,
            _ => sent.data.len() as u128,
        };
        let time = (now - pace.since).as_nanos();
        let most = pace.burst + pace.rate * time / BYTE;
        let bytes = pace.bytes;
        assert!(bytes <= most, "{bytes} bytes in {time} ns, not {most}");
    }
}
