# SPDX-License-Identifier: GPL-2.0
#
# Older series have signed limits of a device. Makes them unsigned.
/^pub struct ib_device_attr \{/,/^}/ s/: ffi::c_int,/: u32,/
