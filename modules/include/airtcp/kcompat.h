/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Every difference between kernels that the airtcp modules meet, and nothing
 * else.  What the target has is found out by compiling against its headers
 * (scripts/probe.sh, probes/), never from a version number: distributions
 * carry changes back.  The range of kernels is in the file KERNELS.
 *
 * 5.19  tcp_snd_cwnd() and tcp_snd_cwnd_set() become the only clean way to
 *       read and write cwnd (also in some older stable kernels).
 * 6.10  cong_control() gains the arguments ack and flag.
 * 6.10  __assign_str() loses its second argument.
 * 7.1   The start of a transmission with nothing in flight is told through
 *       the hook cwnd_event_tx_start.  cwnd_event still compiles and no longer
 *       sees CA_EVENT_TX_START: silent misbehaviour, hence the macros below.
 */
#ifndef AIRTCP_KCOMPAT_H
#define AIRTCP_KCOMPAT_H

#include <net/tcp.h>
#include "airtcp-probes.h"

#if !AIRTCP_HAVE_SND_CWND_ACCESSORS
static inline u32 tcp_snd_cwnd(const struct tcp_sock *tp)
{
	return tp->snd_cwnd;
}

static inline void tcp_snd_cwnd_set(struct tcp_sock *tp, u32 val)
{
	WARN_ON_ONCE((int)val <= 0);
	tp->snd_cwnd = val;
}
#endif

/*
 * An algorithm writes two functions,
 *	void tx_start(struct sock *sk);
 *	void other(struct sock *sk, enum tcp_ca_event ev);
 * joins them with AIRTCP_CWND_EVENT(name, tx_start, other), and names them in
 * its ops with AIRTCP_CWND_EVENT_OPS(name, tx_start).  Whoever stands between
 * the kernel and another algorithm passes the event on with
 * airtcp_call_tx_start() and lists the hook with AIRTCP_WRAP_TX_START(macro).
 */
#if AIRTCP_HAVE_CWND_EVENT_TX_START
#define AIRTCP_CWND_EVENT(name, tx_start, other)			\
static void name(struct sock *sk, enum tcp_ca_event ev)			\
{									\
	other(sk, ev);							\
}

#define AIRTCP_CWND_EVENT_OPS(name, tx_start)				\
	.cwnd_event = name,						\
	.cwnd_event_tx_start = tx_start
#define AIRTCP_WRAP_TX_START(wrap)	wrap(cwnd_event_tx_start)

static inline void airtcp_call_tx_start(const struct tcp_congestion_ops *ops,
					struct sock *sk)
{
	ops->cwnd_event_tx_start(sk);
}
#else
#define AIRTCP_CWND_EVENT(name, tx_start, other)			\
static void name(struct sock *sk, enum tcp_ca_event ev)			\
{									\
	if (ev == CA_EVENT_TX_START)					\
		tx_start(sk);						\
	else								\
		other(sk, ev);						\
}

#define AIRTCP_CWND_EVENT_OPS(name, tx_start)				\
	.cwnd_event = name
#define AIRTCP_WRAP_TX_START(wrap)	do { } while (0)

static inline void airtcp_call_tx_start(const struct tcp_congestion_ops *ops,
					struct sock *sk)
{
	ops->cwnd_event(sk, CA_EVENT_TX_START);
}
#endif

/*
 * An algorithm writes
 *	void fn(struct sock *sk, u32 ack, int flag,
 *		const struct rate_sample *rs);
 * and gives it the type of the hook with AIRTCP_CONG_CONTROL(name, fn).  Where
 * the kernel does not tell, ack is what has been acknowledged so far and flag
 * is 0.
 */
#if AIRTCP_HAVE_CONG_CONTROL_ACK_FLAG
#define AIRTCP_CONG_CONTROL(name, fn)					\
static void name(struct sock *sk, u32 ack, int flag,			\
		 const struct rate_sample *rs)				\
{									\
	fn(sk, ack, flag, rs);						\
}

static inline void airtcp_call_cong_control(const struct tcp_congestion_ops *ops,
					    struct sock *sk, u32 ack, int flag,
					    const struct rate_sample *rs)
{
	ops->cong_control(sk, ack, flag, rs);
}
#else
#define AIRTCP_CONG_CONTROL(name, fn)					\
static void name(struct sock *sk, const struct rate_sample *rs)		\
{									\
	fn(sk, tcp_sk(sk)->snd_una, 0, rs);				\
}

static inline void airtcp_call_cong_control(const struct tcp_congestion_ops *ops,
					    struct sock *sk, u32 ack, int flag,
					    const struct rate_sample *rs)
{
	ops->cong_control(sk, rs);
}
#endif

/* Copies a string into a trace record, inside TP_fast_assign(). */
#if AIRTCP_HAVE_ASSIGN_STR_ONE_ARG
#define airtcp_assign_str(dst, src)	__assign_str(dst)
#else
#define airtcp_assign_str(dst, src)	__assign_str(dst, src)
#endif

#endif /* AIRTCP_KCOMPAT_H */
