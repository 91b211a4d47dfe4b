/* What the guest's programs share: errors, numbers, clocks, JSON. */
#ifndef AIRLAB_UTIL_H
#define AIRLAB_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define NSEC_PER_SEC	1000000000LL
#define NSEC_PER_MSEC	1000000LL
#define NSEC_PER_USEC	1000LL
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

enum {
	EXIT_RUN = 1,		/* something went wrong while running */
	EXIT_USAGE = 2,		/* the command line or an input file is wrong */
};

extern const char *prog;	/* name put before every message */

void warn_msg(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void die(int code, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* Numbers of options: the whole text must be a number within [min, max], or the program ends. */
uint64_t need_u64(const char *what, const char *text, uint64_t min, uint64_t max);
double need_double(const char *what, const char *text, double min, double max);
/* The same without ending: false when the text is no such number. */
bool parse_u64(const char *text, uint64_t *out);
bool parse_s64(const char *text, int64_t *out);

void *need_mem(void *p);
/* Makes room for one more element in a growing array. */
void *grow(void *array, size_t used, size_t *room, size_t elem);

int64_t clock_ns(int clock);
int64_t mono_ns(void);
/* Sleeps until that instant; false when a signal came first. */
bool sleep_until(int64_t mono);
/* Timers at the nanosecond asked for: the default slack of 50 us would blur every schedule. */
void exact_timers(void);

/* Enters /run/netns/NAME. Returns an errno value, 0 when it worked. */
int enter_netns(const char *name);
bool netns_path(const char *name, char *path, size_t size);

uint64_t splitmix64(uint64_t x);

/* A writer for JSON that needs no printf per number: a flow has tens of thousands of them. */
struct json {
	FILE *f;
	bool comma;
};

void json_key(struct json *j, const char *key);
void json_open(struct json *j, char bracket);
void json_close(struct json *j, char bracket);
void json_u64(struct json *j, uint64_t v);
void json_s64(struct json *j, int64_t v);
void json_str(struct json *j, const char *s);	/* NULL gives null */
void json_raw(struct json *j, const char *s);	/* true, false, null */

#endif
