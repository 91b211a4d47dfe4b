// SPDX-License-Identifier: GPL-2.0
// what: hrtimer_setup() in the place of hrtimer_init(), 6.13 to 6.15
// absent: implicit declaration of function|undeclared (identifier|function)
#include <linux/hrtimer.h>

static void __maybe_unused airtcp_probe(struct hrtimer *timer,
					enum hrtimer_restart (*fn)(struct hrtimer *))
{
	hrtimer_setup(timer, fn, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_SOFT);
}
