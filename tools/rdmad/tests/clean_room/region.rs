// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! An MR and its memory.

use crate::driver::Driver;
use crate::memory::Extent;
use crate::wire::*;

/// Length of the MR in bytes.
pub const LEN: u32 = 10_000;
/// Offset of the MR's first byte in its page.
pub const OFFSET: u64 = 0x123;

/// Access flags of the MR and the QP, if `features` are negotiated.
pub fn access_flags(features: u64) -> u32 {
    let flush = if features & FLUSH != 0 {
        FLUSH_GLOBAL
    } else {
        0
    };
    REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC | flush
}

/// An MR in scattered pages.
pub struct Region {
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
    /// Address of the MR's first byte, as work requests contain it.
    pub address: u64,
    pub extent: Extent,
}

impl Region {
    /// Registers an MR. Its page list is flat, or has two levels if `depth` is 1 and page sizes
    /// were negotiated.
    pub fn new(driver: &mut Driver, pd: u32, depth: u8) -> Region {
        let extent = Extent::new(&driver.memory, OFFSET + u64::from(LEN));
        let has_page_size = driver.features & MR_PAGES != 0;
        // With page sizes, `address` determines the offset in the first page; without page sizes,
        // `start` does.
        // abi
        let (start, address) = match has_page_size {
            true => (0x7fff_0000_0456, 0xabcd_0000_0000 + OFFSET),
            false => (0x7fff_0000_0000 + OFFSET, 0xabcd_0000_0456),
        };
        let has_windows = driver.features & MEM_WINDOWS != 0;
        let bind = if has_windows { MW_BIND } else { 0 };
        let depth = if has_page_size { depth } else { 0 };
        let list = extent.list(depth);
        // abi: R-271
        let mut request = Fields::default()
            .le32(pd)
            .le32(LOCAL_WRITE | bind | access_flags(driver.features))
            .le64(start)
            .le64(LEN.into())
            .le64(address)
            .le64(list.address())
            .le32(extent.pages.len() as u32);
        if has_page_size {
            // abi: R-305
            request = request.u8(12).u8(depth).zeroes(52);
        }
        let response = driver
            .command(command::REG_USER_MR, &request.0, 12)
            .unwrap();
        Region {
            handle: le32(&response, 0),
            lkey: le32(&response, 4),
            rkey: le32(&response, 8),
            address,
            extent,
        }
    }

    /// An SGE for `length` bytes from `offset` of the MR on.
    pub fn sge(&self, offset: u32, length: u32) -> Sge {
        Sge {
            address: self.address + u64::from(offset),
            length,
            lkey: self.lkey,
        }
    }

    pub fn write(&self, offset: u32, bytes: &[u8]) {
        self.extent.write(OFFSET + u64::from(offset), bytes);
    }

    /// Asserts that the MR has these bytes at these offsets, and that all other bytes of its pages
    /// are 0.
    pub fn expect(&self, parts: &[(u32, &[u8])]) {
        let pages = self.extent.read(0, 4096 * self.extent.pages.len() as u64);
        let mut expected = vec![0; pages.len()];
        for (offset, bytes) in parts {
            let at = OFFSET as usize + *offset as usize;
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        assert!(pages == expected, "memory differs");
    }
}
