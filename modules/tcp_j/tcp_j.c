// SPDX-License-Identifier: GPL-2.0
/*
 * TCP-J: congestion control for paths with a lossy wireless link
 *
 *	Sato, Kunishi, Teraoka: "TCP-J: New Transport Protocol for Wireless
 *	Network Environments", IPSJ Journal, received March 2002, accepted
 *	October 2002.  Sections 3.1 to 3.3.
 *
 * A loss does not say whether a queue overflowed or a radio frame was damaged,
 * and TCP-J does not try to tell.  It never asks "how much less?" but "how
 * much does the path carry?", and answers with what it has seen arrive:
 *
 *	BW_sample(k) = d_k / (t_k - t_{k-1})				(8)
 *	BW_k	= alpha * BW_{k-1} +
 *		  (1 - alpha) * (BW_sample(k) + BW_sample(k-1)) / 2	(9)
 *	target	= BW * RTTmin / segment size
 *
 * where d_k is what was delivered between the ACKs that came at t_{k-1} and
 * t_k (ABE, available bandwidth estimation; alpha = 0.9).  BW * RTTmin is the
 * window that fills the path and no queue.
 *
 *	retransmission, ssthresh <= cwnd: ssthresh = cwnd = target	(5)
 *	retransmission, ssthresh > cwnd:  ssthresh = target, cwnd kept	(6)
 *	retransmission timeout:		  ssthresh = target, cwnd = 1	(7)
 *
 * Growth is Reno's, and loss detection, repair and undo are the kernel's (SACK,
 * RACK, PRR).
 *
 *	             first data                  cwnd reaches ssthresh
 *	  no estimate ---------> slow start -----------------------> congestion
 *	  (Reno)                  |  ^   ^                           avoidance
 *	                 loss (6) |  |   | repaired: cwnd kept,       |    ^
 *	                          v  |   | ssthresh = target  loss (5)|    |
 *	                        repair --+                            v    |
 *	                        (PRR) <----------------------------- repair
 *	  timeout (7), from         repaired, target > cwnd:         (PRR) |
 *	  anywhere: cwnd = 1,       slow start up to target           |    |
 *	  slow start to target      repaired otherwise: cwnd = target +----+
 *
 * How the equations meet the kernel:
 *
 *	pkts_acked	once for each ACK that finds data outstanding: (8), (9)
 *	TX start	nothing was in flight: the open sample is void
 *	ssthresh	the kernel asks before it knows what for: remember
 *	set_state	now it is known: Recovery (5) (6), Loss (7), CWR (ECN)
 *	COMPLETE_CWR	repaired: cwnd and ssthresh get their final values
 *	undo_cwnd	the loss was none: the decision is forgotten
 *
 * Differences from the paper:
 *
 *  1. A sample spans at least min_interval_us.  Several ACKs are often
 *     processed in one go, 0 or 1 us apart, where (8) would divide by zero or
 *     explode.  No byte is lost: what was delivered meanwhile counts into the
 *     sample that closes.  The same holds for ACKs that deliver nothing, as
 *     they carry no d_k.  Longer samples average the gaps between bursts in,
 *     and ABE's strength is that it does not.
 *  2. d_k is counted with the kernel's tp->delivered, in segments, which
 *     counts each segment once, by SACK or by cumulative ACK; so delayed and
 *     stretched ACKs, duplicate and partial ACKs need no rule of their own.
 *  3. BW_0 is the first sample.  Until there is one, Reno's halving decides.
 *  4. Idle time is not measured: when data is sent with nothing in flight, or
 *     ACKs are further apart than the retransmission timeout, the next ACK
 *     starts a new interval.  The paper only knows endless transfers.
 *  5. An application that has nothing to send makes ACKs rare, which says
 *     nothing about the path.  A sample during which the sender was
 *     app-limited spans at least RTTmin and counts only when it raises BW.
 *     The second half keeps BW from decaying; the first keeps short bursts
 *     from turning that ratchet into a maximum of noise, since no more than
 *     one flight is delivered in one RTTmin.  It has no parameter.
 *  6. (5) does not raise cwnd in one jump (clamp_decrease = 1).  ssthresh is
 *     the target in any case, so cwnd climbs there in slow start, each
 *     step paid for by an ACK.  clamp_decrease = 0 is the paper's letter.
 *  7. In (6) the kernel repairs with the smaller of cwnd and target as the
 *     window to steer by, since it would otherwise grow cwnd to ssthresh during
 *     the repair; "cwnd is kept" holds from the moment the loss is repaired.
 *  8. ECN, unknown to the paper: a mark (or a full local queue) is congestion
 *     for certain, so cwnd = ssthresh = min(cwnd, target), in slow start
 *     too and whatever clamp_decrease says.  The kernel's own walk down gets
 *     there; a timeout on the way keeps that ssthresh.
 *  9. target lies in [2, snd_cwnd_clamp]; one segment would wait for the
 *     receiver's delayed ACK timer each round trip.
 * 10. RTTmin is the kernel's (a minimum over sysctl tcp_min_rtt_wlen, 300 s),
 *     in microseconds: a route that became longer is noticed after 5 minutes.
 * 11. After a timeout the kernel sets cwnd to the segments still in flight
 *     plus one, which is 1 unless some were sent so late that they cannot be
 *     lost.
 *
 * Handoff control (section 3.4 of the paper) is not here.  Its only input, the
 * bandwidth that the access router reports, belongs in j_bw_Bps(), through
 * which every decision reads BW; the reset of a non-local movement belongs
 * beside j_init().
 *
 * Knobs, in /sys/module/tcp_j/parameters, for all sockets at once:
 *
 *  alpha_permille	weight of the past in (9), 1/1000.  For experiments: the
 *			paper chose 900 for fairness beside Reno on wires.
 *  min_interval_us	shortest sample, us.  Raise it where ACKs come compressed
 *			in bursts longer than that and BW reads too high.
 *  clamp_decrease	difference 6.
 *
 * What stock "ss -ti" shows: "bbr:(bw:...,mrtt:...)".  Of the three layouts ss
 * knows, only this one has fields that are true here: bw is BW (ss prints bits
 * per second) and mrtt is RTTmin in ms.  Both gains are zero, which ss leaves
 * out.  The algorithm's own name stands at the start of the line.  Nothing is
 * printed before the first sample.  On 32-bit machines bw may be torn.
 *
 * What happens inside: trace events j:j_abe, j:j_loss, j:j_repaired
 * (tcp_j_trace.h).
 *
 * Who may use it: TCP_CONG_NON_RESTRICTED is deliberately not set.  With
 * target >= cwnd a loss costs nothing, so this is not Reno-friendly at every
 * moment, and using it beside others is the administrator's decision:
 * tcp_allowed_congestion_control or the default lets everybody use it.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/inet_diag.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <net/tcp.h>
#include <airtcp/abe.h>
#include <airtcp/kcompat.h>

#define CREATE_TRACE_POINTS
#include "tcp_j_trace.h"

/* alpha = 1 would never learn, hence the bound of 999. */
#define J_ALPHA_PERMILLE	900
#define J_ALPHA_PERMILLE_MAX	999

