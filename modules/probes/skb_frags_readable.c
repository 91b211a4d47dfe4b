// SPDX-License-Identifier: GPL-2.0
// what: skb_frags_readable(), device memory in packets, 6.12
// absent: implicit declaration of function|undeclared (identifier|function)
#include <linux/skbuff.h>

static bool __maybe_unused airtcp_probe(const struct sk_buff *skb)
{
	return skb_frags_readable(skb);
}
