// SPDX-License-Identifier: GPL-2.0

/* Each module has its own copy, since helpers are not exported. */
#define __rust_helper

#include "../rust/kbuild/helpers/cpumask_ext.c"
#include "../rust/kbuild/helpers/device_ext.c"
#include "../rust/kbuild/helpers/virtio.c"
