/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace events of TCP-Cherry.  Positions are bytes since the connection's first
 * (the difference of sequence numbers), so that they need no initial sequence
 * number; ports are in host order.
 *
 * cherry:cherry_phase	a phase began, or ended (phase=ca).  sigma_segs and
 *		want_segs are what it is after; sent, acked: the phase's so far.
 * cherry:cherry_plan	the claim of a phase: how much data and window there was,
 *		what it shrank to.  thresh: the data segment it started from,
 *		skip: first supplement, again: so many of them are out already.
 * cherry:cherry_supp	a supplement was sent.  i: the paper's; again: it had been
 *		sent before, in an earlier cycle; err: what IP said.
 * cherry:cherry_acks	supplements were acknowledged, and cwnd was raised.
 * cherry:cherry_loss	a loss was answered.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM cherry

#if !defined(TCP_CHERRY_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TCP_CHERRY_TRACE_H

#include <linux/tracepoint.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>
#include "supplement.h"

#define show_cherry_phase(phase)		\
	__print_symbolic(phase,			\
		{ CHERRY_CA, "ca" },		\
		{ CHERRY_READY, "ready" },	\
		{ CHERRY_FFS, "ffs" },		\
		{ CHERRY_NEW_FFS, "new_ffs" },	\
		{ CHERRY_FAR, "far" })

TRACE_EVENT(cherry_phase,
	TP_PROTO(const struct sock *sk, const struct cherry *c, u8 old_phase),
	TP_ARGS(sk, c, old_phase),
	TP_STRUCT__entry(
		__field(u64, una_bytes)
		__field(u64, nxt_bytes)
		__field(u64, tau_ns)
		__field(u32, rtt_us)
		__field(u32, max_rtt_us)
		__field(u32, cwnd_segs)
		__field(u32, ssthresh_segs)
		__field(u32, want_segs)
		__field(u32, sent_segs)
		__field(u32, acked_segs)
		__field(u32, timeouts)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, phase)
		__field(u8, old_phase)
		__field(u8, ca_state)
		__field(u8, limited)
	),
	TP_fast_assign(
		const struct tcp_sock *tp = tcp_sk(sk);

		__entry->una_bytes = cherry_offset(sk, tp->snd_una);
		__entry->nxt_bytes = cherry_offset(sk, tp->snd_nxt);
		__entry->tau_ns = c->tau_ns;
		__entry->rtt_us = tp->srtt_us >> 3;
		__entry->max_rtt_us = c->max_rtt_us;
		__entry->cwnd_segs = tcp_snd_cwnd(tp);
		__entry->ssthresh_segs = tp->snd_ssthresh;
		__entry->want_segs = c->want_segs;
		__entry->sent_segs = c->sent_segs;
		__entry->acked_segs = c->acked_segs;
		__entry->timeouts = c->timeouts;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->phase = c->phase;
		__entry->old_phase = old_phase;
		__entry->ca_state = inet_csk(sk)->icsk_ca_state;
		__entry->limited = c->limited;
	),
	TP_printk("sport=%u dport=%u phase=%s old_phase=%s ca_state=%u una_bytes=%llu nxt_bytes=%llu tau_ns=%llu rtt_us=%u max_rtt_us=%u cwnd_segs=%u ssthresh_segs=%u want_segs=%u sent_segs=%u acked_segs=%u limited=%u timeouts=%u",
		  __entry->sport, __entry->dport,
		  show_cherry_phase(__entry->phase),
		  show_cherry_phase(__entry->old_phase), __entry->ca_state,
		  __entry->una_bytes, __entry->nxt_bytes, __entry->tau_ns,
		  __entry->rtt_us, __entry->max_rtt_us, __entry->cwnd_segs,
		  __entry->ssthresh_segs, __entry->want_segs,
		  __entry->sent_segs, __entry->acked_segs, __entry->limited,
		  __entry->timeouts)
);

TRACE_EVENT(cherry_plan,
	TP_PROTO(const struct sock *sk, const struct cherry *c, u32 sigma_segs,
		 u32 due_segs, u32 data_segs, u32 room_segs,
		 const struct cherry_plan *plan, u32 thresh_seq),
	TP_ARGS(sk, c, sigma_segs, due_segs, data_segs, room_segs, plan,
		thresh_seq),
	TP_STRUCT__entry(
		__field(u64, thresh_bytes)
		__field(u64, skip_bytes)
		__field(u64, tau_ns)
		__field(u32, mss_bytes)
		__field(u32, sigma_segs)
		__field(u32, due_segs)
		__field(u32, data_segs)
		__field(u32, room_segs)
		__field(u32, gap_segs)
		__field(u32, supp_segs)
		__field(u32, again_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, phase)
		__field(u8, limited)
	),
	TP_fast_assign(
		__entry->thresh_bytes = cherry_offset(sk, thresh_seq);
		__entry->skip_bytes = cherry_offset(sk, c->skip_seq);
		__entry->tau_ns = c->tau_ns;
		__entry->mss_bytes = c->mss_bytes;
		__entry->sigma_segs = sigma_segs;
		__entry->due_segs = due_segs;
		__entry->data_segs = data_segs;
		__entry->room_segs = room_segs;
		__entry->gap_segs = plan->gap_segs;
		__entry->supp_segs = plan->supp_segs;
		__entry->again_segs = plan->again_segs;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->phase = c->phase;
		__entry->limited = plan->limited;
	),
	TP_printk("sport=%u dport=%u phase=%s thresh_bytes=%llu skip_bytes=%llu tau_ns=%llu mss_bytes=%u sigma_segs=%u due_segs=%u data_segs=%u room_segs=%u gap_segs=%u supp_segs=%u again_segs=%u limited=%u",
		  __entry->sport, __entry->dport,
		  show_cherry_phase(__entry->phase), __entry->thresh_bytes,
		  __entry->skip_bytes, __entry->tau_ns, __entry->mss_bytes,
		  __entry->sigma_segs, __entry->due_segs, __entry->data_segs,
		  __entry->room_segs, __entry->gap_segs, __entry->supp_segs,
		  __entry->again_segs, __entry->limited)
);

