/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of ImTCP: which rates a measurement sends at, and what the
 * times of its packets say about the path.
 *
 * Nothing here knows a socket, a clock or a module parameter, so that the
 * same text is compiled into imtcp.ko and into the user-space tests.
 *
 * Units.  A rate is in kbit/s on the wire (_kbps), a packet's size in bits on
 * the wire, a time in ns.
 *
 * Ranges.  Rates are at most IM_MAX_KBPS = 100 Gbit/s, a packet has less than
 * 2^20 bits, a stream IM_MAX_PACKETS packets.  Packets of one stream are sent
 * and acknowledged within IM_MAX_SPAN_NS = 2^34 ns (17 s); longer times are
 * taken as that.  Each product below names the bound that keeps it in 64 bits.
 */
#ifndef AIRTCP_IMTCP_MATH_H
#define AIRTCP_IMTCP_MATH_H

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/kernel.h>
#include <linux/math64.h>
#include <linux/types.h>
#else
#include "user.h"
#endif

#define IM_MAX_KBPS	100000000U
#define IM_MAX_PACKETS	16
#define IM_MAX_STREAMS	8
#define IM_MAX_SPAN_NS	17179869184LL	/* 2^34 */
#define IM_PERMILLE	1000
#define IM_PAIRS	16

/**
 * struct im_range - rates between which the available bandwidth is searched
 * @lo_kbps: Bl
 * @hi_kbps: Bu
 */
struct im_range {
	u32 lo_kbps;
	u32 hi_kbps;
};

/**
 * struct im_point - a packet of a stream whose arrival is known on its own
 * @index: which packet of the stream, from 0
 * @sent_ns: when it left
 * @acked_ns: when the ACK came that acknowledged it and nothing later
 */
struct im_point {
	u32 index;
	u64 sent_ns;
	u64 acked_ns;
};

static inline u32 im_clamp_kbps(u64 kbps)
{
	if (kbps < 1)
		return 1;
	return kbps < IM_MAX_KBPS ? kbps : IM_MAX_KBPS;
}

static inline s64 im_span_ns(u64 from_ns, u64 to_ns)
{
	s64 span = to_ns - from_ns;

	if (span > IM_MAX_SPAN_NS)
		return IM_MAX_SPAN_NS;
	return span > -IM_MAX_SPAN_NS ? span : -IM_MAX_SPAN_NS;
}

/* Bits in a time.  16 packets are below 2^24 bits: times 10^6 is below 2^44. */
static inline u32 im_rate_kbps(u32 bits, s64 span_ns)
{
	if (span_ns < 1)
		span_ns = 1;
	return im_clamp_kbps(div64_u64((u64)bits * 1000000, span_ns));
}

/* Time between the departures of two packets at a rate. */
static inline u64 im_gap_ns(u32 packet_bits, u32 kbps)
{
	return div_u64((u64)packet_bits * 1000000 + kbps / 2, kbps ? kbps : 1);
}

/* Delay of a packet, up to a constant. */
static inline s64 im_delay_ns(const struct im_point *p)
{
	return p->acked_ns - p->sent_ns;
}

/**
 * im_subrange() - step 2: B_i = Bu - (Bu - Bl) / k * (i - 1)
 * @r: the search range
 * @streams: k
 * @i: which sub-range, 1 (the highest) to k
 *
 * Return: I_i = (B_{i+1}, B_i).
 */
static inline struct im_range im_subrange(struct im_range r, u32 streams, u32 i)
{
	u64 width = r.hi_kbps - r.lo_kbps;
	struct im_range sub = {
		.lo_kbps = r.hi_kbps - (u32)div_u64(width * i, streams),
		.hi_kbps = r.hi_kbps - (u32)div_u64(width * (i - 1), streams),
	};

	return sub;
}

/**
 * im_stream_kbps() - step 3: the rate at which packet j follows packet j - 1
 * @sub: the stream's sub-range (B_{i+1}, B_i)
 * @packets: N
 * @j: 2 to N
 *
 * Return: B_{i+1} + (B_i - B_{i+1}) / (N - 1) * (j - 1).
 */
