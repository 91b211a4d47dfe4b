// SPDX-License-Identifier: GPL-2.0
/*
 * TCP Symbiosis: congestion control by a model of competing species
 *
 *	Kodama, Yamanegi, Hasegawa, Murata: "Implementation Experiments of a
 *	Congestion Control Mechanism of TCP with Inline Network Measurement",
 *	IEICE technical report (about 2007), section 2.2.
 *	Hasegawa, Murata: "TCP Symbiosis: Congestion control mechanisms of TCP
 *	based on Lotka-Volterra competition model", Inter-Perf 2006.
 *
 * A loss says too late that the path is full.  This TCP knows its path's
 * capacity K and available bandwidth A beforehand, from inline measurement
 * (imtcp.ko), and grows like a population whose food is the bandwidth and whose
 * competitors, seen only as their sum K - A, eat of the same:
 *
 *	dN/dt = eps * (1 - (N + gamma * (K - A)) / K) * N		(4)
 *	w = N * tau,  tau the minimum RTT
 *	dw/dt = eps * (1 - (w + gamma * (K - A) * tau) / (K * tau)) * w	(5)
 *
 *	          w(0) * tau * f(t) * (K - gamma * (K - A))
 *	w(t) = -------------------------------------------------	(6)
 *	       w(0) * (f(t) - 1) + tau * (K - gamma * (K - A))
 *	f(t) = exp(eps * t * (1 - gamma * (1 - A / K)))			(7)
 *
 * On each ACK w goes from w(0) to w(t) with t the time since the ACK before;
 * logistic.h computes (6).  The window comes to rest at
 *
 *	S = tau * (K - gamma * (K - A))
 *
 * which is more than A * tau by (1 - gamma) * (K - A) * tau: so much stands in the
 * queue beside traffic that does not yield, and a buffer smaller than that
 * loses packets again.  0 < gamma < 1 lets species coexist: n such flows
 * share K as K / (1 + (n - 1) * gamma) each, whatever their RTTs.
 *
 *	            first result                  3 duplicate ACKs
 *	  no result -------------> (6) on each ACK --------------> w = w / 2,
 *	  (Reno)                        ^                          repair (PRR)
 *	    ^                           |   repaired                  |
 *	    |                           +-----------------------------+
 *	    +---- timeout, from anywhere: w = 1, all results discarded
 *
 *	pkts_acked	feeds the measurement, takes its results
 *	cong_avoid	(6), or Reno while there is no result
 *	ssthresh	w / 2
 *	set_state	timeout: discard
 *	min_tso_segs	lets imtcp space the packets of its streams
 *
 * What the paper leaves open, and how it is done here:
 *
 *  1. The unit of t is not said.  t = t_j - t_{j-1} and w = N * tau keep time in
 *     seconds, so seconds (time_unit = sec).  With rtt_min t counts in minimum
 *     RTTs: growth by up to e^1.95 = 7 times in each, and a swing that measurement
 *     delays excite.
 *  2. A is taken as at most K.  Without both there is no valid result and Reno
 *     decides.
 *  3. Results do not age in the paper: max_age_ms = 0.  Otherwise an older result
 *     is not used and Reno's congestion avoidance decides until a new one comes.
 *  4. Results are filtered (the paper's future work): filter = robust, see
 *     afilter.h; none is the paper.
 *  5. Slow start before the first result ends with it: ssthresh = cwnd.
 *  6. After a gap between ACKs (6) may jump.  An ACK raises w by at most
 *     max_burst_gain times the segments it acknowledges (default 2, as slow start with
 *     appropriate byte counting); 0 is the paper.
 *  7. w does not grow while the window is not in use (application or receiver
 *     limit it); the paper's flows are endless.  It may shrink: that S < w is
 *     normal here and needs no loss.  It is never below 2.
 *  8. Halving is Reno's ssthresh, the repair is the kernel's (PRR).  (6) goes on
 *     from the repaired window, with t from then on.
 *  9. "All results are discarded" covers A, K, the search range and the filter.  K
 *     given by imtcp's parameter capacity_kbps is none.
 * 10. tau is the kernel's minimum over tcp_min_rtt_wlen (300 s): a path that became
 *     longer is noticed late.
 * 11. An ECN mark is answered as a loss: the paper knows none.
 * 12. K, A and packets are counted on the wire (imtcp's overhead_bytes).
 * 13. Packets are paced by the kernel at 1.2 w / RTT, since imtcp needs pacing.
 *
 * Knobs, in /sys/module/tcp_symbiosis/parameters, for all sockets at once; those
 * of the measurement are imtcp's:
 *
 *  gamma_permille	gamma, 1/1000.  The paper's 900.  Smaller takes more from others.
 *  eps_permille	eps, 1/1000 per time unit.  The paper's 1950.
 *  filter		none, ewma, robust
 *  time_unit		sec, rtt_min
 *  max_age_ms		3.
 *  max_burst_gain	6.
 *
 * What stock "ss -ti" shows: "bbr:(bw:...,mrtt:...)", the only layout of the
 * three it knows that has fields which are true here.  bw is A after the filter, on
 * the wire, mrtt is tau in ms.  Nothing without a valid result.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/inet_diag.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <net/tcp.h>
#include <airtcp/afilter.h>
#include <airtcp/imtcp.h>
#include <airtcp/kcompat.h>
#include <airtcp/logistic.h>

#define CREATE_TRACE_POINTS
#include "tcp_symbiosis_trace.h"

#define SY_GAMMA		900
#define SY_EPS			1950
#define SY_MIN_CWND		2
#define SY_BURST_GAIN		2
#define SY_BURST_GAIN_MAX	1000
#define SY_MAX_AGE_MS		3600000

enum { UNIT_SEC, UNIT_RTT_MIN };

static const char * const filter_names[] = {
	[AF_NONE] = "none",
	[AF_EWMA] = "ewma",
	[AF_ROBUST] = "robust",
};

static const char * const unit_names[] = { "sec", "rtt_min" };

static unsigned int gamma_permille __read_mostly = SY_GAMMA;
static unsigned int eps_permille __read_mostly = SY_EPS;
static unsigned int filter __read_mostly = AF_ROBUST;
static unsigned int time_unit __read_mostly = UNIT_SEC;
static unsigned int max_age_ms __read_mostly;
static unsigned int max_burst_gain __read_mostly = SY_BURST_GAIN;

enum { LIMIT_NOT, LIMIT_UNUSED, LIMIT_BURST, LIMIT_EDGE };

/**
 * struct symbiosis - per-socket state; all zero: nothing is known
 * @im: the measurement; NULL without memory, then this is Reno
 * @w_q32: w; counts only while its whole part is cwnd
 * @last_us: tcp_mstamp of the ACK before; 0: none that counts
 * @result_us: tcp_mstamp of the latest result
 * @filter: memory of the filter
 * @avail_kbps: A, filtered; 0: no valid result; read without a lock
 * @capacity_kbps: K
 * @wire_bytes: size of a full packet
 */
