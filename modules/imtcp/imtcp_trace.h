/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace events of the inline measurement.  With them each trend, choice and
 * result can be computed again; ports are in host order, rates are in kbit/s on
 * the wire, and measurement counts the measurements of a socket from 1.
 *
 * imtcp:imtcp_packet	one for each packet of an evaluated stream whose arrival is known
 *			on its own: when it left and when its ACK came
 * imtcp:imtcp_stream	a stream was evaluated or given up (why).  stream is i, 1 the
 *			highest sub-range, 0 the train at full speed of step 1;
 *			lo and hi its sub-range; packets sent; points known;
 *			held_us how long packets were held back before it; sent_ns
 *			and growth_ns of all its packets, pct and pdt of those
 *			behind the head
 * imtcp:imtcp_result	a measurement ended.  lo and hi: its search range; choice:
 *			the sub-range, 0 above, streams + 1 below it; trends: T_i
 *			as two bits each, stream 1 lowest: 0 undecided, 1
 *			increasing, 2 not increasing; found: A is a result, not
 *			a bound; next_lo and next_hi: the new range
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM imtcp

#if !defined(IMTCP_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define IMTCP_TRACE_H

#include <linux/tracepoint.h>
#include <net/tcp.h>
#include <airtcp/imtcp_math.h>
#include <airtcp/kcompat.h>

#ifndef IMTCP_TRACE_TYPES
#define IMTCP_TRACE_TYPES
/* Why a stream was given up. */
enum imtcp_why {
	IM_OK,			/* it was not */
	IM_WHY_STATE,		/* loss, reordering or a mark */
	IM_WHY_SIZE,		/* a packet that was not full, or a new MSS */
	IM_WHY_BATCH,		/* packets left without being asked for */
	IM_WHY_SLOW,		/* the window or the application stopped it */
	IM_WHY_POINTS,		/* too few arrivals known on their own */
	IM_WHY_IDLE,		/* nothing was in flight */
	IM_WHY_STALE,		/* the measurement was started again */
	IM_WHY_HELD,		/* the window did not come free in time */
};

/**
 * struct imtcp_stream_report - one stream, for its trace event
 * @trend: PCT, PDT and growth, all zero when given up
 * @range: its sub-range
 * @sent_ns: time between the first and the last known departure
 * @held_us: how long packets were held back before it
 * @measurement: which measurement
 * @stream: i
 * @packets: packets sent
 * @points: packets whose arrival is known
 * @verdict: T_i
 * @why: why it was given up
 * @busy: the queue was never empty meanwhile
 */
struct imtcp_stream_report {
	struct im_trend	trend;
	struct im_range	range;
	u64	sent_ns;
	u32	held_us;
	u32	measurement;
	u8	stream;
	u8	packets;
	u8	points;
	s8	verdict;
	u8	why;
	bool	busy;
};

/**
 * struct imtcp_result_report - one measurement, for its trace event
 * @range: search range
 * @next: the next one
 * @raw_kbps: A
 * @mean_kbps: mean of the results since the last discard
 * @half_kbps: half its 95 % interval
 * @capacity_kbps: C
 * @capacity_half_kbps: half its 95 % interval
 * @took_us: since the first stream was begun
 * @measurement: which measurement
 * @agree: results since the last discard
 * @streams: k
 * @choice: a
 * @trends: two bits each
 * @found: A lies inside the range
 */
struct imtcp_result_report {
	struct im_range	range;
	struct im_range	next;
	u32	raw_kbps;
	u32	mean_kbps;
	u32	half_kbps;
	u32	capacity_kbps;
	u32	capacity_half_kbps;
	u32	took_us;
	u32	measurement;
	u32	agree;
	u8	streams;
	u8	choice;
	u16	trends;
	bool	found;
};
#endif

#define show_imtcp_why(why)			\
	__print_symbolic(why,			\
		{ IM_OK, "ok" },		\
		{ IM_WHY_STATE, "state" },	\
		{ IM_WHY_SIZE, "size" },	\
		{ IM_WHY_BATCH, "batch" },	\
		{ IM_WHY_SLOW, "slow" },	\
		{ IM_WHY_POINTS, "points" },	\
		{ IM_WHY_IDLE, "idle" },	\
		{ IM_WHY_STALE, "stale" },	\
		{ IM_WHY_HELD, "held" })

TRACE_EVENT(imtcp_packet,
	TP_PROTO(const struct sock *sk, u32 measurement, u8 stream,
		 const struct im_point *p),
	TP_ARGS(sk, measurement, stream, p),
	TP_STRUCT__entry(
		__field(u64, sent_ns)
		__field(u64, acked_ns)
		__field(u32, measurement)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, stream)
		__field(u8, index)
	),
	TP_fast_assign(
		__entry->sent_ns = p->sent_ns;
		__entry->acked_ns = p->acked_ns;
		__entry->measurement = measurement;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->stream = stream;
		__entry->index = p->index;
	),
	TP_printk("sport=%u dport=%u measurement=%u stream=%u index=%u sent_ns=%llu acked_ns=%llu",
		  __entry->sport, __entry->dport, __entry->measurement,
		  __entry->stream, __entry->index, __entry->sent_ns,
		  __entry->acked_ns)
);

