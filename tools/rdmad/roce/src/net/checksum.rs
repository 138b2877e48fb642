// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Internet checksums.

use super::{Addresses, PROTOCOL_UDP};

/// Sum of the big-endian 16-bit words of `bytes`. An odd last byte is padded with a zero byte.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words
        .remainder()
        .first()
        .map_or(0, |&last| u64::from(last) << 8);
    words.fold(odd, |total, word| {
        total + u64::from(u16::from_be_bytes([word[0], word[1]]))
    })
}

/// Folds a sum to a 16-bit one's complement sum: carries are added to the low 16 bits.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    // The loop leaves at most 16 bits, so the cast does not truncate.
    sum as u16
}

pub(super) fn udp_checksum_holds(addresses: &Addresses, udp: &[u8]) -> bool {
    let pseudo = match addresses {
        Addresses::V4(src, dst) => sum(&src.octets()) + sum(&dst.octets()),
        Addresses::V6(src, dst) => sum(&src.octets()) + sum(&dst.octets()),
    };
    fold(pseudo + u64::from(PROTOCOL_UDP) + udp.len() as u64 + sum(udp)) == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_fold() {
        assert_eq!(fold(sum(&[0xff, 0xff, 0x00, 0x01])), 1);
        assert_eq!(sum(&[0x12, 0x34, 0x56]), 0x1234 + 0x5600);
    }
}
