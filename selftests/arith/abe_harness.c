// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the arithmetic of abe.h on cases read from standard input, one a line,
 * and prints one line of results for each.  The tests build it with the
 * address and undefined-behaviour sanitizers, so a result is also a proof that
 * nothing overflowed on the way.
 *
 *	s BYTES DT_US			abe_sample_Bps
 *	f BW_Q8 PREV SAMPLE ALPHA	abe_filter_q8
 *	t BW RTT_US MSS MAX		abe_target_segs
 *	c CWND SSTHRESH			j_loss_case
 *	d CASE TARGET CWND CLAMP	j_decide: cwnd ssthresh recovery
 *	z				reset the running filter to all zero
 *	r BYTES DT_US ALPHA		one step of the running filter: its bw_q8
 */
#include <stdio.h>
#include <string.h>

#include <airtcp/abe.h>

int main(void)
{
	struct abe run = { 0 };
	struct j_windows w;
	unsigned long long a = 0, b = 0, c = 0, d = 0;
	char line[256];
	int n;

	while (fgets(line, sizeof(line), stdin)) {
		n = sscanf(line + 1, "%llu%llu%llu%llu",
			   &a, &b, &c, &d);
		if (line[0] == 's' && n == 2) {
			printf("%llu\n", abe_sample_Bps(a, (u32)b));
		} else if (line[0] == 'f' && n == 4) {
			struct abe abe = { .bw_q8 = a, .prev_Bps = b };

			printf("%llu\n",
			       abe_filter_q8(&abe, c, (u32)d));
		} else if (line[0] == 't' && n == 4) {
			printf("%u\n", abe_target_segs(a, (u32)b, (u32)c,
						       (u32)d));
		} else if (line[0] == 'c' && n == 2) {
			printf("%d\n", (int)j_loss_case((u32)a, (u32)b));
		} else if (line[0] == 'd' && n == 4) {
			w = j_decide((enum j_case)a, (u32)b, (u32)c, d);
			printf("%u %u %u\n", w.cwnd_segs, w.ssthresh_segs,
			       w.recovery_segs);
		} else if (line[0] == 'z') {
			memset(&run, 0, sizeof(run));
			printf("%llu\n", abe_bw_Bps(&run));
		} else if (line[0] == 'r' && n == 3) {
			a = abe_sample_Bps(a, (u32)b);
			run.bw_q8 = abe_filter_q8(&run, a, (u32)c);
			run.prev_Bps = a;
			printf("%llu\n", run.bw_q8);
		} else {
			fprintf(stderr, "abe_harness: bad case: %s", line);
			return 1;
		}
		fflush(stdout);
	}
	return 0;
}
