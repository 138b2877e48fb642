// SPDX-License-Identifier: GPL-2.0

#include <linux/cpumask.h>

__rust_helper const struct cpumask *rust_helper_cpumask_of(unsigned int cpu)
{
	return cpumask_of(cpu);
}

__rust_helper unsigned int rust_helper_cpumask_local_spread(unsigned int i, int node)
{
	return cpumask_local_spread(i, node);
}