/*
 * 1 ms: long enough for ACKs of one interrupt to fall into one sample, short
 * enough to see the bottleneck's rate inside a flight: ACKs of full segments
 * are further apart below 12 Mbit/s.
 */
#define J_MIN_INTERVAL_US	1000
#define J_MIN_INTERVAL_US_MAX	USEC_PER_SEC

static unsigned int alpha_permille __read_mostly = J_ALPHA_PERMILLE;
static unsigned int min_interval_us __read_mostly = J_MIN_INTERVAL_US;
static unsigned int clamp_decrease __read_mostly = 1;

/**
 * struct j - per-socket state; all zero means: nothing known, nothing pending
 * @abe: the estimator
 * @start_us: tcp_mstamp at which the open sample began; 0: none is open
 * @start_delivered: tp->delivered at that moment, segments
 * @target_segs: target of the decision in progress
 * @cwnd_segs: cwnd at that decision
 * @ssthresh_segs: ssthresh before that decision
 * @app_limited: the open sample saw the sender short of data
 * @asked: the kernel asked for ssthresh and has not yet said what for
 * @what: enum j_case of the repair in progress, J_CASE_FALLBACK when none is
 */
struct j {
	struct abe abe;
	u64	start_us;
	u32	start_delivered;
	u32	target_segs;
	u32	cwnd_segs;
	u32	ssthresh_segs;
	bool	app_limited;
	bool	asked;
	u8	what;
};

/**
 * j_bw_Bps() - BW as every decision sees it
 * @j: private state
 *
 * The one place where something that knows better than ABE can have a say.
 *
 * Return: byte/s, 0 when nothing is known.
 */
