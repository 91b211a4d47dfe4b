// SPDX-License-Identifier: GPL-2.0
/*
 * Supplement segments of TCP-Cherry, on a kernel that knows nothing of them
 *
 * A supplement is new data sent far ahead of its turn in a low-priority packet.
 * TCP sends in sequence, so the stack is told a small lie that its loss
 * recovery then turns into the truth:
 *
 *	claim	Unsent packets leave the write queue for the queue of sent ones,
 *		snd_nxt moves behind them, and they are marked lost (and ever
 *		retransmitted).  They count as outstanding and as lost, hence
 *		not as in flight: snd_cwnd keeps the paper's meaning, a window
 *		of data segments only.
 *	copy	A supplement is a packet of its own: one segment's bytes copied
 *		out of a claimed packet, with a TCP header built here and the
 *		DSCP of the parameter.  The claimed packet stays where it is.
 *	rest	A SACK for a supplement takes the mark away.  Everything between
 *		snd_una and the supplements is lost in the stack's eyes, so it
 *		"retransmits" it, in order, as snd_cwnd allows: that is the
 *		gap filled as ordinary data.  It jumps over what was SACKed and
 *		repairs supplements that did not arrive.
 *
 *	snd_una     ThreshData                SkipData                snd_nxt
 *	   |  lost or  |  gap: claimed, not     |  supplements: claimed,  |
 *	   |  in flight|  sent, "lost"          |  copies sent, "lost"    | unsent
 *	   +-----------+------------------------+-------------------------+----->
 *	               |<------- sigma -------->|<-- tau apart, in time ->|
 *
 * What must hold for a claim, and how it is kept:
 *
 *  1. The socket is in loss recovery while claims are out: else the stack would
 *     send what follows snd_nxt instead of the gap.  Where a phase begins in
 *     state Open it is put into Recovery by hand, with everything that
 *     tcp_enter_recovery() and PRR set up, so that any other algorithm could
 *     take over at this point.  high_seq follows snd_nxt.
 *  2. No undo: taking back a recovery would clear the marks, and data never
 *     sent would count as in flight.  undo_marker is zero while claims are out
 *     (cherry.c repeats that whenever the stack sets it), and so is frto, as
 *     its next step would be to send new data.  After a timeout the
 *     supplements' ACKs say what F-RTO would have.
 *  3. Never beyond the receiver's window, and never a packet with a FIN, an
 *     empty one (somebody sleeps in sendmsg() on it), or a last one shorter
 *     than a segment (more may be appended).
 *  4. RACK and Karn: packets are marked ever retransmitted, so they give no RTT
 *     and no reordering; their time stamp is when the copy left, which orders
 *     them rightly among what is sent.
 *  5. packets_out is not zero before the first claim, so that the retransmission
 *     timer runs.  A pending tail loss probe, which would send what follows
 *     snd_nxt, becomes that timer.
 *
 * After a timeout everything that is out has the same marks as claimed packets,
 * so what was sent or claimed before can be supplements, too.
 *
 * Segments.  The stack cuts a packet of several segments at multiples of its
 * segment size when a part of it is SACKed, so supplements keep to that grid.
 *
 * Where supplements are impossible (cherry_can_supplement()) the connection does
 * plain slow start: without SACK, with MPTCP (an option would be missing), MD5
 * or AO (a signature would), TCP_REPAIR, urgent data, device TLS (the copy would
 * go out as plain text) and other senders with packet validation, payload
 * that cannot be read (device memory), without an RTT, or with a window of zero.
 * A phase is given up when the segment size changes.
 *
 * The timer.  An armed timer owns a reference to the socket, to the module and
 * to struct cherry.  Its function takes the socket's lock as TCP's own timers
 * do; if a process owns the socket it comes back a moment later.  release()
 * marks the state dead and tries to cancel; if the function is running it finds
 * the mark and frees.  Nobody ever waits for the timer.  module_put() before the
 * last instruction is safe, since softirq is an RCU read-side section and
 * unregistering waits for those.
 *
 * A packet's owner.  Supplements hold a plain reference to the socket, not a
 * share of its send buffer: TCP small queues would count them and, unlike for
 * its own packets, not be woken when they leave.
 *
 * The receiver's view.  Out-of-order segments, answered at once with SACKs.  A
 * supplement that overtaken data made old (timestamps, PAWS) is dropped there,
 * which counts as a lost supplement.
 */

#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <net/dsfield.h>
#include <net/inet_ecn.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>
#include <net/ip6_route.h>
#include <net/ipv6.h>
#include <net/mptcp.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>
#include "supplement.h"
#include "cherry_trace.h"

/*
 * A process owns the socket: come back after this long.  Such sections copy
 * some 64 KB, a few ten microseconds.
 */
#define CHERRY_RETRY_NS		(20 * NSEC_PER_USEC)