struct symbiosis {
	struct imtcp *im;
	u64	w_q32;
	u64	last_us;
	u64	result_us;
	struct afilter filter;
	u32	avail_kbps;
	u32	capacity_kbps;
	u32	wire_bytes;
};

static void sy_take_result(struct sock *sk, struct symbiosis *sy)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct imtcp_result r;
	u32 avail;

	if (!imtcp_get(sk, sy->im, &r) || !r.capacity_kbps)
		return;
	/* Difference 5. */
	if (!sy->avail_kbps && tcp_in_slow_start(tp))
		tp->snd_ssthresh = max(tcp_snd_cwnd(tp), 2U);
	avail = af_add(&sy->filter, READ_ONCE(filter),
		       min(r.avail_kbps, r.capacity_kbps), r.capacity_kbps);
	WRITE_ONCE(sy->avail_kbps, clamp(avail, 1U, r.capacity_kbps));
	sy->capacity_kbps = r.capacity_kbps;
	sy->wire_bytes = r.wire_bytes;
	sy->result_us = tp->tcp_mstamp;
	trace_symbiosis_result(sk, r.avail_kbps, sy->avail_kbps,
			       sy->capacity_kbps);
}

static void sy_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct symbiosis *sy = inet_csk_ca(sk);

	if (imtcp_acked(sk, sy->im, sample))
		sy_take_result(sk, sy);
}

