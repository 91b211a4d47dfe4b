// SPDX-License-Identifier: GPL-2.0
/*
 * "imtcp": Reno that measures its path; "imtcp_bg": Reno that stays behind
 *
 * imtcp is the TCP of the ImTCP papers: Reno's window, to which the inline
 * measurement of measure.c is added.  The measurement decides nothing.
 *
 * imtcp_bg is ImTCP-bg, background transfer: it takes what others leave.
 *
 *	Abar_i = (1 - gamma) * Abar_{i-1} + gamma * A_i
 *	cwnd  <= Abar * RTTmin
 *	RTT > delta * RTTmin:  cwnd = cwnd * RTTmin / RTT
 *
 * The second rule is the safety net for wrong results: a longer RTT means a
 * queue, whoever made it.
 *
 *	Tsugawa, Hasegawa, Murata: "Background TCP data transfer with inline
 *	network measurement", APCC 2005 (of which only the abstract could be had).
 *
 * imtcp_bg is RECONSTRUCTED: the rules are third-party knowledge of that paper,
 * gamma = 0.12 and delta = 1.30 are the FreeBSD package's "12" and "130" in the
 * units that make sense, and these are decided here:
 *
 *  1. RTT is the smoothed RTT, and the second rule is applied once an RTT: each
 *     application needs a round trip to show.
 *  2. Growth below the limit is Reno's.
 *  3. Abar starts with the first result; before that only rule two holds.
 *     After a timeout the measurement and Abar start again.
 *  4. cwnd never falls below 2.
 *
 * Knobs, beside those of measure.c, in /sys/module/imtcp/parameters:
 *
 *  bg_gamma_permille	weight of a new result, 1/1000
 *  bg_delta_permille	RTT over RTTmin that means a queue, 1/1000
 *
 * What stock "ss -ti" shows: "bbr:(bw:...,mrtt:...)", the only layout of the
 * three it knows that has fields which are true here.  bw is A as measured last, on the
 * wire (imtcp_bg: Abar), mrtt is RTTmin in ms.  Nothing before the first result.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/inet_diag.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <net/tcp.h>
#include <airtcp/imtcp.h>
#include <airtcp/kcompat.h>

#define BG_PERMILLE	1000
#define BG_GAMMA	120
#define BG_DELTA	1300
#define BG_DELTA_MAX	10000
#define BG_MIN_CWND	2U

static unsigned int bg_gamma_permille __read_mostly = BG_GAMMA;
static unsigned int bg_delta_permille __read_mostly = BG_DELTA;

/**
 * struct imcc - per-socket state; all zero: nothing is known
 * @im: the measurement; NULL without memory, then this is Reno
 * @shown_kbps: what get_info shows, read without a lock
 * @limit_kbps: Abar
 * @next_cut_us: tcp_mstamp before which rule two rests
 */
struct imcc {
	struct imtcp *im;
	u32	shown_kbps;
	u32	limit_kbps;
	u64	next_cut_us;
};

static void imcc_init(struct sock *sk)
{
	struct imcc *cc = inet_csk_ca(sk);

	memset(cc, 0, sizeof(*cc));
	cc->im = imtcp_attach(sk);
}

static void imcc_release(struct sock *sk)
{
	struct imcc *cc = inet_csk_ca(sk);

	imtcp_detach(sk, cc->im);
	/* A socket may be released twice (tcp_disconnect under MPTCP). */
	cc->im = NULL;
}

static u32 imcc_before_xmit(struct sock *sk)
{
	const struct imcc *cc = inet_csk_ca(sk);

	return imtcp_before_xmit(sk, cc->im);
}

AIRTCP_TSO_FLOOR(imcc_tso_floor, imcc_before_xmit)

static void imcc_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct imcc *cc = inet_csk_ca(sk);
	struct imtcp_result r;

	if (imtcp_acked(sk, cc->im, sample) && imtcp_get(sk, cc->im, &r))
		WRITE_ONCE(cc->shown_kbps, r.avail_kbps);
}

static void imcc_set_state(struct sock *sk, u8 new_state)
{
	const struct imcc *cc = inet_csk_ca(sk);

	imtcp_state_changed(sk, cc->im, new_state);
}

static void imcc_tx_start(struct sock *sk)
{
	const struct imcc *cc = inet_csk_ca(sk);

	imtcp_idle(sk, cc->im);
}

static void imcc_other_event(struct sock *sk, enum tcp_ca_event ev)
{
}

AIRTCP_CWND_EVENT(imcc_cwnd_event, imcc_tx_start, imcc_other_event)

/* Layout and meaning: see the top.  Called without the socket lock. */
static size_t imcc_get_info(struct sock *sk, u32 ext, int *attr,
			    union tcp_cc_info *info)
{
	const struct imcc *cc = inet_csk_ca(sk);
	u64 bw_Bps = (u64)READ_ONCE(cc->shown_kbps) * 125;

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

/* Background mode ------------------------------------------------------------ */

static void bg_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct imcc *cc = inet_csk_ca(sk);
	u32 gamma = READ_ONCE(bg_gamma_permille);
	struct imtcp_result r;

	if (!imtcp_acked(sk, cc->im, sample) || !imtcp_get(sk, cc->im, &r))
		return;
	if (cc->limit_kbps)
		cc->limit_kbps = div_u64((u64)cc->limit_kbps *
					 (BG_PERMILLE - gamma) +
					 (u64)r.avail_kbps * gamma,
					 BG_PERMILLE);
	else
		cc->limit_kbps = r.avail_kbps;
	WRITE_ONCE(cc->shown_kbps, cc->limit_kbps);
}

