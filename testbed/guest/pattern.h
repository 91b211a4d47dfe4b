/* Reads channel patterns (docs/lab-internals.md section 4). No BPF in here: tested on any host. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stdint.h>

#include "airchan.h"

struct pattern {
	uint32_t unit_good, unit_bad, n_good, n_bad, n_windows, min_len;
	uint64_t stop_ns;
	const uint64_t *good, *bad;
	const struct airchan_window *windows;
	void *data;		/* the file in memory, which the three point into */
};

/* Ends the program with status 2 and a message naming the field when the file is malformed. */
void pattern_read(struct pattern *p, const char *path);

#endif
