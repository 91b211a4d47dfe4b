// SPDX-License-Identifier: GPL-2.0
/*
 * The arithmetic of imtcp_math.h at work on a path that is nothing but one FIFO
 * link with cross traffic: thousands of measurements a second, so that bias can
 * be told from chance.  What it leaves out (a real TCP, its window, its ACKs)
 * is the guest tests' business.
 *
 *	imtcp_path CAPACITY_MBPS LOAD_PERCENT CROSS_BYTES POISSON N K HEAD
 *		   TREND ESTIMATE RUNS SEED [OTHER_LOAD_PERCENT]
 *
 * Between streams the sender sends ten packets at 0.7 of the available
 * bandwidth and rests a moment, as it would.  With another load the load changes to
 * it and back after each STAY measurements.
 *
 * Prints for single results, their EWMA and the robust filter (afilter.h): bias
 * and mean absolute error of A over A, in 1/1000, and how many measurements a
 * change takes until A is nearer to the new one than a fifth of it, on average in 1/10
 * (STAY where it does not come so near, 0 without a change).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <airtcp/afilter.h>
#include <airtcp/imtcp_math.h>

#define BYTES	1514
#define BITS	(BYTES * 8)
#define FILLERS	10
#define STAY	50
#define REACHED	0.2

enum { EITHER, BOTH, NET };
enum { FIT, MIDDLE, BALANCE };

/* How well a filter does. */
struct judge {
	struct afilter filter;
	double bias;
	double size;
	u32 waited;
	bool there;
};

static double link_bps, cross_bps, free_at, next_cross;
static int cross_bytes, poisson;
static u64 dice;

static double chance(void)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	dice ^= dice << 17;
	return ((dice >> 11) + 1) * 0x1p-53;
}

/* Our packet arrives at the queue; all cross traffic before it has. */
static double pass(double now)
{
	while (next_cross <= now) {
		double gap = cross_bytes * 8 / cross_bps;

		free_at = fmax(free_at, next_cross) +
			  cross_bytes * 8 / link_bps;
		next_cross += poisson ? -gap * log(chance()) : gap;
	}
	free_at = fmax(free_at, now) + BITS / link_bps;
	return free_at;
}

static double fill(double now)
{
	double left = link_bps - cross_bps;
	int i;

	for (i = 0; i < FILLERS; i++, now += BITS / (0.7 * left))
		pass(now);
	return now + 3 * BITS / left;
}

/* Sends one stream. */
static u32 stream(double *now, struct im_range sub, u32 n, u32 head,
		  struct im_point *p)
{
	u32 known = 0, i;

	for (i = 0; i < n; i++) {
		if (i)
			*now += i < head ? 2e-6 : 1e-9 *
				im_gap_ns(BITS, im_stream_kbps(sub, n, i + 1));
		p[known].index = i;
		p[known].sent_ns = *now * 1e9;
		p[known].acked_ns = (pass(*now) + 0.01) * 1e9;
		known++;
	}
	*now += BITS / (sub.hi_kbps * 1e3);
	return im_clean(p, known, BITS, link_bps / 1000);
}

static void judge(struct judge *j, enum af_kind kind, u32 kbps, double truth,
		  double step)
{
	double got = af_add(&j->filter, kind, kbps, link_bps / 1000);

	j->bias += (got - truth) / truth;
	j->size += fabs(got - truth) / truth;
	if (j->there)
		return;
	j->there = fabs(got - truth) <= REACHED * step;
	j->waited++;
}

static void report(const struct judge *j, u32 runs)
{
	u32 changes = runs > STAY ? (runs - 1) / STAY : 1;

	printf("%.0f %.0f %.0f ", 1000 * j->bias / runs, 1000 * j->size / runs,
	       10.0 * j->waited / changes);
}

