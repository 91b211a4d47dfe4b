// SPDX-License-Identifier: GPL-2.0
/*
 * The arithmetic of imtcp_math.h at work on a path that is nothing but one FIFO
 * link with cross traffic: thousands of measurements a second, so that bias can
 * be told from chance.  What it leaves out (a real TCP, its window, its ACKs)
 * is the guest tests' business.
 *
 *	imtcp_path CAPACITY_MBPS LOAD_PERCENT CROSS_BYTES POISSON N K HEAD
 *		   TREND ESTIMATE RUNS SEED
 *
 * Between streams the sender sends ten packets at 0.7 of the available
 * bandwidth and rests a moment, as it would.  Prints bias and mean absolute
 * error of A over A, single results and their EWMA with weight 1/8, in 1/1000.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <airtcp/imtcp_math.h>

#define BYTES	1514
#define BITS	(BYTES * 8)
#define FILLERS	10

enum { EITHER, BOTH, NET };
enum { FIT, MIDDLE, BALANCE };

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

int main(int argc, char **argv)
{
	u32 capacity, width, n, k, head, trend, estimate, runs, i, m;
	struct im_point p[IM_MAX_STREAMS][IM_MAX_PACKETS];
	struct im_load load[IM_MAX_STREAMS];
	struct im_results results = { 0 };
	double now = 0.1, truth, bias = 0, size = 0, smooth = 0, smooth_size = 0;
	struct im_range range;
	u32 known[IM_MAX_STREAMS];
	s8 verdict[IM_MAX_STREAMS];

	if (argc != 12)
		return 2;
	link_bps = atof(argv[1]) * 1e6;
	cross_bps = link_bps * atoi(argv[2]) / 100;
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
	for (m = 0; m < runs; m++) {
		u32 low = 0, sent = k, a, kbps;
		bool falls = false, found;

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
		smooth = m ? smooth + (kbps - smooth) / 8 : kbps;
		bias += (kbps - truth) / truth;
		size += fabs(kbps - truth) / truth;
		smooth_size += fabs(smooth - truth) / truth;
	}
	printf("%.0f %.0f %.0f\n", 1000 * bias / runs, 1000 * size / runs,
	       1000 * smooth_size / runs);
	return 0;
}
