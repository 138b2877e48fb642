// SPDX-License-Identifier: GPL-2.0

//! Compiles only if one macro defines and exports a table of device ids.

#[repr(transparent)]
pub struct Id(u8);

// SAFETY: `Id` is a transparent wrapper of `u8`.
unsafe impl kernel::device_id::RawDeviceId for Id {
    type RawType = u8;
}

kernel::module_device_table!("probe", Id, TABLE, @none, [Id(0)]);