int main(int argc, char **argv)
{
	u32 capacity, width, n, k, head, trend, estimate, runs, i, m;
	struct judge judges[AF_ROBUST + 1] = { 0 };
	struct im_point p[IM_MAX_STREAMS][IM_MAX_PACKETS];
	struct im_load load[IM_MAX_STREAMS];
	struct im_results results = { 0 };
	double now = 0.1, truth, step = 0, loads[2];
	struct im_range range;
	u32 known[IM_MAX_STREAMS];
	s8 verdict[IM_MAX_STREAMS];

	if (argc != 12 && argc != 13)
		return 2;
	link_bps = atof(argv[1]) * 1e6;
	loads[0] = link_bps * atoi(argv[2]) / 100;
	loads[1] = argc > 12 ? link_bps * atoi(argv[12]) / 100 : loads[0];
	cross_bps = loads[0];
	cross_bytes = atoi(argv[3]);
	poisson = atoi(argv[4]);
	n = atoi(argv[5]);
	k = atoi(argv[6]);
	head = atoi(argv[7]) > 1 ? atoi(argv[7]) : 1;
	trend = atoi(argv[8]);
	estimate = atoi(argv[9]);
	runs = atoi(argv[10]);
	dice = 88172645463325252ULL + 7919 * atoi(argv[11]);
	capacity = link_bps / 1000;
	width = capacity / 10;
	truth = (link_bps - cross_bps) / 1000;
	range.lo_kbps = 0.6 * truth;
	range.hi_kbps = 1.1 * truth;
	for (i = 0; i <= AF_ROBUST; i++)
		judges[i].there = true;
	for (m = 0; m < runs; m++) {
		u32 low = 0, sent = k, a, kbps;
		bool falls = false, found;

		if (m && m % STAY == 0 && loads[0] != loads[1]) {
			cross_bps = loads[m / STAY % 2];
			truth = (link_bps - cross_bps) / 1000;
			step = fabs(loads[1] - loads[0]) / 1000;
			for (i = 0; i <= AF_ROBUST; i++)
				judges[i].there = false;
		}
		for (i = 0; i < k && low < 2; i++) {
			struct im_range sub = im_subrange(range, k, i + 1);
			struct im_point *tail = p[i] + head - 1;
			struct im_trend t;
			u32 last, left;

			now = fill(now);
			known[i] = stream(&now, sub, n, head, p[i]);
			last = known[i] - 1;
			left = known[i] - (head - 1);
			t = im_trend_of(tail, left);
			load[i].bits = (p[i][last].index - p[i][0].index) *
				       BITS;
			load[i].sent_ns = p[i][last].sent_ns - p[i][0].sent_ns;
			load[i].growth_ns = im_delay_ns(&p[i][last]) -
					    im_delay_ns(&p[i][0]);
			load[i].busy = head > 1;
			verdict[i] = trend == EITHER ? im_either(&t) :
				     trend == BOTH ? im_both(&t) :
						     im_net(&t, BITS, capacity);
			falls = im_falls(tail, left);
			low = verdict[i] < 0 ? low + 1 : 0;
			sent = i + 1;
		}
		for (i = sent; i < k; i++)
			verdict[i] = -1;
		a = im_choose(verdict, k, falls);
		found = a && a <= k;
		kbps = a ? range.lo_kbps : range.hi_kbps;
		if (estimate == BALANCE) {
			u32 got = im_balance_kbps(load, sent, capacity);

			found = got <= capacity;
			if (found)
				kbps = got;
			else
				a = 0;
			if (found && (got < range.lo_kbps ||
				      got > range.hi_kbps))
				memset(&results, 0, sizeof(results));
		} else if (found) {
			u32 at = a < sent ? a : sent;
			struct im_range sub = im_subrange(range, k, at);

			kbps = (sub.lo_kbps + sub.hi_kbps) / 2;
			if (estimate == FIT)
				kbps = im_fit_kbps(p[at - 1] + head - 1,
						   known[at - 1] - (head - 1),
						   BITS);
			kbps = kbps > sub.lo_kbps ? kbps : sub.lo_kbps;
			kbps = kbps < sub.hi_kbps ? kbps : sub.hi_kbps;
		}
		if (found) {
			im_add_result(&results, kbps);
			range = im_next_range(kbps, &results, width);
		} else {
			memset(&results, 0, sizeof(results));
			range = im_widen(range, !a);
		}
		range = im_limit(range, capacity / 100, capacity * 5 / 4,
				 width);
		for (i = 0; i <= AF_ROBUST; i++)
			judge(&judges[i], i, kbps, truth, step);
	}
	for (i = 0; i <= AF_ROBUST; i++)
		report(&judges[i], runs);
	puts("");
	return 0;
}
