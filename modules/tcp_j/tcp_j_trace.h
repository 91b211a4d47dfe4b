/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace events of TCP-J.  Every number needed to compute eq. (5) to (9) again
 * is in them, with its unit in its name; ports are in host order.
 *
 * j:j_abe	a bandwidth sample was closed: bytes and dt_us give eq. (8),
 *		sample_Bps, prev_Bps and the bw_q8 of the event before give
 *		eq. (9) for the bw_q8 of this one (unless used is 0).  bw_q8 is
 *		in 1/256 byte/s, bw_Bps is the same rounded down.
 * j:j_loss	a loss or mark was answered.  old_*: before it.  recovery_segs
 *		is the ssthresh that the kernel repairs with; new_*_segs is what
 *		holds once the loss is repaired, eq. (5) to (7).  asked is 0
 *		for a timeout in the middle of a repair, which takes over the
 *		target found at its beginning.
 * j:j_repaired	the repair of (5) or (6) ended and cwnd and ssthresh have been set.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM j

#if !defined(TCP_J_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TCP_J_TRACE_H

#include <linux/tracepoint.h>
#include <net/tcp.h>
#include <airtcp/abe.h>
#include <airtcp/kcompat.h>

#ifndef TCP_J_TRACE_TYPES
#define TCP_J_TRACE_TYPES
/**
 * struct j_sample - one bandwidth sample on its way through eq. (8) and (9)
 * @bytes: d_k
 * @sample_Bps: BW_sample(k)
 * @prev_Bps: BW_sample(k-1)
 * @dt_us: t_k - t_{k-1}
 * @alpha_permille: weight in force
 * @app_limited: the sender was short of data meanwhile
 * @used: the sample went into BW
 */
struct j_sample {
	u64	bytes;
	u64	sample_Bps;
	u64	prev_Bps;
	u32	dt_us;
	u32	alpha_permille;
	bool	app_limited;
	bool	used;
};

/**
 * struct j_decision - the answer to one loss signal
 * @what: which equation
 * @asked: the kernel asked for a new ssthresh
 * @state: TCP_CA_* to come
 * @old_ssthresh_segs: ssthresh before
 * @old_cwnd_segs: cwnd before
 * @target_segs: BW * RTTmin / segment size, 0 without an estimate
 */
struct j_decision {
	enum j_case what;
	bool	asked;
	u8	state;
	u32	old_ssthresh_segs;
	u32	old_cwnd_segs;
	u32	target_segs;
};
#endif

#define show_j_case(what)			\
	__print_symbolic(what,			\
		{ J_CASE_FALLBACK, "fallback" },	\
		{ J_CASE_EQ5, "eq5" },		\
		{ J_CASE_EQ6, "eq6" },		\
		{ J_CASE_EQ7, "eq7" },		\
		{ J_CASE_ECN, "ecn" })

TRACE_EVENT(j_abe,
	TP_PROTO(const struct sock *sk, const struct j_sample *s,
		 const struct abe *abe, u32 target_segs),
	TP_ARGS(sk, s, abe, target_segs),
	TP_STRUCT__entry(
		__field(u64, bytes)
		__field(u64, sample_Bps)
		__field(u64, prev_Bps)
		__field(u64, bw_Bps)
		__field(u64, bw_q8)
		__field(u32, dt_us)
		__field(u32, alpha_permille)
		__field(u32, rtt_min_us)
		__field(u32, mss_bytes)
		__field(u32, target_segs)
		__field(u32, cwnd_segs)
		__field(u32, ssthresh_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, app_limited)
		__field(u8, used)
	),
	TP_fast_assign(
		const struct tcp_sock *tp = tcp_sk(sk);

		__entry->bytes = s->bytes;
		__entry->sample_Bps = s->sample_Bps;
		__entry->prev_Bps = s->prev_Bps;
		__entry->bw_Bps = abe_bw_Bps(abe);
		__entry->bw_q8 = abe->bw_q8;
		__entry->dt_us = s->dt_us;
		__entry->alpha_permille = s->alpha_permille;
		__entry->rtt_min_us = tcp_min_rtt(tp);
		__entry->mss_bytes = tp->mss_cache;
		__entry->target_segs = target_segs;
		__entry->cwnd_segs = tcp_snd_cwnd(tp);
		__entry->ssthresh_segs = tp->snd_ssthresh;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->app_limited = s->app_limited;
		__entry->used = s->used;
	),
	TP_printk("sport=%u dport=%u bytes=%llu dt_us=%u sample_Bps=%llu prev_Bps=%llu bw_Bps=%llu bw_q8=%llu alpha_permille=%u rtt_min_us=%u mss_bytes=%u target_segs=%u cwnd_segs=%u ssthresh_segs=%u app_limited=%u used=%u",
		  __entry->sport, __entry->dport, __entry->bytes,
		  __entry->dt_us, __entry->sample_Bps, __entry->prev_Bps,
		  __entry->bw_Bps, __entry->bw_q8, __entry->alpha_permille,
		  __entry->rtt_min_us, __entry->mss_bytes,
		  __entry->target_segs, __entry->cwnd_segs,
		  __entry->ssthresh_segs, __entry->app_limited, __entry->used)
);

