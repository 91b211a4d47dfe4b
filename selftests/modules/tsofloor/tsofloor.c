// SPDX-License-Identifier: GPL-2.0
/*
 * tsofloor: a floor for bursts, as an algorithm of ours would set it.  For tests
 * only: does AIRTCP_TSO_FLOOR() of kcompat.h mean the same in all kernels?
 *
 *	insmod tsofloor.ko rate_Bps=20000000 floor_segs=2
 *	... a flow with congestion control "tsofloor"; look at its packets ...
 *
 * It grows as Reno does, paces at rate_Bps, and asks for bursts of at least
 * floor_segs.  Built for a stock kernel it is nothing but a user of the macros.
 *
 * Built against the headers of a tree with BBRv3 (tso_segs in the place of
 * min_tso_segs) it plays that tree inside a stock kernel: the stock kernel calls
 * the hook without mss_now, then sends
 *	min(max(own burst, answer), sk_gso_max_segs)
 * so, with sk_gso_max_segs set to the answer, just what a tree with BBRv3 sends.
 * The result must be that of the stock build.  naive=1 leaves kcompat.h out and
 * hands the floor straight to tso_segs: the mistake that the macros are for.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/moduleparam.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>

static unsigned int rate_Bps = 20000000;
module_param(rate_Bps, uint, 0444);
MODULE_PARM_DESC(rate_Bps, "pacing rate, byte/s (default 20000000)");

static unsigned int floor_segs = 2;
module_param(floor_segs, uint, 0444);
MODULE_PARM_DESC(floor_segs, "least segments in a burst (default 2)");

static u32 tsofloor_least(struct sock *sk)
{
	WRITE_ONCE(sk->sk_pacing_rate, rate_Bps);
	return floor_segs;
}

AIRTCP_TSO_FLOOR(tsofloor_hook, tsofloor_least)

#if AIRTCP_HAVE_TSO_SEGS
static bool naive;
module_param(naive, bool, 0444);
MODULE_PARM_DESC(naive, "give the floor as the burst (default 0)");

/* mss_now is whatever the register held: see the top. */
static u32 tsofloor_played(struct sock *sk, unsigned int mss_now)
{
	u32 segs = naive ? tsofloor_least(sk) :
			   tsofloor_hook(sk, tcp_sk(sk)->mss_cache);

	sk->sk_gso_max_segs = segs;
	return segs;
}

#define TSOFLOOR_HOOK	tsofloor_played
#else
#define TSOFLOOR_HOOK	tsofloor_hook
#endif

static void tsofloor_init(struct sock *sk)
{
	cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE, SK_PACING_NEEDED);
}

static struct tcp_congestion_ops tsofloor __read_mostly = {
	.name		= "tsofloor",
	.owner		= THIS_MODULE,
	.init		= tsofloor_init,
	.ssthresh	= tcp_reno_ssthresh,
	.cong_avoid	= tcp_reno_cong_avoid,
	.undo_cwnd	= tcp_reno_undo_cwnd,
	AIRTCP_TSO_FLOOR_OPS(TSOFLOOR_HOOK),
};

static int __init tsofloor_register(void)
{
	return tcp_register_congestion_control(&tsofloor);
}

static void __exit tsofloor_unregister(void)
{
	tcp_unregister_congestion_control(&tsofloor);
}

module_init(tsofloor_register);
module_exit(tsofloor_unregister);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("a floor for bursts, for tests");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