/*
 * 20 us: full frames at 600 Mbit/s.  Shorter distances would make one softirq
 * after the other, on paths where slow start takes no time anyway.
 */
#define CHERRY_TAU_MIN_NS	(20 * NSEC_PER_USEC)

/*
 * The first flight may be on its way from the application: wait for as long as
 * the write queue grows, at most 1/8 RTT, which is what that could cost.
 */
#define CHERRY_WAIT_SHIFT	3

/* A supplement that is due for something else is passed over; so many at once. */
#define CHERRY_PASS_MAX		64

/* Counters ------------------------------------------------------------------ */

static const char * const cherry_names[CHERRY_N_COUNT] = {
	[CHERRY_N_CLAIMED]	= "ClaimedSegs",
	[CHERRY_N_SUPP_SENT]	= "SupplementsSent",
	[CHERRY_N_SUPP_AGAIN]	= "SupplementsSentAgain",
	[CHERRY_N_SUPP_REPEATED] = "SupplementsRepeated",
	[CHERRY_N_SUPP_ACKED]	= "SupplementsAcked",
	[CHERRY_N_SUPP_LOST]	= "SupplementsLost",
	[CHERRY_N_FFS]		= "FastForwardStarts",
	[CHERRY_N_NEW_FFS]	= "NewFastForwardStarts",
	[CHERRY_N_FAR]		= "FirstAidRecoveries",
	[CHERRY_N_PLAIN]	= "PlainSlowStarts",
};

struct cherry_net {
	atomic64_t count[CHERRY_N_COUNT];
};

static unsigned int cherry_net_id __read_mostly;

void cherry_tally(const struct sock *sk, enum cherry_count what, u32 add)
{
	struct cherry_net *cn = net_generic(sock_net(sk), cherry_net_id);

	if (add)
		atomic64_add(add, &cn->count[what]);
}

static int cherry_counters_show(struct seq_file *seq, void *unused)
{
	struct cherry_net *cn = net_generic(seq_file_single_net(seq),
					    cherry_net_id);
	int i;

	for (i = 0; i < CHERRY_N_COUNT; i++)
		seq_printf(seq, "%s %lld\n", cherry_names[i],
			   (long long)atomic64_read(&cn->count[i]));
	return 0;
}

static int __net_init cherry_net_init(struct net *net)
{
	if (!proc_create_net_single("tcp_cherry", 0444, net->proc_net,
				    cherry_counters_show, NULL))
		return -ENOMEM;
	return 0;
}

static void __net_exit cherry_net_exit(struct net *net)
{
	remove_proc_entry("tcp_cherry", net->proc_net);
}

static struct pernet_operations cherry_net_ops = {
	.init	= cherry_net_init,
	.exit	= cherry_net_exit,
	.id	= &cherry_net_id,
	.size	= sizeof(struct cherry_net),
};

int __init cherry_counters_init(void)
{
	return register_pernet_subsys(&cherry_net_ops);
}

/* Also on the way out of a failed cherry_register(), hence not __exit. */
void cherry_counters_exit(void)
{
	unregister_pernet_subsys(&cherry_net_ops);
}

/* Looking ------------------------------------------------------------------- */

/**
 * cherry_offset() - a sequence number as bytes since the connection's first
 * @sk: socket
 * @seq: sequence number within 2^31 of snd_una
 */
u64 cherry_offset(const struct sock *sk, u32 seq)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return tp->bytes_acked + (s32)(seq - tp->snd_una);
}

/**
 * cherry_rtt_us() - the RTT that sigma and tau are computed with
 * @tp: socket
 *
 * Return: the smoothed RTT in us, 0 while there is none.
 */
u32 cherry_rtt_us(const struct tcp_sock *tp)
{
	return tp->srtt_us >> 3;
}

/* Segments that the stack holds for lost and has not sent again: gap already. */
u32 cherry_due_segs(const struct tcp_sock *tp)
{
	return tp->lost_out > tp->retrans_out ? tp->lost_out - tp->retrans_out :
						0;
}

static bool cherry_signed(const struct tcp_sock *tp)
{
#ifdef CONFIG_TCP_MD5SIG
	if (rcu_access_pointer(tp->md5sig_info))
		return true;
#endif
#ifdef CONFIG_TCP_AO
	if (rcu_access_pointer(tp->ao_info))
		return true;
#endif
	return false;
}

static bool cherry_validates(const struct sock *sk)
{
#ifdef CONFIG_SOCK_VALIDATE_XMIT
	return sk->sk_validate_xmit_skb;
#else
	return false;
#endif
}

/**
 * cherry_can_supplement() - whether this connection can have supplements
 * @sk: socket
 */
bool cherry_can_supplement(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return (1 << sk->sk_state) & (TCPF_ESTABLISHED | TCPF_CLOSE_WAIT |
				      TCPF_FIN_WAIT1 | TCPF_CLOSING |
				      TCPF_LAST_ACK) &&
	       tcp_is_sack(tp) && cherry_rtt_us(tp) && tp->snd_wnd &&
	       tp->snd_una == tp->snd_up && !tp->repair && !sk_is_mptcp(sk) &&
	       !cherry_signed(tp) && !cherry_validates(sk);
}

