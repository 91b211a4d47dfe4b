// SPDX-License-Identifier: GPL-2.0
// what: cwnd_event_tx_start(sk), 7.1
// absent: no member named [^ ]*cwnd_event_tx_start
#include <net/tcp.h>

typedef void (*one_arg)(struct sock *sk);

static void __maybe_unused airtcp_probe(struct tcp_congestion_ops *ops,
					one_arg hook)
{
	ops->cwnd_event_tx_start = hook;
}
