// SPDX-License-Identifier: GPL-2.0

#include <linux/sched.h>
#include <linux/sched/signal.h>

__rust_helper void rust_helper_cond_resched(void)
{
	cond_resched();
}

__rust_helper bool rust_helper_current_is_dying(void)
{
	return fatal_signal_pending(current);
}