TRACE_EVENT(j_loss,
	TP_PROTO(const struct sock *sk, const struct j_decision *d,
		 const struct abe *abe),
	TP_ARGS(sk, d, abe),
	TP_STRUCT__entry(
		__field(u64, bw_Bps)
		__field(u32, rtt_min_us)
		__field(u32, mss_bytes)
		__field(u32, target_segs)
		__field(u32, old_ssthresh_segs)
		__field(u32, old_cwnd_segs)
		__field(u32, recovery_segs)
		__field(u32, new_ssthresh_segs)
		__field(u32, new_cwnd_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, what)
		__field(u8, ca_state)
		__field(u8, asked)
	),
	TP_fast_assign(
		const struct tcp_sock *tp = tcp_sk(sk);
		struct j_windows w = {
			.cwnd_segs = tp->snd_ssthresh,
			.ssthresh_segs = tp->snd_ssthresh,
		};

		/*
		 * Reno's values stand in w for the fall-back.  Only the
		 * literal eq. (5) repairs with a window above the old one.
		 */
		if (d->what != J_CASE_FALLBACK)
			w = j_decide(d->what, d->target_segs, d->old_cwnd_segs,
				     tp->snd_ssthresh <= d->old_cwnd_segs);
		else if (d->state == TCP_CA_Loss)
			w.cwnd_segs = 1;
		__entry->bw_Bps = abe_bw_Bps(abe);
		__entry->rtt_min_us = tcp_min_rtt(tp);
		__entry->mss_bytes = tp->mss_cache;
		__entry->target_segs = d->target_segs;
		__entry->old_ssthresh_segs = d->old_ssthresh_segs;
		__entry->old_cwnd_segs = d->old_cwnd_segs;
		__entry->recovery_segs = tp->snd_ssthresh;
		__entry->new_ssthresh_segs = w.ssthresh_segs;
		__entry->new_cwnd_segs = w.cwnd_segs;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->what = d->what;
		__entry->ca_state = d->state;
		__entry->asked = d->asked;
	),
	TP_printk("sport=%u dport=%u case=%s ca_state=%u asked=%u bw_Bps=%llu rtt_min_us=%u mss_bytes=%u target_segs=%u old_ssthresh_segs=%u old_cwnd_segs=%u recovery_segs=%u new_ssthresh_segs=%u new_cwnd_segs=%u",
		  __entry->sport, __entry->dport, show_j_case(__entry->what),
		  __entry->ca_state, __entry->asked, __entry->bw_Bps,
		  __entry->rtt_min_us, __entry->mss_bytes,
		  __entry->target_segs, __entry->old_ssthresh_segs,
		  __entry->old_cwnd_segs, __entry->recovery_segs,
		  __entry->new_ssthresh_segs, __entry->new_cwnd_segs)
);

TRACE_EVENT(j_repaired,
	TP_PROTO(const struct sock *sk, u8 what),
	TP_ARGS(sk, what),
	TP_STRUCT__entry(
		__field(u32, cwnd_segs)
		__field(u32, ssthresh_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, what)
	),
	TP_fast_assign(
		__entry->cwnd_segs = tcp_snd_cwnd(tcp_sk(sk));
		__entry->ssthresh_segs = tcp_sk(sk)->snd_ssthresh;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->what = what;
	),
	TP_printk("sport=%u dport=%u case=%s cwnd_segs=%u ssthresh_segs=%u",
		  __entry->sport, __entry->dport, show_j_case(__entry->what),
		  __entry->cwnd_segs, __entry->ssthresh_segs)
);

#endif /* TCP_J_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE tcp_j_trace
#include <trace/define_trace.h>
