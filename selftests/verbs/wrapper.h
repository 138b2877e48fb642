/* SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause */
/* What the bindings are generated from: the public interface of libibverbs. */
#include <infiniband/verbs.h>