static inline u32 im_stream_kbps(struct im_range sub, u32 packets, u32 j)
{
	u64 width = sub.hi_kbps - sub.lo_kbps;

	return im_clamp_kbps(sub.lo_kbps +
			     div_u64(width * (j - 1), packets - 1));
}

/**
 * im_initial_range() - step 1: (A0 / 2, A0), A0 = (N - 1) * M / (R_N - R_1)
 * @bits: bits between the first and the last known packet
 * @span_ns: time between their ACKs
 */
static inline struct im_range im_initial_range(u32 bits, s64 span_ns)
{
	u32 a0 = im_rate_kbps(bits, span_ns);
	struct im_range r = { .lo_kbps = a0 / 2, .hi_kbps = a0 };

	return r;
}

/**
 * im_limit() - what a search range must keep to
 * @r: the wish
 * @floor_kbps: lowest useful rate
 * @ceil_kbps: the sender's own link
 * @width_kbps: Bm
 *
 * Return: @r moved, then cut, into the limits, with at least width Bm where the
 * limits allow it.
 */
static inline struct im_range im_limit(struct im_range r, u32 floor_kbps,
				       u32 ceil_kbps, u32 width_kbps)
{
	if (ceil_kbps <= floor_kbps)
		ceil_kbps = floor_kbps + 1;
	if (width_kbps > ceil_kbps - floor_kbps)
		width_kbps = ceil_kbps - floor_kbps;
	if (r.lo_kbps < floor_kbps)
		r.lo_kbps = floor_kbps;
	if (r.hi_kbps > ceil_kbps)
		r.hi_kbps = ceil_kbps;
	if (r.hi_kbps >= r.lo_kbps && r.hi_kbps - r.lo_kbps >= width_kbps)
		return r;
	if (r.lo_kbps > ceil_kbps - width_kbps)
		r.lo_kbps = ceil_kbps - width_kbps;
	r.hi_kbps = r.lo_kbps + width_kbps;
	return r;
}

/* Arrivals ------------------------------------------------------------------ */

/* A jump of the delay that only a delayed ACK's timer explains (40 ms). */
#define IM_TIMER_NS	10000000

/**
 * im_clean() - leave out arrivals that tell about ACKs, not about the path
 * @p: packets in the order they were sent, overwritten
 * @n: how many
 * @packet_bits: M
 * @capacity_kbps: C, 0 when not known
 *
 * An ACK that a timer held back has a delay that jumps and falls back at the
 * next ACK.  Of ACKs that come closer together than a quarter of a packet time
 * at C all but the last were held up somewhere: no link delivers that fast.
 *
 * Return: how many are left.
 */
static inline u32 im_clean(struct im_point *p, u32 n, u32 packet_bits,
			   u32 capacity_kbps)
{
	s64 least = capacity_kbps ? im_gap_ns(packet_bits, capacity_kbps) / 4
				  : 0;
	u32 kept = 0, i;

	for (i = 0; i < n; i++) {
		if (i + 1 < n) {
			s64 jump = kept ? im_delay_ns(&p[i]) -
					  im_delay_ns(&p[kept - 1]) : 0;
			s64 back = im_delay_ns(&p[i]) - im_delay_ns(&p[i + 1]);
			s64 next = im_span_ns(p[i].acked_ns, p[i + 1].acked_ns);

			if (jump > IM_TIMER_NS && back > IM_TIMER_NS)
				continue;
			if (next < least * (s64)(p[i + 1].index - p[i].index))
				continue;
		}
		p[kept++] = p[i];
	}
	return kept;
}

/* Trend --------------------------------------------------------------------- */

/**
 * struct im_trend - how the delay of a stream's packets changed
 * @steps: differences between neighbours
 * @pct_permille: share of them that are increases (Pathload's PCT)
 * @pdt_permille: net change over the sum of all changes (Pathload's PDT)
 * @growth_ns: net change, D_N - D_1
 */
struct im_trend {
	u32 steps;
	u32 pct_permille;
	s32 pdt_permille;
	s64 growth_ns;
};

/**
 * im_trend_of() - PCT, PDT and net growth
 * @p: packets in the order they were sent
 * @n: how many, at least 2
 *
 * Sums of 15 differences below 2^36 are below 2^40; times 1000 below 2^50.
 */