static u64 j_bw_Bps(const struct j *j)
{
	return abe_bw_Bps(&j->abe);
}

/**
 * j_target_segs() - BW * RTTmin / segment size
 * @sk: socket
 *
 * Return: segments, 0 while BW or RTTmin is unknown.
 */
static u32 j_target_segs(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 bw_Bps = j_bw_Bps(inet_csk_ca(sk));
	u32 rtt_us = tcp_min_rtt(tp);

	if (!bw_Bps || rtt_us == ~0U)
		return 0;
	return abe_target_segs(bw_Bps, rtt_us, tp->mss_cache,
			       tp->snd_cwnd_clamp);
}

static void j_open_sample(const struct tcp_sock *tp, struct j *j)
{
	j->start_us = tp->tcp_mstamp;
	j->start_delivered = tp->delivered;
	j->app_limited = false;
}

/*
 * Out of line and with what the fast path has at hand, so that an ACK pays one
 * untaken branch for being traceable and no memory for the record.
 */
static noinline void j_trace_sample(const struct sock *sk, u64 bytes, u32 dt_us,
				    u64 prev_Bps, u32 alpha, bool used)
{
	const struct j *j = inet_csk_ca(sk);
	const struct j_sample s = {
		.bytes = bytes,
		.sample_Bps = abe_sample_Bps(bytes, dt_us),
		.prev_Bps = prev_Bps,
		.dt_us = dt_us,
		.alpha_permille = alpha,
		.app_limited = j->app_limited,
		.used = used,
	};

	trace_j_abe(sk, &s, &j->abe, j_target_segs(sk));
}

/**
 * j_close_sample() - the interval is long enough: eq. (8) and (9)
 * @sk: socket
 * @j: private state, with an open sample and new deliveries in it
 * @dt_us: time since the sample began, at least 1
 */
static __always_inline void j_close_sample(struct sock *sk, struct j *j,
					   u64 dt_us)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 bytes, sample_Bps, prev_Bps = j->abe.prev_Bps, bw_q8;
	u32 alpha = READ_ONCE(alpha_permille);
	bool used = true;

	/*
	 * Differences 4 and 5.  The retransmission timeout is never below
	 * RTTmin, so one comparison spares most ACKs its conversion.  Past
	 * these lines dt_us fits into 32 bits.
	 */
	if (dt_us < tcp_min_rtt(tp)) {
		if (unlikely(j->app_limited))
			return;
	} else if (dt_us > jiffies_to_usecs(inet_csk(sk)->icsk_rto)) {
		j_open_sample(tp, j);
		return;
	}

	/* Segments below 2^32, mss_cache below 2^16: the product fits. */
	bytes = (u64)(tp->delivered - j->start_delivered) * tp->mss_cache;
	sample_Bps = abe_sample_Bps(bytes, dt_us);
	bw_q8 = abe_filter_q8(&j->abe, sample_Bps, alpha);
	if (unlikely(j->app_limited))
		used = bw_q8 > j->abe.bw_q8;
	if (likely(used)) {
		/* Pairs with j_get_info(), which holds no lock. */
		WRITE_ONCE(j->abe.bw_q8, bw_q8);
		j->abe.prev_Bps = sample_Bps;
	}
	if (trace_j_abe_enabled())
		j_trace_sample(sk, bytes, dt_us, prev_Bps, alpha, used);
	j_open_sample(tp, j);
}

/**
 * j_pkts_acked() - an ACK has been processed
 * @sk: socket
 * @sample: what it acknowledged; tp->delivered says it better
 *
 * Of the hooks that see every ACK this is the one to use.  It comes after the
 * scoreboard and tp->delivered are brought up to date and RTTmin has seen the
 * ACK, and before this ACK can raise a loss; in_ack_event stands before all
 * that on older kernels, and cong_avoid is not called during a repair.
 */
static void j_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct j *j = inet_csk_ca(sk);
	u64 dt_us;

	if (unlikely(!j->start_us)) {
		j_open_sample(tp, j);
		return;
	}
	if (unlikely(tp->app_limited))
		j->app_limited = true;
	dt_us = tp->tcp_mstamp - j->start_us;
	/* A knob of 0 means every ACK that time has passed for. */
	if (!dt_us || dt_us < READ_ONCE(min_interval_us))
		return;
	if (tp->delivered != j->start_delivered)
		j_close_sample(sk, j, dt_us);
}