/* The packet of the queue of sent ones that holds a sequence number, or NULL. */
static struct sk_buff *cherry_find(const struct sock *sk, u32 seq)
{
	struct rb_node *node = sk->tcp_rtx_queue.rb_node;

	while (node) {
		struct sk_buff *skb = rb_to_skb(node);

		if (before(seq, TCP_SKB_CB(skb)->seq))
			node = node->rb_left;
		else if (!before(seq, TCP_SKB_CB(skb)->end_seq))
			node = node->rb_right;
		else
			return skb;
	}
	return NULL;
}

/* The end of what was ever claimed or sent, but for a FIN: it has no byte. */
static u32 cherry_out_end(const struct sock *sk)
{
	const struct sk_buff *last = skb_rb_last(&sk->tcp_rtx_queue);
	u32 end = tcp_sk(sk)->snd_nxt;

	return last && TCP_SKB_CB(last)->tcp_flags & TCPHDR_FIN ? end - 1 : end;
}

/**
 * cherry_newly_acked() - supplements acknowledged since the last call
 * @sk: socket
 * @c: state, with supplements out whose ACKs count
 *
 * A supplement's ACK is known by the SACK mark in the supplements' range.  That
 * holds until the gap is closed: later, repaired ones are among them.  Marked
 * neighbours are merged by the stack, so the walk meets few packets.
 */
u32 cherry_newly_acked(const struct sock *sk, struct cherry *c)
{
	struct tcp_sock *tp = tcp_sk((struct sock *)sk);
	u32 high = tcp_highest_sack_seq(tp), segs = 0, newly;
	struct sk_buff *skb;

	if (!tp->sacked_out || !before(c->skip_seq, high))
		return 0;
	for (skb = cherry_find(sk, c->skip_seq); skb; skb = skb_rb_next(skb)) {
		struct tcp_skb_cb *cb = TCP_SKB_CB(skb);

		if (!before(cb->seq, high) || !before(cb->seq, c->end_seq))
			break;
		if (cb->sacked & TCPCB_SACKED_ACKED)
			segs += tcp_skb_pcount(skb);
	}
	segs = min(segs, c->sent_segs);
	newly = segs > c->acked_segs ? segs - c->acked_segs : 0;
	c->acked_segs += newly;
	cherry_tally(sk, CHERRY_N_SUPP_ACKED, newly);
	return newly;
}

/* Claiming ------------------------------------------------------------------ */

/*
 * Rule 1: what tcp_enter_recovery() does, for a recovery with nothing lost.
 * PRR, should another algorithm take over, needs a window to reduce from.
 */