static void bg_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct imcc *cc = inet_csk_ca(sk);
	u32 min_us = tcp_min_rtt(tp), srtt_us = tp->srtt_us >> 3;
	u32 cwnd;

	tcp_reno_cong_avoid(sk, ack, acked);
	if (!cc->im || min_us == ~0U)
		return;
	cwnd = tcp_snd_cwnd(tp);
	if (cc->limit_kbps)
		cwnd = min(cwnd, imtcp_kbps_to_segs(sk, cc->limit_kbps,
						    min_us));
	if (tp->tcp_mstamp >= cc->next_cut_us &&
	    (u64)srtt_us * BG_PERMILLE >
	    (u64)min_us * READ_ONCE(bg_delta_permille)) {
		cwnd = div_u64((u64)cwnd * min_us, srtt_us);
		cc->next_cut_us = tp->tcp_mstamp + srtt_us;
	}
	cwnd = max(cwnd, BG_MIN_CWND);
	if (cwnd >= tcp_snd_cwnd(tp))
		return;
	/* Without this slow start would undo it at once. */
	tp->snd_ssthresh = min(tp->snd_ssthresh, cwnd);
	tcp_snd_cwnd_set(tp, cwnd);
}

static void bg_set_state(struct sock *sk, u8 new_state)
{
	struct imcc *cc = inet_csk_ca(sk);

	imtcp_state_changed(sk, cc->im, new_state);
	if (new_state != TCP_CA_Loss)
		return;
	imtcp_discard(sk, cc->im);
	cc->limit_kbps = 0;
	WRITE_ONCE(cc->shown_kbps, 0);
}

static struct tcp_congestion_ops tcp_imtcp __read_mostly = {
	.name		= "imtcp",
	.owner		= THIS_MODULE,
	.init		= imcc_init,
	.release	= imcc_release,
	.ssthresh	= tcp_reno_ssthresh,
	.cong_avoid	= tcp_reno_cong_avoid,
	.set_state	= imcc_set_state,
	.pkts_acked	= imcc_pkts_acked,
	.undo_cwnd	= tcp_reno_undo_cwnd,
	.get_info	= imcc_get_info,
	AIRTCP_TSO_FLOOR_OPS(imcc_tso_floor),
	AIRTCP_CWND_EVENT_OPS(imcc_cwnd_event, imcc_tx_start),
};

static struct tcp_congestion_ops tcp_imtcp_bg __read_mostly = {
	.name		= "imtcp_bg",
	.owner		= THIS_MODULE,
	.init		= imcc_init,
	.release	= imcc_release,
	.ssthresh	= tcp_reno_ssthresh,
	.cong_avoid	= bg_cong_avoid,
	.set_state	= bg_set_state,
	.pkts_acked	= bg_pkts_acked,
	.undo_cwnd	= tcp_reno_undo_cwnd,
	.get_info	= imcc_get_info,
	AIRTCP_TSO_FLOOR_OPS(imcc_tso_floor),
	AIRTCP_CWND_EVENT_OPS(imcc_cwnd_event, imcc_tx_start),
};

static int bg_set_knob(const char *val, const struct kernel_param *kp,
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

static int bg_set_gamma(const char *val, const struct kernel_param *kp)
{
	return bg_set_knob(val, kp, 1, BG_PERMILLE);
}

static int bg_set_delta(const char *val, const struct kernel_param *kp)
{
	return bg_set_knob(val, kp, BG_PERMILLE, BG_DELTA_MAX);
}

static const struct kernel_param_ops bg_gamma_ops = {
	.set = bg_set_gamma,
	.get = param_get_uint,
};

static const struct kernel_param_ops bg_delta_ops = {
	.set = bg_set_delta,
	.get = param_get_uint,
};

module_param_cb(bg_gamma_permille, &bg_gamma_ops, &bg_gamma_permille, 0644);
MODULE_PARM_DESC(bg_gamma_permille,
		 "imtcp_bg: weight of a new result, 1/1000 (default 120, range 1 to 1000)");
module_param_cb(bg_delta_permille, &bg_delta_ops, &bg_delta_permille, 0644);
MODULE_PARM_DESC(bg_delta_permille,
		 "imtcp_bg: RTT over minimum RTT that means a queue, 1/1000 (default 1300, range 1000 to 10000)");

static int __init imtcp_register(void)
{
	int err;

	BUILD_BUG_ON(sizeof(struct imcc) > ICSK_CA_PRIV_SIZE);
	err = tcp_register_congestion_control(&tcp_imtcp);
	if (err)
		return err;
	err = tcp_register_congestion_control(&tcp_imtcp_bg);
	if (err)
		tcp_unregister_congestion_control(&tcp_imtcp);
	return err;
}

static void __exit imtcp_unregister(void)
{
	tcp_unregister_congestion_control(&tcp_imtcp_bg);
	tcp_unregister_congestion_control(&tcp_imtcp);
}

module_init(imtcp_register);
module_exit(imtcp_unregister);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("ImTCP: inline measurement of capacity and available bandwidth, and TCPs that use it");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
/* What the kernel asks for when a socket wants the algorithm by name. */
MODULE_ALIAS("tcp_imtcp");
MODULE_ALIAS("tcp_imtcp_bg");
