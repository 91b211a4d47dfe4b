#define _GNU_SOURCE
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

const char *prog = "";

static void message(const char *fmt, va_list ap)
{
	char text[1024];

	/* One write a message, so that messages of several programs do not mix. */
	vsnprintf(text, sizeof(text), fmt, ap);
	fprintf(stderr, "%s: %s\n", prog, text);
}

void warn_msg(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	message(fmt, ap);
	va_end(ap);
}

void die(int code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	message(fmt, ap);
	va_end(ap);
	exit(code);
}

bool parse_u64(const char *text, uint64_t *out)
{
	char *end;

	/* strtoull takes "-1" and leading blanks; nobody means that in a file or option. */
	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	*out = strtoull(text, &end, strncmp(text, "0x", 2) ? 10 : 16);
	return !errno && !*end;
}

bool parse_s64(const char *text, int64_t *out)
{
	bool minus = *text == '-';
	uint64_t v;

	if (!parse_u64(text + minus, &v) || v > INT64_MAX)
		return false;
	*out = minus ? -(int64_t)v : (int64_t)v;
	return true;
}

uint64_t need_u64(const char *what, const char *text, uint64_t min, uint64_t max)
{
	uint64_t v;

	if (!parse_u64(text, &v) || v < min || v > max)
		die(EXIT_USAGE, "%s: '%s' is not a whole number from %llu to %llu", what, text,
		    (unsigned long long)min, (unsigned long long)max);
	return v;
}

double need_double(const char *what, const char *text, double min, double max)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !isfinite(v) || v < min || v > max)
		die(EXIT_USAGE, "%s: '%s' is not a number from %g to %g", what, text, min, max);
	return v;
}

void *need_mem(void *p)
{
	if (!p)
		die(EXIT_RUN, "out of memory");
	return p;
}

void *grow(void *array, size_t used, size_t *room, size_t elem)
{
	if (used < *room)
		return array;
	*room = *room ? *room * 2 : 64;
	return need_mem(reallocarray(array, *room, elem));
}

int64_t clock_ns(int clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * NSEC_PER_SEC + ts.tv_nsec;
}

int64_t mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

bool sleep_until(int64_t mono)
{
	struct timespec ts = { mono / NSEC_PER_SEC, mono % NSEC_PER_SEC };

	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == 0;
}

void exact_timers(void)
{
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
}

bool netns_path(const char *name, char *path, size_t size)
{
	if (!*name || strchr(name, '/') || *name == '.')
		return false;
	return (size_t)snprintf(path, size, "/run/netns/%s", name) < size;
}

int enter_netns(const char *name)
{
	char path[256];
	int fd, err = 0;

	if (!netns_path(name, path, sizeof(path)))
		return EINVAL;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	if (setns(fd, CLONE_NEWNET))
		err = errno;
	close(fd);
	return err;
}

uint64_t splitmix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

static void separate(struct json *j)
{
	if (j->comma)
		fputc(',', j->f);
	j->comma = true;
}

void json_key(struct json *j, const char *key)
{
	separate(j);
	fprintf(j->f, "\n\"%s\":", key);
	j->comma = false;
}

void json_open(struct json *j, char bracket)
{
	separate(j);
	fputc(bracket, j->f);
	j->comma = false;
}

void json_close(struct json *j, char bracket)
{
	fputc(bracket, j->f);
	j->comma = true;
}

void json_u64(struct json *j, uint64_t v)
{
	char digits[20];
	size_t at = sizeof(digits);

	separate(j);
	do {
		digits[--at] = (char)('0' + v % 10);
		v /= 10;
	} while (v);
	fwrite(digits + at, 1, sizeof(digits) - at, j->f);
}

void json_s64(struct json *j, int64_t v)
{
	if (v >= 0) {
		json_u64(j, (uint64_t)v);
		return;
	}
	separate(j);
	fprintf(j->f, "%lld", (long long)v);
}

void json_raw(struct json *j, const char *s)
{
	separate(j);
	fputs(s, j->f);
}

void json_str(struct json *j, const char *s)
{
	if (!s) {
		json_raw(j, "null");
		return;
	}
	separate(j);
	fputc('"', j->f);
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			fprintf(j->f, "\\%c", c);
		else if (c < 0x20 || c >= 0x7f)
			fprintf(j->f, "\\u%04x", c);
		else
			fputc(c, j->f);
	}
	fputc('"', j->f);
}