static bool sy_valid(const struct tcp_sock *tp, const struct symbiosis *sy)
{
	u64 age_us = (u64)READ_ONCE(max_age_ms) * USEC_PER_MSEC;

	return sy->avail_kbps && tcp_min_rtt(tp) != ~0U &&
	       (!age_us || tp->tcp_mstamp - sy->result_us <= age_us);
}

/**
 * sy_bound() - what the paper does not know about windows
 * @sk: socket
 * @before: w(0)
 * @after: w(t); changed where it must be
 * @acked: segments that the ACK acknowledged
 *
 * Return: what limited it.
 */
static u8 sy_bound(const struct sock *sk, u64 before, u64 *after, u32 acked)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 gain = READ_ONCE(max_burst_gain);
	u64 least = (u64)SY_MIN_CWND << LG_W_Q;
	u64 most = (u64)min(tp->snd_cwnd_clamp, LG_MAX_SEGS) << LG_W_Q;
	u8 limit = LIMIT_NOT;

	if (*after > before && !tcp_is_cwnd_limited(sk)) {
		*after = before;
		limit = LIMIT_UNUSED;
	} else if (gain && *after > before &&
		   (*after - before) >> LG_W_Q >= (u64)acked * gain) {
		*after = before + ((u64)acked * gain << LG_W_Q);
		limit = LIMIT_BURST;
	}
	if (*after < least || *after > most) {
		*after = *after < least ? least : most;
		limit = LIMIT_EDGE;
	}
	return limit;
}

/**
 * sy_cong_avoid() - equation (6)
 * @sk: socket
 * @ack: not used
 * @acked: segments acknowledged
 */
static void sy_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct symbiosis *sy = inet_csk_ca(sk);
	struct lg_model m;
	u64 before, after, dt_us;
	u8 limit;

	if (!sy_valid(tp, sy)) {
		sy->last_us = 0;
		tcp_reno_cong_avoid(sk, ack, acked);
		return;
	}
	m.capacity_kbps = sy->capacity_kbps;
	m.avail_kbps = sy->avail_kbps;
	m.tau_us = max(tcp_min_rtt(tp), 1U);
	m.wire_bytes = sy->wire_bytes;
	m.gamma_permille = READ_ONCE(gamma_permille);
	m.eps_permille = READ_ONCE(eps_permille);

	dt_us = sy->last_us ? tp->tcp_mstamp - sy->last_us : 0;
	sy->last_us = tp->tcp_mstamp;
	if (READ_ONCE(time_unit) == UNIT_RTT_MIN)
		dt_us = div_u64(dt_us * USEC_PER_SEC, m.tau_us);

	/* Reno, a repair or an undo has set the window: go on from there. */
	before = sy->w_q32;
	if (before >> LG_W_Q != tcp_snd_cwnd(tp))
		before = (u64)min(tcp_snd_cwnd(tp), LG_MAX_SEGS) << LG_W_Q;
	after = lg_step_q32(&m, before, dt_us);
	limit = sy_bound(sk, before, &after, acked);
	sy->w_q32 = after;
	tcp_snd_cwnd_set(tp, after >> LG_W_Q);
	/* The kernel takes a window below ssthresh for slow start. */
	if (tp->snd_ssthresh > tcp_snd_cwnd(tp))
		tp->snd_ssthresh = tcp_snd_cwnd(tp);
	if (trace_symbiosis_step_enabled())
		trace_symbiosis_step(sk, &m, before, after,
				     lg_equilibrium_q32(&m), dt_us, limit);
}

