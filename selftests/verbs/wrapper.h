/* SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause */
/* Input of bindgen: the public interface of libibverbs. */
#include <infiniband/verbs.h>