static void cherry_enter_recovery(struct sock *sk)
{
	struct inet_connection_sock *icsk = inet_csk(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	tp->retrans_stamp = 0;
	tp->prior_ssthresh = 0;
	tp->undo_retrans = -1;
	tp->tlp_high_seq = 0;
	tp->snd_cwnd_cnt = 0;
	tp->prior_cwnd = tcp_snd_cwnd(tp);
	tp->prr_delivered = 0;
	tp->prr_out = 0;
	icsk->icsk_ca_state = TCP_CA_Recovery;
	if (icsk->icsk_pending == ICSK_TIME_LOSS_PROBE)
		inet_csk_reset_xmit_timer(sk, ICSK_TIME_RETRANS,
					  icsk->icsk_rto, TCP_RTO_MAX);
}

/* To the end of the queue of sent packets: this one's bytes are the highest. */
static void cherry_append(struct sock *sk, struct sk_buff *skb)
{
	struct rb_node *last = rb_last(&sk->tcp_rtx_queue);
	struct rb_node **link = last ? &last->rb_right :
				       &sk->tcp_rtx_queue.rb_node;

	rb_link_node(&skb->rbnode, last, link);
	rb_insert_color(&skb->rbnode, &sk->tcp_rtx_queue);
}

/* Rule 2, for all that is out by now. */
static void cherry_no_undo(struct tcp_sock *tp, struct cherry *c)
{
	c->claim_seq = tp->snd_nxt;
	tp->undo_marker = 0;
	tp->frto = 0;
}

/**
 * cherry_claim() - claim the next unsent packet
 * @sk: socket
 * @c: state
 * @now: tcp_clock_ns()
 *
 * Return: the number of segments claimed, 0 if there is nothing to claim.
 */
static u32 cherry_claim(struct sock *sk, struct cherry *c, u64 now)
{
	struct sk_buff *skb = tcp_send_head(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	struct tcp_skb_cb *cb;
	u32 segs;

	if (!skb || !tp->packets_out)
		return 0;
	cb = TCP_SKB_CB(skb);
	/* Rule 3.  A length of zero is below the segment size, too. */
	if (cb->seq != tp->snd_nxt || after(cb->end_seq, tcp_wnd_end(tp)) ||
	    cb->tcp_flags & (TCPHDR_FIN | TCPHDR_SYN) || !skb->len ||
	    (skb->len < c->mss_bytes && tcp_skb_is_last(sk, skb)) ||
	    !airtcp_skb_readable(skb))
		return 0;

	segs = DIV_ROUND_UP(skb->len, c->mss_bytes);
	tcp_skb_pcount_set(skb, segs);
	cb->tcp_gso_size = segs > 1 ? c->mss_bytes : 0;

	__skb_unlink(skb, &sk->sk_write_queue);
	cherry_append(sk, skb);
	skb->skb_mstamp_ns = now;
	list_move_tail(&skb->tcp_tsorted_anchor, &tp->tsorted_sent_queue);
	if (!tp->highest_sack)
		tp->highest_sack = skb;

	cb->tx.delivered_mstamp = 0;
	cb->sacked = TCPCB_LOST | TCPCB_EVER_RETRANS;
	tp->packets_out += segs;
	tp->lost_out += segs;
	WRITE_ONCE(tp->snd_nxt, cb->end_seq);

	if (inet_csk(sk)->icsk_ca_state < TCP_CA_Recovery)
		cherry_enter_recovery(sk);
	tp->high_seq = tp->snd_nxt;
	cherry_no_undo(tp, c);
	cherry_tally(sk, CHERRY_N_CLAIMED, segs);
	return segs;
}

/* Sending ------------------------------------------------------------------- */

static struct tcphdr *cherry_header(const struct sock *sk, struct sk_buff *skb,
				    u32 seq, u64 now)
{
	const struct inet_sock *inet = inet_sk(sk);
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 size = sizeof(struct tcphdr), window;
	struct tcphdr *th;
	__be32 *option;

	if (tp->rx_opt.tstamp_ok)
		size += TCPOLEN_TSTAMP_ALIGNED;
	th = skb_push(skb, size);
	skb_reset_transport_header(skb);
	memset(th, 0, sizeof(*th));
	th->source = inet->inet_sport;
	th->dest = inet->inet_dport;
	th->seq = htonl(seq);
	th->ack_seq = htonl(tp->rcv_nxt);
	th->doff = size / 4;
	th->ack = 1;
	/* The window offered before: this is no place to open it. */
	window = tcp_receive_window(tp) >> tp->rx_opt.rcv_wscale;
	th->window = htons(min_t(u32, window, U16_MAX));
	if (tp->rx_opt.tstamp_ok) {
		option = (__be32 *)(th + 1);
		option[0] = htonl(TCPOPT_NOP << 24 | TCPOPT_NOP << 16 |
				  TCPOPT_TIMESTAMP << 8 | TCPOLEN_TIMESTAMP);
		option[1] = htonl(airtcp_tsval(tp, now));
		option[2] = htonl(tp->rx_opt.ts_recent);
	}
	return th;
}

/* The device or the stack completes the sum over the payload. */
static void cherry_checksum(struct sk_buff *skb, struct tcphdr *th, __sum16 sum)
{
	th->check = ~sum;
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_transport_header(skb) - skb->head;
	skb->csum_offset = offsetof(struct tcphdr, check);
}

static int cherry_xmit_v4(struct sock *sk, struct sk_buff *skb,
			  struct tcphdr *th, u8 dsfield)
{
	struct inet_sock *inet = inet_sk(sk);

	cherry_checksum(skb, th, tcp_v4_check(skb->len, inet->inet_saddr,
					      inet->inet_daddr, 0));
	return __ip_queue_xmit(sk, skb, &inet->cork.fl, dsfield);
}

#if IS_ENABLED(CONFIG_IPV6)
static int cherry_xmit_v6(struct sock *sk, struct sk_buff *skb,
			  struct tcphdr *th, u8 dsfield)
{
	const struct inet_sock *inet = inet_sk(sk);
	struct ipv6_pinfo *np = inet6_sk(sk);
	struct flowi6 fl6 = { 0 };
	struct dst_entry *dst;
	int err;

	cherry_checksum(skb, th, tcp_v6_check(skb->len, &np->saddr,
					      &sk->sk_v6_daddr, 0));
	fl6.flowi6_proto = IPPROTO_TCP;
	fl6.daddr = sk->sk_v6_daddr;
	fl6.saddr = np->saddr;
	fl6.flowlabel = np->flow_label;
	fl6.flowi6_oif = sk->sk_bound_dev_if;
	fl6.flowi6_mark = sk->sk_mark;
	fl6.fl6_sport = inet->inet_sport;
	fl6.fl6_dport = inet->inet_dport;

	rcu_read_lock();
	/* Without a route the next data segment looks for one. */
	dst = __sk_dst_check(sk, np->dst_cookie);
	if (dst) {
		skb_dst_set_noref(skb, dst);
		err = ip6_xmit(sk, skb, &fl6, sk->sk_mark,
			       rcu_dereference(np->opt), dsfield,
			       sk->sk_priority);
	} else {
		kfree_skb(skb);
		err = -EHOSTUNREACH;
	}
	rcu_read_unlock();
	return err;
}
#else
static int cherry_xmit_v6(struct sock *sk, struct sk_buff *skb,
			  struct tcphdr *th, u8 dsfield)
{
	kfree_skb(skb);
	return -EAFNOSUPPORT;
}
#endif

static bool cherry_is_v4(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	return sk->sk_family == AF_INET || ipv6_addr_v4mapped(&sk->sk_v6_daddr);
#else
	return true;
#endif
}

/**
 * cherry_send() - copy one segment of a claimed packet and send the copy
 * @sk: socket
 * @from: the claimed packet
 * @seq: where in it the segment starts
 * @len: bytes
 * @now: tcp_clock_ns()
 *
 * Return: 0, NET_XMIT_* above 0 if a queue of this host dropped it, or an error
 * below 0 if it did not get that far.
 */
static int cherry_send(struct sock *sk, struct sk_buff *from, u32 seq, u32 len,
		       u64 now)
{
	/* The two bits of ECN stay zero: a mark would not be acted upon. */
	u8 dsfield = READ_ONCE(cherry_dscp) << 2;
	struct tcp_sock *tp = tcp_sk(sk);
	struct sk_buff *skb;
	struct tcphdr *th;
	int err;

	skb = alloc_skb(MAX_TCP_HEADER + len, GFP_ATOMIC | __GFP_NOWARN);
	if (!skb)
		return -ENOMEM;
	skb_reserve(skb, MAX_TCP_HEADER);
	err = skb_copy_bits(from, seq - TCP_SKB_CB(from)->seq,
			    skb_put(skb, len), len);
	if (err || !refcount_inc_not_zero(&sk->sk_refcnt)) {
		kfree_skb(skb);
		return err ? err : -ENOTCONN;
	}
	skb->sk = sk;
	skb->destructor = sock_efree;
	skb_set_hash_from_sk(skb, sk);
	th = cherry_header(sk, skb, seq, now);

	tp->segs_out++;
	WRITE_ONCE(tp->data_segs_out, tp->data_segs_out + 1);
	WRITE_ONCE(tp->bytes_sent, tp->bytes_sent + len);
	TCP_ADD_STATS(sock_net(sk), TCP_MIB_OUTSEGS, 1);

	if (cherry_is_v4(sk))
		return cherry_xmit_v4(sk, skb, th, dsfield);
	return cherry_xmit_v6(sk, skb, th, dsfield);
}

static u32 cherry_wanted_sigma(const struct sock *sk, const struct cherry *c)
{
	/* Difference 6: what First-Aid Recovery sends while it waits for ACKs. */
	u32 cwnd = c->cwnd0_segs + (c->cwnd0_segs + 1) / 2;

	return cherry_sigma_segs(c->phase, c->maxcwnd_segs, cwnd, c->max_rtt_us,
				 cherry_rtt_us(tcp_sk(sk)));
}

/*
 * What leaves before the first supplement's ACK is here: the window that is in
 * flight.  In First-Aid Recovery half of cwnd0 is such, a third of its sigma.
 */
static u32 cherry_lead_segs(const struct sock *sk, const struct cherry *c,
			    u32 sigma)
{
	u32 cwnd = tcp_snd_cwnd(tcp_sk(sk));

	if (c->phase == CHERRY_FAR)
		return sigma / 3;
	return c->phase == CHERRY_FFS && cwnd ? cwnd - 1 : 0;
}

/*
 * A cycle must last longer than a round trip, else a supplement would be sent
 * again before the ACK of the first one can be here: a short one slows down.
 */
static void cherry_stretch(const struct sock *sk, struct cherry *c, u32 segs)
{
	u32 rtt_us = cherry_rtt_us(tcp_sk(sk));

	if (c->phase == CHERRY_NEW_FFS)
		c->tau_ns = max(c->tau_ns, cherry_tau_ns(rtt_us, segs - 1));
}

/*
 * Move to the segment whose turn is next.  Segments of the selection and bytes
 * of the stream move together: the cursor steps over one segment or back to
 * SkipData.
 */
static void cherry_step(struct cherry *c, u32 next_seq)
{
	if (cherry_select_next(&c->select, c->phase == CHERRY_NEW_FFS))
		c->cursor_seq = c->skip_seq;
	else
		c->cursor_seq = next_seq;
}

/**
 * cherry_supplement() - send the supplement whose turn it is
 * @sk: socket
 * @c: state in CHERRY_SENDING
 * @now: tcp_clock_ns()
 *
 * Return: true if one was sent or another try may succeed, false if there is no
 * more to send.
 */
static bool cherry_supplement(struct sock *sk, struct cherry *c, u64 now)
{
	struct tcp_sock *tp = tcp_sk(sk);
	int pass, err;

	for (pass = 0; pass < CHERRY_PASS_MAX; pass++) {
		struct tcp_skb_cb *cb;
		struct sk_buff *skb;
		u32 seq, len;
		bool again;

		if (!before(c->cursor_seq, cherry_out_end(sk)) &&
		    !cherry_claim(sk, c, now)) {
			/* No more data or window; a cycle begins again. */
			c->limited = true;
			c->starved = true;
			if (c->phase != CHERRY_NEW_FFS || !c->sent_segs)
				return false;
			c->select.limit = c->select.i;
			cherry_stretch(sk, c, c->sent_segs);
			cherry_step(c, c->skip_seq);
		}
		seq = c->cursor_seq;
		skb = cherry_find(sk, seq);
		if (!skb) {
			/* Acknowledged meanwhile. */
			if (!before(seq, tp->snd_una))
				return false;
			cherry_step(c, tp->snd_una);
			continue;
		}
		cb = TCP_SKB_CB(skb);
		len = min(c->mss_bytes, skb->len - (seq - cb->seq));
		/* It has arrived, or the stack has (just) sent it. */
		if ((cb->sacked & TCPCB_TAGBITS) != TCPCB_LOST) {
			cherry_step(c, seq + len);
			continue;
		}
		if (after(seq + len, tcp_wnd_end(tp)))
			return false;
		again = before(seq, c->end_seq);
		err = cherry_send(sk, skb, seq, len, now);
		trace_cherry_supp(sk, c, seq, len, again, err);
		if (err < 0)
			return true;
		skb->skb_mstamp_ns = now;
		cb->sacked |= TCPCB_EVER_RETRANS;
		list_move_tail(&skb->tcp_tsorted_anchor,
			       &tp->tsorted_sent_queue);
		cherry_tally(sk, again ? CHERRY_N_SUPP_AGAIN :
					 CHERRY_N_SUPP_SENT, 1);
		if (!again) {
			cherry_tally(sk, CHERRY_N_SUPP_REPEATED,
				     before(seq, c->out_seq));
			c->sent_segs++;
			c->end_seq = seq + len;
		}
		c->last_ns = now;
		/* Each timeout sets it again. */
		tp->frto = 0;
		cherry_step(c, seq + len);
		return true;
	}
	return true;
}

/* Phases -------------------------------------------------------------------- */

/* What there is to claim: the packet with the FIN is none of it (rule 3). */
static u32 cherry_unsent_segs(const struct sock *sk, const struct cherry *c)
{
	const struct sk_buff *last = skb_peek_tail(&sk->sk_write_queue);
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 end = tp->write_seq;

	if (last && TCP_SKB_CB(last)->tcp_flags & TCPHDR_FIN)
		end = TCP_SKB_CB(last)->seq;
	return (end - tp->snd_nxt) / c->mss_bytes;
}

/*
 * Unsent segments that the receiver's window has room for.  Packets are claimed
 * whole: of one that the window ends in, none of it counts, else the gap would
 * get all that fits and the supplements nothing.
 */
static u32 cherry_window_segs(const struct sock *sk, const struct cherry *c)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	const struct sk_buff *skb;
	u32 end = tp->snd_nxt;

	skb_queue_walk(&sk->sk_write_queue, skb) {
		if (after(TCP_SKB_CB(skb)->end_seq, tcp_wnd_end(tp)))
			break;
		end = TCP_SKB_CB(skb)->end_seq;
	}
	return (end - tp->snd_nxt) / c->mss_bytes;
}

/*
 * Difference 16: what may be sent as supplements although it is out already.
 * ThreshData is not, as the timer has sent it, nor anything up to the highest
 * SACK, so that every SACK from there on is a supplement's.
 */
static u32 cherry_again_segs(struct sock *sk, const struct cherry *c)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 from = tp->snd_una + c->mss_bytes, end = cherry_out_end(sk);

	if (c->phase == CHERRY_FAR ||
	    inet_csk(sk)->icsk_ca_state != TCP_CA_Loss)
		return 0;
	if (tp->sacked_out && before(from, tcp_highest_sack_seq(tp)))
		from = tcp_highest_sack_seq(tp);
	return before(from, end) ? (end - from) / c->mss_bytes : 0;
}