/* All that is not congestion avoidance interrupts t. */
static void sy_set_state(struct sock *sk, u8 new_state)
{
	struct symbiosis *sy = inet_csk_ca(sk);
	bool timeout = new_state == TCP_CA_Loss;

	imtcp_state_changed(sk, sy->im, new_state);
	if (new_state > TCP_CA_Disorder)
		sy->last_us = 0;
	if (timeout) {
		imtcp_discard(sk, sy->im);
		memset(&sy->filter, 0, sizeof(sy->filter));
		WRITE_ONCE(sy->avail_kbps, 0);
		sy->capacity_kbps = 0;
	}
	if (new_state > TCP_CA_Disorder)
		trace_symbiosis_loss(sk, new_state, timeout);
}

static u32 sy_before_xmit(struct sock *sk)
{
	const struct symbiosis *sy = inet_csk_ca(sk);

	return imtcp_before_xmit(sk, sy->im);
}

AIRTCP_TSO_FLOOR(sy_tso_floor, sy_before_xmit)

static void sy_tx_start(struct sock *sk)
{
	struct symbiosis *sy = inet_csk_ca(sk);

	imtcp_idle(sk, sy->im);
	sy->last_us = 0;
}

static void sy_other_event(struct sock *sk, enum tcp_ca_event ev)
{
}

AIRTCP_CWND_EVENT(sy_cwnd_event, sy_tx_start, sy_other_event)

static void sy_init(struct sock *sk)
{
	struct symbiosis *sy = inet_csk_ca(sk);

	memset(sy, 0, sizeof(*sy));
	sy->im = imtcp_attach(sk);
}

static void sy_release(struct sock *sk)
{
	struct symbiosis *sy = inet_csk_ca(sk);

	imtcp_detach(sk, sy->im);
	/* A socket may be released twice (tcp_disconnect under MPTCP). */
	sy->im = NULL;
}

/* Layout and meaning: see the top.  Called without the socket lock. */
static size_t sy_get_info(struct sock *sk, u32 ext, int *attr,
			  union tcp_cc_info *info)
{
	const struct symbiosis *sy = inet_csk_ca(sk);
	u64 bw_Bps = (u64)READ_ONCE(sy->avail_kbps) * 125;

	/* The request has no bit for BBR's layout; Vegas's stands for it. */
	if (!(ext & (1 << (INET_DIAG_VEGASINFO - 1))) || !bw_Bps)
		return 0;
	memset(&info->bbr, 0, sizeof(info->bbr));
	info->bbr.bbr_bw_lo = lower_32_bits(bw_Bps);
	info->bbr.bbr_bw_hi = upper_32_bits(bw_Bps);
	info->bbr.bbr_min_rtt = tcp_min_rtt(tcp_sk(sk));
	*attr = INET_DIAG_BBRINFO;
	return sizeof(info->bbr);
}

static struct tcp_congestion_ops tcp_symbiosis __read_mostly = {
	.name		= "symbiosis",
	.owner		= THIS_MODULE,
	.init		= sy_init,
	.release	= sy_release,
	.ssthresh	= tcp_reno_ssthresh,
	.cong_avoid	= sy_cong_avoid,
	.set_state	= sy_set_state,
	.pkts_acked	= sy_pkts_acked,
	.undo_cwnd	= tcp_reno_undo_cwnd,
	.get_info	= sy_get_info,
	AIRTCP_TSO_FLOOR_OPS(sy_tso_floor),
	AIRTCP_CWND_EVENT_OPS(sy_cwnd_event, sy_tx_start),
};

/* Sockets read the knobs without a lock; a bad value is refused, not clipped. */
static int sy_set_knob(const char *val, const struct kernel_param *kp,
		       unsigned int min, unsigned int max)
{
	unsigned int value;
	int err = kstrtouint(val, 0, &value);

	if (err)
		return err;
	if (value < min || value > max)
		return -ERANGE;
	WRITE_ONCE(*(unsigned int *)kp->arg, value);
	return 0;
}

