// SPDX-License-Identifier: GPL-2.0
/*
 * TCP-Cherry and TCP-Cherry+: congestion control for satellite paths
 *
 *	Utsumi, Togashi, Zabir: "TCP-Cherry+: Improvement of TCP-Cherry for
 *	Satellite IP Networks with Continuous Errors" (in Japanese), which
 *	describes all of Cherry+ and most of
 *	Utsumi, Zabir, Shiratori: "TCP-Cherry: A new approach for TCP congestion
 *	control over satellite IP networks", Computer Communications 31 (2008),
 *	of which only the abstract was at hand.
 *
 * A path of half a second of RTT makes slow start take seconds.  Cherry asks
 * the path instead: it sends new data far ahead of its turn, in low-priority
 * packets that cost others nothing.  As many of these supplements as come back
 * acknowledged, so much room there is.
 *
 *	Fast-Forward Start	cwnd = 1; one data segment, then maxcwnd - 1
 *	(FFS)			supplements, tau = RTT / maxcwnd apart, beginning
 *				sigma = maxcwnd segments ahead		(fig. 1-3)
 *	New FFS (Cherry+)	the same with sigma = 2 * maxcwnd; goes through
 *				the supplements in cycles until any ACK comes
 *								(fig. 6-8)
 *	First-Aid Recovery	cwnd0 = cwnd; cwnd = cwnd0 / 2; cwnd0 supplements
 *	(FAR)			in one RTT, sigma = cwnd * MaxRTT / RTT ahead (6.)
 *	ACK of a supplement	cwnd += 1
 *	congestion avoidance	cwnd += 1 each RTT
 *
 * What was skipped, sigma segments, is sent as ordinary data as cwnd allows, in
 * order; then the cumulative ACK jumps over the supplements that arrived.
 *
 *	connection
 *	   |  first flight           supplements judged
 *	   v     +-----------> FFS ----------------------> congestion
 *	 ready --+              ^                      +-> avoidance <--+
 *	         | small flight | first                |     |   |      | gap
 *	         v              | timeout   loss found |     |   |      | closed
 *	   initial window       |                      |     |   +---> FAR
 *	   of the kernel        +-- (any state) -------+     |
 *	                            |                        |
 *	     further timeouts,      |  Cherry:  slow start --+
 *	     no ACK between         +- Cherry+: New FFS -> (any ACK) -+
 *
 * How the figures meet the kernel: supplement.c sends supplements and lets the
 * stack fill the gap; cherry_math.h is the arithmetic; this file is the rest.
 *
 *	TX start	the first data segment leaves: FFS, first supplement in tau
 *	timer		the engine's; claims, sends
 *	cong_control	each ACK: supplements' ACKs, cwnd in every state
 *	ssthresh	half of cwnd; unless only supplements are missing
 *	set_state	Loss: a timeout.  Recovery: a loss, FAR.  Open: repaired
 *
 * Taken from the Cherry+ paper: everything in figures 1 to 3 and 6 to 9.
 * RECONSTRUCTED, since no text that has it could be read: First-Aid Recovery
 * except its sigma; growth by one per supplement's ACK (as in TCP-Peach, whose
 * successor Cherry is); the meaning of ThreshData and MaxRTT.
 *
 * Differences and decisions:
 *
 *  1. ThreshData is the data segment that the phase sends; sigma counts the
 *     segments behind it that are still to be sent, those lost included.  With
 *     this the printed figure 4 comes out: timeout at segment 1004, maxcwnd 50,
 *     supplements 1055 to 1103, of which it shows 1066 to 1102 as duplicates.
 *  2. A cycle of New FFS has maxcwnd + 1 supplements, as figure 6 prints it, and
 *     so takes tau more than an RTT.  A shorter one, for want of data or window,
 *     sends at longer intervals to last as long.
 *  3. FAR is built from TCP-Peach's Rapid Recovery: a saturated path returns
 *     about cwnd0 / 2 of the cwnd0 supplements, so the first cwnd0 / 2 ACKs
 *     do not count, the others raise cwnd up to cwnd0.
 *  4. The abstract's "simple scheme for avoiding gradual decrease" of cwnd is
 *     not described there.  Ours: if at least far_full_pct of cwnd0 supplements
 *     came back, cwnd = cwnd0.  Without it each recovery on a link that loses
 *     the share p would end at cwnd0 * (1 - p).  75 lies half-way between what
 *     a saturated path returns, 50, and a free one without errors, 100.
 *  5. During FAR cwnd walks down as in PRR (RFC 6937), which is the kernel's way
 *     and a module with cong_control has to bring its own.
 *  6. MaxRTT is the largest RTT sample of the connection.  cwnd in FAR's sigma is
 *     3/2 * cwnd0, where the paper does not say which cwnd it means: half of
 *     cwnd0 is sent before the first supplement's ACK, the same again before the
 *     last one's, and growth adds another half.  The halved cwnd was tried: data
 *     caught up with the supplements, and 29 of 31 were sent twice (cwnd0 31,
 *     RTT 200 ms, one frame lost).  sigma is at most 2 * maxcwnd.
 *  7. Less data or window than sigma + supplements: both shrink alike (what is
 *     already out helps after a timeout: 16).  If then
 *     far_full_pct of the supplements came back, the path was not the limit.
 *     With more data or window by now, FFS goes on for another round trip, with
 *     maxcwnd - cwnd supplements and cwnd - 1 more segments of gap, as so many
 *     are sent before the first of their ACKs; else slow start follows.  (With
 *     the paper's sigma alone 16 supplements of 16 were sent twice: 100 kB,
 *     window known late, 35 segments left at cwnd 32.)  The paper's senders
 *     never lack either, but a real one that opens a connection knows of no
 *     more than 64 KB of window before the first ACK.
 *  8. A first flight that fits the kernel's initial window uses that, one tau
 *     late, and FFS waits for the first larger one: a handshake of TLS is not
 *     what FFS is for.
 *  9. If no supplement came back at all (a firewall that drops the DSCP?), that
 *     says nothing: slow start from the initial window.
 * 10. New FFS ends after cycle_max_s without any ACK.  The paper has no bound; a
 *     path whose way back is cut would be sent into for ever.
 * 11. cwnd grows to maxcwnd and no further, also in congestion avoidance.
 * 12. A loss of data while FFS listens halves cwnd, and from then on each second
 *     ACK counts: half of what FFS finds, as if a window of that size had been
 *     halved.  FFS's end then answers the loss as any other, with First-Aid
 *     Recovery from what was found, which tells the link's errors from
 *     congestion.  Another loss a round trip later ends FFS.  (Once the first
 *     did, and the remaining ACKs did not count: one bit error at cwnd 32 left
 *     cwnd at 16, with 480 supplements on the way that all came back, and 60 s
 *     at a bit error rate of 1e-6 carried a sixth of what other seeds did.)
 * 13. Undo of a spurious timeout or recovery is off while supplements or the gap
 *     are out (supplement.c, rule 2).
 * 14. After idling longer than the retransmission timeout cwnd is halved for each
 *     such time down to the initial window (RFC 2861), as the kernel does for
 *     others; FFS belongs to the connection's start and to timeouts.
 * 15. ECN: a mark halves cwnd; no supplements then.  Supplements are not
 *     ECN-capable.
 * 16. After a timeout, if less can be claimed than the phase wants, the last of
 *     what is out already are supplements as well, by the ratio of 7.  Without
 *     this New FFS had nothing to send when a shadow fell on a connection's
 *     first round trip, which had claimed all of the window, or on the end of
 *     a transfer, and the connection waited for the timer, twice as long each
 *     time: of figure 12's 10 phases at 50 % one carried 1 segment in 50 s.
 *
 * The path must honour the low priority.  If it does not, FFS is a paced initial
 * window of up to maxcwnd segments.  max_supplements bounds that for each round
 * trip; 0 turns supplements off.
 *
 * The receiver must offer 1 + sigma + maxcwnd segments of window, 4 * maxcwnd
 * is recommended (Utsumi et al. 2009); net.ipv4.tcp_rmem's middle value there
 * decides, net.ipv4.tcp_wmem's last here.
 *
 * Knobs, in /sys/module/tcp_cherry/parameters, for all sockets at once; those of
 * a phase are read when it begins:
 *
 *  maxcwnd		segments
 *  max_supplements	most supplements in a round trip
 *  dscp		of supplements; LE (RFC 8622) is 1
 *  far_full_pct	difference 4, percent; 101: off
 *  cycle_max_s		difference 10, seconds; 0: no bound
 *
 * What stock "ss -ti" shows: "bbr:(bw:...,mrtt:...)" once a Fast-Forward Start
 * has found something.  bw is cwnd * mss / RTT as it was found (ss prints bits
 * per second), mrtt is RTTmin; both gains are zero, which ss leaves out.  lost
 * and retrans count the gap as well: its segments are "lost" until first sent,
 * and "retransmitted" when they are.  /proc/net/tcp_cherry tells them apart:
 * ClaimedSegs - SupplementsSent + SupplementsRepeated of the namespace's
 * RetransSegs are first transmissions.  (SupplementsRepeated are those of 16;
 * of them, the ones that had been claimed and not sent are counted too many.)
 *
 * What happens inside: trace events cherry:* (cherry_trace.h).
 *
 * Who may use it: TCP_CONG_NON_RESTRICTED is deliberately not set.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/inet_diag.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <net/mptcp.h>
#include <net/tcp.h>
#include <airtcp/kcompat.h>
#include "supplement.h"

#define CREATE_TRACE_POINTS
#include "cherry_trace.h"

/* The paper's: 550 ms at 1300 segments/s are 715, so 512 leave some room. */
#define CHERRY_MAXCWND		512

