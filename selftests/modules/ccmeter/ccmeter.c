// SPDX-License-Identifier: GPL-2.0
/*
 * ccmeter: what the hooks of a congestion control cost.  For tests only.
 *
 *	insmod ccmeter.ko target=westwood
 *	... run flows with congestion control "meter" ...
 *	cat /sys/module/ccmeter/parameters/report
 *	echo 1 > /sys/module/ccmeter/parameters/reset
 *
 * It registers the congestion control "meter", which behaves as the target:
 * its ops are a copy of the target's, with each hook on the path of data
 * replaced by one that reads the clock, calls the target, and reads the clock
 * again.  Hooks that the target lacks stay absent, and its flags are kept.  The
 * private area needs no care: it belongs to the socket.
 *
 * The clock is get_cycles().  In the laboratory's virtual time one instruction
 * is one nanosecond and one cycle, so a difference is a count of instructions;
 * on real hardware it is what the cycle counter of the machine says.  The cost
 * of reading the clock and of calling and leaving an empty hook in the same way
 * is measured at load time and subtracted, so what remains is what the hook
 * itself does.  Interrupts are off between the readings, so that nothing else
 * is counted.
 *
 * report: one line "target NAME overhead CYCLES acks N", then one line
 * "HOOK CALLS CYCLES" for each hook that was called; cycles are net.  acks
 * counts ACKs as in_ack_event sees them, on sockets that have sent data; if the
 * target has no such hook, one is added that only counts and whose time is not
 * counted.
 *
 * Not measured: init, release and get_info, which do not run for ACKs.  A
 * target that exchanges the socket's ops in its init (dctcp without ECN) leaves
 * the meter unnoticed: acks stays 0.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/net.h>
#include <linux/percpu.h>
#include <linux/stringify.h>
#include <linux/timex.h>
#include <net/net_namespace.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>

enum meter_hook {
	M_SSTHRESH,
	M_CONG_AVOID,
	M_SET_STATE,
	M_CWND_EVENT,
	M_TX_START,
	M_IN_ACK_EVENT,
	M_PKTS_ACKED,
	M_TSO_SEGS,
	M_CONG_CONTROL,
	M_UNDO_CWND,
	M_SNDBUF_EXPAND,
	M_HOOKS
};

static const char *const meter_names[M_HOOKS] = {
	[M_SSTHRESH]		= "ssthresh",
	[M_CONG_AVOID]		= "cong_avoid",
	[M_SET_STATE]		= "set_state",
	[M_CWND_EVENT]		= "cwnd_event",
	[M_TX_START]		= "cwnd_event_tx_start",
	[M_IN_ACK_EVENT]	= "in_ack_event",
	[M_PKTS_ACKED]		= "pkts_acked",
	[M_TSO_SEGS]		= __stringify(AIRTCP_TSO_HOOK),
	[M_CONG_CONTROL]	= "cong_control",
	[M_UNDO_CWND]		= "undo_cwnd",
	[M_SNDBUF_EXPAND]	= "sndbuf_expand",
};

/**
 * struct meter_totals - what one CPU has counted
 * @calls: calls of each hook
 * @cycles: gross cycles of each hook
 * @acks: calls of in_ack_event on senders, also if the target has none
 */
struct meter_totals {
	u64	calls[M_HOOKS];
	u64	cycles[M_HOOKS];
	u64	acks;
};

static DEFINE_PER_CPU(struct meter_totals, meter_totals);
static struct tcp_congestion_ops meter_target;
static struct tcp_congestion_ops meter_ops;
static struct module *meter_owner;
static u64 meter_overhead;

static char target[TCP_CA_NAME_MAX];
module_param_string(target, target, sizeof(target), 0444);
MODULE_PARM_DESC(target, "name of the congestion control to measure (required)");

static __always_inline cycles_t meter_begin(unsigned long *flags)
{
	local_irq_save(*flags);
	return get_cycles();
}

static __always_inline void meter_end(enum meter_hook hook, cycles_t begin,
				      unsigned long flags)
{
	cycles_t end = get_cycles();

	__this_cpu_add(meter_totals.cycles[hook], end - begin);
	__this_cpu_inc(meter_totals.calls[hook]);
	local_irq_restore(flags);
}

static u32 meter_ssthresh(struct sock *sk)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);
	u32 ret = meter_target.ssthresh(sk);

	meter_end(M_SSTHRESH, begin, flags);
	return ret;
}