/* Begin with what is out, at the start of a segment. */
static void cherry_repeat(struct sock *sk, struct cherry *c, u32 segs)
{
	const struct sk_buff *skb;

	c->skip_seq = cherry_out_end(sk) - segs * c->mss_bytes;
	skb = cherry_find(sk, c->skip_seq);
	if (skb)
		c->skip_seq -= (c->skip_seq - TCP_SKB_CB(skb)->seq) %
			       c->mss_bytes;
	cherry_no_undo(tcp_sk(sk), c);
}

/**
 * cherry_start() - plan and claim: everything "just before" of figures 1 and 6
 * @sk: socket
 * @c: state
 * @now: tcp_clock_ns()
 *
 * Return: false if there is nothing to supplement with.
 */
static bool cherry_start(struct sock *sk, struct cherry *c, u64 now)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 due = cherry_due_segs(tp), thresh = tp->snd_nxt, old = tp->snd_nxt;
	u32 sigma, lead, data, window, gap = 0, segs;
	struct cherry_plan plan;

	data = cherry_unsent_segs(sk, c);
	window = cherry_window_segs(sk, c);
	sigma = cherry_wanted_sigma(sk, c);
	lead = cherry_lead_segs(sk, c, sigma);
	if (c->phase == CHERRY_FFS)
		sigma += lead;
	plan = cherry_plan_behind(lead, sigma - lead, c->want_segs, due,
				  min(data, window), cherry_again_segs(sk, c));
	/* After a timeout ThreshData is the segment that was sent again. */
	if (due)
		thresh = tp->snd_una;

	c->limited |= plan.limited;
	c->starved = plan.limited;
	c->want_segs = plan.supp_segs;
	c->out_seq = old;
	if (plan.again_segs)
		cherry_repeat(sk, c, plan.again_segs);
	else
		c->skip_seq = old + plan.gap_segs * c->mss_bytes;
	c->cursor_seq = c->skip_seq;
	c->end_seq = c->skip_seq;
	cherry_select_first(&c->select, 0,
			    due + plan.gap_segs - plan.again_segs,
			    c->phase == CHERRY_NEW_FFS ? c->want_segs - 1 : 0);
	trace_cherry_plan(sk, c, sigma, due, data, window, &plan, thresh);
	if (!plan.supp_segs)
		return false;
	while (gap < plan.gap_segs) {
		segs = cherry_claim(sk, c, now);
		if (!segs)
			return false;
		gap += segs;
	}
	/* Packets shorter than a segment make the gap shorter in bytes. */
	if (before(tp->snd_nxt, c->skip_seq)) {
		c->skip_seq = tp->snd_nxt;
		c->cursor_seq = tp->snd_nxt;
		c->end_seq = tp->snd_nxt;
	}
	cherry_stretch(sk, c, c->want_segs);
	c->stage = CHERRY_SENDING;
	return true;
}

