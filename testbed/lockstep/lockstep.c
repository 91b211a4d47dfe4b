// SPDX-License-Identifier: GPL-2.0
/*
 * lockstep: makes QEMU's counted-instruction clock exact on a busy host, and quicker.
 *
 * With -icount ...,sleep=off QEMU has two threads.  The processor thread runs the
 * guest; when the guest halts, the main thread advances the clock to the next timer
 * ("warp") and runs what is due.  That costs two switches between threads at every idle
 * moment of the guest, of which there are several for each packet.  And it has a race: the
 * main thread decides by a flag that the guest's HLT sets.  Until the processor thread
 * has added its last instructions to the clock, the flag is already set, and a main
 * thread that looks just then warps from a clock that is some hundred instructions old.
 * Once in some tens of runs on a loaded host an event is then that much too late.
 *
 * Preloaded into QEMU, this library does two things; nothing of QEMU itself is changed.
 *
 * 1. When the processor thread is about to wait because its guest is idle, it warps the
 *    clock and runs the timers itself, with QEMU's own functions and under the lock they
 *    need.  If that wakes the guest up, there is nothing to wait for.  (While the guest runs,
 *    QEMU runs due timers in this thread, too.)
 * 2. The main thread comes out of its poll only while the processor thread waits on
 *    a condition variable, that is, after it has done its accounting, or when the guest has
 *    been busy for long without a pause.
 *
 * Where a build of QEMU does not offer those functions, the second part works alone.
 * Needs "-name ...,debug-threads=on": the processor thread is known by its name.
 *
 * And it lets a guest's processor be faster than QEMU's fastest, one instruction a
 * nanosecond.  With LOCKSTEP_GIPS=N in the environment the HPET says that its period is an
 * N-th of what it is.  A guest that is also told of a clock of N GHz (tsc_early_khz=) then
 * takes N ns of QEMU's for one of its own, so it has N times the instructions in each.  The wall
 * time of its work stays the same: the guest idles for longer, and idling is skipped.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PROCESSOR_THREAD "ALL CPUs"
#define QEMU_CLOCK_VIRTUAL 1	/* QEMU's enum QEMUClockType */
#define HPET_PERIOD_FS 10000000ULL
#define HPET_PERIOD_SHIFT 32	/* in the register of capabilities */
#define HPET_ID 0x8086a001ULL
#define HPET_ID_MASK 0xffffe0ffULL	/* without the number of its timers */
#define MOST_GIPS 16
#define LONGEST_TURN_NS 30000000LL
#define LOOK_AGAIN_NS 3000000L
#define LONGEST_STANDSTILL 50	/* looks, 150 ms */

/*
 * glibc keeps two kinds of condition variables, and plain dlsym() finds the functions of
 * the older kind, which do not understand those of QEMU.
 */
#if defined(__x86_64__)
#define COND_VERSION "GLIBC_2.3.2"
#else
#error "name the version of this architecture's current pthread_cond_wait()"
#endif

/* 1 while the processor thread waits, or before there is one. */
static _Atomic int parked = 1;
static _Atomic int main_waits;
/* Counts the guest's idle moments. */
static _Atomic unsigned int turns;
static _Atomic int clock_known;
static clockid_t processor_clock;
static _Thread_local int is_processor;
static _Thread_local int warping;
/* What the guest's HPET is still to be divided by; 1 when that is done, or not asked for. */
static unsigned long gips = 1;

static int (*real_cond_wait)(pthread_cond_t *cond, pthread_mutex_t *mutex);
static int (*real_ppoll)(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
			 const sigset_t *mask);
static ssize_t (*real_write)(int fd, const void *data, size_t size);

/* QEMU's own, missing in builds that do not export them. */
static void (*real_notify_event)(void);
static void (*start_warp)(void);
static bool (*run_timers)(int clock);
static bool (*all_idle)(void);
static void *(*find_object)(const char *path, const char *type, bool *ambiguous);

static void refuse(const char *why)
{
	fprintf(stderr, "lockstep: %s\n", why);
	_exit(127);
}

__attribute__((constructor)) static void find_symbols(void)
{
	const char *asked = getenv("LOCKSTEP_GIPS");

	/* ISO C cannot convert object to function pointers; POSIX can. */
	*(void **)&real_cond_wait = dlvsym(RTLD_NEXT, "pthread_cond_wait", COND_VERSION);
	*(void **)&real_ppoll = dlsym(RTLD_NEXT, "ppoll");
	*(void **)&real_write = dlsym(RTLD_NEXT, "write");
	if (!real_cond_wait || !real_ppoll || !real_write)
		refuse("this C library lacks a function it needs");
	*(void **)&real_notify_event = dlsym(RTLD_NEXT, "qemu_notify_event");
	*(void **)&start_warp = dlsym(RTLD_DEFAULT, "icount_start_warp_timer");
	*(void **)&run_timers = dlsym(RTLD_DEFAULT, "qemu_clock_run_timers");
	*(void **)&all_idle = dlsym(RTLD_DEFAULT, "all_cpu_threads_idle");
	*(void **)&find_object = dlsym(RTLD_DEFAULT, "object_resolve_path_type");
	if (!asked)
		return;
	gips = strtoul(asked, NULL, 10);
	if (!gips || gips > MOST_GIPS || HPET_PERIOD_FS % gips)
		refuse("LOCKSTEP_GIPS: a divisor of 10^7 up to 16");
	if (!find_object)
		refuse("LOCKSTEP_GIPS: this build of QEMU does not let its devices be found");
}

