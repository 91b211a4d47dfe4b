// SPDX-License-Identifier: GPL-2.0
/*
 * ImTCP: inline measurement of a path's capacity and available bandwidth
 *
 *	Cao Le Thanh Man, Hasegawa, Murata: "ImTCP: TCP with an inline
 *	measurement mechanism for available bandwidth", Computer Communications
 *	29 (2006); "A simultaneous inline measurement mechanism for capacity and
 *	available bandwidth of end-to-end network path", IEICE Trans. E89-B (2006).
 *
 * No packet is sent for the measurement's sake.  Now and then the sender
 * leaves N of its own data packets at chosen intervals, a stream, and looks
 * at the times at which their ACKs come.  As long as a stream's rate is below
 * the available bandwidth A its packets all take equally long; above A they
 * queue up, each longer than the one before:
 *
 *	D_j = R_j - S_j		(S: departure, R: arrival of the ACK)
 *	T_i = +1 if D increases in stream i, -1 if not, 0 undecided
 *
 * A measurement searches A in a range (Bl, Bu), divided into k sub-ranges, a
 * stream for each, the highest first:
 *
 *	B_i = Bu - (Bu - Bl) / k * (i - 1),	I_i = (B_{i+1}, B_i)
 *	M / (S_{i,j} - S_{i,j-1}) = B_{i+1} + (B_i - B_{i+1}) / (N-1) * (j-1)
 *	a = argmax sum_{j<=a} T_j - sum_{j>a} T_j
 *
 *	1 <= a <= k: A lies in I_a; it is the highest rate of that stream which
 *	    arrives as it was sent.  Next range: A -/+ max(1.96 S / sqrt(q), Bm / 2)
 *	    from the q results since the last discard and their deviation S.
 *	a = 0, a = k+1: A is above (below) the range, which is widened by half its
 *	    width that way; the stored results are discarded.
 *
 * The first range comes from one train at full speed: A0 = (N-1) M / (R_N - R_1),
 * range (A0/2, A0).  Trains at full speed also give the capacity
 *
 *	C = sum M / sum T			of those that met no other packet
 *	C = (sum M - A * sum delta) / (sum T - sum delta)	when most met some
 *
 * with delta and T the times between departures and between arrivals.
 *
 *	         measurement due, cwnd >= N         window free
 *	  PASS ------------------------------> STORE -----------> SEND
 *	   ^  ^                                  |                 |
 *	   |  | given up: hold limit, loss, idle |                 | N packets
 *	   |  +----------------------------------+                 | sent
 *	   |                                                       v
 *	   +---------------- window full again ----------------- EMPTY
 *
 * How it meets the kernel.  Nothing is queued anywhere but in the socket.
 *
 *	before_xmit	called at each entry to the sending loop.  With pacing
 *			by the socket (SK_PACING_NEEDED) one packet leaves at a
 *			time, sk_pacing_rate as found at its departure decides
 *			when the next one may, so a rate for each packet is a
 *			spacing of one's choice.  STORE moves the socket's own
 *			departure stamp (tcp_wstamp_ns) into the future and
 *			brings it back when the window is free: the stack sees
 *			a pacing delay, cwnd is never touched.
 *	acked		tcp_clock_cache is R, in ns
 *	state_changed	loss, reordering or ECN: streams in flight are void
 *
 * What follows the papers only in part, and why ([R]: reconstructed, the papers'
 * text was not to be had; numbers as in the trace and the knobs):
 *
 *  1. [R] k = 4 and N = 10 are the FreeBSD package's; the simulations of the
 *     first paper used N = 5, which is noisier.
 *  2. trend: "either" is Pathload's rule of 2002 that the paper cites.  "net" is
 *     ours: PCT counts increases, and full-size cross traffic makes few large
 *     ones and many small decreases, so "either" finds A far too high.
 *  3. estimate: "fit" is the paper's regression, "middle" the middle of I_a,
 *     "balance" ours: see im_balance_kbps().  With it a value outside the range
 *     moves the range there at once instead of widening it step by step.
 *  4. S is printed as "the variance" in the paper; only with the standard
 *     deviation is 1.96 S / sqrt(q) a 95 % interval.
 *  5. [R] a = k+1 cannot win the sum against a = k; it is chosen when all T are +1
 *     and the slowest third of stream k arrives at less than 0.9 of its rate.
 *  6. [R] Bl is at least C/100, since the first gap of the slowest stream
 *     grows without limit otherwise, and Bu at most 5/4 C or the socket's
 *     maximum pacing rate.  Bm is range_min_permille of C.
 *  7. [R] The hold limit is 2.02 times the RTT's mean deviation D, and half an
 *     RTT at most: RTO = mean + 4 D, and 98 % of RTTs are below mean + 1.98 D.
 *  8. store: "full" waits until N packets of window are free, "need" (ours)
 *     only for those that the ACKs arriving meanwhile will not free, "none"
 *     never.  The paper's rule cannot measure with windows below 2 N
 *     without stopping the flow for most of an RTT.
 *  9. [R] A train at full speed is sent with each of the first four measurements and
 *     with every capacity_every-th later one.  C is the sum over the last 16,
 *     not below A and not below the highest delivery rate of the last 10 s.
 *     Trains that met nothing are known by their agreeing, see im_alone_kbps().
 *     The second formula takes cross traffic to arrive evenly while a train
 *     leaves; where it does not (one processor that sends both, as in the
 *     laboratory) that formula is high by (C - A) * delta / M.
 *     Streams with T = +1 are not used for C: with them the formula is the one that
 *     balance gets A from, and two unknowns would come out of one equation.
 * 10. An ACK that covers several packets gives one point, for the last of them.
 *     im_clean() drops points that speak of ACKs and not of the path.  A
 *     stream needs max(4, N/2) points.
 * 11. A stream is void, and sent again later, when a packet of it is lost or
 *     reordered, was not full, left unasked for, or when the stream was sent
 *     at less than 0.8 of its rate (no window, no data, no processor).
 * 12. Measured is only in state Open, after the first ten segments (which
 *     are never paced), with N full packets of data waiting.
 * 13. fq at the root takes pacing away from TCP (SK_PACING_FQ) and gets whole
 *     batches.  Before a stream it is taken back; but since 6.7 fq says so again
 *     with every packet, and the rest of the stream leaves at once.  Then
 *     nothing is measured on that socket any more while it is so: better no
 *     result than a wrong one.  Such sockets are counted in fq_sockets, the
 *     first is logged.  Any other qdisc, and none, will do.
 * 14. head (ours): the first packets of a stream leave at full speed, the N - head
 *     that follow as step 3 says.  The head makes a short queue, so the
 *     bottleneck is busy while the rest arrives, and then growth and rate give
 *     A without a threshold, also from streams slower than A.  Without it
 *     random cross traffic makes some delay grow at any rate, and A comes out
 *     too low (by a fifth to a third).  The head itself gives C.  0 is the paper.
 *     Trend and regression look at the packets behind the head, balance at all: the
 *     queue is busy from the second packet on, and cross traffic that a burst
 *     held up (in a host, a switch) comes behind it and must not count twice.
 *
 * As published: trend=either estimate=fit store=full head=0.
 *
 * Limits.  A backlog (ACKs that wait for the owner of the socket), interrupt
 * coalescing and offload of ACKs blur R; queues on the way back count as queues.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/win_minmax.h>
#include <net/tcp.h>
#include <airtcp/imtcp.h>
#include <airtcp/imtcp_math.h>
#include <airtcp/kcompat.h>

#define CREATE_TRACE_POINTS
#include "imtcp_trace.h"

enum { TREND_EITHER, TREND_BOTH, TREND_NET };
enum { ESTIMATE_FIT, ESTIMATE_MIDDLE, ESTIMATE_BALANCE };
enum { STORE_FULL, STORE_NEED, STORE_NONE };

static const char * const trend_names[] = { "either", "both", "net" };
static const char * const estimate_names[] = { "fit", "middle", "balance" };
static const char * const store_names[] = { "full", "need", "none" };

/* Difference 1. */
#define IM_PACKETS		10
#define IM_PACKETS_MIN		4
#define IM_STREAMS		4
#define IM_STREAMS_MIN		2

