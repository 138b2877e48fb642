// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! Identity, limits, link and addresses of the port.

use crate::driver::until;
use crate::driver::Driver;
use crate::endpoint::DEPTH;
use crate::endpoint::INLINE_LEN;
use crate::wire::*;

/// Index of the GID table's entry that these tests use.
pub const GID_INDEX: u16 = 3;

/// Checks the identity and limits of the device, and returns its MAC address.
pub fn identity(driver: &mut Driver) -> [u8; 6] {
    let fields = [(0, 4), (4, 8), (32, 8)];
    let values = driver.config(&fields);
    // abi: R-80
    assert_eq!(le32(&values[0], 0), 1, "ports");
    // abi: R-85
    assert_ne!(values[2][1] & (1 << 4), 0, "pages of 4 KiB");
    if driver.features & RING_ADDR != 0 {
        let fields = driver.config(&[(128, 4), (136, 4), (144, 4), (148, 4)]);
        let limits = fields.iter().map(|field| le32(field, 0));
        let least = [1, DEPTH, DEPTH, INLINE_LEN];
        // abi: R-87
        assert!(limits.zip(least).all(|(limit, least)| limit >= least));
    }
    let guid = &values[1];
    // abi: R-81
    assert_eq!(guid[3..5], [0xff, 0xfe]);
    [guid[0] ^ 2, guid[1], guid[2], guid[5], guid[6], guid[7]]
}

/// The link-local address of a MAC address.
pub fn link_local(mac: [u8; 6]) -> [u8; 16] {
    let [a, b, c, d, e, f] = mac;
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    gid
}

/// Adds a GID to the table.
pub fn add_gid(driver: &mut Driver, gid: [u8; 16]) -> Result<(), u8> {
    let mut request = Fields::default().raw(&gid).le32(2).le16(GID_INDEX).le32(1);
    if driver.features & GID_VLAN != 0 {
        request = request.le16(0xffff);
    }
    driver.command(command::ADD_GID, &request.0, 0).map(drop)
}

/// Waits until the port is active, and returns its MTU.
pub fn active_mtu(driver: &mut Driver) -> u8 {
    let pkey = Fields::default().le32(1).le16(0);
    let pkey = driver.command(command::QUERY_PKEY, &pkey.0, 2);
    // abi: R-151
    assert_eq!(pkey, Ok(vec![0xff, 0xff]));
    until("the link", || {
        let port = driver.command(command::QUERY_PORT, &[1], 161).unwrap();
        assert!(le32(&port, 7) > GID_INDEX.into(), "GID table");
        assert_eq!(port[33..], [0; 128]);
        // The port's state is ACTIVE, its physical state LINK_UP.
        (port[0] == 4 && port[32] == 5).then_some(port[2])
    })
}