/* Whether the first flight's data is still on its way from the application. */
static bool cherry_wait_more(struct sock *sk, struct cherry *c, u32 need_segs)
{
	struct tcp_sock *tp = tcp_sk(sk);
	bool grew = tp->write_seq != c->write_seq;
	u64 longest = (u64)cherry_rtt_us(tp) * NSEC_PER_USEC;

	c->write_seq = tp->write_seq;
	if (cherry_unsent_segs(sk, c) >= need_segs)
		return false;
	c->waited++;
	/* The first look has nothing to compare with. */
	return (grew || c->waited == 1) &&
	       c->waited * c->tau_ns < longest >> CHERRY_WAIT_SHIFT;
}

/* The timer fired while the phase waited for data: begin, or not. */
static bool cherry_wake(struct sock *sk, struct cherry *c, u64 now)
{
	if (c->first) {
		if (cherry_wait_more(sk, c, cherry_wanted_sigma(sk, c) +
					    c->want_segs))
			return true;
		if (cherry_small_flight(sk, c))
			return false;
	}
	return cherry_start(sk, c, now);
}

/**
 * cherry_work() - the timer fired and the socket is ours
 * @sk: socket
 * @c: state
 *
 * Return: when to come again, 0 for never.
 */
static u64 cherry_work(struct sock *sk, struct cherry *c)
{
	u64 now = tcp_clock_ns(), limit;
	bool more = true;

	if (c->stage != CHERRY_WAITING && c->stage != CHERRY_SENDING)
		return 0;
	if (!cherry_can_supplement(sk) || !tcp_sk(sk)->packets_out ||
	    tcp_sk(sk)->mss_cache != c->mss_bytes) {
		more = false;
	} else if (c->stage == CHERRY_WAITING) {
		more = cherry_wake(sk, c, now);
	}
	if (more && c->stage == CHERRY_SENDING) {
		more = cherry_supplement(sk, c, now);
		if (c->phase == CHERRY_NEW_FFS) {
			limit = (u64)READ_ONCE(cherry_cycle_max_s) *
				NSEC_PER_SEC;
			if (limit && now - c->phase_ns > limit)
				more = false;
		} else if (c->sent_segs >= c->want_segs) {
			more = false;
		}
	}
	if (!more) {
		if (c->stage != CHERRY_QUIET)
			cherry_stop_sending(c);
		if (c->stage == CHERRY_QUIET)
			cherry_nothing_sent(sk, c);
		return 0;
	}
	/* Exactly tau apart; after a delay catch up, never two at once. */
	c->next_ns = max(c->next_ns + c->tau_ns, now + c->tau_ns / 2);
	return c->next_ns;
}