/* One cycle of New FFS with that. */
#define CHERRY_MAX_SUPPLEMENTS	(CHERRY_MAXCWND + 1)
#define CHERRY_MAX_SUPPLEMENTS_MAX (CHERRY_MAXCWND_MAX + 1)

/* LE, "lower effort" (RFC 8622). */
#define CHERRY_DSCP		1
#define CHERRY_DSCP_MAX		63

#define CHERRY_FAR_FULL_PCT	75
#define CHERRY_FAR_FULL_PCT_MAX	(CHERRY_PERCENT + 1)

/* Ten times the paper's outage of 5 s, and some. */
#define CHERRY_CYCLE_MAX_S	60
#define CHERRY_CYCLE_MAX_S_MAX	3600

/* A supplement's ACK comes an RTT later; half as much again for queues. */
#define CHERRY_LISTEN_RTT_HALVES 3

unsigned int cherry_maxcwnd __read_mostly = CHERRY_MAXCWND;
unsigned int cherry_max_supplements __read_mostly = CHERRY_MAX_SUPPLEMENTS;
unsigned int cherry_dscp __read_mostly = CHERRY_DSCP;
unsigned int cherry_cycle_max_s __read_mostly = CHERRY_CYCLE_MAX_S;
static unsigned int cherry_far_full_pct __read_mostly = CHERRY_FAR_FULL_PCT;

