// SPDX-License-Identifier: GPL-2.0
// what: tso_segs(sk, mss_now) instead of min_tso_segs(sk), trees with BBRv3
// absent: no member named [^ ]*tso_segs
#include <net/tcp.h>

typedef u32 (*two_args)(struct sock *sk, unsigned int mss_now);

static void __maybe_unused airtcp_probe(struct tcp_congestion_ops *ops,
					two_args hook)
{
	ops->tso_segs = hook;
}