/*
 * Difference 14.  Four packets keep the queue from running empty within a
 * stream up to a load of 80 % (simulation of selftests/arith: bias below 3 %
 * up to 50 % load, 5 % at 80 %; with three it is 4 and 11 %).  At least three must be left
 * behind the head.
 */
#define IM_HEAD			4
#define IM_TAIL_MIN		3

/* Bm: simulations found 10 % of C better than 20 and 40 %. */
#define IM_RANGE_MIN_PERMILLE	100

/* Ethernet's header; a frame check sequence or a tunnel is the user's to add. */
#define IM_OVERHEAD_BYTES	14

/* Difference 9. */
#define IM_CAPACITY_EVERY	16
#define IM_FIRST_TRAINS		4
#define IM_DELIVERY_WINDOW_MS	10000

/* A train's packets are 1 us apart: 12 Gbit/s, which stands for full speed. */
#define IM_TRAIN_GAP_NS		1000

/* Segments that one ACK usually acknowledges at most. */
#define IM_ACK_SEGS		2

/* The first ten segments of a connection are not paced (tcp_output.c). */
#define IM_UNPACED_SEGS		10

/* Difference 11: least share of its rate that a stream must have had, 1/1000. */
#define IM_LEAST_RATE		800

/* A stream that takes longer from first departure to last ACK is void, ns. */
#define IM_MAX_AGE_NS		4000000000ULL

/* After that many void streams in a row a measurement starts again. */
#define IM_MAX_VOID		16
/* Longest pause after windows that did not come free, as a power of two RTTs. */
#define IM_MAX_PAUSE_LOG	6

static unsigned int packets __read_mostly = IM_PACKETS;
static unsigned int head __read_mostly = IM_HEAD;
static unsigned int streams __read_mostly = IM_STREAMS;
static unsigned int range_min_permille __read_mostly = IM_RANGE_MIN_PERMILLE;
static unsigned int overhead_bytes __read_mostly = IM_OVERHEAD_BYTES;
static unsigned int capacity_kbps __read_mostly;
static unsigned int capacity_every __read_mostly = IM_CAPACITY_EVERY;
static unsigned int trend __read_mostly = TREND_NET;
static unsigned int estimate __read_mostly = ESTIMATE_BALANCE;
static unsigned int store __read_mostly = STORE_NEED;
static atomic_t fq_sockets = ATOMIC_INIT(0);

enum im_phase { IM_PASS, IM_STORE, IM_SEND, IM_EMPTY };

enum im_status {
	IM_FREE,		/* to be sent */
	IM_SENDING,
	IM_SENT,		/* ACKs are still to come */
	IM_DONE,		/* evaluated */
	IM_UNUSED,		/* no train in this measurement, or stopped early */
};

/**
 * struct im_stream - one stream
 * @range: its sub-range
 * @seq: sequence number of its first packet
 * @begin_ns: when the first packet left; the times below count from here
 * @sent_ns: departures
 * @acked_ns: arrivals known on their own, 0 otherwise
 * @load: what it says, once evaluated
 * @held_us: how long packets were held back before it
 * @sent: packets whose departure is known
 * @acked: packets acknowledged
 * @status: enum im_status
 * @verdict: T_i
 * @falls: difference 5
 */
struct im_stream {
	struct im_range	range;
	u32	seq;
	u32	held_us;
	u64	begin_ns;
	u32	sent_ns[IM_MAX_PACKETS];
	u32	acked_ns[IM_MAX_PACKETS];
	struct im_load load;
	u8	sent;
	u8	acked;
	u8	status;
	s8	verdict;
	bool	falls;
};

/**
 * struct imtcp - the measurement of one socket
 * @range: search range; 0, 0: not known yet
 * @results: results since the last discard
 * @delivery: highest delivery rate lately, kbit/s
 * @trains: the last trains at full speed
 * @hold_until_ns: STORE ends, whatever the window
 * @hold_from_ns: STORE began
 * @leaves_ns: when the next packet of the stream leaves, if it leaves now
 * @pause_until_ns: no STORE before
 * @began_ns: the measurement's first stream
 * @result_us: tcp_mstamp of the latest result
 * @rate: sk_pacing_rate outside streams
 * @wrote: sk_pacing_rate as last written here; 0: not written
 * @number: results so far
 * @measurement: measurements so far, from 1
 * @avail_kbps: A
 * @avail_half_kbps: half its 95 % interval
 * @capacity: C, kbit/s; 0: not known
 * @capacity_half: half its 95 % interval
 * @mss: segment size that the streams were made for
 * @bits: M
 * @gso_max_segs: sk_gso_max_segs outside streams; 0: not changed
 * @n_trains: how many of @trains are in use
 * @next_train: which one is the oldest
 * @k: streams of this measurement
 * @n: packets of a stream of this measurement
 * @head: how many of them go first at full speed
 * @slot: the stream of STORE and SEND
 * @phase: enum im_phase
 * @voided: void streams in a row
 * @missed: windows in a row that did not come free
 * @lost_to_fq: fq has kept pacing; counted in fq_sockets
 * @stream: the train is the first, then streams 1 to k
 */
