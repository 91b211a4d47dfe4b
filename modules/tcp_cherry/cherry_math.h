/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of TCP-Cherry and TCP-Cherry+: which segments become
 * supplements, how far ahead, how far apart, and what their ACKs mean.
 *
 * Nothing here knows a socket, a clock or a module parameter, so that the
 * same text is compiled into tcp_cherry.ko and into the user-space tests.
 *
 * Units.  Segments are counted (_segs) or numbered: a number is a position in
 * the stream, which may wrap like a sequence number.  Time is in microseconds
 * (_us) or nanoseconds (_ns).
 *
 * Ranges.  CHERRY_MAXCWND_MAX = 8192 bounds maxcwnd and with it every count of
 * segments that a phase plans with; larger operands saturate.  Each product
 * names the bound that keeps it inside its type.
 *
 * Figures are those of Utsumi, Togashi, Zabir: "TCP-Cherry+".  What is marked
 * "reconstructed" is not in that paper; cherry.c says where it comes from.
 */
#ifndef AIRTCP_CHERRY_MATH_H
#define AIRTCP_CHERRY_MATH_H

#ifdef __KERNEL__
#include <linux/math64.h>
#include <linux/types.h>
#else
#include <airtcp/user.h>
#endif

#define CHERRY_MAXCWND_MIN	4
#define CHERRY_MAXCWND_MAX	8192
#define CHERRY_PERCENT		100
#define CHERRY_MIN_SEGS		2

enum cherry_phase {
	CHERRY_CA,		/* slow start or congestion avoidance */
	CHERRY_READY,		/* connection start: waits for the first flight */
	CHERRY_FFS,		/* Fast-Forward Start */
	CHERRY_NEW_FFS,		/* New Fast-Forward Start (Cherry+) */
	CHERRY_FAR,		/* First-Aid Recovery */
};

enum cherry_event {
	CHERRY_EV_FLIGHT,	/* the first data segment has left */
	CHERRY_EV_TIMEOUT,	/* retransmission timeout */
	CHERRY_EV_RECOVERY,	/* loss found by duplicate ACKs, SACK or RACK */
	CHERRY_EV_DONE,		/* the supplements have been judged, or given up */
};

static inline u32 cherry_min(u32 a, u32 b)
{
	return a < b ? a : b;
}

static inline u32 cherry_max(u32 a, u32 b)
{
	return a > b ? a : b;
}

/**
 * cherry_probing() - whether a phase starts a window anew from supplements
 * @phase: the phase
 */
static inline bool cherry_probing(enum cherry_phase phase)
{
	return phase == CHERRY_FFS || phase == CHERRY_NEW_FFS;
}

/**
 * cherry_next_phase() - figure 9 and section 3.1
 * @now: the phase
 * @event: what happened
 * @plus: TCP-Cherry+
 * @timeouts: how many timeouts came one after another without any ACK between
 *	them, this one included; only read for CHERRY_EV_TIMEOUT
 *
 * The first timeout leads to Fast-Forward Start; from the second on Cherry does
 * slow start and Cherry+ New Fast-Forward Start, which lasts from timeout to
 * timeout.  First-Aid Recovery needs quiet: a loss while supplements are out
 * does not send more of them.
 */
static inline enum cherry_phase cherry_next_phase(enum cherry_phase now,
						  enum cherry_event event,
						  bool plus, u32 timeouts)
{
	switch (event) {
	case CHERRY_EV_FLIGHT:
		return now == CHERRY_READY ? CHERRY_FFS : now;
	case CHERRY_EV_TIMEOUT:
		if (timeouts <= 1)
			return CHERRY_FFS;
		return plus ? CHERRY_NEW_FFS : CHERRY_CA;
	case CHERRY_EV_RECOVERY:
		return now == CHERRY_CA || now == CHERRY_READY ? CHERRY_FAR : now;
	default:
		return CHERRY_CA;
	}
}

