// SPDX-License-Identifier: GPL-2.0
// what: cong_control(sk, ack, flag, rs), 6.10
// absent: airtcp-absent
#include <net/tcp.h>

typedef void (*four_args)(struct sock *sk, u32 ack, int flag,
			  const struct rate_sample *rs);
#define THE_HOOK	typeof(((struct tcp_congestion_ops *)0)->cong_control)

_Static_assert(__builtin_types_compatible_p(four_args, THE_HOOK),
	       "airtcp-absent");