TRACE_EVENT(cherry_supp,
	TP_PROTO(const struct sock *sk, const struct cherry *c, u32 seq,
		 u32 len_bytes, bool again, int err),
	TP_ARGS(sk, c, seq, len_bytes, again, err),
	TP_STRUCT__entry(
		__field(u64, start_bytes)
		__field(u64, una_bytes)
		__field(u32, len_bytes)
		__field(u32, i)
		__field(u32, cwnd_segs)
		__field(s32, err)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, phase)
		__field(u8, again)
	),
	TP_fast_assign(
		__entry->start_bytes = cherry_offset(sk, seq);
		__entry->una_bytes = cherry_offset(sk, tcp_sk(sk)->snd_una);
		__entry->len_bytes = len_bytes;
		__entry->i = c->select.i;
		__entry->cwnd_segs = tcp_snd_cwnd(tcp_sk(sk));
		__entry->err = err;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->phase = c->phase;
		__entry->again = again;
	),
	TP_printk("sport=%u dport=%u phase=%s start_bytes=%llu len_bytes=%u una_bytes=%llu i=%u again=%u cwnd_segs=%u err=%d",
		  __entry->sport, __entry->dport,
		  show_cherry_phase(__entry->phase), __entry->start_bytes,
		  __entry->len_bytes, __entry->una_bytes, __entry->i,
		  __entry->again, __entry->cwnd_segs, __entry->err)
);

TRACE_EVENT(cherry_acks,
	TP_PROTO(const struct sock *sk, const struct cherry *c, u32 newly_segs),
	TP_ARGS(sk, c, newly_segs),
	TP_STRUCT__entry(
		__field(u64, una_bytes)
		__field(u64, high_bytes)
		__field(u32, newly_segs)
		__field(u32, acked_segs)
		__field(u32, sent_segs)
		__field(u32, cwnd_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, phase)
	),
	TP_fast_assign(
		const struct tcp_sock *tp = tcp_sk(sk);

		__entry->una_bytes = cherry_offset(sk, tp->snd_una);
		__entry->high_bytes =
			cherry_offset(sk, tcp_highest_sack_seq((struct tcp_sock *)tp));
		__entry->newly_segs = newly_segs;
		__entry->acked_segs = c->acked_segs;
		__entry->sent_segs = c->sent_segs;
		__entry->cwnd_segs = cherry_sock(sk)->reducing ?
				     cherry_sock(sk)->window_segs :
				     tcp_snd_cwnd(tp);
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->phase = c->phase;
	),
	TP_printk("sport=%u dport=%u phase=%s newly_segs=%u acked_segs=%u sent_segs=%u cwnd_segs=%u una_bytes=%llu high_bytes=%llu",
		  __entry->sport, __entry->dport,
		  show_cherry_phase(__entry->phase), __entry->newly_segs,
		  __entry->acked_segs, __entry->sent_segs, __entry->cwnd_segs,
		  __entry->una_bytes, __entry->high_bytes)
);

TRACE_EVENT(cherry_loss,
	TP_PROTO(const struct sock *sk, const struct cherry *c, u8 state),
	TP_ARGS(sk, c, state),
	TP_STRUCT__entry(
		__field(u64, una_bytes)
		__field(u32, cwnd0_segs)
		__field(u32, window_segs)
		__field(u32, ssthresh_segs)
		__field(u32, timeouts)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, phase)
		__field(u8, ca_state)
	),
	TP_fast_assign(
		__entry->una_bytes = cherry_offset(sk, tcp_sk(sk)->snd_una);
		__entry->cwnd0_segs = c->cwnd0_segs;
		__entry->window_segs = cherry_sock(sk)->window_segs;
		__entry->ssthresh_segs = tcp_sk(sk)->snd_ssthresh;
		__entry->timeouts = c->timeouts;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->phase = c->phase;
		__entry->ca_state = state;
	),
	TP_printk("sport=%u dport=%u phase=%s ca_state=%u una_bytes=%llu cwnd0_segs=%u window_segs=%u ssthresh_segs=%u timeouts=%u",
		  __entry->sport, __entry->dport,
		  show_cherry_phase(__entry->phase), __entry->ca_state,
		  __entry->una_bytes, __entry->cwnd0_segs,
		  __entry->window_segs, __entry->ssthresh_segs,
		  __entry->timeouts)
);

#endif /* TCP_CHERRY_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE cherry_trace
#include <trace/define_trace.h>