/**
 * cherry_sigma_segs() - figures 2 and 7: (New)Calculate_Skip_Window()
 * @phase: the phase to come
 * @maxcwnd_segs: maxcwnd
 * @cwnd_segs: cwnd of First-Aid Recovery; the caller says which, as the paper
 *	does not
 * @max_rtt_us: MaxRTT, the largest RTT seen
 * @rtt_us: RTT; 0 is taken as 1
 *
 * Return: the skip window sigma.  For First-Aid Recovery it is rounded up, since
 * a gap too small costs duplicates, and bounded by New Fast-Forward Start's, so
 * that one absurd RTT cannot ask for all the receiver has.
 *
 * cwnd * MaxRTT is at most 2^64 - 2^33 + 1, which leaves room for rounding.
 */
static inline u32 cherry_sigma_segs(enum cherry_phase phase, u32 maxcwnd_segs,
				    u32 cwnd_segs, u32 max_rtt_us, u32 rtt_us)
{
	u64 sigma;

	maxcwnd_segs = cherry_min(maxcwnd_segs, CHERRY_MAXCWND_MAX);
	switch (phase) {
	case CHERRY_FFS:
		return maxcwnd_segs;
	case CHERRY_NEW_FFS:
		return 2 * maxcwnd_segs;
	case CHERRY_FAR:
		if (!rtt_us)
			rtt_us = 1;
		if (max_rtt_us < rtt_us)
			max_rtt_us = rtt_us;
		sigma = (u64)cwnd_segs * max_rtt_us;
		sigma = div_u64(sigma + rtt_us - 1, rtt_us);
		if (sigma > 2 * maxcwnd_segs)
			sigma = 2 * maxcwnd_segs;
		return sigma;
	default:
		return 0;
	}
}

/**
 * struct cherry_select - memory of (New)Select_Data4Supple()
 * @skip: SkipData, number of the first supplement
 * @seg: seqno4supple, number of the supplement whose turn it is
 * @i: the paper's i, how far the cycle has come
 * @limit: the cycle starts again when i would exceed it; the paper's maxcwnd
 */
struct cherry_select {
	u32 skip;
	u32 seg;
	u32 i;
	u32 limit;
};

/**
 * cherry_select_first() - figures 1 and 6, "just before ..."
 * @sel: to be set
 * @thresh: ThreshData, number of the data segment that the algorithm sends
 * @sigma_segs: the skip window
 * @limit: largest i of a cycle
 *
 * SkipData = Get_Next_Send(ThreshData, sigma + 1), where numbers are those of
 * segments that are still to be sent.
 */
static inline void cherry_select_first(struct cherry_select *sel, u32 thresh,
				       u32 sigma_segs, u32 limit)
{
	sel->skip = thresh + sigma_segs + 1;
	sel->seg = sel->skip;
	sel->i = 0;
	sel->limit = limit;
}

/**
 * cherry_select_next() - figures 1 and 6, the other branches
 * @sel: memory
 * @cycling: in New Fast-Forward Start
 *
 * A cycle has limit + 1 segments, i = 0 ... limit, as figure 6 prints it.  At
 * tau = RTT / limit that is one tau more than a round trip: the ACK of the
 * first supplement that got through ends the phase before it is sent again.
 *
 * Return: true when the cycle began again.
 */
static inline bool cherry_select_next(struct cherry_select *sel, bool cycling)
{
	if (cycling) {
		sel->i++;
		if (sel->i > sel->limit) {
			sel->i = 0;
			sel->seg = sel->skip;
			return true;
		}
	}
	sel->seg++;
	return false;
}

/**
 * struct cherry_plan - what a phase may claim
 * @gap_segs: segments to skip beyond those that are due already
 * @supp_segs: supplements
 * @again_segs: the first of these, which are not claimed but due already
 * @limited: fewer than wanted, for want of data or of the receiver's window
 */
struct cherry_plan {
	u32 gap_segs;
	u32 supp_segs;
	u32 again_segs;
	bool limited;
};

/**
 * cherry_plan() - fit skip window and supplements into what there is
 * @sigma_segs: the skip window wanted
 * @supp_segs: supplements wanted
 * @due_segs: segments behind ThreshData that wait for (re)transmission: they
 *	are gap already
 * @avail_segs: unsent segments that the receiver's window has room for
 * @again_segs: of what is due, how many at its end may be supplements
 *
 * When there is less than sigma + supplements, both shrink and keep their
 * ratio (reconstructed): it is the gap that keeps data from overtaking the
 * supplements, and the supplements that bring cwnd.  What is due takes part in
 * that as far as it may: without any unsent data its last third or half is
 * supplements.
 *
 * All operands are cut to 4 * CHERRY_MAXCWND_MAX = 2^15, so that products stay
 * below 2^31.
 */