struct imtcp {
	struct im_range	range;
	struct im_results results;
	struct minmax delivery;
	struct im_train	trains[IM_PAIRS];
	u64	hold_until_ns;
	u64	hold_from_ns;
	u64	leaves_ns;
	u64	pause_until_ns;
	u64	began_ns;
	u64	result_us;
	unsigned long rate;
	unsigned long wrote;
	u32	number;
	u32	measurement;
	u32	avail_kbps;
	u32	avail_half_kbps;
	u32	capacity;
	u32	capacity_half;
	u32	mss;
	u32	bits;
	u32	gso_max_segs;
	u8	n_trains;
	u8	next_train;
	u8	k;
	u8	n;
	u8	head;
	u8	slot;
	u8	phase;
	u8	voided;
	u8	missed;
	bool	lost_to_fq;
	struct im_stream stream[IM_MAX_STREAMS + 1];
};

static u32 im_wire_bytes(const struct sock *sk)
{
	const struct inet_connection_sock *icsk = inet_csk(sk);

	return tcp_sk(sk)->mss_cache + tcp_sk(sk)->tcp_header_len +
	       icsk->icsk_af_ops->net_header_len + icsk->icsk_ext_hdr_len +
	       READ_ONCE(overhead_bytes);
}

/* What sk_pacing_rate counts: payload in byte/s. */
static unsigned long im_payload_rate(const struct sock *sk, u32 kbps)
{
	u64 rate = div_u64((u64)kbps * 125 * tcp_sk(sk)->mss_cache,
			   im_wire_bytes(sk));

	return min_t(u64, max_t(u64, rate, 1),
		     READ_ONCE(sk->sk_max_pacing_rate));
}

/* The rate at which ACKs free the window now. */
static u32 im_flow_rate_kbps(const struct tcp_sock *tp, u32 packet_bits)
{
	u32 srtt_us = max(tp->srtt_us >> 3, 1U);
	u32 segs = min(tcp_snd_cwnd(tp), 1U << 22);

	return im_clamp_kbps(div_u64((u64)segs * packet_bits * 1000, srtt_us));
}

/* Pacing -------------------------------------------------------------------- */

static void im_write_rate(struct sock *sk, struct imtcp *im, unsigned long rate)
{
	/* Whatever is there and not ours is the kernel's latest. */
	if (sk->sk_pacing_rate != im->wrote)
		im->rate = sk->sk_pacing_rate;
	im->wrote = rate;
	WRITE_ONCE(sk->sk_pacing_rate, rate);
}

static void im_restore_rate(struct sock *sk, struct imtcp *im)
{
	if (im->wrote && sk->sk_pacing_rate == im->wrote)
		WRITE_ONCE(sk->sk_pacing_rate, im->rate);
	im->wrote = 0;
	if (im->gso_max_segs && sk->sk_gso_max_segs == 1)
		sk->sk_gso_max_segs = im->gso_max_segs;
	im->gso_max_segs = 0;
}

static void im_one_segment_a_packet(struct sock *sk, struct imtcp *im)
{
	if (sk->sk_gso_max_segs == 1)
		return;
	im->gso_max_segs = sk->sk_gso_max_segs;
	sk->sk_gso_max_segs = 1;
}

/*
 * The departure stamp that STORE moved comes back.  A timer armed for the
 * later time would keep the kernel from arming one for the stream's gaps; its
 * reference to the socket goes with it.
 */
static void im_release_hold(struct sock *sk, struct imtcp *im)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (tp->tcp_wstamp_ns == im->hold_until_ns)
		tp->tcp_wstamp_ns = tp->tcp_clock_cache;
	if (hrtimer_try_to_cancel(&tp->pacing_timer) == 1)
		__sock_put(sk);
}

/* Difference 13. */
static bool im_take_pacing(struct sock *sk, struct imtcp *im)
{
	u32 status = READ_ONCE(sk->sk_pacing_status);

	if (likely(status == SK_PACING_NEEDED))
		return true;
	if (status == SK_PACING_FQ && im->lost_to_fq)
		return false;
	return cmpxchg(&sk->sk_pacing_status, status, SK_PACING_NEEDED) ==
	       status;
}

static void im_lose_pacing(struct imtcp *im)
{
	if (im->lost_to_fq)
		return;
	im->lost_to_fq = true;
	atomic_inc(&fq_sockets);
	pr_info_once("the fq qdisc paces a socket, which cannot be measured so: it lives without results; use another root qdisc (count: parameter fq_sockets)\n");
}

/* Streams ------------------------------------------------------------------- */

static void im_report(const struct sock *sk, const struct imtcp *im,
		      const struct im_stream *s, const struct im_trend *t,
		      u8 points, u8 why)
{
	struct imtcp_stream_report r = {
		.range = s->range,
		.sent_ns = s->load.sent_ns,
		.held_us = s->held_us,
		.measurement = im->measurement,
		.stream = s - im->stream,
		.packets = s->sent,
		.points = points,
		.verdict = s->verdict,
		.why = why,
		.busy = s->load.busy,
	};

	if (t)
		r.trend = *t;
	trace_imtcp_stream(sk, &r);
}

/* STORE and SEND end here, with or without a stream. */
static void im_pass(struct sock *sk, struct imtcp *im)
{
	if (im->phase == IM_STORE)
		im_release_hold(sk, im);
	im->phase = IM_PASS;
	im_restore_rate(sk, im);
}

static void im_void(struct sock *sk, struct imtcp *im, struct im_stream *s,
		    u8 why)
{
	s->verdict = 0;
	if (trace_imtcp_stream_enabled())
		im_report(sk, im, s, NULL, 0, why);
	if (im->phase >= IM_STORE && im->slot == s - im->stream)
		im_pass(sk, im);
	s->status = IM_FREE;
	im->voided++;
}

/* All streams in flight are void. */
static void im_void_all(struct sock *sk, struct imtcp *im, u8 why)
{
	u32 i;

	for (i = 0; i <= im->k; i++) {
		struct im_stream *s = &im->stream[i];

		if (s->status == IM_SENDING || s->status == IM_SENT)
			im_void(sk, im, s, why);
	}
	if (im->phase != IM_PASS)
		im_pass(sk, im);
}

static void im_pause(const struct tcp_sock *tp, struct imtcp *im, u32 rtts_log)
{
	im->pause_until_ns = tp->tcp_clock_cache +
			     ((u64)(tp->srtt_us >> 3) * NSEC_PER_USEC <<
			      rtts_log);
}

/**
 * im_plan() - a measurement begins: steps 1 to 3
 * @sk: socket
 * @im: its measurement
 */
