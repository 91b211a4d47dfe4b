/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The few kernel helpers that the arithmetic headers use, for their life in
 * user space.  Each does what the kernel's own does, on any machine.
 */
#ifndef AIRTCP_USER_H
#define AIRTCP_USER_H

#include <stdbool.h>
#include <linux/types.h>

typedef __u8 u8;
typedef __s8 s8;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

static inline u64 div_u64(u64 dividend, u32 divisor)
{
	return dividend / divisor;
}

static inline u64 div_u64_rem(u64 dividend, u32 divisor, u32 *remainder)
{
	*remainder = dividend % divisor;
	return dividend / divisor;
}

static inline u64 div64_u64(u64 dividend, u64 divisor)
{
	return dividend / divisor;
}

static inline s64 div64_s64(s64 dividend, s64 divisor)
{
	return dividend / divisor;
}

/* As the kernel's version for 32-bit machines: shifts up to 32 only. */
static inline u64 mul_u64_u32_shr(u64 a, u32 mul, unsigned int shift)
{
	return ((a >> 32) * mul << (32 - shift)) +
	       ((a & 0xffffffff) * mul >> shift);
}

/* Number of the highest bit set, counted from 1; 0 for 0. */
static inline int fls64(u64 x)
{
	return x ? 64 - __builtin_clzll(x) : 0;
}

/* The root rounded down, bit by bit from the top. */
static inline u32 int_sqrt64(u64 x)
{
	u64 root = 0;
	int bit;

	for (bit = 31; bit >= 0; bit--) {
		u64 trial = root | 1ULL << bit;

		if (trial * trial <= x)
			root = trial;
	}
	return root;
}

#endif /* AIRTCP_USER_H */
