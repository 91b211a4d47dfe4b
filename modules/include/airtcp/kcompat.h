/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Every difference between kernels that the airtcp modules meet, and nothing
 * else.  What the target has is found out by compiling against its headers
 * (scripts/probe.sh, probes/), never from a version number: distributions
 * carry changes back.  The range of kernels is in the file KERNELS.
 *
 * 5.19  tcp_snd_cwnd() and tcp_snd_cwnd_set() become the only clean way to
 *       read and write cwnd (also in some older stable kernels).
 * 6.7   TCP timestamps may be in microseconds; tcp_ns_to_ts() is told which.
 * 6.10  cong_control() gains the arguments ack and flag.
 * 6.10  __assign_str() loses its second argument.
 * 6.12  Packets may hold memory of a device, which nobody here can read.
 * 6.13  hrtimer_setup() begins to replace hrtimer_init().
 * 7.1   The start of a transmission with nothing in flight is told through
 *       the hook cwnd_event_tx_start.  cwnd_event still compiles and no longer
 *       sees CA_EVENT_TX_START: silent misbehaviour, hence the macros below.
 * BBRv3 Trees with BBRv3 (XanMod, CachyOS and others) have tso_segs(sk, mss_now)
 *       in the place of min_tso_segs(sk).  No version tells, and the answer
 *       means something else: see AIRTCP_TSO_FLOOR().
 */
#ifndef AIRTCP_KCOMPAT_H
#define AIRTCP_KCOMPAT_H

#include <linux/hrtimer.h>
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

/*
 * An algorithm that bounds its bursts from below, or that wants to be asked
 * before each of them, writes
 *	u32 fn(struct sock *sk);
 * gives it the type of the hook with AIRTCP_TSO_FLOOR(name, fn), and names it in
 * its ops with AIRTCP_TSO_FLOOR_OPS(name).  The answer is the least number of
 * segments in a burst; fn may write sk_pacing_rate and sk_gso_max_segs.
 *
 * Where the kernel has tso_segs its answer is the burst itself, so that a floor
 * of 2 given straight to it would cap every burst at 2.  There the function
 * below takes over what the kernel does around min_tso_segs: what the pacing
 * rate carries in 2^-sk_pacing_shift s, some more on short paths, never less
 * than the floor.  The caller still applies sk_gso_max_segs.
 *
 * Whoever stands between the kernel and another algorithm writes
 *	u32 fn(struct sock *sk, unsigned int mss_now);
 * gives it the type of the hook with AIRTCP_TSO_SHIM(name, fn), calls the other
 * one with airtcp_call_tso_hook(), and knows the hook as AIRTCP_TSO_HOOK.
 */
#if AIRTCP_HAVE_TSO_SEGS
#define AIRTCP_TSO_HOOK			tso_segs

static inline u32 airtcp_tso_autosize(const struct sock *sk,
				      unsigned int mss_now, u32 floor_segs)
{
	u32 max_bytes = READ_ONCE(sk->sk_gso_max_size);
	unsigned long bytes;
	u32 rtt_log;

	bytes = READ_ONCE(sk->sk_pacing_rate) >> READ_ONCE(sk->sk_pacing_shift);
	rtt_log = tcp_min_rtt(tcp_sk(sk)) >>
		  READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_tso_rtt_log);
	if (rtt_log < BITS_PER_TYPE(max_bytes))
		bytes += max_bytes >> rtt_log;
	bytes = min_t(unsigned long, bytes, max_bytes);
	return max_t(u32, bytes / mss_now, floor_segs);
}

/* fn comes first: it may have a say in the rate. */
#define AIRTCP_TSO_FLOOR(name, fn)					\
static u32 name(struct sock *sk, unsigned int mss_now)			\
{									\
	u32 floor_segs = fn(sk);					\
									\
	return airtcp_tso_autosize(sk, mss_now, floor_segs);		\
}

#define AIRTCP_TSO_SHIM(name, fn)					\
static u32 name(struct sock *sk, unsigned int mss_now)			\
{									\
	return fn(sk, mss_now);						\
}

static inline u32 airtcp_call_tso_hook(const struct tcp_congestion_ops *ops,
				       struct sock *sk, unsigned int mss_now)
{
	return ops->tso_segs(sk, mss_now);
}
#else
#define AIRTCP_TSO_HOOK			min_tso_segs

#define AIRTCP_TSO_FLOOR(name, fn)					\
static u32 name(struct sock *sk)					\
{									\
	return fn(sk);							\
}

#define AIRTCP_TSO_SHIM(name, fn)					\
static u32 name(struct sock *sk)					\
{									\
	return fn(sk, tcp_sk(sk)->mss_cache);				\
}

static inline u32 airtcp_call_tso_hook(const struct tcp_congestion_ops *ops,
				       struct sock *sk, unsigned int mss_now)
{
	return ops->min_tso_segs(sk);
}
#endif
#define AIRTCP_TSO_FLOOR_OPS(name)	.AIRTCP_TSO_HOOK = name

/* Copies a string into a trace record, inside TP_fast_assign(). */
#if AIRTCP_HAVE_ASSIGN_STR_ONE_ARG
#define airtcp_assign_str(dst, src)	__assign_str(dst)
#else
#define airtcp_assign_str(dst, src)	__assign_str(dst, src)
#endif

/* The value of TCP's timestamp option at a time of tcp_clock_ns(). */
static inline u32 airtcp_tsval(const struct tcp_sock *tp, u64 now_ns)
{
#if AIRTCP_HAVE_TCP_USEC_TS
	return tcp_ns_to_ts(tp->tcp_usec_ts, now_ns) + tp->tsoffset;
#else
	return tcp_ns_to_ts(now_ns) + tp->tsoffset;
#endif
}

#if AIRTCP_HAVE_SKB_FRAGS_READABLE
#define airtcp_skb_readable(skb)	skb_frags_readable(skb)
#else
#define airtcp_skb_readable(skb)	true
#endif

/* A timer on the monotonic clock whose function runs in softirq. */
static inline void airtcp_timer_setup(struct hrtimer *timer,
				      enum hrtimer_restart (*fn)(struct hrtimer *))
{
#if AIRTCP_HAVE_HRTIMER_SETUP
	hrtimer_setup(timer, fn, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_SOFT);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_SOFT);
	timer->function = fn;
#endif
}

#endif /* AIRTCP_KCOMPAT_H */