static inline struct cherry_plan cherry_plan(u32 sigma_segs, u32 supp_segs,
					     u32 due_segs, u32 avail_segs,
					     u32 again_segs)
{
	const u32 top = 4 * CHERRY_MAXCWND_MAX;
	struct cherry_plan plan = { 0 };
	u32 want_gap, supp;

	sigma_segs = cherry_min(sigma_segs, top);
	supp_segs = cherry_min(supp_segs, top);
	due_segs = cherry_min(due_segs, top);
	avail_segs = cherry_min(avail_segs, top);

	want_gap = sigma_segs > due_segs ? sigma_segs - due_segs : 0;
	if (want_gap + supp_segs <= avail_segs) {
		plan.gap_segs = want_gap;
		plan.supp_segs = supp_segs;
		return plan;
	}
	plan.limited = true;
	/* With nothing to keep a ratio to, all there is may be supplements. */
	supp = avail_segs;
	if (sigma_segs + supp_segs)
		supp = (avail_segs + due_segs) * supp_segs /
		       (sigma_segs + supp_segs);
	supp = cherry_min(supp, supp_segs);
	again_segs = cherry_min(again_segs, due_segs);
	if (supp > avail_segs)
		plan.again_segs = cherry_min(supp - avail_segs, again_segs);
	plan.supp_segs = cherry_min(supp, avail_segs + plan.again_segs);
	plan.gap_segs = cherry_min(want_gap, avail_segs + plan.again_segs -
					     plan.supp_segs);
	return plan;
}

/**
 * cherry_plan_behind() - the same for a sender that has data in flight
 * @lead_segs: segments of data that will leave before the ACK of the first
 *	supplement is here: a gap of their own, which does not shrink
 * @sigma_segs: the skip window wanted, without these
 * @supp_segs: supplements wanted
 * @due_segs: as cherry_plan()
 * @avail_segs: as cherry_plan()
 * @again_segs: as cherry_plan()
 *
 * Return: a plan; without supplements where the lead takes all there is.
 */
static inline struct cherry_plan
cherry_plan_behind(u32 lead_segs, u32 sigma_segs, u32 supp_segs, u32 due_segs,
		   u32 avail_segs, u32 again_segs)
{
	u32 held = cherry_min(lead_segs, due_segs), more = lead_segs - held;
	struct cherry_plan plan = { .limited = true };

	if (more >= avail_segs && more)
		return plan;
	plan = cherry_plan(sigma_segs, supp_segs, due_segs - held,
			   avail_segs - more, again_segs);
	plan.gap_segs += more;
	return plan;
}

/**
 * cherry_tau_ns() - tau = RTT / maxcwnd
 * @rtt_us: RTT
 * @count: maxcwnd, or the number of supplements of First-Aid Recovery; 0 is
 *	taken as 1
 *
 * Return: nanoseconds rounded down, at least 1.  RTT * 1000 is below 2^42.
 */
static inline u64 cherry_tau_ns(u32 rtt_us, u32 count)
{
	u64 tau = div_u64((u64)rtt_us * 1000, count ? count : 1);

	return tau ? tau : 1;
}

/**
 * cherry_fit_count() - how many supplements go into a round trip
 * @count: how many are wanted
 * @rtt_us: RTT
 * @tau_min_ns: the shortest distance that the sender is to keep, above 0
 */
static inline u32 cherry_fit_count(u32 count, u32 rtt_us, u32 tau_min_ns)
{
	u64 room = div_u64((u64)rtt_us * 1000, tau_min_ns ? tau_min_ns : 1);

	return room < count ? room : count;
}

/**
 * cherry_grow_segs() - cwnd after ACKs of supplements
 * @cwnd_segs: cwnd
 * @acked_segs: supplements newly acknowledged
 * @mask_segs: ACKs that do not count yet; reduced.  First-Aid Recovery only:
 *	half of what it sent would come back from a saturated path, too
 *	(reconstructed)
 * @cap_segs: cwnd never grows beyond it this way: maxcwnd in Fast-Forward
 *	Start, the window before the loss in First-Aid Recovery
 */