static struct tcp_congestion_ops cherry_plus_ops;

static u32 cherry_cap(const struct sock *sk)
{
	return min(READ_ONCE(cherry_maxcwnd), tcp_sk(sk)->snd_cwnd_clamp);
}

static void cherry_set_cwnd(struct sock *sk, u32 segs)
{
	tcp_snd_cwnd_set(tcp_sk(sk), clamp(segs, 1U,
					   tcp_sk(sk)->snd_cwnd_clamp));
}

/* Phases -------------------------------------------------------------------- */

static void cherry_enter(struct sock *sk, struct cherry *c,
			 enum cherry_phase phase, u64 first_ns)
{
	u8 old_phase = c->phase;

	c->halved = false;
	c->small &= phase == CHERRY_READY;
	/* Half of what First-Aid Recovery sends would come back in any case. */
	c->mask_segs = phase == CHERRY_FAR ? c->cwnd0_segs / 2 : 0;
	if (phase == CHERRY_CA || phase == CHERRY_READY) {
		c->phase = phase;
		c->stage = CHERRY_QUIET;
		c->first = false;
	} else {
		cherry_begin(sk, c, phase, first_ns);
	}
	trace_cherry_phase(sk, c, old_phase);
}

/* The phase is over, whatever it was; its supplements' ACKs no longer count. */
static void cherry_leave(struct sock *sk, struct cherry *c)
{
	cherry_tally(sk, CHERRY_N_SUPP_LOST, c->sent_segs - c->acked_segs);
	cherry_enter(sk, c, cherry_next_phase(c->phase, CHERRY_EV_DONE, c->plus,
					      0), 0);
	c->sent_segs = 0;
	c->acked_segs = 0;
}

/*
 * Difference 7: all supplements came back, and now there is more to send or
 * more room at the receiver.  The usual case is an active opener, who learns of
 * a window above 64 KB only with the first ACK.
 */
static bool cherry_goes_on(struct sock *sk, struct cherry *c)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 least = (tcp_snd_cwnd(tp) + CHERRY_MAXCWND_MIN) * tp->mss_cache;

	if (!c->starved || tcp_snd_cwnd(tp) >= cherry_cap(sk) ||
	    tp->write_seq - tp->snd_nxt < least ||
	    (s32)(tcp_wnd_end(tp) - tp->snd_nxt) < (s32)least ||
	    !cherry_can_supplement(sk) || !READ_ONCE(cherry_max_supplements))
		return false;
	cherry_tally(sk, CHERRY_N_SUPP_LOST, c->sent_segs - c->acked_segs);
	c->first = false;
	cherry_enter(sk, c, CHERRY_FFS, tcp_clock_ns());
	return true;
}

static void cherry_first_aid(struct sock *sk, struct cherry *c)
{
	if (cherry_next_phase(c->phase, CHERRY_EV_RECOVERY, c->plus, 0) !=
	    CHERRY_FAR || c->stage != CHERRY_QUIET)
		return;
	if (c->cwnd0_segs < CHERRY_MAXCWND_MIN || !cherry_can_supplement(sk) ||
	    !READ_ONCE(cherry_max_supplements))
		return;
	cherry_tally(sk, CHERRY_N_FAR, 1);
	cherry_enter(sk, c, CHERRY_FAR, tcp_clock_ns());
}

/* A loss of data, or a mark: walk from cwnd0 to ssthresh. */
static void cherry_reduce(struct sock *sk, struct cherry *c, u8 state,
			  u32 cwnd0_segs)
{
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);

	cs->reducing = true;
	cs->window_segs = tp->snd_ssthresh;
	if (!c)
		return;
	c->cwnd0_segs = cwnd0_segs;
	c->round_delivered = tp->delivered;
	trace_cherry_loss(sk, c, state);
	if (state == TCP_CA_Recovery)
		cherry_first_aid(sk, c);
}

