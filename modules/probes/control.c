// SPDX-License-Identifier: GPL-2.0
// what: nothing; this one must compile, or no other answer can be trusted
#include <net/tcp.h>
#include <linux/tracepoint.h>

static size_t __maybe_unused airtcp_probe(void)
{
	return offsetof(struct tcp_congestion_ops, cong_avoid);
}