static void im_plan(const struct sock *sk, struct imtcp *im)
{
	u32 front = READ_ONCE(head), i;
	bool train;

	im->measurement++;
	im->mss = tcp_sk(sk)->mss_cache;
	im->bits = im_wire_bytes(sk) * 8;
	im->n = READ_ONCE(packets);
	im->head = front > 1 && front + IM_TAIL_MIN <= im->n ? front : 1;
	/* A stream with a head is a train, too. */
	train = !im->range.hi_kbps ||
		(im->head == 1 &&
		 (im->number < IM_FIRST_TRAINS ||
		  !(im->number % READ_ONCE(capacity_every))));
	/* Step 1 is a measurement of the train alone. */
	im->k = im->range.hi_kbps ? READ_ONCE(streams) : 0;
	im->voided = 0;
	im->began_ns = 0;
	memset(im->stream, 0, sizeof(im->stream));
	if (!train)
		im->stream[0].status = IM_UNUSED;
	for (i = 1; i <= im->k; i++)
		im->stream[i].range = im_subrange(im->range, im->k, i);
}

/* The next stream to send, or NULL. */
static struct im_stream *im_next_stream(struct imtcp *im)
{
	u32 i;

	for (i = 0; i <= im->k; i++)
		if (im->stream[i].status == IM_FREE)
			return &im->stream[i];
	return NULL;
}

/* Difference 12. */
static bool im_may_measure(const struct sock *sk, const struct imtcp *im)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 n = READ_ONCE(packets);

	return inet_csk(sk)->icsk_ca_state == TCP_CA_Open && !tp->sacked_out &&
	       !tp->app_limited && tp->srtt_us &&
	       tp->data_segs_out >= IM_UNPACED_SEGS &&
	       tcp_snd_cwnd(tp) >= n &&
	       tp->write_seq - tp->snd_nxt >= n * tp->mss_cache &&
	       !before(tcp_wnd_end(tp), tp->snd_nxt + n * tp->mss_cache);
}

static u32 im_mid_kbps(struct im_range r)
{
	return r.lo_kbps + (r.hi_kbps - r.lo_kbps) / 2;
}

/* Segments of window that must be free before the stream may start. */
static u32 im_needed(const struct sock *sk, const struct imtcp *im)
{
	const struct im_stream *s = &im->stream[im->slot];
	u32 rule = READ_ONCE(store);

	if (rule == STORE_FULL || s == im->stream)
		return im->n;
	if (rule == STORE_NONE)
		return 1;
	return im->head - 1 +
	       im_needed_segs(im->n - im->head + 1,
			      im_flow_rate_kbps(tcp_sk(sk), im->bits),
			      im_mid_kbps(s->range));
}

static void im_begin_store(struct sock *sk, struct imtcp *im)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct im_stream *s;
	u32 hold_us;

	if (tp->tcp_clock_cache < im->pause_until_ns || !im_may_measure(sk, im))
		return;
	if (!im->measurement || im->voided > IM_MAX_VOID ||
	    im->mss != tp->mss_cache) {
		im_void_all(sk, im, IM_WHY_STALE);
		im_plan(sk, im);
	}
	s = im_next_stream(im);
	if (!s || !im_take_pacing(sk, im))
		return;
	im->slot = s - im->stream;
	im->phase = IM_STORE;
	hold_us = im_hold_us(tp->rttvar_us, tp->mdev_us, tp->srtt_us >> 3);
	im->hold_from_ns = tp->tcp_clock_cache;
	im->hold_until_ns = max(tp->tcp_wstamp_ns, tp->tcp_clock_cache) +
			    (u64)hold_us * NSEC_PER_USEC;
}

static void im_begin_send(struct sock *sk, struct imtcp *im)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct im_stream *s = &im->stream[im->slot];

	im_release_hold(sk, im);
	im->phase = IM_SEND;
	im->missed = 0;
	s->status = IM_SENDING;
	s->seq = tp->snd_nxt;
	s->sent = 0;
	s->acked = 0;
	s->held_us = div_u64(tp->tcp_clock_cache - im->hold_from_ns,
			     NSEC_PER_USEC);
	memset(s->acked_ns, 0, sizeof(s->acked_ns));
	if (!im->began_ns)
		im->began_ns = tp->tcp_clock_cache;
}

/* The window did not come free in time: less often, then. */
static void im_missed(struct sock *sk, struct imtcp *im)
{
	struct im_stream *s = &im->stream[im->slot];

	s->held_us = div_u64(tcp_sk(sk)->tcp_clock_cache - im->hold_from_ns,
			     NSEC_PER_USEC);
	s->sent = 0;
	im_pause(tcp_sk(sk), im, im->missed);
	if (im->missed < IM_MAX_PAUSE_LOG)
		im->missed++;
	im_void(sk, im, s, IM_WHY_HELD);
	/* A later train does as well; the first one there is no measuring without. */
	if (!im->slot && im->k)
		s->status = IM_UNUSED;
}

static void im_store(struct sock *sk, struct imtcp *im)
{
	struct tcp_sock *tp = tcp_sk(sk);
	u32 in_flight = tcp_packets_in_flight(tp);
	u32 cwnd = tcp_snd_cwnd(tp);

	if (!im_may_measure(sk, im)) {
		im_pass(sk, im);
		return;
	}
	if (cwnd >= in_flight + im_needed(sk, im))
		im_begin_send(sk, im);
	else if (tp->tcp_clock_cache >= im->hold_until_ns)
		im_missed(sk, im);
	else
		tp->tcp_wstamp_ns = im->hold_until_ns;
}

/* The departure of packet i is certain now. */
static bool im_departed(struct imtcp *im, struct im_stream *s)
{
	if (!s->sent)
		s->begin_ns = im->leaves_ns;
	if (im->leaves_ns - s->begin_ns > IM_MAX_AGE_NS)
		return false;
	s->sent_ns[s->sent++] = im->leaves_ns - s->begin_ns;
	return true;
}

/* Spacing after the packet with this index, as a pacing rate. */
static unsigned long im_rate_after(const struct sock *sk,
				   const struct imtcp *im,
				   const struct im_stream *s, u32 index)
{
	if (index + 1 >= im->n)
		return im->rate;
	if (s == im->stream || index + 1 < im->head)
		return min_t(u64, div_u64((u64)im->mss * NSEC_PER_SEC,
					  IM_TRAIN_GAP_NS),
			     READ_ONCE(sk->sk_max_pacing_rate));
	return im_payload_rate(sk, im_stream_kbps(s->range, im->n, index + 2));
}