static enum hrtimer_restart cherry_timer(struct hrtimer *timer)
{
	struct cherry *c = container_of(timer, struct cherry, timer);
	struct sock *sk = c->sk;
	bool free = false;
	u64 next;

	bh_lock_sock(sk);
	if (sock_owned_by_user(sk)) {
		next = tcp_clock_ns() + CHERRY_RETRY_NS;
	} else {
		next = c->dead ? 0 : cherry_work(sk, c);
		if (!next) {
			c->armed = false;
			free = c->dead;
		}
	}
	if (next)
		hrtimer_set_expires(timer, ns_to_ktime(next));
	bh_unlock_sock(sk);

	if (next)
		return HRTIMER_RESTART;
	if (free)
		kfree_rcu(c, rcu);
	sock_put(sk);
	module_put(THIS_MODULE);
	return HRTIMER_NORESTART;
}

static void cherry_arm(struct sock *sk, struct cherry *c)
{
	if (!c->armed) {
		c->armed = true;
		sock_hold(sk);
		/* The socket holds one as long as this algorithm is its own. */
		__module_get(THIS_MODULE);
	}
	hrtimer_start(&c->timer, ns_to_ktime(c->next_ns),
		      HRTIMER_MODE_ABS_PINNED_SOFT);
}

/**
 * cherry_begin() - begin a phase; its first supplement is due in tau
 * @sk: socket
 * @c: state; first and cwnd0_segs say what for
 * @phase: which one
 * @first_ns: when the data segment left, tcp_clock_ns()
 */