static inline struct im_trend im_trend_of(const struct im_point *p, u32 n)
{
	struct im_trend t = { .steps = n - 1 };
	s64 sum = 0, all = 0;
	u32 up = 0, i;

	for (i = 1; i < n; i++) {
		s64 d = im_span_ns(im_delay_ns(&p[i - 1]), im_delay_ns(&p[i]));

		up += d > 0;
		sum += d;
		all += d < 0 ? -d : d;
	}
	t.pct_permille = up * IM_PERMILLE / t.steps;
	if (all)
		t.pdt_permille = div64_s64(sum * IM_PERMILLE, all);
	t.growth_ns = sum;
	return t;
}

/* Pathload's rule of 2002: PCT > 0.55 or PDT > 0.4. */
static inline s8 im_either(const struct im_trend *t)
{
	return t->pct_permille > 550 || t->pdt_permille > 400 ? 1 : -1;
}

/*
 * Pathload's later rule: each test says yes above 1.1 times its threshold, no
 * below 0.9 times it, and nothing between; one yes or no suffices when the other
 * test says the same or nothing.
 */
static inline s8 im_both(const struct im_trend *t)
{
	int pct = (t->pct_permille > 605) - (t->pct_permille < 495);
	int pdt = (t->pdt_permille > 440) - (t->pdt_permille < 360);

	return (pct + pdt > 0) - (pct + pdt < 0);
}

/**
 * im_net() - ours: did the queue grow by more than half a packet?
 * @t: the trend
 * @packet_bits: M
 * @capacity_kbps: C
 *
 * Full-size cross traffic makes the delay a saw-tooth, one packet time up and
 * many small steps down, in which PCT sees a decrease although the queue grows.
 * The net change does not care for the way.
 *
 * Return: 1 above M / 2C, -1 below M / 4C, 0 between.
 */
static inline s8 im_net(const struct im_trend *t, u32 packet_bits,
			u32 capacity_kbps)
{
	s64 packet_ns = im_gap_ns(packet_bits, capacity_kbps);

	return (2 * t->growth_ns > packet_ns) - (4 * t->growth_ns < packet_ns);
}

/**
 * im_choose() - step 4: the sub-range that divides "increasing" from "not" best
 * @trend: T_1 to T_k as trend[0] to trend[k - 1]
 * @streams: k
 * @falls: even the slowest part of stream k arrived slower than it was sent
 *
 * a in 0..k maximising sum_{j<=a} T_j - sum_{j>a} T_j, the smallest of equals.
 * With T_1..T_k alone k + 1 cannot be told from k, hence @falls.
 *
 * Return: 1..k: A is in I_a; 0: A is above the range; k + 1: below it.
 */
static inline u32 im_choose(const s8 *trend, u32 streams, bool falls)
{
	int best = 0, score = 0, all;
	u32 a = 0, i;

	for (i = 0; i < streams; i++)
		best -= trend[i];
	all = -best;
	score = best;
	for (i = 0; i < streams; i++) {
		score += 2 * trend[i];
		if (score > best) {
			best = score;
			a = i + 1;
		}
	}
	return a == streams && all == (int)streams && falls ? streams + 1 : a;
}

/**
 * im_falls() - does the slowest third of a stream arrive slower than sent?
 * @p: packets of the lowest stream
 * @n: how many, at least 2
 *
 * Return: true if the arrival rate is below 0.9 times the sending rate there.
 */
static inline bool im_falls(const struct im_point *p, u32 n)
{
	u32 last = (n - 1) / 3 ? (n - 1) / 3 : 1;
	s64 sent = im_span_ns(p[0].sent_ns, p[last].sent_ns);
	s64 acked = im_span_ns(p[0].acked_ns, p[last].acked_ns);

	return 10 * sent < 9 * acked;
}

/* Estimates ----------------------------------------------------------------- */

/* Resolution of the regression: the largest rate is this many steps. */
#define IM_FIT_STEPS	2047

/**
 * im_fit_kbps() - step 5: where the line y = x ends
 * @p: packets of the chosen stream
 * @n: how many, at least 3
 * @packet_bits: M
 *
 * Points are x = sending rate and y = arrival rate between neighbours, by
 * rising x.  For each split into p low and the other high points, line (i) is
 * y = x through the low ones and line (ii) the least-squares line through the
 * high ones; the split with the smallest sum of squared errors wins.
 *
 * Rates are scaled to IM_FIT_STEPS: for up to 15 points n * sum xx - (sum x)^2
 * is below 15 * 15 * 2^22 < 2^30, and the square of such a number fits.
 *
 * Return: x_p, the highest sending rate that belongs to line (i).
 */