/* The usual answer to a loss: what is left of a window. */
static u32 cherry_half_segs(u32 cwnd_segs)
{
	return max_t(u32, cwnd_segs / 2, CHERRY_MIN_SEGS);
}

/* A loss in Recovery: walk to ssthresh, and ask what the path still carries. */
static void cherry_answer(struct sock *sk, struct cherry *c, u32 cwnd0_segs)
{
	struct tcp_sock *tp = tcp_sk(sk);

	tp->snd_ssthresh = cherry_half_segs(cwnd0_segs);
	tp->prior_cwnd = cwnd0_segs;
	tp->prr_delivered = 0;
	tp->prr_out = 0;
	cherry_reduce(sk, c, TCP_CA_Recovery, cwnd0_segs);
}

/* All ACKs of supplements that will come have come: what do they say? */
static void cherry_finish(struct sock *sk, struct cherry *c)
{
	u32 pct = READ_ONCE(cherry_far_full_pct), rtt_us;
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u32 found = tcp_snd_cwnd(tp);
	enum cherry_verdict verdict;
	bool halved = c->halved;

	if (c->phase == CHERRY_FAR) {
		if (cherry_full(c->acked_segs, c->cwnd0_segs, pct))
			cs->window_segs = c->cwnd0_segs;
		if (cs->reducing)
			tp->snd_ssthresh = max_t(u32, cs->window_segs,
						 CHERRY_MIN_SEGS);
		cherry_leave(sk, c);
		return;
	}
	verdict = cherry_judge(c->acked_segs, c->sent_segs, c->limited, pct);
	if (verdict == CHERRY_BLIND) {
		cherry_tally(sk, CHERRY_N_PLAIN, 1);
		if (c->first)
			cherry_set_cwnd(sk, max(tcp_snd_cwnd(tp), c->iw_segs));
		cherry_leave(sk, c);
		return;
	}
	/* Difference 12: what halving took; no mask in a Fast-Forward Start. */
	if (halved)
		found = cherry_grow_segs(found, found, &c->mask_segs,
					 cherry_cap(sk));
	rtt_us = cherry_rtt_us(tp);
	/* Pairs with cherry_get_info(), which holds no lock. */
	if (rtt_us)
		WRITE_ONCE(c->rate_Bps,
			   div_u64((u64)found * tp->mss_cache * USEC_PER_SEC,
				   rtt_us));
	if (verdict == CHERRY_LEARNT)
		tp->snd_ssthresh = max_t(u32, tcp_snd_cwnd(tp),
					 CHERRY_MIN_SEGS);
	else if (cherry_goes_on(sk, c))
		return;
	cherry_leave(sk, c);
	if (halved && inet_csk(sk)->icsk_ca_state == TCP_CA_Recovery)
		cherry_answer(sk, c, found);
}

/**
 * cherry_nothing_sent() - the engine found nothing to supplement with
 * @sk: socket, locked in softirq
 * @c: state
 */
void cherry_nothing_sent(struct sock *sk, struct cherry *c)
{
	bool first = c->first;

	if (c->phase == CHERRY_CA || c->phase == CHERRY_READY)
		return;
	cherry_tally(sk, CHERRY_N_PLAIN, c->phase != CHERRY_FAR);
	cherry_leave(sk, c);
	if (first) {
		cherry_set_cwnd(sk, max(tcp_snd_cwnd(tcp_sk(sk)), c->iw_segs));
		cherry_push(sk);
	}
}

/**
 * cherry_small_flight() - difference 8
 * @sk: socket, locked in softirq
 * @c: state in a connection's first Fast-Forward Start, nothing claimed yet
 *
 * Return: true if the kernel's initial window does for what there is to send.
 */
bool cherry_small_flight(struct sock *sk, struct cherry *c)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (tp->write_seq - tp->snd_una > c->iw_segs * c->mss_bytes)
		return false;
	c->small = true;
	cherry_enter(sk, c, CHERRY_READY, 0);
	cherry_set_cwnd(sk, c->iw_segs);
	cherry_push(sk);
	return true;
}

