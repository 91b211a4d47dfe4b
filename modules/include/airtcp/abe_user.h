/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few kernel helpers that abe.h uses, for its life in user space.
 */
#ifndef AIRTCP_ABE_USER_H
#define AIRTCP_ABE_USER_H

#include <stdbool.h>
#include <linux/types.h>

typedef __u32 u32;
typedef __u64 u64;

static inline u64 div_u64(u64 dividend, u32 divisor)
{
	return dividend / divisor;
}

static inline u64 div64_u64(u64 dividend, u64 divisor)
{
	return dividend / divisor;
}

/* Number of the highest bit set, counted from 1; 0 for 0. */
static inline int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}

#endif /* AIRTCP_ABE_USER_H */
