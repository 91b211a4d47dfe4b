#define _GNU_SOURCE
#include "pattern.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* As it stands at the start of the file; little-endian, like every machine the guest runs on. */
struct file_header {
	char magic[8];
	uint32_t unit_good, unit_bad, n_good, n_bad, n_windows, min_len;
	uint64_t stop_ns;
};

_Static_assert(sizeof(struct file_header) == 40, "the header has no gaps");
_Static_assert(sizeof(struct airchan_window) == 24, "nor has a window");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tables are used as they stand in the file");

static void *read_whole(const char *path, uint64_t *size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint64_t at = 0;
	char *data;

	if (fd < 0 || fstat(fd, &st))
		die(EXIT_USAGE, "%s: %s", path, strerror(errno));
	*size = (uint64_t)st.st_size;
	data = need_mem(malloc(*size + 1));
	while (at < *size) {
		ssize_t n = read(fd, data + at, *size - at);

		if (n <= 0)
			die(EXIT_USAGE, "%s: %s", path, n ? strerror(errno) : "became shorter");
		at += (uint64_t)n;
	}
	close(fd);
	return data;
}

static void check_table(const char *path, const char *state, uint32_t unit, uint32_t n)
{
	if (unit > UNIT_PACKETS)
		die(EXIT_USAGE, "%s: unit_%s is %u, not 0 (none), 1 (bits) or 2 (packets)", path, state, unit);
	if (unit != UNIT_NONE && !n)
		die(EXIT_USAGE, "%s: n_%s is 0 although unit_%s says that there are losses", path, state,
		    state);
	if (unit == UNIT_NONE && n)
		die(EXIT_USAGE, "%s: n_%s is %u although unit_%s says that there are no losses", path,
		    state, n, state);
}

static void check_windows(const char *path, const struct pattern *p)
{
	for (uint32_t i = 0; i < p->n_windows; i++) {
		const struct airchan_window *w = &p->windows[i];

		if (w->kind != KIND_OUTAGE && w->kind != KIND_BAD)
			die(EXIT_USAGE, "%s: window %u: kind is %u, not 1 (outage) or 2 (bad)", path, i, w->kind);
		if (w->zero)
			die(EXIT_USAGE, "%s: window %u: the reserved field is not 0", path, i);
		if (w->end_ns <= w->start_ns)
			die(EXIT_USAGE, "%s: window %u: end_ns is not after start_ns", path, i);
		if (i && w->start_ns < w[-1].end_ns)
			die(EXIT_USAGE, "%s: window %u: start_ns lies before the end of the one before",
			    path, i);
	}
}

void pattern_read(struct pattern *p, const char *path)
{
	struct file_header h;
	uint64_t size, want;

	p->data = read_whole(path, &size);
	if (size < sizeof(h))
		die(EXIT_USAGE, "%s: %llu bytes are too few for the header", path, (unsigned long long)size);
	memcpy(&h, p->data, sizeof(h));
	if (memcmp(h.magic, "AIRCHAN1", sizeof(h.magic)))
		die(EXIT_USAGE, "%s: magic is not AIRCHAN1", path);
	check_table(path, "good", h.unit_good, h.n_good);
	check_table(path, "bad", h.unit_bad, h.n_bad);
	want = sizeof(h) + ((uint64_t)h.n_good + h.n_bad) * sizeof(uint64_t) +
	       (uint64_t)h.n_windows * sizeof(struct airchan_window);
	if (size != want)
		die(EXIT_USAGE, "%s: size is %llu bytes, but n_good, n_bad and n_windows make %llu", path,
		    (unsigned long long)size, (unsigned long long)want);
	p->unit_good = h.unit_good;
	p->unit_bad = h.unit_bad;
	p->n_good = h.n_good;
	p->n_bad = h.n_bad;
	p->n_windows = h.n_windows;
	p->min_len = h.min_len;
	p->stop_ns = h.stop_ns;
	p->good = (const uint64_t *)((char *)p->data + sizeof(h));
	p->bad = p->good + h.n_good;
	p->windows = (const struct airchan_window *)(p->bad + h.n_bad);
	check_windows(path, p);
}