static void cherry_tx_start(struct sock *sk)
{
	struct cherry *c = cherry_sock(sk)->c;
	struct tcp_sock *tp = tcp_sk(sk);
	u32 iw, cwnd, idle, rto;

	if (!c)
		return;
	if (c->phase == CHERRY_READY) {
		if (c->small)
			return;
		if (cherry_can_supplement(sk) &&
		    READ_ONCE(cherry_max_supplements)) {
			c->first = true;
			cherry_tally(sk, CHERRY_N_FFS, 1);
			cherry_enter(sk, c, cherry_next_phase(c->phase,
							      CHERRY_EV_FLIGHT,
							      c->plus, 0),
				     tcp_clock_ns());
		} else {
			cherry_tally(sk, CHERRY_N_PLAIN, 1);
			cherry_enter(sk, c, CHERRY_CA, 0);
			cherry_set_cwnd(sk, c->iw_segs);
		}
		return;
	}
	/* Difference 14. */
	rto = inet_csk(sk)->icsk_rto;
	idle = tcp_jiffies32 - tp->lsndtime;
	if (tp->packets_out || !rto ||
	    !READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_slow_start_after_idle))
		return;
	iw = max(c->iw_segs, 1U);
	cwnd = tcp_snd_cwnd(tp);
	for (; idle > rto && cwnd > iw; idle -= rto)
		cwnd = max(cwnd / 2, iw);
	cherry_set_cwnd(sk, cwnd);
}

static void cherry_other_event(struct sock *sk, enum tcp_ca_event ev)
{
}

AIRTCP_CWND_EVENT(cherry_cwnd_event, cherry_tx_start, cherry_other_event)

/* Losses -------------------------------------------------------------------- */

/* Whether cwnd is being found out, so that a loss says nothing about it yet. */
static bool cherry_finding(const struct cherry *c)
{
	return c && cherry_probing(c->phase) && c->stage != CHERRY_QUIET;
}

/**
 * cherry_ssthresh() - the stack reacts to a loss or a mark
 * @sk: socket
 *
 * Also called for a lost SYN, before cherry_init().  While a Fast-Forward Start
 * is on, what the stack has found is the old window's loss once more, which has
 * been answered; losses of what was sent since are cherry_lost_again()'s.
 *
 * Return: the new ssthresh in segments.
 */
static u32 cherry_ssthresh(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct cherry *c = cherry_sock(sk)->c;

	if (c)
		c->asked = true;
	if (cherry_finding(c))
		return tp->snd_ssthresh;
	return cherry_half_segs(tcp_snd_cwnd(tp));
}

/* Difference 12: data lost in a recovery that was not entered for it. */
static void cherry_lost_again(struct sock *sk, struct cherry *c)
{
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u32 cwnd = cs->reducing ? cs->window_segs : tcp_snd_cwnd(tp);

	if (c->phase == CHERRY_FAR)
		return;
	if (cherry_finding(c)) {
		if (!c->halved) {
			c->halved = true;
			c->round_delivered = tp->delivered;
			trace_cherry_loss(sk, c,
					  inet_csk(sk)->icsk_ca_state);
			cherry_set_cwnd(sk, cwnd / 2);
			return;
		}
		cherry_leave(sk, c);
	}
	if (inet_csk(sk)->icsk_ca_state == TCP_CA_Recovery) {
		cherry_answer(sk, c, cwnd);
	} else {
		tp->snd_ssthresh = cherry_half_segs(cwnd);
		c->round_delivered = tp->delivered;
		cherry_set_cwnd(sk, tp->snd_ssthresh);
	}
}

static void cherry_timeout(struct sock *sk, struct cherry *c)
{
	struct tcp_sock *tp = tcp_sk(sk);
	enum cherry_phase next;

	if (c->timeouts && tp->delivered == c->loss_delivered)
		c->timeouts++;
	else
		c->timeouts = 1;
	c->loss_delivered = tp->delivered;
	c->round_delivered = tp->delivered;
	/* The stack does not ask if it was in a recovery; ours was none. */
	if (!c->asked && c->timeouts == 1)
		tp->snd_ssthresh = min(tp->snd_ssthresh,
				       cherry_half_segs(c->last_cwnd_segs));
	trace_cherry_loss(sk, c, TCP_CA_Loss);

	next = cherry_next_phase(c->phase, CHERRY_EV_TIMEOUT, c->plus,
				 c->timeouts);
	if (next == CHERRY_NEW_FFS && c->phase == CHERRY_NEW_FFS &&
	    c->stage != CHERRY_QUIET)
		return;
	if (c->phase != CHERRY_CA)
		cherry_leave(sk, c);
	if (!cherry_probing(next) || !cherry_can_supplement(sk) ||
	    !READ_ONCE(cherry_max_supplements)) {
		cherry_tally(sk, CHERRY_N_PLAIN, 1);
		return;
	}
	cherry_tally(sk, next == CHERRY_FFS ? CHERRY_N_FFS : CHERRY_N_NEW_FFS,
		     1);
	cherry_enter(sk, c, next, tcp_clock_ns());
}

/**
 * cherry_set_state() - now the stack says what happened
 * @sk: socket
 * @new_state: TCP_CA_*, not yet in force
 */