static int sy_set_gamma(const char *val, const struct kernel_param *kp)
{
	return sy_set_knob(val, kp, 0, LG_MAX_GAMMA);
}

static int sy_set_eps(const char *val, const struct kernel_param *kp)
{
	return sy_set_knob(val, kp, 1, LG_MAX_EPS);
}

static int sy_set_age(const char *val, const struct kernel_param *kp)
{
	return sy_set_knob(val, kp, 0, SY_MAX_AGE_MS);
}

static int sy_set_gain(const char *val, const struct kernel_param *kp)
{
	return sy_set_knob(val, kp, 0, SY_BURST_GAIN_MAX);
}

static int sy_set_word(const char *val, const struct kernel_param *kp,
		       const char * const *names, size_t count)
{
	int at = __sysfs_match_string(names, count, val);

	if (at < 0)
		return at;
	WRITE_ONCE(*(unsigned int *)kp->arg, at);
	return 0;
}

static int sy_set_filter(const char *val, const struct kernel_param *kp)
{
	return sy_set_word(val, kp, filter_names, ARRAY_SIZE(filter_names));
}

static int sy_get_filter(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", filter_names[READ_ONCE(filter)]);
}

static int sy_set_unit(const char *val, const struct kernel_param *kp)
{
	return sy_set_word(val, kp, unit_names, ARRAY_SIZE(unit_names));
}

static int sy_get_unit(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", unit_names[READ_ONCE(time_unit)]);
}

static const struct kernel_param_ops sy_gamma_ops = {
	.set = sy_set_gamma,
	.get = param_get_uint,
};

static const struct kernel_param_ops sy_eps_ops = {
	.set = sy_set_eps,
	.get = param_get_uint,
};

static const struct kernel_param_ops sy_age_ops = {
	.set = sy_set_age,
	.get = param_get_uint,
};

static const struct kernel_param_ops sy_gain_ops = {
	.set = sy_set_gain,
	.get = param_get_uint,
};

static const struct kernel_param_ops sy_filter_ops = {
	.set = sy_set_filter,
	.get = sy_get_filter,
};

static const struct kernel_param_ops sy_unit_ops = {
	.set = sy_set_unit,
	.get = sy_get_unit,
};

module_param_cb(gamma_permille, &sy_gamma_ops, &gamma_permille, 0644);
MODULE_PARM_DESC(gamma_permille,
		 "gamma, how much others' traffic slows growth, 1/1000 (default 900, range 0 to 999)");
module_param_cb(eps_permille, &sy_eps_ops, &eps_permille, 0644);
MODULE_PARM_DESC(eps_permille,
		 "eps, rate of growth, 1/1000 per time unit (default 1950, range 1 to 10000)");
module_param_cb(filter, &sy_filter_ops, &filter, 0644);
MODULE_PARM_DESC(filter,
		 "filter of the results: none (as published), ewma, robust (default)");
module_param_cb(time_unit, &sy_unit_ops, &time_unit, 0644);
MODULE_PARM_DESC(time_unit, "unit of t: sec (default), rtt_min");
module_param_cb(max_age_ms, &sy_age_ops, &max_age_ms, 0644);
MODULE_PARM_DESC(max_age_ms,
		 "age at which a result is not used any more, ms (default 0: never; up to 3600000)");
module_param_cb(max_burst_gain, &sy_gain_ops, &max_burst_gain, 0644);
MODULE_PARM_DESC(max_burst_gain,
		 "segments by which an acknowledged one may raise the window (default 2; 0: no limit; up to 1000)");

static int __init sy_register(void)
{
	BUILD_BUG_ON(sizeof(struct symbiosis) > ICSK_CA_PRIV_SIZE);
	return tcp_register_congestion_control(&tcp_symbiosis);
}

static void __exit sy_unregister(void)
{
	tcp_unregister_congestion_control(&tcp_symbiosis);
}

module_init(sy_register);
module_exit(sy_unregister);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("TCP Symbiosis: congestion control by a model of competing species");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
