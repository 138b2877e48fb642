// SPDX-License-Identifier: GPL-2.0 OR BSD-3-Clause

//! Attributes of the port.

use super::abi::ctrl::RspQueryPort;
use super::abi::ib::{Mtu, PortCaps, PortPhysState, PortSpeed, PortState, PortWidth};
use super::answer::InvalidResponse;

/// Entries of a GID table at most: an index into it is a byte in an address handle.
pub const MAX_GIDS: u32 = 256;

/// Entries of a P_Key table at most. The core reads all of them by commands whenever the port
/// changes.
pub const MAX_PKEYS: u16 = 128;

/// Checks the attributes of a port. A longer table of P_Keys is cut to [`MAX_PKEYS`] entries,
/// unknown capabilities are masked, and an unknown width or speed is the least one.
///
/// # Errors
///
/// [`InvalidResponse`] for states and MTUs that do not exist, and for a table without entries or
/// with more than [`MAX_GIDS`] GIDs.
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
