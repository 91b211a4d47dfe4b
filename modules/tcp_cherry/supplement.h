/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the algorithm (cherry.c) and the supplement engine (supplement.c) share.
 */
#ifndef TCP_CHERRY_SUPPLEMENT_H
#define TCP_CHERRY_SUPPLEMENT_H

#include <linux/hrtimer.h>
#include <linux/rcupdate.h>
#include <net/tcp.h>
#include "cherry_math.h"

/* How far the supplements of a phase have come. */
enum cherry_stage {
	CHERRY_QUIET,		/* none are out */
	CHERRY_WAITING,		/* the timer runs: is there data to send? */
	CHERRY_SENDING,		/* the timer runs: one supplement each tau */
	CHERRY_LISTENING,	/* all are out; their ACKs count */
};

/**
 * struct cherry - state of one connection
 * @rcu: frees it behind the back of cherry_get_info(), which holds no lock
 * @sk: whose state this is; valid while the socket's private area or an armed
 *	timer holds it
 * @timer: wakes the engine
 * @next_ns: when the timer is due by the schedule, tcp_clock_ns()
 * @tau_ns: distance of supplements
 * @last_ns: when the last supplement left, tcp_clock_ns()
 * @phase_ns: when the phase began, tcp_clock_ns()
 * @rate_Bps: what the last Fast-Forward Start found, byte/s; 0: nothing yet
 * @select: Select_Data4Supple()'s memory; segment numbers count from the data
 *	segment that the phase sends
 * @skip_seq: sequence number of the first supplement
 * @cursor_seq: sequence number of the one whose turn it is
 * @end_seq: end of the highest one sent
 * @claim_seq: end of all that was ever claimed
 * @out_seq: end of what had been claimed or sent when the phase began
 * @mss_bytes: mss_cache at the start of the phase
 * @want_segs: supplements to send in this phase
 * @sent_segs: supplements sent, each counted once
 * @acked_segs: of these, acknowledged while their ACKs counted
 * @waited: ticks spent on waiting for data
 * @write_seq: write_seq at the last of them
 * @maxcwnd_segs: parameter maxcwnd at the start of the phase
 * @iw_segs: initial window that the kernel would have used
 * @last_cwnd_segs: cwnd after the last ACK
 * @last_una: snd_una after the last ACK
 * @cwnd0_segs: cwnd before the loss
 * @mask_segs: ACKs of supplements that do not count yet
 * @max_rtt_us: MaxRTT
 * @round_delivered: tp->delivered at the last answer to a loss: what was sent
 *	before belongs to it
 * @loss_delivered: tp->delivered at the last timeout
 * @timeouts: timeouts one after another without any ACK
 * @phase: enum cherry_phase
 * @stage: enum cherry_stage
 * @plus: TCP-Cherry+
 * @armed: the timer owns a reference to socket, module and this state
 * @dead: released; whoever finds it so frees it
 * @limited: fewer supplements than wanted
 * @starved: the reason was data or the receiver's window
 * @first: the Fast-Forward Start of the connection's start, not of a timeout
 * @small: the first flight was small: the kernel's initial window is in use
 * @halved: data was lost in this Fast-Forward Start: each second ACK counts
 * @asked: the stack asked for ssthresh and has not yet said what for
 */
struct cherry {
	struct rcu_head rcu;
	struct sock	*sk;
	struct hrtimer	timer;
	u64	next_ns;
	u64	tau_ns;
	u64	last_ns;
	u64	phase_ns;
	u64	rate_Bps;
	struct cherry_select select;
	u32	skip_seq;
	u32	cursor_seq;
	u32	end_seq;
	u32	claim_seq;
	u32	out_seq;
	u32	mss_bytes;
	u32	want_segs;
	u32	sent_segs;
	u32	acked_segs;
	u32	waited;
	u32	write_seq;
	u32	maxcwnd_segs;
	u32	iw_segs;
	u32	last_cwnd_segs;
	u32	last_una;
	u32	cwnd0_segs;
	u32	mask_segs;
	u32	max_rtt_us;
	u32	round_delivered;
	u32	loss_delivered;
	u32	timeouts;
	u8	phase;
	u8	stage;
	bool	plus;
	bool	armed;
	bool	dead;
	bool	limited;
	bool	starved;
	bool	first;
	bool	small;
	bool	halved;
	bool	asked;
};

/**
 * struct cherry_sock - the socket's private area; all zero: nothing known
 * @c: the rest, NULL without memory or with MPTCP: plain Reno then
 * @window_segs: the algorithm's cwnd while snd_cwnd walks there
 * @reducing: it does
 */
struct cherry_sock {
	struct cherry *c;
	u32	window_segs;
	bool	reducing;
};

static inline struct cherry_sock *cherry_sock(const struct sock *sk)
{
	return inet_csk_ca(sk);
}

/* Counters of a network namespace, in the order of /proc/net/tcp_cherry. */
enum cherry_count {
	CHERRY_N_CLAIMED,
	CHERRY_N_SUPP_SENT,
	CHERRY_N_SUPP_AGAIN,
	CHERRY_N_SUPP_REPEATED,
	CHERRY_N_SUPP_ACKED,
	CHERRY_N_SUPP_LOST,
	CHERRY_N_FFS,
	CHERRY_N_NEW_FFS,
	CHERRY_N_FAR,
	CHERRY_N_PLAIN,
	CHERRY_N_COUNT,
};

void cherry_tally(const struct sock *sk, enum cherry_count what, u32 add);
int cherry_counters_init(void);
void cherry_counters_exit(void);

struct cherry *cherry_alloc(struct sock *sk);
void cherry_free(struct cherry *c);

bool cherry_can_supplement(const struct sock *sk);
u32 cherry_due_segs(const struct tcp_sock *tp);
void cherry_begin(struct sock *sk, struct cherry *c, enum cherry_phase phase,
		  u64 first_ns);
void cherry_stop_sending(struct cherry *c);
u32 cherry_newly_acked(const struct sock *sk, struct cherry *c);
void cherry_push(struct sock *sk);
u64 cherry_offset(const struct sock *sk, u32 seq);
u32 cherry_rtt_us(const struct tcp_sock *tp);

/* The algorithm's answers to what the engine finds when the timer fires. */
bool cherry_small_flight(struct sock *sk, struct cherry *c);
void cherry_nothing_sent(struct sock *sk, struct cherry *c);

extern unsigned int cherry_dscp;
extern unsigned int cherry_maxcwnd;
extern unsigned int cherry_max_supplements;
extern unsigned int cherry_cycle_max_s;

#endif /* TCP_CHERRY_SUPPLEMENT_H */
