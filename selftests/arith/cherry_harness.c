// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the arithmetic of cherry_math.h on cases read from standard input, one
 * a line, and prints one line of results for each, as abe_harness.c does.
 *
 *	n PHASE EVENT PLUS TIMEOUTS		cherry_next_phase
 *	g PHASE MAXCWND CWND MAXRTT RTT		cherry_sigma_segs
 *	b THRESH SIGMA LIMIT			cherry_select_first: skip
 *	x CYCLING				cherry_select_next: seg restarted
 *	l SIGMA SUPP DUE AVAIL AGAIN		cherry_plan: gap supp again limited
 *	L LEAD SIGMA SUPP DUE AVAIL AGAIN	cherry_plan_behind: the same
 *	t RTT COUNT				cherry_tau_ns
 *	f COUNT RTT TAU_MIN			cherry_fit_count
 *	w CWND ACKED MASK CAP			cherry_grow_segs: cwnd mask
 *	h ACKED NEWLY HALVED			cherry_weigh
 *	u ACKED SENT PCT			cherry_full
 *	j ACKED SENT LIMITED PCT		cherry_judge
 *	r TARGET PRIOR FLIGHT DELIVERED OUT ACKED PROGRESS	cherry_prr_segs
 */
#include <stdio.h>

#include "cherry_math.h"

int main(void)
{
	struct cherry_select sel = { 0 };
	unsigned long long v[7];
	char line[256];
	bool again;
	u32 mask;
	int n;

	while (fgets(line, sizeof(line), stdin)) {
		n = sscanf(line + 1, "%llu%llu%llu%llu%llu%llu%llu", &v[0],
			   &v[1], &v[2], &v[3], &v[4], &v[5], &v[6]);
		if (line[0] == 'n' && n == 4) {
			printf("%d\n", (int)cherry_next_phase((enum cherry_phase)v[0],
							      (enum cherry_event)v[1],
							      v[2], (u32)v[3]));
		} else if (line[0] == 'g' && n == 5) {
			printf("%u\n", cherry_sigma_segs((enum cherry_phase)v[0],
							 (u32)v[1], (u32)v[2],
							 (u32)v[3], (u32)v[4]));
		} else if (line[0] == 'b' && n == 3) {
			cherry_select_first(&sel, (u32)v[0], (u32)v[1], (u32)v[2]);
			printf("%u\n", sel.seg);
		} else if (line[0] == 'x' && n == 1) {
			again = cherry_select_next(&sel, v[0]);
			printf("%u %d\n", sel.seg, again);
		} else if (line[0] == 'l' && n == 5) {
			struct cherry_plan p = cherry_plan((u32)v[0], (u32)v[1],
							   (u32)v[2], (u32)v[3],
							   (u32)v[4]);

			printf("%u %u %u %d\n", p.gap_segs, p.supp_segs,
			       p.again_segs, p.limited);
		} else if (line[0] == 'L' && n == 6) {
			struct cherry_plan p =
				cherry_plan_behind((u32)v[0], (u32)v[1],
						   (u32)v[2], (u32)v[3],
						   (u32)v[4], (u32)v[5]);

			printf("%u %u %u %d\n", p.gap_segs, p.supp_segs,
			       p.again_segs, p.limited);
		} else if (line[0] == 't' && n == 2) {
			printf("%llu\n", (unsigned long long)
			       cherry_tau_ns((u32)v[0], (u32)v[1]));
		} else if (line[0] == 'f' && n == 3) {
			printf("%u\n", cherry_fit_count((u32)v[0], (u32)v[1],
							(u32)v[2]));
		} else if (line[0] == 'h' && n == 3) {
			printf("%u\n", cherry_weigh((u32)v[0], (u32)v[1], v[2]));
		} else if (line[0] == 'w' && n == 4) {
			mask = v[2];
			n = cherry_grow_segs((u32)v[0], (u32)v[1], &mask, (u32)v[3]);
			printf("%u %u\n", (u32)n, mask);
		} else if (line[0] == 'u' && n == 3) {
			printf("%d\n", cherry_full((u32)v[0], (u32)v[1], (u32)v[2]));
		} else if (line[0] == 'j' && n == 4) {
			printf("%d\n", (int)cherry_judge((u32)v[0], (u32)v[1],
							 v[2], (u32)v[3]));
		} else if (line[0] == 'r' && n == 7) {
			printf("%u\n", cherry_prr_segs((u32)v[0], (u32)v[1],
						       (u32)v[2], (u32)v[3],
						       (u32)v[4], (u32)v[5],
						       v[6]));
		} else {
			fprintf(stderr, "cherry_harness: bad case: %s", line);
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}
