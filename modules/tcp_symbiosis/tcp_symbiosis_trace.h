/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Trace events of TCP Symbiosis.  Every number needed to compute equation (6)
 * again is in them; ports are in host order, rates in kbit/s on the wire, windows with
 * _q32 in 2^-32 packets.
 *
 * symbiosis:symbiosis_step	an ACK took the window from before_q32 to after_q32 by
 *			(6) with t = dt_us (already in the time unit in force).
 *			goal_q32 is the equilibrium.  limit: 1 the window was not
 *			in use and did not grow, 2 growth was cut to what the
 *			ACK allows, 3 the least or largest window
 * symbiosis:symbiosis_result	a result of the measurement went through the filter:
 *			raw_kbps in, avail_kbps out
 * symbiosis:symbiosis_loss	a state of the loss machine was entered; discarded: all
 *			results were (timeout)
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM symbiosis

#if !defined(TCP_SYMBIOSIS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TCP_SYMBIOSIS_TRACE_H

#include <linux/tracepoint.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>
#include <airtcp/logistic.h>

TRACE_EVENT(symbiosis_step,
	TP_PROTO(const struct sock *sk, const struct lg_model *m, u64 before,
		 u64 after, u64 goal, u64 dt_us, u8 limit),
	TP_ARGS(sk, m, before, after, goal, dt_us, limit),
	TP_STRUCT__entry(
		__field(u64, before_q32)
		__field(u64, after_q32)
		__field(u64, goal_q32)
		__field(u64, dt_us)
		__field(u32, avail_kbps)
		__field(u32, capacity_kbps)
		__field(u32, tau_us)
		__field(u32, wire_bytes)
		__field(u32, gamma_permille)
		__field(u32, eps_permille)
		__field(u32, srtt_us)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, limit)
	),
	TP_fast_assign(
		__entry->before_q32 = before;
		__entry->after_q32 = after;
		__entry->goal_q32 = goal;
		__entry->dt_us = dt_us;
		__entry->avail_kbps = m->avail_kbps;
		__entry->capacity_kbps = m->capacity_kbps;
		__entry->tau_us = m->tau_us;
		__entry->wire_bytes = m->wire_bytes;
		__entry->gamma_permille = m->gamma_permille;
		__entry->eps_permille = m->eps_permille;
		__entry->srtt_us = tcp_sk(sk)->srtt_us >> 3;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->limit = limit;
	),
	TP_printk("sport=%u dport=%u before_q32=%llu after_q32=%llu goal_q32=%llu dt_us=%llu avail_kbps=%u capacity_kbps=%u tau_us=%u wire_bytes=%u gamma_permille=%u eps_permille=%u srtt_us=%u limit=%u",
		  __entry->sport, __entry->dport, __entry->before_q32,
		  __entry->after_q32, __entry->goal_q32, __entry->dt_us,
		  __entry->avail_kbps, __entry->capacity_kbps,
		  __entry->tau_us, __entry->wire_bytes,
		  __entry->gamma_permille, __entry->eps_permille,
		  __entry->srtt_us, __entry->limit)
);

TRACE_EVENT(symbiosis_result,
	TP_PROTO(const struct sock *sk, u32 raw_kbps, u32 avail_kbps,
		 u32 capacity_kbps),
	TP_ARGS(sk, raw_kbps, avail_kbps, capacity_kbps),
	TP_STRUCT__entry(
		__field(u32, raw_kbps)
		__field(u32, avail_kbps)
		__field(u32, capacity_kbps)
		__field(u16, sport)
		__field(u16, dport)
	),
	TP_fast_assign(
		__entry->raw_kbps = raw_kbps;
		__entry->avail_kbps = avail_kbps;
		__entry->capacity_kbps = capacity_kbps;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
	),
	TP_printk("sport=%u dport=%u raw_kbps=%u avail_kbps=%u capacity_kbps=%u",
		  __entry->sport, __entry->dport, __entry->raw_kbps,
		  __entry->avail_kbps, __entry->capacity_kbps)
);

TRACE_EVENT(symbiosis_loss,
	TP_PROTO(const struct sock *sk, u8 state, bool discarded),
	TP_ARGS(sk, state, discarded),
	TP_STRUCT__entry(
		__field(u32, cwnd_segs)
		__field(u32, ssthresh_segs)
		__field(u16, sport)
		__field(u16, dport)
		__field(u8, ca_state)
		__field(u8, discarded)
	),
	TP_fast_assign(
		__entry->cwnd_segs = tcp_snd_cwnd(tcp_sk(sk));
		__entry->ssthresh_segs = tcp_sk(sk)->snd_ssthresh;
		__entry->sport = ntohs(inet_sk(sk)->inet_sport);
		__entry->dport = ntohs(inet_sk(sk)->inet_dport);
		__entry->ca_state = state;
		__entry->discarded = discarded;
	),
	TP_printk("sport=%u dport=%u ca_state=%u discarded=%u cwnd_segs=%u ssthresh_segs=%u",
		  __entry->sport, __entry->dport, __entry->ca_state,
		  __entry->discarded, __entry->cwnd_segs,
		  __entry->ssthresh_segs)
);

#endif /* TCP_SYMBIOSIS_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE tcp_symbiosis_trace
#include <trace/define_trace.h>