static inline u32 im_fit_kbps(const struct im_point *p, u32 n, u32 packet_bits)
{
	u32 x[IM_MAX_PACKETS], y[IM_MAX_PACKETS], top = 1, i, j, best_at = 0;
	u64 low = 0, best = ~0ULL;
	u32 m = n - 1;

	for (i = 0; i < m; i++) {
		u32 bits = (p[i + 1].index - p[i].index) * packet_bits;
		u32 xi = im_rate_kbps(bits, im_span_ns(p[i].sent_ns,
						       p[i + 1].sent_ns));
		u32 yi = im_rate_kbps(bits, im_span_ns(p[i].acked_ns,
						       p[i + 1].acked_ns));

		for (j = i; j && x[j - 1] > xi; j--) {
			x[j] = x[j - 1];
			y[j] = y[j - 1];
		}
		x[j] = xi;
		y[j] = yi;
		top = xi > top ? xi : top;
	}
	/* What arrives at more than twice the highest rate was held up before. */
	for (i = 0; i < m; i++)
		y[i] = y[i] < 2 * top ? y[i] : 2 * top;

	for (i = 0; i < m; i++) {
		s64 sx = 0, sy = 0, sxx = 0, sxy = 0, syy = 0, rest = m - i - 1;
		s64 xs = div_u64((u64)x[i] * IM_FIT_STEPS, top);
		s64 ys = div_u64((u64)y[i] * IM_FIT_STEPS, top);
		u64 high = 0;

		low += (xs - ys) * (xs - ys);
		for (j = i + 1; j < m; j++) {
			xs = div_u64((u64)x[j] * IM_FIT_STEPS, top);
			ys = div_u64((u64)y[j] * IM_FIT_STEPS, top);
			sx += xs;
			sy += ys;
			sxx += xs * xs;
			sxy += xs * ys;
			syy += ys * ys;
		}
		if (rest > 2) {
			s64 vxx = rest * sxx - sx * sx;
			s64 vxy = rest * sxy - sx * sy;
			s64 vyy = rest * syy - sy * sy;

			if (vxx)
				vyy -= div64_s64(vxy * vxy, vxx);
			high = div64_s64(vyy > 0 ? vyy : 0, rest);
		}
		if (low + high < best) {
			best = low + high;
			best_at = x[i];
		}
	}
	return best_at;
}

/**
 * struct im_load - what a stream put on the path and what became of it
 * @bits: carried between its first and its last known packet
 * @sent_ns: the time in which that was sent
 * @growth_ns: by how much the delay grew meanwhile
 * @busy: the queue was never empty meanwhile
 */
struct im_load {
	u32 bits;
	s64 sent_ns;
	s64 growth_ns;
	bool busy;
};

/**
 * im_growth_ns() - by how much the queue grows, were A the available bandwidth
 * @l: the stream
 * @avail_kbps: A
 * @capacity_kbps: C, at least 1
 *
 * While the queue is not empty, what arrives in the time L and is too much for
 * the link makes it longer by G: bits + X * L = C * (L + G) with X = C - A, so
 * G = (bits - A * L) / C.  An empty queue cannot become shorter.
 *
 * A * L < 2^27 * 2^34; bits * 10^6 < 2^44.
 */
static inline s64 im_growth_ns(const struct im_load *l, u32 avail_kbps,
			       u32 capacity_kbps)
{
	s64 over = (s64)l->bits * 1000000 - (s64)avail_kbps * l->sent_ns;

	if (over < 0 && !l->busy)
		return 0;
	return div64_s64(over, capacity_kbps);
}

/**
 * im_balance_kbps() - ours: the A that explains the growth of all streams
 * @l: streams
 * @n: how many
 * @capacity_kbps: C, at least 1
 *
 * The trend test throws away by how much the delay grew, and the fit all streams
 * but one.  Here all of them count, by their lengths: A is where the growth that
 * im_growth_ns() predicts is in sum the growth that was seen.  The prediction
 * falls with A, so halving the interval finds it.
 *
 * Return: A in [1, C]; C + 1 when nothing grew and nothing was busy, so that A
 * may be anything above the rates sent.
 */
