/*
 * Walks a channel pattern with the arithmetic of the BPF program, compiled for the host.
 * Input: lines of "t_ns length". Output: a line for each, "kind result".
 */
#include <stdio.h>
#include <string.h>

#include "pattern.h"
#include "util.h"

static struct pattern pattern;

struct table {
	const uint64_t *gap;
	uint32_t n;
};

#define AIRCHAN_INLINE	static inline
typedef const struct table *airchan_table;

static uint64_t airchan_gap(airchan_table table, uint32_t i)
{
	return i < table->n ? table->gap[i] : 0;	/* as a lookup behind the end gives NULL */
}

static uint64_t airchan_window_end(airchan_table unused, uint32_t i)
{
	(void)unused;
	return i < pattern.n_windows ? pattern.windows[i].end_ns : UINT64_MAX;
}

#include "chanwalk.h"

static struct airchan_walk first(uint32_t unit, const struct table *t)
{
	struct airchan_walk w = { .unit = unit, .n = t->n, .next = 1 };

	if (t->n)
		w.left = t->gap[0];
	return w;
}

int main(int argc, char **argv)
{
	struct airchan_state s = { 0 };
	struct table good, bad;
	unsigned long long t;
	unsigned int len;

	prog = "harness";
	if (argc != 2)
		return EXIT_USAGE;
	pattern_read(&pattern, argv[1]);
	good = (struct table){ pattern.good, pattern.n_good };
	bad = (struct table){ pattern.bad, pattern.n_bad };
	s.good = first(pattern.unit_good, &good);
	s.bad = first(pattern.unit_bad, &bad);
	s.n_windows = pattern.n_windows;
	while (scanf("%llu %u", &t, &len) == 2) {
		struct airchan_walk *w = &s.good;
		const struct table *table = &good;
		uint32_t kind = 0, result = 0;

		airchan_find_window(&s, NULL, t);
		if (s.window < s.n_windows && pattern.windows[s.window].start_ns <= t)
			kind = pattern.windows[s.window].kind;
		if (kind == KIND_BAD) {
			w = &s.bad;
			table = &bad;
		}
		if (kind != KIND_OUTAGE && w->unit != UNIT_NONE)
			result = airchan_walk(w, table, w->unit == UNIT_BITS ? (uint64_t)len * 8 : 1);
		printf("%u %u\n", kind, result);
	}
	return 0;
}
