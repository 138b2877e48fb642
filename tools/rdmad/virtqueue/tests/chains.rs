// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Valid and invalid descriptor chains.

use dma::testing::guest_memory;
use dma::DmaSpace;
use virtqueue::{Buffer, ChainError, Split};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const MEMORY: u64 = 1 << 20;
const TABLE: u64 = 0x1000;
const OTHER_TABLE: u64 = 0x8000;

struct Guest {
    space: DmaSpace,
    queue: Split,
}

impl Guest {
    /// A guest with a queue of 8 descriptors, for which indirect descriptors are negotiated.
    fn new() -> Self {
        Self {
            space: DmaSpace::anonymous(0, MEMORY),
            queue: Split {
                size: 8,
                descriptors: TABLE,
                available: 0x2000,
                used: 0x3000,
                indirect: true,
            },
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        virtqueue::write(&self.space.enter(), at, bytes).unwrap();
    }

    fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        virtqueue::read(&self.space.enter(), at, &mut bytes).unwrap();
        bytes
    }

    fn descriptor(
        &self,
        table: u64,
        index: u64,
        (address, len): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(table + 16 * index, &bytes);
    }

    /// Writes a chain of buffers to a table, from descriptor 0 on. `parts` has the address, length
    /// and flags of each buffer.
    fn parts(&self, table: u64, parts: &[(u64, u32, u16)]) {
        for (index, &(address, len, flags)) in (0..).zip(parts) {
            let last = index + 1 == parts.len() as u64;
            let more = if last { 0 } else { NEXT };
            self.descriptor(table, index, (address, len), flags | more, index as u16 + 1);
        }
    }

    fn walk(&self) -> Result<Vec<Buffer>, ChainError> {
        self.queue.chain(&self.space.enter(), 0).collect()
    }

    fn gather(&self, len: usize) -> Result<Vec<u8>, ChainError> {
        let mut bytes = vec![0xee; len];
        let done = self
            .queue
            .chain(&self.space.enter(), 0)
            .gather(&mut bytes)?;
        bytes.truncate(done);
        Ok(bytes)
    }

    fn scatter(&self, bytes: &[u8]) -> Result<(), ChainError> {
        self.queue.chain(&self.space.enter(), 0).scatter(bytes)
    }
}

// abi: R-895
#[test]
fn bytes_spread_over_descriptors() {
    let guest = Guest::new();
    guest.put(0x4000, b"abcdef");
    guest.put(0x5000, b"ghi");
    guest.parts(
        TABLE,
        &[
            (0x4000, 2, 0),
            (0x5000, 0, 0),
            (0x5000, 3, 0),
            (0x4002, 4, 0),
        ],
    );
    assert_eq!(guest.gather(9).unwrap(), b"abghicdef");
    assert_eq!(guest.gather(4).unwrap(), b"abgh", "an upper bound");
    assert_eq!(
        guest.gather(100).unwrap(),
        b"abghicdef",
        "shorter than asked for"
    );

    guest.parts(TABLE, &[(0x6000, 3, WRITE), (0x7000, 5, WRITE)]);
    guest.scatter(b"12345").unwrap();
    assert_eq!(guest.get(0x6000, 4), b"123\0");
    assert_eq!(guest.get(0x7000, 3), b"45\0");
    assert_eq!(guest.scatter(&[0; 9]), Err(ChainError::NoRoom(8)));
}

// abi: R-895
#[test]
fn bytes_spread_over_regions() {
    let space = DmaSpace::anonymous(0, 0x1000);
    let other = guest_memory(0x1000).unwrap();
    space.map(0x1000, other, 0, 0x1000, true).unwrap();
    let view = space.enter();
    virtqueue::write(&view, 0xffd, b"abcdefg").unwrap();
    let mut bytes = [0; 7];
    virtqueue::read(&view, 0xffd, &mut bytes).unwrap();
    assert_eq!(bytes, *b"abcdefg");
    virtqueue::read(&view, 0x1000, &mut bytes[..4]).unwrap();
    assert_eq!(bytes[..4], *b"defg");
}

#[test]
fn an_indirect_table_may_end_a_chain() {
    let guest = Guest::new();
    guest.put(0x4000, b"abcdef");
    guest.descriptor(TABLE, 0, (0x4000, 3), NEXT, 5);
    // The write flag of an indirect descriptor is ignored.
    guest.descriptor(TABLE, 5, (OTHER_TABLE, 32), INDIRECT | WRITE, 0);
    guest.parts(OTHER_TABLE, &[(0x4003, 1, 0), (0x4004, 2, 0)]);
    assert_eq!(guest.gather(6).unwrap(), b"abcdef");
    assert_eq!(guest.walk().unwrap().len(), 3);
}