static void im_send(struct sock *sk, struct imtcp *im)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct im_stream *s = &im->stream[im->slot];
	u32 bytes = tp->snd_nxt - s->seq, index = bytes / im->mss;

	if (tp->mss_cache != im->mss || bytes % im->mss) {
		im_void(sk, im, s, IM_WHY_SIZE);
		return;
	}
	if (READ_ONCE(sk->sk_pacing_status) != SK_PACING_NEEDED ||
	    index > s->sent + 1) {
		im_void(sk, im, s, IM_WHY_BATCH);
		if (READ_ONCE(sk->sk_pacing_status) == SK_PACING_FQ)
			im_lose_pacing(im);
		return;
	}
	if (index > s->sent && !im_departed(im, s)) {
		im_void(sk, im, s, IM_WHY_SLOW);
		return;
	}
	if (index >= im->n) {
		s->status = IM_SENT;
		im_restore_rate(sk, im);
		im->phase = IM_EMPTY;
		im_pause(tp, im, 0);
		return;
	}
	/* The kernel would shorten the next gap by half a lateness of this one. */
	if (tp->tcp_wstamp_ns < tp->tcp_clock_cache)
		tp->tcp_wstamp_ns = tp->tcp_clock_cache;
	im->leaves_ns = tp->tcp_wstamp_ns;
	im_write_rate(sk, im, im_rate_after(sk, im, s, index));
	im_one_segment_a_packet(sk, im);
}

/* EMPTY: what the stream held up is sent, until the window is full again. */
static void im_empty(struct sock *sk, struct imtcp *im)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	/* What the ACK that brought us here has freed is still to be sent. */
	if (tcp_packets_in_flight(tp) + IM_ACK_SEGS < tcp_snd_cwnd(tp) &&
	    tp->tcp_clock_cache < im->pause_until_ns)
		return;
	im->pause_until_ns = 0;
	im->phase = IM_PASS;
}

/**
 * imtcp_before_xmit() - the socket is about to look whether it may send
 * @sk: socket, locked
 * @im: its measurement or NULL
 *
 * To be called from min_tso_segs and nowhere else.  May write sk_pacing_rate,
 * sk_gso_max_segs and tcp_wstamp_ns; the rate that the congestion control or
 * the kernel had set is put back after each stream.
 *
 * Return: what min_tso_segs shall return, the least segments of a burst.
 */
u32 imtcp_before_xmit(struct sock *sk, struct imtcp *im)
{
	if (im) {
		if (im->phase == IM_EMPTY)
			im_empty(sk, im);
		if (im->phase == IM_PASS)
			im_begin_store(sk, im);
		if (im->phase == IM_STORE)
			im_store(sk, im);
		if (im->phase == IM_SEND)
			im_send(sk, im);
	}
	return READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_min_tso_segs);
}
EXPORT_SYMBOL_GPL(imtcp_before_xmit);

/* Evaluation ---------------------------------------------------------------- */

static void im_trace_points(const struct sock *sk, const struct imtcp *im,
			    const struct im_stream *s)
{
	u32 i;

	for (i = 0; i < s->sent; i++) {
		const struct im_point p = {
			.index = i,
			.sent_ns = s->begin_ns + s->sent_ns[i],
			.acked_ns = s->begin_ns + s->acked_ns[i],
		};

		if (s->acked_ns[i])
			trace_imtcp_packet(sk, im->measurement, s - im->stream,
					   &p);
	}
}

/* A train at full speed has arrived. */
static void im_keep_train(struct imtcp *im, const struct im_point *first,
			  const struct im_point *last)
{
	struct im_train *t = &im->trains[im->next_train];

	t->bits = (last->index - first->index) * im->bits;
	t->sent_ns = last->sent_ns - first->sent_ns;
	t->acked_ns = last->acked_ns - first->acked_ns;
	im->next_train = (im->next_train + 1) % IM_PAIRS;
	if (im->n_trains < IM_PAIRS)
		im->n_trains++;
}

static void im_update_capacity(struct imtcp *im)
{
	u32 known = READ_ONCE(capacity_kbps), found, i;
	struct im_results each = { 0 };

	if (known) {
		im->capacity = known;
		im->capacity_half = 0;
		return;
	}
	found = im_alone_kbps(im->trains, im->n_trains, &each);
	if (!found) {
		memset(&each, 0, sizeof(each));
		for (i = 0; i < im->n_trains; i++) {
			u32 one = im_capacity_kbps(&im->trains[i], 1,
						   im->avail_kbps);

			if (one)
				im_add_result(&each, one);
		}
		found = im_capacity_kbps(im->trains, im->n_trains,
					 im->avail_kbps);
	}
	im->capacity = max3(found, im->avail_kbps, minmax_get(&im->delivery));
	im->capacity_half = im_half_kbps(&each);
}

static s8 im_verdict(const struct imtcp *im, const struct im_trend *t)
{
	switch (READ_ONCE(trend)) {
	case TREND_EITHER:
		return im_either(t);
	case TREND_BOTH:
		return im_both(t);
	default:
		return im_net(t, im->bits, im->capacity ?: im->range.hi_kbps);
	}
}

/* The queue held more than a packet whenever a packet of the stream met it. */
static bool im_busy(const struct sock *sk, const struct imtcp *im,
		    const struct im_point *p, u32 n)
{
	s64 least = (s64)tcp_min_rtt(tcp_sk(sk)) * NSEC_PER_USEC +
		    im_gap_ns(im->bits, im->capacity ?: im->range.hi_kbps);
	u32 i;

	for (i = 0; i < n; i++)
		if (im_delay_ns(&p[i]) <= least)
			return false;
	return true;
}

/*
 * The points of a stream from a packet on, up to another; times count from the
 * stream's first departure.
 */
static u32 im_points(const struct imtcp *im, const struct im_stream *s,
		     u32 from, u32 to, struct im_point *p)
{
	u32 n = 0, i;

	for (i = from; i < to; i++) {
		if (!s->acked_ns[i])
			continue;
		p[n].index = i;
		p[n].sent_ns = s->sent_ns[i];
		p[n++].acked_ns = s->acked_ns[i];
	}
	return im_clean(p, n, im->bits, im->capacity);
}

/* What was sent at full speed tells the capacity. */
static bool im_evaluate_train(struct imtcp *im, const struct im_stream *s,
			      u32 to)
{
	struct im_point p[IM_MAX_PACKETS];
	u32 n = im_points(im, s, 0, to, p);

	if (n < 2)
		return false;
	im_keep_train(im, &p[0], &p[n - 1]);
	return true;
}

/**
 * im_evaluate() - all ACKs of a stream have come: step 3's T_i
 * @sk: socket
 * @im: its measurement
 * @s: the stream
 *
 * Return: false if the stream is void.
 */
