// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Checks of port attributes.

use super::abi::ctrl::RspQueryPort;
use super::abi::ib::{Mtu, PortCaps, PortPhysState, PortSpeed, PortState, PortWidth};
use super::answer::InvalidResponse;

/// Maximum number of entries of a GID table: an address handle has one byte for the index.
pub const MAX_GIDS: u32 = 256;

/// Maximum number of entries of a P_Key table. ib_core reads all of them by commands whenever the
/// port changes.
pub const MAX_PKEYS: u16 = 128;

/// Checks the attributes of a port. Limits the P_Key table to [`MAX_PKEYS`] entries, masks unknown
/// capabilities, and replaces an unknown width or speed by the smallest one.
///
/// # Errors
///
/// [`InvalidResponse`] for unknown states and MTUs, for a table without entries, and for more than
/// [`MAX_GIDS`] GIDs.
pub fn check(response: &RspQueryPort) -> Result<RspQueryPort, InvalidResponse> {
    let is_valid = PortState::try_from(response.state).is_ok()
        && PortPhysState::try_from(response.phys_state).is_ok()
        && Mtu::try_from(response.max_mtu).is_ok()
        && Mtu::try_from(response.active_mtu).is_ok()
        && (1..=MAX_GIDS).contains(&response.gid_tbl_len)
        && response.pkey_tbl_len != 0;
    if !is_valid {
        return Err(InvalidResponse);
    }
    Ok(RspQueryPort {
        pkey_tbl_len: response.pkey_tbl_len.min(MAX_PKEYS),
        port_cap_flags: PortCaps(response.port_cap_flags.0 & PortCaps::ALL.0),
        active_width: PortWidth::try_from(response.active_width)
            .unwrap_or(PortWidth::X1)
            .value(),
        active_speed: PortSpeed::try_from(response.active_speed)
            .unwrap_or(PortSpeed::Sdr)
            .value(),
        ..*response
    })
}