static void cherry_set_state(struct sock *sk, u8 new_state)
{
	u8 old_state = inet_csk(sk)->icsk_ca_state;
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	struct cherry *c = cs->c;

	/* Rule 2 of supplement.c. */
	if (c && before(tp->snd_una, c->claim_seq))
		tp->undo_marker = 0;

	switch (new_state) {
	case TCP_CA_Loss:
		cs->reducing = false;
		if (!c)
			break;
		/* A timer that fired has cleared this; a new MTU has not. */
		if (!inet_csk(sk)->icsk_pending)
			cherry_timeout(sk, c);
		else if (c->stage != CHERRY_QUIET)
			cherry_leave(sk, c);
		break;
	case TCP_CA_Recovery:
	case TCP_CA_CWR:
		if (cherry_finding(c) && old_state >= TCP_CA_Recovery)
			break;
		if (cherry_finding(c))
			cherry_leave(sk, c);
		cherry_reduce(sk, c, new_state, tp->prior_cwnd);
		break;
	default:
		if (c && c->phase == CHERRY_FAR)
			cherry_finish(sk, c);
		if (cs->reducing) {
			cs->reducing = false;
			cherry_set_cwnd(sk, cs->window_segs);
		}
		break;
	}
	if (c)
		c->asked = false;
}

/**
 * cherry_undo_cwnd() - the loss was none
 * @sk: socket
 *
 * Return: the cwnd from before, or the present one if larger.
 */
static u32 cherry_undo_cwnd(struct sock *sk)
{
	struct cherry_sock *cs = cherry_sock(sk);

	cs->reducing = false;
	if (cs->c && cs->c->stage != CHERRY_QUIET)
		cherry_leave(sk, cs->c);
	return tcp_reno_undo_cwnd(sk);
}

/* ACKs ---------------------------------------------------------------------- */

/* Whether no more ACKs of supplements are to be expected. */
static bool cherry_heard_all(const struct sock *sk, const struct cherry *c)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u64 patience_ns = (u64)cherry_rtt_us(tp) * NSEC_PER_USEC *
			  CHERRY_LISTEN_RTT_HALVES / 2;

	/* The gap is closed: what is acknowledged now may have been repaired. */
	if (!before(tp->snd_una, c->skip_seq))
		return true;
	if (c->stage != CHERRY_LISTENING)
		return false;
	return c->acked_segs >= c->sent_segs ||
	       tcp_clock_ns() - c->last_ns > patience_ns;
}

static void cherry_listen(struct sock *sk, struct cherry *c)
{
	struct cherry_sock *cs = cherry_sock(sk);
	u32 newly, cwnd;

	/* Figure 8: any ACK ends the cycles. */
	if (c->phase == CHERRY_NEW_FFS && c->stage != CHERRY_LISTENING)
		cherry_stop_sending(c);
	if (c->stage == CHERRY_QUIET) {
		cherry_leave(sk, c);
		return;
	}
	if (c->stage == CHERRY_WAITING)
		return;
	newly = cherry_newly_acked(sk, c);
	if (newly) {
		if (c->phase == CHERRY_FAR) {
			cs->window_segs = cherry_grow_segs(cs->window_segs,
							   newly, &c->mask_segs,
							   c->cwnd0_segs);
		} else {
			cwnd = cherry_grow_segs(tcp_snd_cwnd(tcp_sk(sk)),
						cherry_weigh(c->acked_segs,
							     newly, c->halved),
						&c->mask_segs, cherry_cap(sk));
			cherry_set_cwnd(sk, cwnd);
		}
		trace_cherry_acks(sk, c, newly);
	}
	if (cherry_heard_all(sk, c))
		cherry_finish(sk, c);
}

/* A small first flight is over, or has become a large one after all. */
static void cherry_ready(struct sock *sk, struct cherry *c)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (!c->small)
		return;
	if (tp->write_seq == tp->snd_una) {
		c->small = false;
		cherry_set_cwnd(sk, 1);
	} else if (tp->write_seq - tp->snd_una > c->iw_segs * tp->mss_cache) {
		cherry_enter(sk, c, CHERRY_CA, 0);
	}
}

static void cherry_ack(struct sock *sk, struct cherry *c,
		       const struct rate_sample *rs)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (rs->rtt_us > 0)
		c->max_rtt_us = max_t(u32, c->max_rtt_us, rs->rtt_us);
	if (c->timeouts && tp->delivered != c->loss_delivered)
		c->timeouts = 0;
	if (c->phase == CHERRY_READY)
		cherry_ready(sk, c);
	else if (c->phase != CHERRY_CA)
		cherry_listen(sk, c);
	/* What was sent after the last answer has been lost: answer again. */
	if (rs->losses > 0 && inet_csk(sk)->icsk_ca_state >= TCP_CA_Recovery &&
	    rs->prior_mstamp &&
	    after(rs->prior_delivered, c->round_delivered))
		cherry_lost_again(sk, c);
}

/* Slow start and congestion avoidance, up to maxcwnd. */
static void cherry_grow(struct sock *sk, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 before = tcp_snd_cwnd(tp), cap = cherry_cap(sk);

	if (!acked || before >= cap ||
	    (inet_csk(sk)->icsk_ca_state < TCP_CA_Recovery &&
	     !tcp_is_cwnd_limited(sk)))
		return;
	if (tcp_in_slow_start(tp))
		acked = tcp_slow_start(tp, acked);
	if (acked)
		tcp_cong_avoid_ai(tp, tcp_snd_cwnd(tp), acked);
	if (tcp_snd_cwnd(tp) > cap)
		tcp_snd_cwnd_set(tp, cap);
}

