/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of TCP-J: ABE, the available bandwidth estimation of the
 * paper's eq. (8) and (9), and the window target of eq. (5) to (7).
 *
 * Nothing here knows a socket, a clock or a module parameter, so that the
 * same text is compiled into tcp_j.ko and into the user-space tests.
 *
 * Units.  Time is in microseconds, a rate in bytes per second (_Bps), a
 * window in segments (_segs).  The filtered bandwidth carries ABE_Q = 8
 * fraction bits (_q8): with alpha = 0.9 the rounding of one step (half a unit)
 * adds up to at most ten times that, five units, which is 0.02 byte/s.
 *
 * Ranges.  A rate is at most ABE_MAX_BPS = 2^44 - 1 byte/s (140 Tbit/s), one
 * sample's bytes at most ABE_MAX_BYTES = 2^44 - 1 (100 Gbit/s for 23 minutes),
 * alpha at most 1000 permille.  Whatever is larger saturates there; nothing
 * wraps.  Each product below names the bound that keeps it inside 64 bits.
 */
#ifndef AIRTCP_ABE_H
#define AIRTCP_ABE_H

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/math64.h>
#include <linux/types.h>
#else
#include "user.h"
#endif

#define ABE_Q		8
#define ABE_PERMILLE	1000
#define ABE_USEC_PER_S	1000000
#define ABE_MAX_BYTES	((1ULL << 44) - 1)
#define ABE_MAX_BPS	((1ULL << 44) - 1)
#define ABE_MIN_SEGS	2

/**
 * struct abe - the estimator's memory, all zero before the first sample
 * @bw_q8: BW_k in 1/256 byte/s; 0 means that there is no estimate yet
 * @prev_Bps: BW_sample(k-1) in byte/s
 */
struct abe {
	u64 bw_q8;
	u64 prev_Bps;
};

/**
 * abe_sample_Bps() - eq. (8): BW_sample(k) = d_k / (t_k - t_{k-1})
 * @bytes: d_k, the bytes delivered in the interval
 * @dt_us: length of the interval; 0 is taken as 1, callers never pass it
 *
 * Return: the rate in byte/s, rounded to nearest, at most ABE_MAX_BPS.
 *
 * 2^44 * 10^6 + 2^31 is 0.953 * 2^64, so the dividend fits.
 */
static inline u64 abe_sample_Bps(u64 bytes, u32 dt_us)
{
	u64 rate;

	if (bytes > ABE_MAX_BYTES)
		bytes = ABE_MAX_BYTES;
	if (!dt_us)
		dt_us = 1;
	rate = div_u64(bytes * ABE_USEC_PER_S + dt_us / 2, dt_us);
	return rate < ABE_MAX_BPS ? rate : ABE_MAX_BPS;
}

/**
 * abe_filter_q8() - eq. (9):
 *	BW_k = alpha * BW_{k-1} +
 *	       (1 - alpha) * (BW_sample(k) + BW_sample(k-1)) / 2
 * @abe: state before the sample
 * @sample_Bps: BW_sample(k)
 * @alpha_permille: alpha * 1000, 0 to 1000
 *
 * Return: BW_k in 1/256 byte/s.  The first sample is taken as it is.
 *
 * Both weights sum to 1000 and both operands are below 2^52, so the weighted
 * sum is below 1000 * 2^52 < 2^62.  The divisor is a constant, which compilers
 * turn into a multiplication: a sample costs one division, that of eq. (8).
 */
static inline u64 abe_filter_q8(const struct abe *abe, u64 sample_Bps,
				u32 alpha_permille)
{
	u64 mean_q8;

	if (!abe->bw_q8)
		return sample_Bps << ABE_Q;
	mean_q8 = (sample_Bps + abe->prev_Bps) << (ABE_Q - 1);
	return div_u64(alpha_permille * abe->bw_q8 +
		       (ABE_PERMILLE - alpha_permille) * mean_q8 +
		       ABE_PERMILLE / 2, ABE_PERMILLE);
}

/**
 * abe_bw_Bps() - the estimate in whole bytes per second
 * @abe: the estimator
 *
 * Return: BW rounded down, 0 when there is no estimate.
 */
static inline u64 abe_bw_Bps(const struct abe *abe)
{
	return abe->bw_q8 >> ABE_Q;
}

