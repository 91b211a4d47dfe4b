/*
 * The channel: a clsact egress program that drops what a precomputed pattern says.
 * See docs/lab-internals.md section 4; airchan.c loads it, chanwalk.h is its arithmetic.
 */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "airchan.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct airchan_state);
} state SEC(".maps");

/* The loader sets the number of entries of these three. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} good SEC(".maps"), bad SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct airchan_window);
} windows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, AIRCHAN_LENGTHS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} lengths SEC(".maps"), lengths_bad SEC(".maps");

#define AIRCHAN_INLINE	static __always_inline
typedef void *airchan_table;

AIRCHAN_INLINE __u64 airchan_gap(airchan_table table, __u32 i)
{
	__u64 *gap = bpf_map_lookup_elem(table, &i);

	return gap ? *gap : 0;
}

AIRCHAN_INLINE __u64 airchan_window_end(airchan_table table, __u32 i)
{
	struct airchan_window *w = bpf_map_lookup_elem(table, &i);

	return w ? w->end_ns : ~0ULL;
}

#include "chanwalk.h"

AIRCHAN_INLINE void count_length(void *table, __u32 len)
{
	__u64 *slot;

	if (len >= AIRCHAN_LENGTHS)
		len = AIRCHAN_LENGTHS - 1;
	slot = bpf_map_lookup_elem(table, &len);
	if (slot)
		++*slot;
}

/* The state a frame meets now: 0 good, or an enum airchan_kind. */
AIRCHAN_INLINE __u32 kind_at(struct airchan_state *s, __u64 t)
{
	struct airchan_window *w;
	__u32 i;

	if (!s->n_windows)
		return 0;
	airchan_find_window(s, &windows, t);
	i = s->window;
	if (i >= s->n_windows)
		return 0;
	w = bpf_map_lookup_elem(&windows, &i);
	return w && w->start_ns <= t ? w->kind : 0;
}

/* True when the frame is to be dropped. */
AIRCHAN_INLINE int meet(struct airchan_state *s, struct airchan_walk *w, void *table, void *hist,
			__u32 len)
{
	__u32 result;

	count_length(hist, len);
	if (w->unit == UNIT_NONE)
		return 0;
	result = airchan_walk(w, table, w->unit == UNIT_BITS ? (__u64)len * 8 : 1);
	if (result & WALK_EXHAUSTED)
		s->exhausted++;
	if (result & WALK_OVERRUN)
		s->overrun++;
	return result & WALK_HIT;
}

SEC("tc")
int airchan(struct __sk_buff *skb)
{
	/* At egress this is the length on layer 2, Ethernet header included. */
	__u32 len = skb->len, zero = 0, kind;
	struct airchan_state *s = bpf_map_lookup_elem(&state, &zero);
	__u64 now, t;

	if (!s || !s->armed)
		return TC_ACT_UNSPEC;
	now = bpf_ktime_get_ns();
	t = now - s->t0_ns;
	if (now < s->t0_ns || (s->stop_ns && t >= s->stop_ns)) {
		s->idle_frames++;
		return TC_ACT_UNSPEC;
	}
	s->frames++;
	s->bytes += len;
	if (skb->gso_segs > 1)
		s->gso++;
	kind = kind_at(s, t);
	if (kind == KIND_OUTAGE) {
		s->dropped_outage++;
		return TC_ACT_SHOT;
	}
	if (len < s->min_len) {
		s->bypassed++;
		return TC_ACT_UNSPEC;
	}
	if (kind == KIND_BAD) {
		if (!meet(s, &s->bad, &bad, &lengths_bad, len))
			return TC_ACT_UNSPEC;
		s->dropped_bad++;
		return TC_ACT_SHOT;
	}
	if (!meet(s, &s->good, &good, &lengths, len))
		return TC_ACT_UNSPEC;
	s->dropped_good++;
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "GPL";
