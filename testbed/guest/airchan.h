/* What airchan's two halves, the program in the kernel and the one in user space, share. */
#ifndef AIRCHAN_H
#define AIRCHAN_H

#include <linux/types.h>

#define AIRCHAN_LENGTHS		16384	/* frames this long or longer share the last slot */

enum airchan_unit { UNIT_NONE, UNIT_BITS, UNIT_PACKETS };
enum airchan_kind { KIND_OUTAGE = 1, KIND_BAD = 2 };

/* As it stands in a pattern file. */
struct airchan_window {
	__u64 start_ns, end_ns;		/* after t0 */
	__u32 kind, zero;
};

/* One of the two tables of gaps and how far it has been walked. */
struct airchan_walk {
	__u64 left;		/* good units before the next bad one */
	__u32 unit;		/* enum airchan_unit */
	__u32 n, next;		/* gaps in the table, and the index of the one behind `left` */
	__u32 result;		/* of the last walk, and the units it had left */
	__u64 units;
};

/*
 * All that a channel remembers, in one map element. Written without atomics and without a lock:
 * the laboratory's guest has one CPU, and egress hooks run with bottom halves off, so no two
 * frames are ever in here at once. User space writes t0_ns and then armed, and only reads the rest.
 */
struct airchan_state {
	struct airchan_walk good, bad;
	__u64 t0_ns, stop_ns;	/* CLOCK_MONOTONIC; after t0, 0 = never */
	__u32 armed, min_len;
	__u32 n_windows, window;	/* the first one that has not ended */
	__u32 search, pad;		/* how many are left to search */
	__u64 frames, bytes;	/* between t0 and stop */
	__u64 dropped_good, dropped_bad, dropped_outage;
	__u64 bypassed;		/* shorter than min_len */
	__u64 exhausted;	/* frames that met a used-up table */
	__u64 overrun;		/* frames hit more often than AIRCHAN_MAX_HITS */
	__u64 gso;		/* frames that are several: there is offload where none may be */
	__u64 idle_frames;	/* before t0 or after stop */
};

#endif