static void meter_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	meter_target.cong_avoid(sk, ack, acked);
	meter_end(M_CONG_AVOID, begin, flags);
}

static void meter_set_state(struct sock *sk, u8 new_state)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	meter_target.set_state(sk, new_state);
	meter_end(M_SET_STATE, begin, flags);
}

static void meter_in_ack_event(struct sock *sk, u32 ack_flags)
{
	unsigned long flags;
	cycles_t begin;

	/* A mere receiver is asked too, for ACKs that cover nothing new. */
	if (!tcp_sk(sk)->data_segs_out) {
		if (meter_target.in_ack_event)
			meter_target.in_ack_event(sk, ack_flags);
		return;
	}
	this_cpu_inc(meter_totals.acks);
	if (!meter_target.in_ack_event)
		return;
	begin = meter_begin(&flags);
	meter_target.in_ack_event(sk, ack_flags);
	meter_end(M_IN_ACK_EVENT, begin, flags);
}

static void meter_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	meter_target.pkts_acked(sk, sample);
	meter_end(M_PKTS_ACKED, begin, flags);
}

static u32 meter_tso(struct sock *sk, unsigned int mss_now)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);
	u32 ret = airtcp_call_tso_hook(&meter_target, sk, mss_now);

	meter_end(M_TSO_SEGS, begin, flags);
	return ret;
}

AIRTCP_TSO_SHIM(meter_tso_segs, meter_tso)

static void meter_control(struct sock *sk, u32 ack, int flag,
			  const struct rate_sample *rs)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	airtcp_call_cong_control(&meter_target, sk, ack, flag, rs);
	meter_end(M_CONG_CONTROL, begin, flags);
}

AIRTCP_CONG_CONTROL(meter_cong_control, meter_control)

static u32 meter_undo_cwnd(struct sock *sk)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);
	u32 ret = meter_target.undo_cwnd(sk);

	meter_end(M_UNDO_CWND, begin, flags);
	return ret;
}

static u32 meter_sndbuf_expand(struct sock *sk)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);
	u32 ret = meter_target.sndbuf_expand(sk);

	meter_end(M_SNDBUF_EXPAND, begin, flags);
	return ret;
}

/* Kept apart from other events, since it comes with each burst of data. */
static void meter_tx_start(struct sock *sk)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	airtcp_call_tx_start(&meter_target, sk);
	meter_end(M_TX_START, begin, flags);
}

static void meter_other_event(struct sock *sk, enum tcp_ca_event ev)
{
	unsigned long flags;
	cycles_t begin = meter_begin(&flags);

	meter_target.cwnd_event(sk, ev);
	meter_end(M_CWND_EVENT, begin, flags);
}

AIRTCP_CWND_EVENT(meter_cwnd_event, meter_tx_start, meter_other_event)

static const struct tcp_congestion_ops meter_hooks = {
	.ssthresh	= meter_ssthresh,
	.cong_avoid	= meter_cong_avoid,
	.set_state	= meter_set_state,
	.in_ack_event	= meter_in_ack_event,
	.pkts_acked	= meter_pkts_acked,
	.AIRTCP_TSO_HOOK = meter_tso_segs,
	.cong_control	= meter_cong_control,
	.undo_cwnd	= meter_undo_cwnd,
	.sndbuf_expand	= meter_sndbuf_expand,
	AIRTCP_CWND_EVENT_OPS(meter_cwnd_event, meter_tx_start),
};

static u64 meter_net(enum meter_hook hook, u64 calls, u64 cycles)
{
	u64 overhead = calls * meter_overhead;

	return cycles > overhead ? cycles - overhead : 0;
}

static int meter_report(char *buf, const struct kernel_param *kp)
{
	struct meter_totals sum = { };
	int cpu, i, len;

	for_each_possible_cpu(cpu) {
		const struct meter_totals *t = per_cpu_ptr(&meter_totals, cpu);

		sum.acks += t->acks;
		for (i = 0; i < M_HOOKS; i++) {
			sum.calls[i] += t->calls[i];
			sum.cycles[i] += t->cycles[i];
		}
	}
	len = sysfs_emit(buf, "target %s overhead %llu acks %llu\n", target,
			 meter_overhead, sum.acks);
	for (i = 0; i < M_HOOKS; i++)
		if (sum.calls[i])
			len += sysfs_emit_at(buf, len, "%s %llu %llu\n",
					     meter_names[i], sum.calls[i],
					     meter_net(i, sum.calls[i],
						       sum.cycles[i]));
	return len;
}