static void cherry_main(struct sock *sk, u32 ack, int flag,
			const struct rate_sample *rs)
{
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	u32 acked = max(rs->acked_sacked, 0), una;
	struct cherry *c = cs->c;
	bool progress;

	if (c)
		cherry_ack(sk, c, rs);
	if (cs->reducing) {
		/* Without memory there is nowhere to keep the last snd_una. */
		una = c ? c->last_una : tp->snd_una;
		progress = una != tp->snd_una && rs->losses <= 0;
		tp->prr_delivered += acked;
		cherry_set_cwnd(sk, cherry_prr_segs(cs->window_segs,
						    tp->prior_cwnd,
						    tcp_packets_in_flight(tp),
						    tp->prr_delivered,
						    tp->prr_out, acked,
						    progress));
	} else if (!cherry_finding(c) && !(c && c->phase == CHERRY_READY)) {
		cherry_grow(sk, acked);
	}
	if (c) {
		c->last_una = tp->snd_una;
		c->last_cwnd_segs = tcp_snd_cwnd(tp);
	}
}

AIRTCP_CONG_CONTROL(cherry_cong_control, cherry_main)

/* Life ---------------------------------------------------------------------- */

/**
 * cherry_init() - the socket begins to use Cherry, at any point of its life
 * @sk: socket
 *
 * Hooks have run before this one if the handshake lost a segment.
 */
static void cherry_init(struct sock *sk)
{
	struct cherry_sock *cs = cherry_sock(sk);
	struct tcp_sock *tp = tcp_sk(sk);
	struct cherry *c;

	memset(cs, 0, sizeof(*cs));
	/* A reduction that the former algorithm began is ours to complete. */
	if (tcp_in_cwnd_reduction(sk)) {
		cs->reducing = true;
		cs->window_segs = min(tp->snd_ssthresh, tcp_snd_cwnd(tp));
	}
	if (sk_is_mptcp(sk))
		return;
	c = cherry_alloc(sk);
	if (!c)
		return;
	c->plus = inet_csk(sk)->icsk_ca_ops == &cherry_plus_ops;
	c->claim_seq = tp->snd_una;
	c->last_una = tp->snd_una;
	c->last_cwnd_segs = tcp_snd_cwnd(tp);
	c->round_delivered = tp->delivered;
	c->iw_segs = TCP_INIT_CWND;
	/* Nothing has been sent yet: cwnd = 1 of figure 3. */
	if (!tp->data_segs_out && !tp->packets_out) {
		c->phase = CHERRY_READY;
		c->iw_segs = tcp_snd_cwnd(tp);
		tcp_snd_cwnd_set(tp, 1);
	}
	WRITE_ONCE(cs->c, c);
}

/* Also for a socket that init() never saw, and more than once for others. */
static void cherry_release(struct sock *sk)
{
	struct cherry_sock *cs = cherry_sock(sk);
	struct cherry *c = cs->c;

	if (!c)
		return;
	WRITE_ONCE(cs->c, NULL);
	/* Who comes next shall not be left with Fast-Forward Start's cwnd. */
	if (c->phase == CHERRY_READY && !c->small)
		cherry_set_cwnd(sk, c->iw_segs);
	cherry_free(c);
}

/**
 * cherry_sndbuf_expand() - how large the send buffer may grow
 * @sk: socket
 *
 * A phase needs 1 + sigma + maxcwnd segments to choose from, at any time: a
 * writer that has filled the buffer sleeps until a third of it is free.
 *
 * Return: the factor on what the stack counts as a window.
 */
static u32 cherry_sndbuf_expand(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 window, need, most;

	if (!cherry_sock(sk)->c)
		return 2;
	window = max_t(u32, TCP_INIT_CWND, tcp_snd_cwnd(tp));
	window = max_t(u32, window, tp->reordering + 1);
	need = DIV_ROUND_UP(3 * (3 * READ_ONCE(cherry_maxcwnd) + 2), 2);
	/* The stack multiplies by less than this many bytes, as an int. */
	most = (1U << 30) / (2 * max_t(u32, tp->mss_cache,
				       tp->rx_opt.mss_clamp) + 4 * PAGE_SIZE);
	need = min(need, most);
	return max(DIV_ROUND_UP(need, window), 2U);
}

/* Layout and meaning: see the top.  Called without the socket lock. */
static size_t cherry_get_info(struct sock *sk, u32 ext, int *attr,
			      union tcp_cc_info *info)
{
	u32 rtt_us = tcp_min_rtt(tcp_sk(sk));
	const struct cherry *c;
	u64 rate_Bps = 0;

	rcu_read_lock();
	c = READ_ONCE(cherry_sock(sk)->c);
	if (c)
		rate_Bps = READ_ONCE(c->rate_Bps);
	rcu_read_unlock();

