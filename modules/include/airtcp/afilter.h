/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Filters for results of a measurement that are noisy and sometimes jump: the
 * future work of the TCP Symbiosis paper ("filter the measurement").
 *
 * Nothing here knows a socket, a clock or a module parameter, so that the
 * same text is compiled into tcp_symbiosis.ko and into the user-space tests.
 *
 * ewma	A' = A' + (a - A') / 8.  Smooth, and eight results late.
 *
 * robust	Ours.  Two things happen to a series of measurements: noise, which is
 *	to be averaged, and changes of the cross traffic, which are to be
 *	followed at once.  One number tells them apart, the deviation that the
 *	results usually have:
 *
 *		e = a - A';  D = mean of |e|, weight 1/8
 *		|e| <= 3 D:  A' moves by e / 8		(noise)
 *		|e| >  3 D:  A' moves by 3 D / 8, an outlier has no more say
 *		             than the largest noise
 *		the third outlier in a row on the same side: it was a change, A'
 *		             is the median of the three, D starts again
 *
 *	With normal noise D is 0.8 sigma and 3 D is 2.4 sigma: 1.6 % of results
 *	are taken for outliers, and two more on the same side follow by chance
 *	once in 1,900,000 results.
 *
 *	An outlier enters D, as 3 D, when the next result has shown that it was
 *	none of a change.  Entering at once, the first two results after a
 *	change would raise the bar for the third.
 *
 *	D is at most C / 16.  Left to itself it follows wide results up to half of A
 *	where little is left, 3 D is more than A, nothing is an outlier
 *	any more and the filter is an EWMA.  The bound is a share of C and not of A,
 *	because the noise is: single results beside random traffic of
 *	full-size packets, the widest there are, are off by 8, 9 and 7 % of C on
 *	average at loads of 20, 50 and 80 % (imtcp_path.c).  More than three times
 *	two thirds of that, three times in a row on one side, is
 *	taken for a change; with C / 8 changes by 0.3 C are still missed beside such
 *	traffic, with C / 24 noise is followed.
 *
 *	D is at least 1/64 of A', so that an undisturbed series does not make every
 *	wiggle an outlier.
 *
 * Units.  kbit/s; the state carries 8 fraction bits (_q8).
 */
#ifndef AIRTCP_AFILTER_H
#define AIRTCP_AFILTER_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "user.h"
#endif

#define AF_Q		8
#define AF_LOG_WEIGHT	3
#define AF_OUTLIER	3
#define AF_CHANGE	3
#define AF_LOG_FLOOR	6
#define AF_LOG_MOST	4

enum af_kind { AF_NONE, AF_EWMA, AF_ROBUST };

/**
 * struct afilter - memory; all zero before the first result
 * @value_q8: A'; 0 means none
 * @dev_q8: D
 * @outlier: the latest outliers, kbit/s
 * @side: how many in a row, positive above, negative below A'
 */
struct afilter {
	u64 value_q8;
	u64 dev_q8;
	u32 outlier[AF_CHANGE - 1];
	s8 side;
};

static inline u32 af_median3(u32 a, u32 b, u32 c)
{
	u32 low = a < b ? a : b, high = a < b ? b : a;

	if (c < low)
		return low;
	return c < high ? c : high;
}

static inline u64 af_most_dev(u32 capacity_kbps)
{
	return ((u64)capacity_kbps << AF_Q) >> AF_LOG_MOST;
}

/* How wide the results are is not known yet: as wide as noise may be. */
static inline void af_restart(struct afilter *f, u32 kbps, u32 capacity_kbps)
{
	f->value_q8 = (u64)kbps << AF_Q;
	f->dev_q8 = af_most_dev(capacity_kbps);
	f->side = 0;
}

/*
 * Moves by a share of the error that is rounded away from zero, so that a
 * constant input is reached and not only approached.
 */
static inline s64 af_share(s64 error)
{
	const s64 last = (1 << AF_LOG_WEIGHT) - 1;

	return (error + (error > 0 ? last : -last)) / (1 << AF_LOG_WEIGHT);
}

static inline void af_learn(struct afilter *f, s64 size)
{
	f->dev_q8 += af_share(size - (s64)f->dev_q8);
}

/* The outliers before this result were none of a change, so they were noise. */
static inline void af_no_change(struct afilter *f)
{
	for (; f->side; f->side += f->side < 0 ? 1 : -1)
		af_learn(f, AF_OUTLIER * (s64)f->dev_q8);
}

/* Three outliers on one side: a change.  True if this was the third. */
static inline bool af_change(struct afilter *f, u32 kbps, bool above,
			     u32 capacity_kbps)
{
	if (above ? f->side < 0 : f->side > 0)
		af_no_change(f);
	f->side += above ? 1 : -1;
	if (f->side == AF_CHANGE || f->side == -AF_CHANGE) {
		af_restart(f, af_median3(f->outlier[0], f->outlier[1], kbps),
			   capacity_kbps);
		return true;
	}
	f->outlier[(above ? f->side : -f->side) - 1] = kbps;
	return false;
}

static inline void af_robust(struct afilter *f, u32 kbps, u32 capacity_kbps)
{
	s64 error = ((s64)kbps << AF_Q) - (s64)f->value_q8;
	s64 most = AF_OUTLIER * (s64)f->dev_q8, size = error < 0 ? -error : error;
	u64 least, most_dev = af_most_dev(capacity_kbps);

	if (size > most) {
		if (af_change(f, kbps, error > 0, capacity_kbps))
			return;
		error = error < 0 ? -most : most;
	} else {
		af_no_change(f);
		af_learn(f, size);
	}
	f->value_q8 += af_share(error);
	least = f->value_q8 >> AF_LOG_FLOOR;
	if (f->dev_q8 < least)
		f->dev_q8 = least;
	if (f->dev_q8 > most_dev)
		f->dev_q8 = most_dev;
}

/**
 * af_add() - a new result
 * @f: memory
 * @kind: which filter; may change between results
 * @kbps: the result
 * @capacity_kbps: C, the path's capacity
 *
 * Return: the filtered value, kbit/s.
 */
static inline u32 af_add(struct afilter *f, enum af_kind kind, u32 kbps,
			 u32 capacity_kbps)
{
	if (kind == AF_NONE || !f->value_q8)
		af_restart(f, kbps, capacity_kbps);
	else if (kind == AF_EWMA)
		f->value_q8 += af_share(((s64)kbps << AF_Q) - (s64)f->value_q8);
	else
		af_robust(f, kbps, capacity_kbps);
	return f->value_q8 >> AF_Q;
}

#endif /* AIRTCP_AFILTER_H */
