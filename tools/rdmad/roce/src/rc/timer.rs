// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Durations of timer codes (IBTA 9.7.5.2.8, 9.7.6.1.3).

use std::time::Duration;

/// Delay of each RNR NAK timer code, in units of 10 µs (IBTA table 45).
const RNR_10_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Time that a requester waits after an RNR NAK. Only the low 5 bits of the timer code `code` are
/// used.
pub fn rnr_delay(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_10_US[usize::from(code & 0x1f)]) * 10)
}

/// Time that a requester waits for an acknowledgement; `None` if it waits without limit. `exponent`
/// is the QP's local ACK timeout n, of which only the low 5 bits are used.
///
/// The IBTA lets a requester detect a timeout between one and four times 4.096 µs · 2ⁿ after
/// the last progress. This function returns 2 · 4.096 µs · 2ⁿ: on a busy host, late responses
/// of a software peer are more frequent than lost packets.
pub fn ack_timeout(exponent: u8) -> Option<Duration> {
    match exponent & 0x1f {
        0 => None,
        n => Some(Duration::from_nanos(2 * (4096 << n))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_codes() {
        for (code, us) in [
            (0, 655_360),
            (1, 10),
            (5, 60),
            (12, 640),
            (20, 10_240),
            (31, 491_520),
            (32 + 1, 10),
        ] {
            assert_eq!(rnr_delay(code), Duration::from_micros(us), "code {code}");
        }
    }

    #[test]
    fn ack_timeouts_are_twice_the_shortest_permitted() {
        assert_eq!(ack_timeout(0), None);
        for n in 1..=31 {
            let base = Duration::from_nanos(4096) * (1 << n);
            assert_eq!(ack_timeout(n), Some(2 * base));
        }
    }
}
