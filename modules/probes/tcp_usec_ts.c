// SPDX-License-Identifier: GPL-2.0
// what: TCP timestamps in microseconds, hence tcp_ns_to_ts(usec, ns), 6.7
// absent: no member named [^ ]*tcp_usec_ts
#include <net/tcp.h>

static u32 __maybe_unused airtcp_probe(const struct tcp_sock *tp)
{
	return tp->tcp_usec_ts;
}