/* Counters of other CPUs are cleared under them; reset between flows. */
static int meter_reset(const char *val, const struct kernel_param *kp)
{
	int cpu;

	for_each_possible_cpu(cpu)
		memset(per_cpu_ptr(&meter_totals, cpu), 0,
		       sizeof(struct meter_totals));
	return 0;
}

static const struct kernel_param_ops meter_report_ops = {
	.get = meter_report,
};

static const struct kernel_param_ops meter_reset_ops = {
	.set = meter_reset,
};

module_param_cb(report, &meter_report_ops, NULL, 0444);
MODULE_PARM_DESC(report, "totals: acks, then name, calls and net cycles per hook");
module_param_cb(reset, &meter_reset_ops, NULL, 0200);
MODULE_PARM_DESC(reset, "write anything to set all totals to zero");

static void meter_empty(struct sock *sk, const struct ack_sample *sample)
{
}

/* The smallest of many: an empty hook through the very code that measures. */
static u64 __init meter_calibrate(void)
{
	u64 best = U64_MAX;
	int i;

	meter_target.pkts_acked = meter_empty;
	for (i = 0; i < 1000; i++) {
		u64 before, took;

		preempt_disable();
		before = this_cpu_read(meter_totals.cycles[M_PKTS_ACKED]);
		meter_pkts_acked(NULL, NULL);
		took = this_cpu_read(meter_totals.cycles[M_PKTS_ACKED]) - before;
		preempt_enable();
		best = min(best, took);
	}
	meter_reset(NULL, NULL);
	return best;
}

/**
 * meter_find() - copy the target's ops and hold its module
 *
 * The kernel exports no look-up by name, but a socket that uses the target
 * points to its ops.
 *
 * Return: 0 or a negative error code.
 */
static int __init meter_find(void)
{
	const struct tcp_congestion_ops *ops;
	struct socket *sock;
	int err;

	err = sock_create_kern(&init_net, AF_INET, SOCK_STREAM, IPPROTO_TCP,
			       &sock);
	if (err)
		return err;
	err = sock->ops->setsockopt(sock, SOL_TCP, TCP_CONGESTION,
				    KERNEL_SOCKPTR(target), strlen(target));
	if (err) {
		pr_err("no congestion control '%s'\n", target);
		goto out;
	}
	ops = inet_csk(sock->sk)->icsk_ca_ops;
	if (!try_module_get(ops->owner)) {
		err = -ENOENT;
		goto out;
	}
	meter_owner = ops->owner;
	meter_target = *ops;
out:
	sock_release(sock);
	return err;
}

/* Installs a thunk wherever the target has a hook. */
#define METER_WRAP(hook)						\
do {									\
	if (meter_target.hook)						\
		meter_ops.hook = meter_hooks.hook;			\
} while (0)

static int __init meter_init(void)
{
	int err;

	if (!target[0] || !strcmp(target, "meter")) {
		pr_err("target=NAME is required and names another algorithm\n");
		return -EINVAL;
	}
	meter_overhead = meter_calibrate();
	err = meter_find();
	if (err)
		return err;

	/* The copy brings init, release, get_info and the flags along. */
	meter_ops = meter_target;
	memset(&meter_ops.list, 0, sizeof(meter_ops.list));
	strscpy(meter_ops.name, "meter", sizeof(meter_ops.name));
	meter_ops.owner = THIS_MODULE;
	METER_WRAP(ssthresh);
	METER_WRAP(cong_avoid);
	METER_WRAP(set_state);
	METER_WRAP(pkts_acked);
	METER_WRAP(AIRTCP_TSO_HOOK);
	METER_WRAP(cong_control);
	METER_WRAP(undo_cwnd);
	METER_WRAP(sndbuf_expand);
	METER_WRAP(cwnd_event);
	AIRTCP_WRAP_TX_START(METER_WRAP);
	meter_ops.in_ack_event = meter_in_ack_event;

	err = tcp_register_congestion_control(&meter_ops);
	if (err)
		module_put(meter_owner);
	return err;
}

static void __exit meter_exit(void)
{
	tcp_unregister_congestion_control(&meter_ops);
	module_put(meter_owner);
}

module_init(meter_init);
module_exit(meter_exit);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("measures the hooks of a TCP congestion control, for tests");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