static inline u32 cherry_grow_segs(u32 cwnd_segs, u32 acked_segs,
				   u32 *mask_segs, u32 cap_segs)
{
	u32 masked = cherry_min(acked_segs, *mask_segs);

	*mask_segs -= masked;
	acked_segs -= masked;
	if (cwnd_segs >= cap_segs)
		return cwnd_segs;
	return cap_segs - cwnd_segs < acked_segs ? cap_segs :
						   cwnd_segs + acked_segs;
}

/**
 * cherry_weigh() - how many of a Fast-Forward Start's ACKs count
 * @acked_segs: all of them so far
 * @newly_segs: the last of these
 * @halved: data was lost, so each second counts (reconstructed)
 */
static inline u32 cherry_weigh(u32 acked_segs, u32 newly_segs, bool halved)
{
	newly_segs = cherry_min(newly_segs, acked_segs);
	if (!halved)
		return newly_segs;
	return acked_segs / 2 - (acked_segs - newly_segs) / 2;
}

/**
 * cherry_full() - whether so many supplements came back that the path is free
 * @acked_segs: supplements acknowledged
 * @sent_segs: supplements sent
 * @full_pct: share that counts as all of them; above 100: never
 *
 * The products are below 2^39.
 */
static inline bool cherry_full(u32 acked_segs, u32 sent_segs, u32 full_pct)
{
	return sent_segs && full_pct <= CHERRY_PERCENT &&
	       (u64)acked_segs * CHERRY_PERCENT >= (u64)sent_segs * full_pct;
}

/* What Fast-Forward Start has found out. */
enum cherry_verdict {
	CHERRY_LEARNT,		/* cwnd is the path's: congestion avoidance */
	CHERRY_OPEN,		/* all came back but few could be sent: slow start */
	CHERRY_BLIND,		/* none came back: nothing learnt, slow start */
};

/**
 * cherry_judge() - how to go on after Fast-Forward Start
 * @acked_segs: supplements acknowledged
 * @sent_segs: supplements sent, each counted once
 * @limited: fewer were sent than maxcwnd asks for
 * @full_pct: share that counts as all of them
 */
static inline enum cherry_verdict cherry_judge(u32 acked_segs, u32 sent_segs,
					       bool limited, u32 full_pct)
{
	if (!acked_segs)
		return CHERRY_BLIND;
	if (limited && cherry_full(acked_segs, sent_segs,
				   cherry_min(full_pct, CHERRY_PERCENT)))
		return CHERRY_OPEN;
	return CHERRY_LEARNT;
}

/**
 * cherry_prr_segs() - proportional rate reduction (RFC 6937), for a window to
 *	walk to that may move meanwhile
 * @target_segs: the window to arrive at
 * @prior_segs: the window before the loss; 0 is taken as 1
 * @flight_segs: segments in flight
 * @delivered_segs: delivered since the loss
 * @out_segs: sent since the loss
 * @acked_segs: delivered by this ACK
 * @progress: this ACK moved snd_una and found nothing lost
 *
 * Return: cwnd for now, at least flight + 1 before anything was sent.
 *
 * target * delivered is at most 2^64 - 2^33 + 1, which leaves room for
 * rounding; the result saturates at 2^31.
 */
static inline u32 cherry_prr_segs(u32 target_segs, u32 prior_segs,
				  u32 flight_segs, u32 delivered_segs,
				  u32 out_segs, u32 acked_segs, bool progress)
{
	const u64 top = 1U << 31;
	u64 send = 0, due;

	if (flight_segs > target_segs) {
		if (!prior_segs)
			prior_segs = 1;
		due = (u64)target_segs * delivered_segs;
		due = div_u64(due + prior_segs - 1, prior_segs);
		send = due > out_segs ? due - out_segs : 0;
	} else {
		if (delivered_segs > out_segs)
			send = delivered_segs - out_segs;
		if (send < acked_segs)
			send = acked_segs;
		send += progress;
		if (send > target_segs - flight_segs)
			send = target_segs - flight_segs;
	}
	if (!send && !out_segs)
		send = 1;
	send += flight_segs;
	return send < top ? send : top;
}

#endif /* AIRTCP_CHERRY_MATH_H */