static bool im_evaluate(struct sock *sk, struct imtcp *im, struct im_stream *s)
{
	struct im_point p[IM_MAX_PACKETS];
	struct im_trend t = { 0 };
	u32 n, all, least;
	s64 span;

	if (trace_imtcp_packet_enabled())
		im_trace_points(sk, im, s);
	if (s == im->stream) {
		if (!im_evaluate_train(im, s, im->n)) {
			im_void(sk, im, s, IM_WHY_POINTS);
			return false;
		}
		s->status = IM_DONE;
		if (trace_imtcp_stream_enabled())
			im_report(sk, im, s, &t, 0, IM_OK);
		return true;
	}
	least = im->head > 1 ? IM_TAIL_MIN : max(4, im->n / 2);
	n = im_points(im, s, im->head - 1, im->n, p);
	if (n < least) {
		im_void(sk, im, s, IM_WHY_POINTS);
		return false;
	}
	span = im_span_ns(p[0].sent_ns, p[n - 1].sent_ns);
	if ((u64)im_rate_kbps((p[n - 1].index - p[0].index) * im->bits, span) *
	    IM_PERMILLE < (u64)im_mid_kbps(s->range) * IM_LEAST_RATE) {
		im_void(sk, im, s, IM_WHY_SLOW);
		return false;
	}
	if (im->head > 1)
		im_evaluate_train(im, s, im->head);
	t = im_trend_of(p, n);
	s->load.busy = im->head > 1 || im_busy(sk, im, p, n);
	s->verdict = im_verdict(im, &t);
	s->falls = im_falls(p, n);
	s->status = IM_DONE;
	/* The balance holds from the first packet on, see difference 14. */
	all = im_points(im, s, 0, im->n, p);
	s->load.bits = (p[all - 1].index - p[0].index) * im->bits;
	s->load.sent_ns = im_span_ns(p[0].sent_ns, p[all - 1].sent_ns);
	s->load.growth_ns = im_span_ns(im_delay_ns(&p[0]),
				       im_delay_ns(&p[all - 1]));
	t.growth_ns = s->load.growth_ns;
	if (trace_imtcp_stream_enabled())
		im_report(sk, im, s, &t, n, IM_OK);
	return true;
}

/* Step 5's regression wants the packets again. */
static u32 im_fit_stream(const struct imtcp *im, const struct im_stream *s)
{
	struct im_point p[IM_MAX_PACKETS];
	u32 n = im_points(im, s, im->head - 1, im->n, p);

	return clamp(im_fit_kbps(p, n, im->bits), s->range.lo_kbps,
		     s->range.hi_kbps);
}

static u32 im_balance(const struct imtcp *im)
{
	struct im_load l[IM_MAX_STREAMS];
	u32 n = 0, i;

	for (i = 1; i <= im->k; i++)
		if (im->stream[i].status == IM_DONE)
			l[n++] = im->stream[i].load;
	return im_balance_kbps(l, n, im->capacity);
}

/**
 * im_conclude() - all streams are evaluated: steps 4 to 6
 * @sk: socket
 * @im: its measurement
 */
static void im_conclude(struct sock *sk, struct imtcp *im)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct imtcp_result_report r = {
		.range = im->range,
		.measurement = im->measurement,
		.streams = im->k,
		.took_us = div_u64(tp->tcp_clock_cache - im->began_ns,
				   NSEC_PER_USEC),
	};
	u32 rule = READ_ONCE(estimate), last = im->k, width, ceil, i;
	s8 trends[IM_MAX_STREAMS];
	struct im_range next;

	for (i = 0; i < im->k; i++) {
		trends[i] = im->stream[i + 1].verdict;
		r.trends |= (trends[i] & 3 ? (trends[i] > 0 ? 1 : 2) : 0) <<
			    (2 * i);
	}
	while (last > 1 && im->stream[last].status != IM_DONE)
		last--;
	r.choice = im_choose(trends, im->k, im->stream[im->k].falls);
	r.found = r.choice && r.choice <= im->k;
	if (rule == ESTIMATE_BALANCE) {
		r.raw_kbps = im_balance(im);
		r.found = r.raw_kbps <= im->capacity;
		if (!r.found)
			r.choice = 0;
	} else if (r.found) {
		const struct im_stream *s =
			&im->stream[min_t(u32, r.choice, last)];

		r.raw_kbps = rule == ESTIMATE_FIT ? im_fit_stream(im, s) :
						    im_mid_kbps(s->range);
	}
	if (!r.found)
		r.raw_kbps = r.choice ? im->range.lo_kbps : im->range.hi_kbps;

	width = div_u64((u64)im->capacity * READ_ONCE(range_min_permille),
			IM_PERMILLE);
	if (r.found) {
		if (rule == ESTIMATE_BALANCE &&
		    (r.raw_kbps < im->range.lo_kbps ||
		     r.raw_kbps > im->range.hi_kbps))
			memset(&im->results, 0, sizeof(im->results));
		im_add_result(&im->results, r.raw_kbps);
		next = im_next_range(r.raw_kbps, &im->results, width);
	} else {
		memset(&im->results, 0, sizeof(im->results));
		next = im_widen(im->range, !r.choice);
	}
	im->avail_kbps = r.raw_kbps;
	im_update_capacity(im);
	/* Difference 6. */
	ceil = im_clamp_kbps(im->capacity + im->capacity / 4);
	ceil = min_t(u64, ceil,
		     div_u64((u64)min_t(u64, READ_ONCE(sk->sk_max_pacing_rate),
					(u64)IM_MAX_KBPS * 125) *
			     im_wire_bytes(sk), im->mss * 125));
	im->range = im_limit(next, im->capacity / 100, ceil, width);
	im->avail_half_kbps = im_half_kbps(&im->results);
	im->result_us = tp->tcp_mstamp;
	im->number++;
	if (!trace_imtcp_result_enabled())
		return;
	r.next = im->range;
	r.mean_kbps = im->results.mean_q8 >> 8;
	r.half_kbps = im->avail_half_kbps;
	r.agree = im->results.count;
	r.capacity_kbps = im->capacity;
	r.capacity_half_kbps = im->capacity_half;
	trace_imtcp_result(sk, &r);
}

/* Step 1 ended: there is a first range, and no result yet. */
static void im_first_range(struct imtcp *im)
{
	const struct im_train *t = im->trains;

	im->range = im_initial_range(t->bits, t->acked_ns);
	im_update_capacity(im);
}

/*
 * T_m = T_{m+1} = -1: lower streams need not be sent.  Those that are on their
 * way already are evaluated, as they cost nothing any more.
 */
