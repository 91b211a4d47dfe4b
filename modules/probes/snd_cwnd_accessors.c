// SPDX-License-Identifier: GPL-2.0
// what: tcp_snd_cwnd(), tcp_snd_cwnd_set(), 5.19
// absent: implicit declaration of function|undeclared (identifier|function)
#include <net/tcp.h>

static void __maybe_unused airtcp_probe(struct tcp_sock *tp)
{
	tcp_snd_cwnd_set(tp, tcp_snd_cwnd(tp));
}
