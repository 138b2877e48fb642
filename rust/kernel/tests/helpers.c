// SPDX-License-Identifier: GPL-2.0

/* Each module has its own copy, since helpers are not exported. */
#include "../../kbuild/helpers/helpers.c"