TRACE_EVENT(imtcp_stream,
	TP_PROTO(const struct sock *sk, const struct imtcp_stream_report *r),
	TP_ARGS(sk, r),
	TP_STRUCT__entry(
		__field(u64, sent_ns)
		__field(s64, growth_ns)
		__field(u32, measurement)
		__field(u32, lo_kbps)
		__field(u32, hi_kbps)
		__field(u32, held_us)
		__field(u32, pct_permille)
		__field(s32, pdt_permille)
		__field(u32, cwnd_segs)
		__field(u32, in_flight_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, stream)
		__field(u8, packets)
		__field(u8, points)
		__field(s8, verdict)
		__field(u8, why)
		__field(u8, busy)
	),
	TP_fast_assign(
		__entry->sent_ns = r->sent_ns;
		__entry->growth_ns = r->trend.growth_ns;
		__entry->measurement = r->measurement;
		__entry->lo_kbps = r->range.lo_kbps;
		__entry->hi_kbps = r->range.hi_kbps;
		__entry->held_us = r->held_us;
		__entry->pct_permille = r->trend.pct_permille;
		__entry->pdt_permille = r->trend.pdt_permille;
		__entry->cwnd_segs = tcp_snd_cwnd(tcp_sk(sk));
		__entry->in_flight_segs = tcp_packets_in_flight(tcp_sk(sk));
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->stream = r->stream;
		__entry->packets = r->packets;
		__entry->points = r->points;
		__entry->verdict = r->verdict;
		__entry->why = r->why;
		__entry->busy = r->busy;
	),
	TP_printk("sport=%u dport=%u measurement=%u stream=%u lo_kbps=%u hi_kbps=%u packets=%u points=%u sent_ns=%llu growth_ns=%lld pct_permille=%u pdt_permille=%d verdict=%d why=%s busy=%u held_us=%u cwnd_segs=%u in_flight_segs=%u",
		  __entry->sport, __entry->dport, __entry->measurement,
		  __entry->stream, __entry->lo_kbps, __entry->hi_kbps,
		  __entry->packets, __entry->points, __entry->sent_ns,
		  __entry->growth_ns, __entry->pct_permille,
		  __entry->pdt_permille, __entry->verdict,
		  show_imtcp_why(__entry->why), __entry->busy,
		  __entry->held_us, __entry->cwnd_segs,
		  __entry->in_flight_segs)
);

TRACE_EVENT(imtcp_result,
	TP_PROTO(const struct sock *sk, const struct imtcp_result_report *r),
	TP_ARGS(sk, r),
	TP_STRUCT__entry(
		__field(u32, measurement)
		__field(u32, lo_kbps)
		__field(u32, hi_kbps)
		__field(u32, next_lo_kbps)
		__field(u32, next_hi_kbps)
		__field(u32, avail_kbps)
		__field(u32, mean_kbps)
		__field(u32, half_kbps)
		__field(u32, capacity_kbps)
		__field(u32, capacity_half_kbps)
		__field(u32, took_us)
		__field(u32, srtt_us)
		__field(u32, rtt_min_us)
		__field(u32, agree)
		__field(u16, trends)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, streams)
		__field(u8, choice)
		__field(u8, found)
	),
	TP_fast_assign(
		__entry->measurement = r->measurement;
		__entry->lo_kbps = r->range.lo_kbps;
		__entry->hi_kbps = r->range.hi_kbps;
		__entry->next_lo_kbps = r->next.lo_kbps;
		__entry->next_hi_kbps = r->next.hi_kbps;
		__entry->avail_kbps = r->raw_kbps;
		__entry->mean_kbps = r->mean_kbps;
		__entry->half_kbps = r->half_kbps;
		__entry->capacity_kbps = r->capacity_kbps;
		__entry->capacity_half_kbps = r->capacity_half_kbps;
		__entry->took_us = r->took_us;
		__entry->srtt_us = tcp_sk(sk)->srtt_us >> 3;
		__entry->rtt_min_us = tcp_min_rtt(tcp_sk(sk));
		__entry->agree = r->agree;
		__entry->trends = r->trends;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->streams = r->streams;
		__entry->choice = r->choice;
		__entry->found = r->found;
	),
	TP_printk("sport=%u dport=%u measurement=%u lo_kbps=%u hi_kbps=%u streams=%u trends=0x%04x choice=%u found=%u avail_kbps=%u mean_kbps=%u half_kbps=%u agree=%u capacity_kbps=%u capacity_half_kbps=%u next_lo_kbps=%u next_hi_kbps=%u took_us=%u srtt_us=%u rtt_min_us=%u",
		  __entry->sport, __entry->dport, __entry->measurement,
		  __entry->lo_kbps, __entry->hi_kbps, __entry->streams,
		  __entry->trends, __entry->choice, __entry->found,
		  __entry->avail_kbps, __entry->mean_kbps,
		  __entry->half_kbps, __entry->agree,
		  __entry->capacity_kbps, __entry->capacity_half_kbps,
		  __entry->next_lo_kbps, __entry->next_hi_kbps,
		  __entry->took_us, __entry->srtt_us, __entry->rtt_min_us)
);

#endif /* IMTCP_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE imtcp_trace
#include <trace/define_trace.h>