static inline u32 im_balance_kbps(const struct im_load *l, u32 n,
				  u32 capacity_kbps)
{
	u32 lo = 1, hi = capacity_kbps, i;
	bool bounded = false;
	s64 seen = 0, zero = 0;

	for (i = 0; i < n; i++) {
		seen += l[i].growth_ns;
		zero += im_growth_ns(&l[i], capacity_kbps, capacity_kbps);
		bounded |= l[i].busy;
	}
	if (!bounded && seen <= zero)
		return capacity_kbps + 1;
	while (lo < hi) {
		u32 mid = lo + (hi - lo) / 2;
		s64 grown = 0;

		for (i = 0; i < n; i++)
			grown += im_growth_ns(&l[i], mid, capacity_kbps);
		if (grown > seen)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Results ------------------------------------------------------------------- */

/**
 * struct im_results - the results since the last discard (Welford's sums)
 * @count: q
 * @mean_q8: mean in 1/256 kbit/s
 * @m2: sum of squared deviations, (kbit/s)^2
 */
struct im_results {
	u32 count;
	u64 mean_q8;
	u64 m2;
};

/*
 * A weight of the newest result below 1/256 would be lost in the mean's rounding,
 * so q stops there and the sums forget slowly instead.
 */
#define IM_MAX_RESULTS	256

/* |deviation| < 2^27, a square < 2^54, 256 of them < 2^62. */
static inline void im_add_result(struct im_results *s, u32 kbps)
{
	s64 before = ((s64)kbps << 8) - (s64)s->mean_q8, after;

	if (s->count < IM_MAX_RESULTS)
		s->count++;
	else
		s->m2 -= div_u64(s->m2, IM_MAX_RESULTS);
	s->mean_q8 += div64_s64(before, s->count);
	after = ((s64)kbps << 8) - (s64)s->mean_q8;
	s->m2 += (before * (after >> 8)) >> 8;
}

/**
 * im_half_kbps() - half the 95 % interval: 1.96 * S / sqrt(q)
 * @s: results
 *
 * Return: 0 while there are less than two.
 */
static inline u32 im_half_kbps(const struct im_results *s)
{
	if (s->count < 2)
		return 0;
	return div_u64(196ULL * int_sqrt64(div_u64(s->m2, (s->count - 1) *
							  s->count)), 100);
}

/**
 * im_next_range() - step 6, A was found
 * @kbps: A
 * @s: results, this one included
 * @width_kbps: Bm
 *
 * Return: A -/+ max(1.96 * S / sqrt(q), Bm / 2).
 */
static inline struct im_range im_next_range(u32 kbps,
					    const struct im_results *s,
					    u32 width_kbps)
{
	u32 half = im_half_kbps(s);
	struct im_range r;

	if (half < width_kbps / 2)
		half = width_kbps / 2;
	r.lo_kbps = kbps > half ? kbps - half : 0;
	r.hi_kbps = im_clamp_kbps((u64)kbps + half);
	return r;
}

/**
 * im_widen() - step 6, A was not found: by half the width towards it
 * @r: the range
 * @above: A is above the range
 */
static inline struct im_range im_widen(struct im_range r, bool above)
{
	u32 half = (r.hi_kbps - r.lo_kbps) / 2;

	if (above)
		r.hi_kbps = im_clamp_kbps((u64)r.hi_kbps + half);
	else
		r.lo_kbps = r.lo_kbps > half ? r.lo_kbps - half : 0;
	return r;
}

/* Capacity ------------------------------------------------------------------ */

/**
 * struct im_train - a stream that kept the bottleneck busy
 * @bits: between the first and the last known packet
 * @sent_ns: time between their departures
 * @acked_ns: time between their ACKs
 */
struct im_train {
	u32 bits;
	u32 sent_ns;
	u32 acked_ns;
};

/**
 * im_capacity_kbps() - C = (sum M - A * sum delta) / (sum T - sum delta)
 * @t: trains
 * @n: how many, at most IM_PAIRS
 * @avail_kbps: A, 0 when not known: then all is taken as sent at once
 *
 * Bits are below 2^24 a train; A * delta < 2^27 * 2^36 < 2^63.
 *
 * Return: C, 0 when the trains do not say.
 */
static inline u32 im_capacity_kbps(const struct im_train *t, u32 n,
				   u32 avail_kbps)
{
	u64 bits = 0, sent = 0, acked = 0;
	u32 i;

	for (i = 0; i < n; i++) {
		bits += (u64)t[i].bits * 1000000;
		sent += t[i].sent_ns;
		acked += t[i].acked_ns;
	}
	if (!avail_kbps)
		sent = 0;
	if (acked <= sent || bits <= avail_kbps * sent)
		return 0;
	return im_clamp_kbps(div64_u64(bits - avail_kbps * sent, acked - sent));
}

/* Trains that agree within 1/32 met nothing: 300 bytes in between are 1/15. */
#define IM_LOG_AGREE	5
#define IM_LEAST_TRAINS	4

/* Arrived so much further apart than sent that little had time to come between. */
static inline u32 im_train_kbps(const struct im_train *t)
{
	return t->acked_ns / 4 < t->sent_ns ? 0 :
					      im_rate_kbps(t->bits, t->acked_ns);
}

static inline bool im_agree(u32 kbps, u32 with_kbps)
{
	u32 off = kbps > with_kbps ? kbps - with_kbps : with_kbps - kbps;

	return kbps && off <= with_kbps >> IM_LOG_AGREE;
}

/**
 * im_alone_kbps() - C from the trains that no other packet came between
 * @t: trains
 * @n: how many, at most IM_PAIRS
 * @each: takes their single values
 *
 * A train sent faster than the link arrives at C if nothing comes between, and
 * otherwise more slowly, each by another amount.  So if more than half of the
 * trains agree, they met nothing.
 *
 * Return: C, 0 when no such majority is there.
 */
static inline u32 im_alone_kbps(const struct im_train *t, u32 n,
				struct im_results *each)
{
	u32 sorted[IM_PAIRS], middle, agree = 0, i, j;
	u64 bits = 0, acked = 0;

	if (n < IM_LEAST_TRAINS || n > IM_PAIRS)
		return 0;
	for (i = 0; i < n; i++) {
		u32 one = im_train_kbps(&t[i]);

		for (j = i; j && sorted[j - 1] > one; j--)
			sorted[j] = sorted[j - 1];
		sorted[j] = one;
	}
	middle = sorted[n / 2];
	for (i = 0; i < n; i++) {
		u32 one = im_train_kbps(&t[i]);

		if (!im_agree(one, middle))
			continue;
		im_add_result(each, one);
		bits += (u64)t[i].bits * 1000000;
		acked += t[i].acked_ns;
		agree++;
	}
	if (agree * 2 <= n)
		return 0;
	return im_clamp_kbps(div64_u64(bits, acked));
}

/* Holding back -------------------------------------------------------------- */

/**
 * im_hold_us() - for how long packets may be held back
 * @rttvar_us: the kernel's 4 D of the retransmission timeout
 * @mdev_us: the kernel's 4 times mean deviation
 * @srtt_us: smoothed RTT
 *
 * The paper's 4 D - 1.98 D with D = mdev / 4, and never more than half an RTT.
 */
static inline u32 im_hold_us(u32 rttvar_us, u32 mdev_us, u32 srtt_us)
{
	u32 hold = rttvar_us > mdev_us / 2 ? rttvar_us - mdev_us / 2 : 0;

	return hold < srtt_us / 2 ? hold : srtt_us / 2;
}

/**
 * im_needed_segs() - window to have free before a stream starts
 * @packets: N
 * @flow_kbps: rate at which ACKs free the window, w / RTT
 * @stream_kbps: mean rate of the stream
 *
 * Ours: N * (1 - r / B), as the ACKs that come during the stream free the
 * rest, and one to spare.
 */
static inline u32 im_needed_segs(u32 packets, u32 flow_kbps, u32 stream_kbps)
{
	if (flow_kbps >= stream_kbps)
		return 1;
	return packets - (u32)div_u64((u64)packets * flow_kbps, stream_kbps);
}

#endif /* AIRTCP_IMTCP_MATH_H */