/*
 * The register stands as one aligned word in the device's state, which is a block of its own.
 * It is written once, when QEMU makes the device.
 */
static uint64_t *hpet_register(void)
{
	uint64_t *words = find_object("", "hpet", NULL), *found = NULL;
	size_t count = words ? malloc_usable_size(words) / sizeof(*words) : 0;

	for (size_t i = 0; i < count; i++) {
		if (words[i] >> HPET_PERIOD_SHIFT != HPET_PERIOD_FS ||
		    (words[i] & HPET_ID_MASK) != HPET_ID)
			continue;
		if (found)
			refuse("LOCKSTEP_GIPS: two words of QEMU's HPET look like its period");
		found = &words[i];
	}
	return found;
}

/* The processor thread waits until all devices are made, so this comes before the guest's start. */
static void quicken_guest(void)
{
	uint64_t *reg = hpet_register();

	if (!reg)
		return;
	*reg = (HPET_PERIOD_FS / gips) << HPET_PERIOD_SHIFT | (*reg & UINT32_MAX);
	gips = 1;
}

/* A run whose guest had the wrong clock must not count. */
__attribute__((destructor)) static void check_gips(void)
{
	if (gips > 1)
		refuse("LOCKSTEP_GIPS: QEMU's HPET was not found");
}

static bool warps_here(void)
{
	return is_processor && start_warp && run_timers && all_idle;
}

/* The new thread gives itself its name, so a thread is asked until it has this one. */
static bool parks_here(void)
{
	char name[16];

	if (is_processor)
		return true;
	if (pthread_getname_np(pthread_self(), name, sizeof(name)) ||
	    strncmp(name, PROCESSOR_THREAD, strlen(PROCESSOR_THREAD)))
		return false;
	is_processor = 1;
	if (!pthread_getcpuclockid(pthread_self(), &processor_clock))
		atomic_store(&clock_known, 1);
	return true;
}

/*
 * Advance the clock until the guest has something to do; false if no timer is left that
 * could give it something.
 */
static bool guest_woke_up(void)
{
	bool progress = true;

	if (!warps_here())
		return false;
	atomic_fetch_add(&turns, 1);
	while (progress && all_idle()) {
		warping = 1;
		start_warp();
		warping = 0;
		progress = run_timers(QEMU_CLOCK_VIRTUAL);
	}
	return !all_idle();
}

int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	int result;

	if (!parks_here())
		return real_cond_wait(cond, mutex);
	/* A wait may end for no reason; the caller looks again. */
	if (guest_woke_up())
		return 0;
	atomic_store(&parked, 1);
	if (atomic_load(&main_waits))
		syscall(SYS_futex, &parked, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	result = real_cond_wait(cond, mutex);
	/* QEMU's global lock is held again here, so the main thread is not past its poll. */
	atomic_store(&parked, 0);
	if (gips > 1)
		quicken_guest();
	return result;
}

/*
 * The accelerator calls this, through the dynamic linker, when the guest is idle, to make the
 * main thread warp.  Calls from within QEMU's main program do not come by here.
 */
void qemu_notify_event(void);

void qemu_notify_event(void)
{
	if (!warps_here() && real_notify_event)
		real_notify_event();
}

/* A warp tells the main thread that timers may be due.  They will have been run. */
ssize_t write(int fd, const void *data, size_t size)
{
	if (warping)
		return (ssize_t)size;
	return real_write(fd, data, size);
}

/* Processor time the guest has used up, or 0 when there is no guest yet. */
static long long processor_ns(void)
{
	struct timespec now;

	if (!atomic_load(&clock_known) || clock_gettime(processor_clock, &now))
		return 0;
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/*
 * A guest that is busy without a pause may be waiting for something that only the main thread
 * does, such as the reset of a controller while it boots.  What counts is how long the
 * guest has run since it was last idle, not how long a busy host kept it from running.
 * And while QEMU shuts down the main thread polls with the global lock held, which the
 * processor thread may want: then nothing moves, and waiting must end, too.
 */
static void wait_until_parked(void)
{
	const struct timespec look_again = { .tv_nsec = LOOK_AGAIN_NS };
	long long start = processor_ns(), now = start, before;
	unsigned int turn = atomic_load(&turns), last;
	int standstill = 0;

	atomic_store(&main_waits, 1);
	while (!atomic_load(&parked) && now - start < LONGEST_TURN_NS &&
	       standstill < LONGEST_STANDSTILL) {
		syscall(SYS_futex, &parked, FUTEX_WAIT_PRIVATE, 0, &look_again, NULL, 0);
		before = now;
		now = processor_ns();
		standstill = now == before ? standstill + 1 : 0;
		last = turn;
		turn = atomic_load(&turns);
		if (turn != last)
			start = now;
	}
	atomic_store(&main_waits, 0);
}

int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask)
{
	int result = real_ppoll(fds, count, timeout, mask);

	if (getpid() == gettid())
		wait_until_parked();
	return result;
}

/* What ppoll() becomes in programs built with _FORTIFY_SOURCE. */
int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		const sigset_t *mask, size_t size);

int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout,
		const sigset_t *mask, size_t size)
{
	(void)size;
	return ppoll(fds, count, timeout, mask);
}