/**
 * j_ssthresh() - the kernel reacts to a loss or a mark
 * @sk: socket
 *
 * Called on the way to Recovery, CWR or Loss; which of them is known only in
 * j_set_state(), which follows at once and may correct the answer.  Also called
 * for a lost SYN, before j_init().
 *
 * Return: the new ssthresh in segments.
 */
static u32 j_ssthresh(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct j *j = inet_csk_ca(sk);
	struct j_windows w;

	j->asked = true;
	j->what = J_CASE_FALLBACK;
	j->cwnd_segs = tcp_snd_cwnd(tp);
	j->ssthresh_segs = tp->snd_ssthresh;
	j->target_segs = j_target_segs(sk);
	if (!j->target_segs)
		return tcp_reno_ssthresh(sk);
	w = j_decide(j_loss_case(j->cwnd_segs, j->ssthresh_segs),
		     j->target_segs, j->cwnd_segs, READ_ONCE(clamp_decrease));
	return w.recovery_segs;
}

/**
 * j_set_state() - now the kernel says what happened
 * @sk: socket
 * @new_state: TCP_CA_*, not yet in force
 */
static void j_set_state(struct sock *sk, u8 new_state)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct j *j = inet_csk_ca(sk);
	enum j_case what = J_CASE_FALLBACK;

	if (new_state == TCP_CA_Loss) {
		/*
		 * A timeout in the middle of a repair asks for nothing new,
		 * but eq. (6) ends here: cwnd is 1 now.
		 */
		if (j->asked ? j->target_segs : j->what) {
			what = J_CASE_EQ7;
			tp->snd_ssthresh = j->target_segs;
		}
		j->what = J_CASE_FALLBACK;
	} else if (!j->asked) {
		return;
	} else if (!j->target_segs) {
		/* No estimate: all is as Reno would have it. */
	} else if (new_state == TCP_CA_Recovery) {
		what = j_loss_case(j->cwnd_segs, j->ssthresh_segs);
		j->what = what;
	} else if (new_state == TCP_CA_CWR) {
		what = J_CASE_ECN;
		tp->snd_ssthresh = j_decide(what, j->target_segs, j->cwnd_segs,
					    true).recovery_segs;
	}

	if (trace_j_loss_enabled() && (j->asked || what != J_CASE_FALLBACK)) {
		struct j_decision d = {
			.what = what,
			.asked = j->asked,
			.state = new_state,
			.old_ssthresh_segs = j->ssthresh_segs,
			.old_cwnd_segs = j->cwnd_segs,
			.target_segs = j->target_segs,
		};

		trace_j_loss(sk, &d, &j->abe);
	}
	j->asked = false;
}

/**
 * j_repaired() - end of Recovery: eq. (5) and (6) take effect
 * @sk: socket
 *
 * The kernel has just set cwnd to the ssthresh of the repair, unless it found
 * the loss spurious; then undo_marker is gone and so is our business.
 */
static void j_repaired(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct j *j = inet_csk_ca(sk);
	struct j_windows w;
	u8 what = j->what;

	if (what == J_CASE_FALLBACK)
		return;
	j->what = J_CASE_FALLBACK;
	if (!tp->undo_marker)
		return;
	w = j_decide(what, j->target_segs, j->cwnd_segs,
		     READ_ONCE(clamp_decrease));
	tcp_snd_cwnd_set(tp, min(w.cwnd_segs, tp->snd_cwnd_clamp));
	tp->snd_ssthresh = w.ssthresh_segs;
	trace_j_repaired(sk, what);
}

/**
 * j_undo_cwnd() - the loss was none (eq. (5) to (7) taken back)
 * @sk: socket
 *
 * Return: the cwnd from before the decision, or the present one if larger.
 */
static u32 j_undo_cwnd(struct sock *sk)
{
	struct j *j = inet_csk_ca(sk);

	j->what = J_CASE_FALLBACK;
	return tcp_reno_undo_cwnd(sk);
}

/* Difference 4: nothing was in flight, so no ACK could have come. */
static void j_tx_start(struct sock *sk)
{
	struct j *j = inet_csk_ca(sk);

	j->start_us = 0;
}

static void j_other_event(struct sock *sk, enum tcp_ca_event ev)
{
	if (ev == CA_EVENT_COMPLETE_CWR)
		j_repaired(sk);
}

AIRTCP_CWND_EVENT(j_cwnd_event, j_tx_start, j_other_event)

