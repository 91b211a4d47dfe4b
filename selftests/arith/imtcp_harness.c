// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the arithmetic of imtcp_math.h, logistic.h and afilter.h on cases read
 * from standard input, one a line, and prints one line of results for each.  The
 * tests build it with the address and undefined-behaviour sanitizers.
 *
 *	S LO HI K I			im_subrange: lo hi
 *	J LO HI N J			im_stream_kbps
 *	G BITS KBPS			im_gap_ns
 *	R BITS SPAN			im_rate_kbps
 *	I BITS SPAN			im_initial_range: lo hi
 *	L LO HI FLOOR CEIL WIDTH	im_limit: lo hi
 *	T N S1 R1 S2 R2 ...		im_trend_of: steps pct pdt growth either both
 *	N GROWTH BITS KBPS		im_net
 *	C FALLS T1 ... TK		im_choose
 *	F N S1 R1 ...			im_falls
 *	X BITS N S1 R1 ...		im_fit_kbps
 *	K BITS KBPS N I1 S1 R1 ...	im_clean: the indices kept
 *	B CAP N BITS SENT GROWTH BUSY	im_balance_kbps
 *	Q WIDTH A1 A2 ...		im_add_result, im_half_kbps, im_next_range:
 *					count mean_q8 half lo hi
 *	W LO HI ABOVE			im_widen: lo hi
 *	P AVAIL N BITS SENT ACKED ...	im_capacity_kbps
 *	A N BITS SENT ACKED ...		im_alone_kbps: C, how many trains agree
 *	H RTTVAR MDEV SRTT		im_hold_us
 *	D N FLOW STREAM			im_needed_segs
 *	s K A TAU WIRE GAMMA EPS	lg_equilibrium_q32
 *	x K A TAU WIRE GAMMA EPS DT	lg_exponent_q44
 *	e X				lg_expm1_q44
 *	w K A TAU WIRE GAMMA EPS W DT	lg_step_q32
 *	a A PART WHOLE			lg_fraction_of
 *	f KIND C A1 A2 ...	af_add: the values
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <airtcp/afilter.h>
#include <airtcp/imtcp_math.h>
#include <airtcp/logistic.h>

#define MOST 4096

static long long v[MOST];

static u32 points(u32 n, const long long *from, bool index, struct im_point *p)
{
	u32 step = index ? 3 : 2, i;

	for (i = 0; i < n; i++) {
		p[i].index = index ? from[i * step] : i;
		p[i].sent_ns = from[i * step + step - 2];
		p[i].acked_ns = from[i * step + step - 1];
	}
	return n;
}

static struct lg_model model(void)
{
	struct lg_model m = { v[0], v[1], v[2], v[3], v[4], v[5] };

	return m;
}

static void say(struct im_range r)
{
	printf("%u %u\n", r.lo_kbps, r.hi_kbps);
}

