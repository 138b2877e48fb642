// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause

//! States and attributes of an RC QP.

use crate::driver::Driver;
use crate::port::GID_INDEX;
use crate::region::access_flags;
use crate::wire::attribute::*;
use crate::wire::*;

/// The address of a QP.
#[derive(Clone, Copy)]
pub struct Peer {
    pub gid: [u8; 16],
    pub mac: [u8; 6],
    pub mtu: u8,
    pub qpn: u32,
}

/// Moves a QP to `state` with the attributes of `mask`.
pub fn modify(
    driver: &mut Driver,
    qpn: u32,
    state: u8,
    mask: u32,
    attrs: &[u8; 129],
) -> Result<(), u8> {
    let mut attrs = *attrs;
    attrs[0] = state;
    // abi: R-214
    let request = Fields::default().le32(qpn).le32(mask | STATE).raw(&attrs);
    driver.command(command::MODIFY_QP, &request.0, 0).map(drop)
}

/// The state of a QP.
pub fn state_of(driver: &mut Driver, qpn: u32) -> Result<u8, u8> {
    let request = Fields::default().le32(qpn).le32(STATE);
    let attrs = driver.command(command::QUERY_QP, &request.0, 129)?;
    Ok(attrs[0])
}

/// Moves a QP from RESET to INIT, with the required attributes only.
pub fn to_init(driver: &mut Driver, qpn: u32) {
    let mut attrs = [0; 129];
    attrs[20..24].copy_from_slice(&access_flags(driver.features).to_le_bytes());
    attrs[33] = 1; // port_num
    let mask = PKEY_INDEX | PORT | ACCESS_FLAGS;
    modify(driver, qpn, state::INIT, mask, &attrs).unwrap();
}

/// Moves a QP from INIT to RTR, with the required attributes only.
pub fn to_rtr(driver: &mut Driver, qpn: u32, peer: Peer, peer_psn: u32) {
    let mut attrs = [0; 129];
    // abi: R-217
    attrs[2] = peer.mtu;
    attrs[8..12].copy_from_slice(&peer_psn.to_le_bytes());
    attrs[16..20].copy_from_slice(&peer.qpn.to_le_bytes());
    attrs[31] = 4; // max_dest_rd_atomic
    attrs[32] = 12; // min_rnr_timer: 0.64 ms
    attrs[63..96].copy_from_slice(&path(&peer));
    // abi: R-260
    let mask = AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    modify(driver, qpn, state::RTR, mask, &attrs).unwrap();
}

/// Moves a QP from RTR to RTS, with the required attributes only.
pub fn to_rts(driver: &mut Driver, qpn: u32, psn: u32) {
    let mut attrs = [0; 129];
    attrs[12..16].copy_from_slice(&psn.to_le_bytes());
    attrs[30] = 4; // max_rd_atomic
    attrs[34] = 18; // timeout: a second
    attrs[35] = 7; // retry_cnt
    attrs[36] = 7; // rnr_retry
    let mask = TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
    modify(driver, qpn, state::RTS, mask, &attrs).unwrap();
    assert_eq!(state_of(driver, qpn), Ok(state::RTS));
}

/// The address handle attributes of the path to a peer.
fn path(peer: &Peer) -> Vec<u8> {
    // abi
    Fields::default()
        .raw(&peer.gid)
        .le32(0)
        .u8(GID_INDEX as u8)
        .u8(64) // hop_limit
        .u8(0)
        .u8(0)
        .u8(0)
        .u8(1) // port_num
        .u8(1) // GRH
        .raw(&peer.mac)
        .0
}