#[test]
fn indirect_tables_that_are_not_allowed() {
    let mut guest = Guest::new();
    guest.descriptor(TABLE, 0, (OTHER_TABLE, 16), INDIRECT, 0);
    guest.descriptor(OTHER_TABLE, 0, (OTHER_TABLE, 16), INDIRECT, 0);
    assert_eq!(guest.walk(), Err(ChainError::Indirect), "one in another");
    guest.descriptor(TABLE, 0, (OTHER_TABLE, 16), INDIRECT | NEXT, 1);
    assert_eq!(guest.walk(), Err(ChainError::Indirect), "with a successor");
    for len in [0, 15, 17] {
        guest.descriptor(TABLE, 0, (OTHER_TABLE, len), INDIRECT, 0);
        assert_eq!(guest.walk(), Err(ChainError::BadTable(len)));
    }
    guest.descriptor(TABLE, 0, (OTHER_TABLE, 16), INDIRECT, 0);
    guest.descriptor(OTHER_TABLE, 0, (0x4000, 1), NEXT, 1);
    assert_eq!(guest.walk(), Err(ChainError::BadDescriptor(1)));
    guest.descriptor(TABLE, 0, (u64::MAX - 7, 16), INDIRECT, 0);
    assert!(matches!(guest.walk(), Err(ChainError::Dma(_))));
    guest.queue.indirect = false;
    assert_eq!(guest.walk(), Err(ChainError::Indirect), "not negotiated");
}

// abi: R-895
#[test]
fn chains_end() {
    let guest = Guest::new();
    guest.descriptor(TABLE, 0, (0x4000, 1), NEXT, 1);
    guest.descriptor(TABLE, 1, (0x4000, 1), NEXT, 0);
    assert_eq!(guest.walk(), Err(ChainError::TooLong), "a loop");
    // An indirect table may have more descriptors than the queue, but a chain in this table may
    // not.
    guest.descriptor(TABLE, 0, (OTHER_TABLE, 16 * 9), INDIRECT, 0);
    guest.parts(OTHER_TABLE, &[(0x4000, 1, 0); 9]);
    assert_eq!(guest.walk(), Err(ChainError::TooLong));
    guest.parts(OTHER_TABLE, &[(0x4000, 1, 0); 8]);
    assert_eq!(guest.walk().unwrap().len(), 8);
    let view = guest.space.enter();
    let parts = |limit| {
        guest
            .queue
            .chain(&view, 0)
            .at_most(limit)
            .collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(parts(7), Err(ChainError::TooLong));
    assert_eq!(parts(8).map(|parts| parts.len()), Ok(8));
}

#[test]
fn descriptors_that_make_no_sense() {
    let guest = Guest::new();
    guest.descriptor(TABLE, 0, (0x4000, 1), NEXT, 8);
    assert_eq!(guest.walk(), Err(ChainError::BadDescriptor(8)));
    guest.parts(TABLE, &[(0x4000, 1, WRITE), (0x4000, 1, 0)]);
    assert_eq!(guest.walk(), Err(ChainError::ReadAfterWrite));
    guest.parts(TABLE, &[(0x4000, 1, 0), (0x4000, 1, WRITE)]);
    assert_eq!(guest.gather(2), Err(ChainError::Direction));
    assert_eq!(guest.gather(1).unwrap().len(), 1, "not looked at");
    assert_eq!(guest.scatter(b"a"), Err(ChainError::Direction));
    guest.parts(TABLE, &[(MEMORY, 1, 0)]);
    assert!(matches!(guest.gather(1), Err(ChainError::Dma(_))));
    guest.parts(TABLE, &[(MEMORY - 1, 8, WRITE)]);
    assert!(matches!(guest.scatter(b"ab"), Err(ChainError::Dma(_))));
    guest.parts(TABLE, &[(u64::MAX, 8, 0)]);
    assert!(matches!(guest.gather(2), Err(ChainError::Dma(_))));
}

#[test]
fn where_the_parts_are() {
    let queue = Split {
        size: 4,
        descriptors: 0x100,
        available: 0x202,
        used: 0x304,
        indirect: false,
    };
    assert!(queue.is_valid());
    assert_eq!(queue.available_index(), 0x204);
    assert_eq!(queue.available_entry(6), 0x20a);
    assert_eq!(queue.used_index(), 0x306);
    assert_eq!(queue.used_entry(7), 0x320);
    for bad in [
        Split { size: 3, ..queue },
        Split { size: 0, ..queue },
        Split {
            descriptors: 0x108,
            ..queue
        },
        Split {
            available: 0x201,
            ..queue
        },
        Split {
            used: 0x302,
            ..queue
        },
        Split {
            used: u64::MAX & !3,
            ..queue
        },
    ] {
        assert!(!bad.is_valid(), "{bad:?}");
    }
}

#[test]
fn each_part_ends_inside_the_address_space() {
    let queue = Split {
        size: 4,
        descriptors: 0xffff_ffff_ffff_ffb0,
        available: 0xffff_ffff_ffff_fff2,
        used: 0xffff_ffff_ffff_ffd8,
        indirect: false,
    };
    assert!(
        queue.is_valid(),
        "the last addresses that each part can have"
    );
    for bad in [
        Split {
            descriptors: queue.descriptors + 16,
            ..queue
        },
        Split {
            available: queue.available + 2,
            ..queue
        },
        Split {
            used: queue.used + 4,
            ..queue
        },
    ] {
        assert!(!bad.is_valid(), "{bad:?}");
    }
}