static bool run(char kind, int n)
{
	struct im_range r = { v[0], v[1] };
	struct im_point p[IM_MAX_PACKETS];
	struct im_load load[IM_MAX_STREAMS];
	struct im_train train[IM_PAIRS];
	struct im_results results = { 0 };
	struct afilter filter = { 0 };
	struct lg_model m = model();
	struct im_trend t;
	s8 trend[IM_MAX_STREAMS];
	int i;
	u32 found, k;

	switch (kind) {
	case 'S':
		say(im_subrange(r, v[2], v[3]));
		return true;
	case 'J':
		printf("%u\n", im_stream_kbps(r, v[2], v[3]));
		return true;
	case 'G':
		printf("%llu\n", (unsigned long long)im_gap_ns(v[0], v[1]));
		return true;
	case 'R':
		printf("%u\n", im_rate_kbps(v[0], v[1]));
		return true;
	case 'I':
		say(im_initial_range(v[0], v[1]));
		return true;
	case 'L':
		say(im_limit(r, v[2], v[3], v[4]));
		return true;
	case 'T':
		t = im_trend_of(p, points(v[0], v + 1, false, p));
		printf("%u %u %d %lld %d %d\n", t.steps, t.pct_permille,
		       t.pdt_permille, (long long)t.growth_ns, im_either(&t),
		       im_both(&t));
		return true;
	case 'N':
		t.growth_ns = v[0];
		printf("%d\n", im_net(&t, v[1], v[2]));
		return true;
	case 'C':
		for (i = 1; i < n; i++)
			trend[i - 1] = v[i];
		printf("%u\n", im_choose(trend, n - 1, v[0]));
		return true;
	case 'F':
		printf("%d\n", im_falls(p, points(v[0], v + 1, false, p)));
		return true;
	case 'X':
		k = points(v[1], v + 2, false, p);
		printf("%u\n", im_fit_kbps(p, k, v[0]));
		return true;
	case 'K':
		k = im_clean(p, points(v[2], v + 3, true, p), v[0], v[1]);
		for (i = 0; i < (int)k; i++)
			printf("%u ", p[i].index);
		puts("");
		return true;
	case 'B':
		for (i = 0; i < v[1]; i++) {
			load[i].bits = v[2 + 4 * i];
			load[i].sent_ns = v[3 + 4 * i];
			load[i].growth_ns = v[4 + 4 * i];
			load[i].busy = v[5 + 4 * i];
		}
		printf("%u\n", im_balance_kbps(load, v[1], v[0]));
		return true;
	case 'Q':
		for (i = 1; i < n; i++)
			im_add_result(&results, v[i]);
		r = im_next_range(v[n - 1], &results, v[0]);
		printf("%u %llu %u %u %u\n", results.count,
		       (unsigned long long)results.mean_q8,
		       im_half_kbps(&results), r.lo_kbps, r.hi_kbps);
		return true;
	case 'W':
		say(im_widen(r, v[2]));
		return true;
	case 'P':
		for (i = 0; i < v[1]; i++) {
			train[i].bits = v[2 + 3 * i];
			train[i].sent_ns = v[3 + 3 * i];
			train[i].acked_ns = v[4 + 3 * i];
		}
		printf("%u\n", im_capacity_kbps(train, v[1], v[0]));
		return true;
	case 'A':
		for (i = 0; i < v[0]; i++) {
			train[i].bits = v[1 + 3 * i];
			train[i].sent_ns = v[2 + 3 * i];
			train[i].acked_ns = v[3 + 3 * i];
		}
		found = im_alone_kbps(train, v[0], &results);
		printf("%u %u\n", found, results.count);
		return true;
	case 'H':
		printf("%u\n", im_hold_us(v[0], v[1], v[2]));
		return true;
	case 'D':
		printf("%u\n", im_needed_segs(v[0], v[1], v[2]));
		return true;
	case 's':
		printf("%llu\n", (unsigned long long)lg_equilibrium_q32(&m));
		return true;
	case 'x':
		printf("%llu\n",
		       (unsigned long long)lg_exponent_q44(&m, v[6]));
		return true;
	case 'e':
		printf("%llu\n", (unsigned long long)lg_expm1_q44(v[0]));
		return true;
	case 'w':
		printf("%llu\n",
		       (unsigned long long)lg_step_q32(&m, v[6], v[7]));
		return true;
	case 'a':
		printf("%llu\n",
		       (unsigned long long)lg_fraction_of(v[0], v[1], v[2]));
		return true;
	case 'f':
		for (i = 2; i < n; i++)
			printf("%u ", af_add(&filter, (enum af_kind)v[0], v[i],
					     v[1]));
		puts("");
		return true;
	}
	return false;
}

int main(void)
{
	static char line[1 << 16];

	while (fgets(line, sizeof(line), stdin)) {
		char *at = line + 1, *end;
		int n = 0;

		memset(v, 0, sizeof(v));
		while (n < MOST) {
			v[n] = strtoll(at, &end, 10);
			if (end == at)
				break;
			at = end;
			n++;
		}
		if (!run(line[0], n)) {
			fprintf(stderr, "imtcp_harness: bad case: %s", line);
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}