void cherry_begin(struct sock *sk, struct cherry *c, enum cherry_phase phase,
		  u64 first_ns)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 rtt_us = cherry_rtt_us(tp), count, fits;

	c->phase = phase;
	c->stage = CHERRY_WAITING;
	c->maxcwnd_segs = READ_ONCE(cherry_maxcwnd);
	c->mss_bytes = tp->mss_cache;
	c->write_seq = tp->write_seq;
	c->sent_segs = 0;
	c->acked_segs = 0;
	c->waited = 0;

	count = phase == CHERRY_FAR ? c->cwnd0_segs : c->maxcwnd_segs;
	c->want_segs = count;
	/* Figure 3: maxcwnd - 1, as cwnd = 1 is there already.  Figure 6. */
	if (phase == CHERRY_FFS)
		c->want_segs -= min(count, tcp_snd_cwnd(tp));
	else if (phase == CHERRY_NEW_FFS)
		c->want_segs++;
	c->starved = false;
	fits = cherry_fit_count(c->want_segs, rtt_us, CHERRY_TAU_MIN_NS);
	fits = min(fits, READ_ONCE(cherry_max_supplements));
	c->limited = fits < c->want_segs;
	c->want_segs = fits;
	c->tau_ns = max_t(u64, cherry_tau_ns(rtt_us, count), CHERRY_TAU_MIN_NS);
	c->phase_ns = first_ns;
	c->last_ns = first_ns;
	c->next_ns = first_ns + c->tau_ns;
	cherry_arm(sk, c);
}

/* No more supplements in this phase; those that are out are listened for. */
void cherry_stop_sending(struct cherry *c)
{
	c->stage = c->sent_segs ? CHERRY_LISTENING : CHERRY_QUIET;
}

/**
 * cherry_push() - let the stack send what cwnd allows, now
 * @sk: socket, locked in softirq and not owned by a process
 *
 * The stack's own way for this moment is a deferred small-queue write.
 */
void cherry_push(struct sock *sk)
{
	if (!test_and_set_bit(TCP_TSQ_DEFERRED, &sk->sk_tsq_flags))
		sock_hold(sk);
	sk->sk_prot->release_cb(sk);
}

/**
 * cherry_alloc() - state for a socket
 * @sk: socket
 *
 * Return: zeroed state, NULL if there is no memory.
 */
struct cherry *cherry_alloc(struct sock *sk)
{
	struct cherry *c = kzalloc(sizeof(*c), GFP_ATOMIC | __GFP_NOWARN);

	if (c) {
		c->sk = sk;
		airtcp_timer_setup(&c->timer, cherry_timer);
	}
	return c;
}

/**
 * cherry_free() - the socket gives the state up; the timer may still hold it
 * @c: state
 */
void cherry_free(struct cherry *c)
{
	struct sock *sk = c->sk;

	c->dead = true;
	if (c->armed) {
		/* Not cancelled: the function runs and finds the mark. */
		if (hrtimer_try_to_cancel(&c->timer) != 1)
			return;
		/* Neither is the last: the caller holds both. */
		__sock_put(sk);
		module_put(THIS_MODULE);
	}
	kfree_rcu(c, rcu);
}