static void im_stop_early(struct imtcp *im)
{
	u32 i, low = 0;

	for (i = 1; i <= im->k; i++) {
		struct im_stream *s = &im->stream[i];

		low = s->status == IM_DONE && s->verdict < 0 ? low + 1 : 0;
		if (low >= 2)
			break;
	}
	for (i++; i <= im->k; i++) {
		struct im_stream *s = &im->stream[i];

		if (s->status != IM_FREE ||
		    (im->phase != IM_PASS && im->slot == i))
			continue;
		s->status = IM_UNUSED;
		s->verdict = -1;
	}
}

static bool im_all_done(const struct imtcp *im)
{
	u32 i;

	for (i = 0; i <= im->k; i++)
		if (im->stream[i].status < IM_DONE)
			return false;
	return true;
}

/* An ACK touches a stream; true if that was the last one. */
static bool im_stream_acked(struct sock *sk, struct imtcp *im,
			    struct im_stream *s)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	u32 bytes = tp->snd_una - s->seq, index;
	u64 now = tp->tcp_clock_cache;
	bool whole = false;

	if ((s32)bytes <= 0)
		return false;
	if (bytes >= (u32)im->n * im->mss) {
		whole = bytes == (u32)im->n * im->mss;
		bytes = (u32)im->n * im->mss;
	} else {
		whole = !(bytes % im->mss);
	}
	index = bytes / im->mss;
	/* The hook has not been called since the last packet left. */
	if (index == s->sent + 1U && s->status == IM_SENDING)
		im_departed(im, s);
	if (index > s->sent || now - s->begin_ns > IM_MAX_AGE_NS) {
		im_void(sk, im, s, IM_WHY_SLOW);
		return false;
	}
	if (index == s->acked || !index)
		return false;
	s->acked = index;
	if (whole)
		s->acked_ns[index - 1] = now - s->begin_ns;
	return index == im->n;
}

static void im_note_delivery(const struct tcp_sock *tp, struct imtcp *im)
{
	u64 bits;

	if (!tp->rate_interval_us || tp->rate_app_limited || !im->bits)
		return;
	bits = (u64)tp->rate_delivered * im->bits * 1000;
	minmax_running_max(&im->delivery,
			   msecs_to_jiffies(IM_DELIVERY_WINDOW_MS),
			   tcp_jiffies32,
			   im_clamp_kbps(div_u64(bits, tp->rate_interval_us)));
}

/**
 * imtcp_acked() - an ACK has been processed
 * @sk: socket, locked
 * @im: its measurement or NULL
 * @sample: what pkts_acked was given
 *
 * To be called from pkts_acked.
 *
 * Return: true when there is a new result, see imtcp_get().
 */
bool imtcp_acked(struct sock *sk, struct imtcp *im,
		 const struct ack_sample *sample)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	bool evaluated = false;
	u32 i;

	if (!im || !im->measurement)
		return false;
	if (tp->sacked_out || inet_csk(sk)->icsk_ca_state > TCP_CA_Disorder) {
		im_void_all(sk, im, IM_WHY_STATE);
		return false;
	}
	im_note_delivery(tp, im);
	for (i = 0; i <= im->k; i++) {
		struct im_stream *s = &im->stream[i];

		if ((s->status != IM_SENDING && s->status != IM_SENT) ||
		    !im_stream_acked(sk, im, s))
			continue;
		if (im->phase == IM_SEND && im->slot == i)
			im_pass(sk, im);
		evaluated |= im_evaluate(sk, im, s);
	}
	if (!evaluated)
		return false;
	im_stop_early(im);
	if (!im_all_done(im))
		return false;
	if (im->k)
		im_conclude(sk, im);
	else
		im_first_range(im);
	im_plan(sk, im);
	return im->number;
}
EXPORT_SYMBOL_GPL(imtcp_acked);

/* Life ---------------------------------------------------------------------- */

/**
 * imtcp_state_changed() - the socket's loss state machine moves
 * @sk: socket, locked
 * @im: its measurement or NULL
 * @new_state: TCP_CA_*
 *
 * To be called from set_state.  A retransmission must not wait for a stream.
 */
void imtcp_state_changed(struct sock *sk, struct imtcp *im, u8 new_state)
{
	if (im && new_state > TCP_CA_Disorder)
		im_void_all(sk, im, IM_WHY_STATE);
}
EXPORT_SYMBOL_GPL(imtcp_state_changed);

/**
 * imtcp_idle() - a transmission starts with nothing in flight
 * @sk: socket, locked
 * @im: its measurement or NULL
 *
 * To be called at the TX start event.
 */
void imtcp_idle(struct sock *sk, struct imtcp *im)
{
	if (!im)
		return;
	/*
	 * On a short path each packet of a stream may find nothing in flight;
	 * a sender that ran dry shows in the stream's rate.
	 */
	if (im->phase != IM_SEND)
		im_void_all(sk, im, IM_WHY_IDLE);
}
EXPORT_SYMBOL_GPL(imtcp_idle);

/**
 * imtcp_discard() - forget everything that was measured
 * @sk: socket, locked
 * @im: its measurement or NULL
 *
 * Measuring starts again with step 1.
 */
void imtcp_discard(struct sock *sk, struct imtcp *im)
{
	bool lost;

	if (!im)
		return;
	im_void_all(sk, im, IM_WHY_STATE);
	lost = im->lost_to_fq;
	memset(im, 0, sizeof(*im));
	im->lost_to_fq = lost;
}
EXPORT_SYMBOL_GPL(imtcp_discard);

/**
 * imtcp_get() - what is known about the path
 * @sk: socket, locked
 * @im: its measurement or NULL
 * @result: filled when something is known
 *
 * Return: true when there is a result.
 */
bool imtcp_get(const struct sock *sk, const struct imtcp *im,
	       struct imtcp_result *result)
{
	if (!im || !im->number)
		return false;
	result->number = im->number;
	result->avail_kbps = im->avail_kbps;
	result->avail_half_kbps = im->avail_half_kbps;
	result->capacity_kbps = im->capacity;
	result->capacity_half_kbps = im->capacity_half;
	result->agree = im->results.count;
	result->wire_bytes = im_wire_bytes(sk);
	result->age_us = tcp_sk(sk)->tcp_mstamp - im->result_us;
	return true;
}
EXPORT_SYMBOL_GPL(imtcp_get);

/**
 * imtcp_kbps_to_segs() - the window that carries a rate
 * @sk: socket
 * @kbps: rate on the wire
 * @rtt_us: round trip
 *
 * Return: segments, rounded down, at least 2.
 */
