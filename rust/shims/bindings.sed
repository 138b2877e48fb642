# SPDX-License-Identifier: GPL-2.0
#
# The limits of a device were signed in older series.
/^pub struct ib_device_attr \{/,/^}/ s/: ffi::c_int,/: u32,/