/**
 * abe_target_segs() - the right-hand side of eq. (5) to (7):
 *	target = BW * RTTmin / segment size
 * @bw_Bps: BW, at most ABE_MAX_BPS
 * @rtt_min_us: RTTmin
 * @mss_bytes: segment size; 0 is taken as 1
 * @max_segs: the socket's window clamp
 *
 * Return: the target rounded down and clamped to [ABE_MIN_SEGS, @max_segs]
 * (ABE_MIN_SEGS wins if the two cross).
 *
 * BW * RTTmin passes 2^64 only above 9.2 * 10^18 byte-microseconds, a
 * bandwidth-delay product of 9 TB against TCP's largest window of 1 GB.  The
 * bit lengths tell beforehand whether it can; if so the product saturates.
 * The divisor is at most 2^32 * 10^6 < 2^52.
 */
static inline u32 abe_target_segs(u64 bw_Bps, u32 rtt_min_us, u32 mss_bytes,
				  u32 max_segs)
{
	u64 segs, byte_us = ~0ULL;

	if (fls64(bw_Bps) + fls64(rtt_min_us) <= 64)
		byte_us = bw_Bps * rtt_min_us;
	if (!mss_bytes)
		mss_bytes = 1;
	segs = div64_u64(byte_us, (u64)mss_bytes * ABE_USEC_PER_S);
	if (segs > max_segs)
		segs = max_segs;
	return segs > ABE_MIN_SEGS ? segs : ABE_MIN_SEGS;
}

/* What a loss signal means to TCP-J. */
enum j_case {
	J_CASE_FALLBACK,	/* no estimate yet: Reno decides */
	J_CASE_EQ5,		/* retransmission in congestion avoidance */
	J_CASE_EQ6,		/* retransmission in slow start */
	J_CASE_EQ7,		/* retransmission timeout */
	J_CASE_ECN,		/* congestion reported, nothing lost */
};

/**
 * struct j_windows - cwnd and ssthresh that a decision leads to
 * @cwnd_segs: cwnd once the loss is repaired (eq. (7): the paper's 1; the
 *	kernel itself restarts at the segments still in flight plus one)
 * @ssthresh_segs: ssthresh from then on
 * @recovery_segs: ssthresh to steer by while the loss is being repaired
 */
struct j_windows {
	u32 cwnd_segs;
	u32 ssthresh_segs;
	u32 recovery_segs;
};

/**
 * j_loss_case() - tell eq. (5) from eq. (6)
 * @cwnd_segs: cwnd when the loss was noticed
 * @ssthresh_segs: ssthresh before the decision
 *
 * Return: J_CASE_EQ6 in slow start, else J_CASE_EQ5.
 */
static inline enum j_case j_loss_case(u32 cwnd_segs, u32 ssthresh_segs)
{
	return ssthresh_segs <= cwnd_segs ? J_CASE_EQ5 : J_CASE_EQ6;
}

/**
 * j_decide() - eq. (5), (6), (7) and the answer to an ECN mark
 * @what: which of them; not J_CASE_FALLBACK
 * @target_segs: BW * RTTmin / segment size
 * @cwnd_segs: cwnd when the signal came
 * @clamp_decrease: true if eq. (5) must not raise cwnd
 *
 * While a loss is repaired the kernel walks cwnd towards ssthresh, also
 * upwards.  @recovery_segs of the result therefore never exceeds cwnd, except
 * in the literal eq. (5).
 */
static inline struct j_windows j_decide(enum j_case what, u32 target_segs,
					u32 cwnd_segs, bool clamp_decrease)
{
	u32 lower = target_segs < cwnd_segs ? target_segs : cwnd_segs;
	struct j_windows w = {
		.cwnd_segs = lower,
		.ssthresh_segs = target_segs,
		.recovery_segs = lower,
	};

	switch (what) {
	case J_CASE_EQ5:
		if (!clamp_decrease) {
			w.cwnd_segs = target_segs;
			w.recovery_segs = target_segs;
		}
		break;
	case J_CASE_EQ6:
		w.cwnd_segs = cwnd_segs;
		break;
	case J_CASE_EQ7:
		w.cwnd_segs = 1;
		w.recovery_segs = target_segs;
		break;
	default:
		w.ssthresh_segs = lower;
		break;
	}
	return w;
}

#endif /* AIRTCP_ABE_H */