/**
 * j_init() - the socket begins to use TCP-J, at any point of its life
 * @sk: socket
 *
 * Hooks have run before this one if the handshake lost a segment.  A decision
 * of the former algorithm is not ours to complete, and the first ACK opens the
 * first sample.
 */
static void j_init(struct sock *sk)
{
	memset(inet_csk_ca(sk), 0, sizeof(struct j));
}

/* Layout and meaning: see the top.  Called without the socket lock. */
static size_t j_get_info(struct sock *sk, u32 ext, int *attr,
			 union tcp_cc_info *info)
{
	const struct j *j = inet_csk_ca(sk);
	u32 rtt_us = tcp_min_rtt(tcp_sk(sk));
	u64 bw_Bps = READ_ONCE(j->abe.bw_q8) >> ABE_Q;

	/* The request has no bit for BBR's layout; Vegas's stands for it. */
	if (!(ext & (1 << (INET_DIAG_VEGASINFO - 1))) || !bw_Bps)
		return 0;
	memset(&info->bbr, 0, sizeof(info->bbr));
	info->bbr.bbr_bw_lo = lower_32_bits(bw_Bps);
	info->bbr.bbr_bw_hi = upper_32_bits(bw_Bps);
	info->bbr.bbr_min_rtt = rtt_us;
	*attr = INET_DIAG_BBRINFO;
	return sizeof(info->bbr);
}

static struct tcp_congestion_ops tcp_j __read_mostly = {
	.name		= "j",
	.owner		= THIS_MODULE,
	.init		= j_init,
	.ssthresh	= j_ssthresh,
	.cong_avoid	= tcp_reno_cong_avoid,
	.set_state	= j_set_state,
	.pkts_acked	= j_pkts_acked,
	.undo_cwnd	= j_undo_cwnd,
	.get_info	= j_get_info,
	AIRTCP_CWND_EVENT_OPS(j_cwnd_event, j_tx_start),
};

/* Sockets read the knobs without a lock; a bad value is refused, not clipped. */
static int j_set_knob(const char *val, const struct kernel_param *kp,
		      unsigned int max)
{
	unsigned int value;
	int err = kstrtouint(val, 0, &value);

	if (err)
		return err;
	if (value > max)
		return -ERANGE;
	WRITE_ONCE(*(unsigned int *)kp->arg, value);
	return 0;
}

static int j_set_alpha(const char *val, const struct kernel_param *kp)
{
	return j_set_knob(val, kp, J_ALPHA_PERMILLE_MAX);
}

static int j_set_interval(const char *val, const struct kernel_param *kp)
{
	return j_set_knob(val, kp, J_MIN_INTERVAL_US_MAX);
}

static int j_set_flag(const char *val, const struct kernel_param *kp)
{
	return j_set_knob(val, kp, 1);
}

static const struct kernel_param_ops j_alpha_ops = {
	.set = j_set_alpha,
	.get = param_get_uint,
};

static const struct kernel_param_ops j_interval_ops = {
	.set = j_set_interval,
	.get = param_get_uint,
};

static const struct kernel_param_ops j_flag_ops = {
	.set = j_set_flag,
	.get = param_get_uint,
};

module_param_cb(alpha_permille, &j_alpha_ops, &alpha_permille, 0644);
MODULE_PARM_DESC(alpha_permille,
		 "weight of past bandwidth samples, 1/1000 (default 900, range 0 to 999)");
module_param_cb(min_interval_us, &j_interval_ops, &min_interval_us, 0644);
MODULE_PARM_DESC(min_interval_us,
		 "shortest bandwidth sample, us (default 1000, range 0 to 1000000; 0: one per ACK)");
module_param_cb(clamp_decrease, &j_flag_ops, &clamp_decrease, 0644);
MODULE_PARM_DESC(clamp_decrease,
		 "1: a loss never raises cwnd at once, 0: as in the paper (default 1)");

static int __init j_register(void)
{
	BUILD_BUG_ON(sizeof(struct j) > ICSK_CA_PRIV_SIZE);
	BUILD_BUG_ON(J_ALPHA_PERMILLE_MAX >= ABE_PERMILLE);
	return tcp_register_congestion_control(&tcp_j);
}

static void __exit j_unregister(void)
{
	tcp_unregister_congestion_control(&tcp_j);
}

module_init(j_register);
module_exit(j_unregister);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("TCP-J: congestion control for paths with a lossy wireless link");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
