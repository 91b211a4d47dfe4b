/*
 * The arithmetic of a channel, without kernel state: in the BPF program and in its test.
 *
 * Whoever includes this defines `airchan_gap(table, i)` and `airchan_window_end(windows, i)` and
 * `AIRCHAN_INLINE` before.
 */
#ifndef CHANWALK_H
#define CHANWALK_H

#include "airchan.h"

/*
 * The verifier wants an end to every loop. At a BER of 1e-3 a frame of 1514 bytes is hit 12 times
 * on average, so 64 is not reached by any channel over which TCP still moves. A frame that is hit
 * more often is dropped as it should be; its remaining units are then left out of the walk, which
 * the `overrun` counter tells.
 */
#define AIRCHAN_MAX_HITS	64

enum airchan_result { WALK_CLEAN, WALK_HIT = 1, WALK_EXHAUSTED = 2, WALK_OVERRUN = 4 };

/*
 * The loops keep their variables in the map, not in registers, and read them back each time. To the
 * verifier such a value is just unknown, so it sees one turn of the loop like the next. Of registers
 * it would track every range through every turn, and give up before the end.
 */
#define MEM(x)	(*(volatile __typeof__(x) *)&(x))

/* Takes n units from the table. w->left holds the gap before the next bad unit. */
AIRCHAN_INLINE __u32 airchan_walk(struct airchan_walk *w, airchan_table table, __u64 n)
{
	int i;

	MEM(w->units) = n;
	MEM(w->result) = WALK_CLEAN;
	/* next counts the gaps taken into `left`: past n there is none left to walk. */
	for (i = 0; i < AIRCHAN_MAX_HITS; i++) {
		__u64 left = MEM(w->left), units = MEM(w->units);
		__u32 next = MEM(w->next);

		if (next > MEM(w->n) || left >= units)
			break;
		MEM(w->result) = WALK_HIT;
		MEM(w->units) = units - (left + 1);
		MEM(w->left) = airchan_gap(table, next);
		MEM(w->next) = next + 1;
	}
	if (MEM(w->next) > MEM(w->n))
		return MEM(w->result) | WALK_EXHAUSTED;
	if (MEM(w->left) < MEM(w->units))
		return MEM(w->result) | WALK_OVERRUN;
	MEM(w->left) -= MEM(w->units);
	return MEM(w->result);
}

/*
 * Moves s->window to the first window that has not ended at time t, to n_windows when there is
 * none. Mostly it is there already. After a long silence many may have passed, hence halving and
 * not counting.
 */
AIRCHAN_INLINE void airchan_find_window(struct airchan_state *s, airchan_table windows, __u64 t)
{
	int i;

	if (MEM(s->window) >= MEM(s->n_windows) || airchan_window_end(windows, MEM(s->window)) > t)
		return;
	/* Known: window `window` has ended. Wanted: the last one of `search` from it that has. */
	MEM(s->search) = MEM(s->n_windows) - MEM(s->window);
	for (i = 0; i < 32; i++) {
		__u32 len = MEM(s->search), half = len / 2;

		if (len <= 1)
			break;
		if (airchan_window_end(windows, MEM(s->window) + half) <= t) {
			MEM(s->window) += half;
			MEM(s->search) = len - half;
		} else {
			MEM(s->search) = half;
		}
	}
	MEM(s->window) += 1;
}

#endif