u32 imtcp_kbps_to_segs(const struct sock *sk, u32 kbps, u32 rtt_us)
{
	u64 segs = div_u64((u64)kbps * rtt_us, im_wire_bytes(sk) * 8000);

	return clamp_t(u64, segs, 2, tcp_sk(sk)->snd_cwnd_clamp);
}
EXPORT_SYMBOL_GPL(imtcp_kbps_to_segs);

/**
 * imtcp_attach() - measure on a socket from now on
 * @sk: socket, locked
 *
 * Does not sleep.
 *
 * Return: the measurement, or NULL without memory; NULL is fine everywhere.
 */
struct imtcp *imtcp_attach(struct sock *sk)
{
	struct imtcp *im = kzalloc(sizeof(*im), GFP_ATOMIC | __GFP_NOWARN);

	if (im)
		cmpxchg(&sk->sk_pacing_status, SK_PACING_NONE,
			SK_PACING_NEEDED);
	return im;
}
EXPORT_SYMBOL_GPL(imtcp_attach);

/**
 * imtcp_detach() - end a measurement and free it
 * @sk: socket, locked or dead
 * @im: its measurement or NULL
 */
void imtcp_detach(struct sock *sk, struct imtcp *im)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!im)
		return;
	/* A timer that is armed stays: it wakes the sender, at the latest. */
	if (im->phase == IM_STORE && tp->tcp_wstamp_ns == im->hold_until_ns)
		tp->tcp_wstamp_ns = tp->tcp_clock_cache;
	im_restore_rate(sk, im);
	kfree(im);
}
EXPORT_SYMBOL_GPL(imtcp_detach);

/* Knobs --------------------------------------------------------------------- */

struct im_bounds {
	unsigned int *value;
	unsigned int min;
	unsigned int max;
};

static const struct im_bounds packets_bounds = {
	&packets, IM_PACKETS_MIN, IM_MAX_PACKETS
};

static const struct im_bounds streams_bounds = {
	&streams, IM_STREAMS_MIN, IM_MAX_STREAMS
};

static const struct im_bounds head_bounds = { &head, 0, IM_MAX_PACKETS / 2 };

static const struct im_bounds range_bounds = {
	&range_min_permille, 1, IM_PERMILLE
};

static const struct im_bounds overhead_bounds = { &overhead_bytes, 0, 256 };

static const struct im_bounds capacity_bounds = {
	&capacity_kbps, 0, IM_MAX_KBPS
};

static const struct im_bounds every_bounds = { &capacity_every, 1, 65535 };

/* Sockets read the knobs without a lock; a bad value is refused, not clipped. */
static int im_set_number(const char *val, const struct kernel_param *kp)
{
	const struct im_bounds *b = kp->arg;
	unsigned int value;
	int err = kstrtouint(val, 0, &value);

	if (err)
		return err;
	if (value < b->min || value > b->max)
		return -ERANGE;
	WRITE_ONCE(*b->value, value);
	return 0;
}

static int im_get_number(char *buffer, const struct kernel_param *kp)
{
	const struct im_bounds *b = kp->arg;

	return sysfs_emit(buffer, "%u\n", READ_ONCE(*b->value));
}

static const struct kernel_param_ops im_number_ops = {
	.set = im_set_number,
	.get = im_get_number,
};

struct im_words {
	unsigned int *value;
	const char * const *names;
	unsigned int count;
};

static const struct im_words trend_words = {
	&trend, trend_names, ARRAY_SIZE(trend_names)
};

static const struct im_words estimate_words = {
	&estimate, estimate_names, ARRAY_SIZE(estimate_names)
};

static const struct im_words store_words = {
	&store, store_names, ARRAY_SIZE(store_names)
};

static int im_set_word(const char *val, const struct kernel_param *kp)
{
	const struct im_words *w = kp->arg;
	int at = __sysfs_match_string(w->names, w->count, val);

	if (at < 0)
		return at;
	WRITE_ONCE(*w->value, at);
	return 0;
}

static int im_get_word(char *buffer, const struct kernel_param *kp)
{
	const struct im_words *w = kp->arg;

	return sysfs_emit(buffer, "%s\n", w->names[READ_ONCE(*w->value)]);
}

static const struct kernel_param_ops im_word_ops = {
	.set = im_set_word,
	.get = im_get_word,
};

static int im_get_fq(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", atomic_read(&fq_sockets));
}

static const struct kernel_param_ops im_fq_ops = { .get = im_get_fq };

module_param_cb(packets, &im_number_ops, (void *)&packets_bounds, 0644);
MODULE_PARM_DESC(packets, "packets of a stream, N (default 10, range 4 to 16)");
module_param_cb(head, &im_number_ops, (void *)&head_bounds, 0644);
MODULE_PARM_DESC(head,
		 "packets of a stream sent at full speed first (default 4, range 0 to 8; 0: as published)");
module_param_cb(streams, &im_number_ops, (void *)&streams_bounds, 0644);
MODULE_PARM_DESC(streams,
		 "streams of a measurement, k (default 4, range 2 to 8)");
module_param_cb(trend, &im_word_ops, (void *)&trend_words, 0644);
MODULE_PARM_DESC(trend,
		 "trend test: either (as published), both, net (default)");
module_param_cb(estimate, &im_word_ops, (void *)&estimate_words, 0644);
MODULE_PARM_DESC(estimate,
		 "available bandwidth from: fit (as published), middle, balance (default)");
module_param_cb(store, &im_word_ops, (void *)&store_words, 0644);
MODULE_PARM_DESC(store,
		 "hold packets back for a stream: full (as published), need (default), none");
module_param_cb(range_min_permille, &im_number_ops, (void *)&range_bounds,
		0644);
MODULE_PARM_DESC(range_min_permille,
		 "least width of the search range, 1/1000 of the capacity (default 100, range 1 to 1000)");
module_param_cb(overhead_bytes, &im_number_ops, (void *)&overhead_bounds,
		0644);
MODULE_PARM_DESC(overhead_bytes,
		 "bytes a packet has on the wire beside its IP packet (default 14, range 0 to 256)");
module_param_cb(capacity_kbps, &im_number_ops, (void *)&capacity_bounds, 0644);
MODULE_PARM_DESC(capacity_kbps,
		 "capacity of the path, kbit/s (default 0: measure it; up to 100000000)");
module_param_cb(capacity_every, &im_number_ops, (void *)&every_bounds, 0644);
MODULE_PARM_DESC(capacity_every,
		 "measurements between trains at full speed (default 16, range 1 to 65535)");
module_param_cb(fq_sockets, &im_fq_ops, NULL, 0444);
MODULE_PARM_DESC(fq_sockets,
		 "sockets that could not be measured because the fq qdisc paced them (read only)");