	/* The request has no bit for BBR's layout; Vegas's stands for it. */
	if (!(ext & (1 << (INET_DIAG_VEGASINFO - 1))) || !rate_Bps)
		return 0;
	memset(&info->bbr, 0, sizeof(info->bbr));
	info->bbr.bbr_bw_lo = lower_32_bits(rate_Bps);
	info->bbr.bbr_bw_hi = upper_32_bits(rate_Bps);
	info->bbr.bbr_min_rtt = rtt_us;
	*attr = INET_DIAG_BBRINFO;
	return sizeof(info->bbr);
}

#define CHERRY_OPS(cc_name)					\
{								\
	.name		= cc_name,				\
	.owner		= THIS_MODULE,				\
	.init		= cherry_init,				\
	.release	= cherry_release,			\
	.ssthresh	= cherry_ssthresh,			\
	.cong_control	= cherry_cong_control,			\
	.set_state	= cherry_set_state,			\
	.undo_cwnd	= cherry_undo_cwnd,			\
	.sndbuf_expand	= cherry_sndbuf_expand,			\
	.get_info	= cherry_get_info,			\
	AIRTCP_CWND_EVENT_OPS(cherry_cwnd_event, cherry_tx_start), \
}

static struct tcp_congestion_ops cherry_ops __read_mostly = CHERRY_OPS("cherry");
static struct tcp_congestion_ops cherry_plus_ops __read_mostly =
	CHERRY_OPS("cherry_plus");

/* Sockets read the knobs without a lock; a bad value is refused, not clipped. */
static int cherry_set_knob(const char *val, const struct kernel_param *kp,
			   unsigned int min, unsigned int max)
{
	unsigned int value;
	int err = kstrtouint(val, 0, &value);

	if (err)
		return err;
	if (value < min || value > max)
		return -ERANGE;
	WRITE_ONCE(*(unsigned int *)kp->arg, value);
	return 0;
}

#define CHERRY_KNOB(name, min, max)					\
static int cherry_set_##name(const char *val, const struct kernel_param *kp) \
{									\
	return cherry_set_knob(val, kp, min, max);			\
}									\
									\
static const struct kernel_param_ops cherry_##name##_param = {		\
	.set = cherry_set_##name,					\
	.get = param_get_uint,						\
};									\
									\
module_param_cb(name, &cherry_##name##_param, &cherry_##name, 0644)

CHERRY_KNOB(maxcwnd, CHERRY_MAXCWND_MIN, CHERRY_MAXCWND_MAX);
MODULE_PARM_DESC(maxcwnd, "largest cwnd, segments (default 512, range 4 to 8192)");
CHERRY_KNOB(max_supplements, 0, CHERRY_MAX_SUPPLEMENTS_MAX);
MODULE_PARM_DESC(max_supplements,
		 "most supplements in a round trip (default 513, range 0 to 8193; 0: none, ever)");
CHERRY_KNOB(dscp, 0, CHERRY_DSCP_MAX);
MODULE_PARM_DESC(dscp, "DSCP of supplements (default 1: LE, range 0 to 63)");
CHERRY_KNOB(far_full_pct, 1, CHERRY_FAR_FULL_PCT_MAX);
MODULE_PARM_DESC(far_full_pct,
		 "share of supplements that restores cwnd after First-Aid Recovery, percent (default 75, range 1 to 101; 101: never)");
CHERRY_KNOB(cycle_max_s, 0, CHERRY_CYCLE_MAX_S_MAX);
MODULE_PARM_DESC(cycle_max_s,
		 "longest New Fast-Forward Start without any ACK, s (default 60, range 0 to 3600; 0: no limit)");

static int __init cherry_register(void)
{
	int err;

	BUILD_BUG_ON(sizeof(struct cherry_sock) > ICSK_CA_PRIV_SIZE);
	err = cherry_counters_init();
	if (err)
		return err;
	err = tcp_register_congestion_control(&cherry_ops);
	if (err)
		goto no_cherry;
	err = tcp_register_congestion_control(&cherry_plus_ops);
	if (err)
		goto no_plus;
	return 0;

no_plus:
	tcp_unregister_congestion_control(&cherry_ops);
no_cherry:
	cherry_counters_exit();
	return err;
}

static void __exit cherry_unregister(void)
{
	tcp_unregister_congestion_control(&cherry_plus_ops);
	tcp_unregister_congestion_control(&cherry_ops);
	cherry_counters_exit();
}

module_init(cherry_register);
module_exit(cherry_unregister);

MODULE_AUTHOR("The airtcp developers");
MODULE_DESCRIPTION("TCP-Cherry and TCP-Cherry+: congestion control for satellite paths");
MODULE_LICENSE("GPL");
MODULE_VERSION(AIRTCP_VERSION);
/* The kernel asks for "tcp_" and the algorithm's name. */
MODULE_ALIAS("tcp_cherry_plus");
