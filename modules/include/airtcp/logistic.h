/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The arithmetic of TCP Symbiosis: equations (5) to (7) of the paper.
 *
 *	dw/dt = eps * (1 - (w + gamma * (K - A) * tau) / (K * tau)) * w	(5)
 *
 *	         w0 * tau * f(t) * (K - gamma * (K - A))
 *	w(t) = -----------------------------------------------		(6)
 *	       w0 * (f(t) - 1) + tau * (K - gamma * (K - A))
 *
 *	f(t) = exp(eps * t * (1 - gamma * (1 - A / K)))			(7)
 *
 * Nothing here knows a socket, a clock or a module parameter, so that the
 * same text is compiled into tcp_symbiosis.ko and into the user-space tests.
 *
 * With S = tau * (K - gamma * (K - A)), the window at which (5) is zero, with
 * phi = 1 - gamma * (1 - A / K) and g = f - 1, (6) is the same as
 *
 *	w(t) = w0 + (S - w0) * w0 * g / (S + w0 * g)
 *
 * which never subtracts two large numbers: w moves towards S by a fraction
 * that lies between 0 and 1.
 *
 * Units.  A window is in packets with LG_W_Q = 32 fraction bits (_q32).  That
 * many are needed: 1 us after the last ACK w grows by 2e-6 of itself, and with
 * the usual ten fraction bits a window of 10 would stand still for ever.  A
 * rate is in kbit/s on the wire, time in us, eps and gamma in 1/1000.
 *
 * Ranges.  w and S are at most LG_MAX_SEGS = 2^22 packets (TCP's largest window
 * is 2^30 bytes), rates at most LG_MAX_KBPS = 100 Gbit/s, tau at most 2^27 us,
 * eps at most 10, gamma at most 0.999.  Whatever is larger is taken as the
 * limit; nothing wraps.
 *
 * Error.  lg_step_q32() moves w by what (6) says, within 2e-6 of the movement
 * plus (1 + w / S) * 2^-24 packets: seven terms of the series for g leave out
 * 2e-7 of g at x = 1/2, far less at the spacing of ACKs, and each product is
 * rounded down by a unit of 2^-32, which w * g / S carries on.
 * Time beyond LG_MAX_STEPS / 2 units of x is not followed: w is S by then,
 * within exp(-16) of where it came from.
 */
#ifndef AIRTCP_LOGISTIC_H
#define AIRTCP_LOGISTIC_H

#ifdef __KERNEL__
#include <linux/bitops.h>
#include <linux/math64.h>
#include <linux/types.h>
#else
#include "user.h"
#endif

#define LG_W_Q		32
#define LG_PERMILLE	1000
#define LG_MAX_SEGS	4194304U	/* 2^22 */
#define LG_MAX_KBPS	100000000U
#define LG_MAX_TAU_US	134217728U	/* 2^27 */
#define LG_MAX_EPS	10000
#define LG_MAX_GAMMA	999
/* Steps of x <= 1/2 that one call follows. */
#define LG_MAX_STEPS	32
#define LG_PHI_Q	28
#define LG_X_Q		44

/**
 * struct lg_model - what (5) needs besides w and t
 * @capacity_kbps: K, at least 1
 * @avail_kbps: A; taken as K where larger
 * @tau_us: minimum RTT
 * @wire_bytes: a full packet on the wire, 1 to 65535
 * @gamma_permille: gamma, 0 to LG_MAX_GAMMA
 * @eps_permille: eps, 1 to LG_MAX_EPS, per second
 */
struct lg_model {
	u32 capacity_kbps;
	u32 avail_kbps;
	u32 tau_us;
	u32 wire_bytes;
	u32 gamma_permille;
	u32 eps_permille;
};

static inline u32 lg_capacity_kbps(const struct lg_model *m)
{
	if (!m->capacity_kbps)
		return 1;
	return m->capacity_kbps < LG_MAX_KBPS ? m->capacity_kbps : LG_MAX_KBPS;
}

/* K - gamma * (K - A) in 1/1000 kbit/s: at most 1e11 < 2^37, at least K. */
static inline u64 lg_rate(const struct lg_model *m)
{
	u32 capacity = lg_capacity_kbps(m), others = 0;

	if (m->avail_kbps < capacity)
		others = capacity - m->avail_kbps;
	return (u64)capacity * LG_PERMILLE - (u64)others * m->gamma_permille;
}

/**
 * lg_equilibrium_q32() - S = tau * (K - gamma * (K - A)), in packets
 * @m: the model
 *
 * Return: S, at least 1 and at most LG_MAX_SEGS packets.
 *
 * 1/1000 kbit/s times us is 1e-6 bit, and 1e11 * 2^27 < 2^64.  A packet has
 * less than 2^19 bits, so a remainder is below 1e6 * 2^19 < 2^39 and leaves
 * room for 16 more bits at a time.
 */
static inline u64 lg_equilibrium_q32(const struct lg_model *m)
{
	u32 tau_us = m->tau_us < LG_MAX_TAU_US ? m->tau_us : LG_MAX_TAU_US;
	u64 packet = (u64)m->wire_bytes * 8 * 1000000;
	u64 left = lg_rate(m) * tau_us;
	u64 q = div64_u64(left, packet);
	int i;

	if (q >= LG_MAX_SEGS)
		return (u64)LG_MAX_SEGS << LG_W_Q;
	left -= q * packet;
	for (i = 0; i < LG_W_Q; i += 16) {
		u64 more = div64_u64(left << 16, packet);

		left = (left << 16) - more * packet;
		q = q << 16 | more;
	}
	return q > 1ULL << LG_W_Q ? q : 1ULL << LG_W_Q;
}

/**
 * lg_exponent_q44() - x = eps * t * (1 - gamma * (1 - A / K)), as in (7)
 * @m: the model
 * @dt_us: t
 *
 * Return: x, or LG_MAX_STEPS / 2 where it is larger.
 *
 * phi with 28 fraction bits (3e-8 of it at gamma = 0.9) times eps in 1/1000 is
 * below 2^28 * 10^4 < 2^42; dt is refused before their product passes
 * x * 10^9 * 2^28 <= 2^62.
 */
static inline u64 lg_exponent_q44(const struct lg_model *m, u64 dt_us)
{
	const u64 most = (u64)LG_MAX_STEPS / 2 * 1000000000 << LG_PHI_Q;
	u64 capacity = (u64)lg_capacity_kbps(m) * LG_PERMILLE;
	u64 speed, x;
	u32 left;

	/* At most 1, as lg_rate() is at most capacity: 2^37 << 27 would fit. */
	speed = div64_u64(lg_rate(m) << (LG_PHI_Q - 2), capacity >> 2);
	speed *= m->eps_permille;
	if (!speed)
		return 0;
	if (dt_us >= div64_u64(most, speed))
		return (u64)LG_MAX_STEPS << (LG_X_Q - 1);
	x = div_u64_rem(speed * dt_us, 1000000000, &left);
	return x << (LG_X_Q - LG_PHI_Q) |
	       div_u64((u64)left << (LG_X_Q - LG_PHI_Q), 1000000000);
}

/**
 * lg_expm1_q44() - exp(x) - 1 by its series, for 0 <= x <= 1/2
 * @x_q44: x
 *
 * Horner's scheme for x * (1 + x/2 * (1 + x/3 * (... (1 + x/7)))): the bracket
 * has 31 fraction bits and is below 1.3, so it fits into 32 bits.
 */
static inline u64 lg_expm1_q44(u64 x_q44)
{
	const u32 one = 1U << 31;
	u32 x_q32 = x_q44 >> (LG_X_Q - 32);
	u64 sum = one;
	u32 i;

	for (i = 7; i > 1; i--)
		sum = one + div_u64(x_q32 * sum >> 32, i);
	return mul_u64_u32_shr(x_q44, sum, 31);
}

/*
 * a * b / 2^44 for b up to 2^44: b's upper 32 bits are exact enough (2^-31 of
 * it), and for the small b of one ACK they are all of it.
 */
static inline u64 lg_mul_q44(u64 a, u64 b)
{
	int drop = fls64(b) > 32 ? fls64(b) - 32 : 0;

	return mul_u64_u32_shr(a, b >> drop, 32) >> (LG_X_Q - 32 - drop);
}

/**
 * lg_fraction_of() - a * part / whole, for part <= whole and whole > 0
 * @a: what is to be divided
 * @part: numerator
 * @whole: denominator
 *
 * The quotient has 31 to 32 significant bits whatever its size, so the result
 * is right within 2^-30 of itself and one unit, rounded down.
 */
static inline u64 lg_fraction_of(u64 a, u64 part, u64 whole)
{
	int np = fls64(part), nw = fls64(whole), shift;
	u64 q;

	if (!part)
		return 0;
	if (nw > 32)
		whole >>= nw - 32;
	else
		whole <<= 32 - nw;
	/* [2^63, 2^64) over [2^31, 2^32): q is in (2^31, 2^33). */
	q = div64_u64(part << (64 - np), whole);
	shift = 32 + nw - np;
	if (q >> 32) {
		q >>= 1;
		shift--;
	}
	if (shift < 32)
		return a;
	a = mul_u64_u32_shr(a, q, 32);
	return shift - 32 < 64 ? a >> (shift - 32) : 0;
}

/**
 * lg_step_q32() - equation (6): the window t after it was w0
 * @m: the model
 * @w_q32: w0; taken as LG_MAX_SEGS packets where larger
 * @dt_us: t
 *
 * w0 * g is below 2^54 * 0.65 and S below 2^54: their sum fits.
 *
 * Return: w(t), at least 1 packet.
 */
static inline u64 lg_step_q32(const struct lg_model *m, u64 w_q32, u64 dt_us)
{
	u64 goal = lg_equilibrium_q32(m);
	u64 x = lg_exponent_q44(m, dt_us);
	u32 steps = 1, i;
	u64 g;

	if (w_q32 > (u64)LG_MAX_SEGS << LG_W_Q)
		w_q32 = (u64)LG_MAX_SEGS << LG_W_Q;
	if (w_q32 < 1ULL << LG_W_Q)
		w_q32 = 1ULL << LG_W_Q;
	if (x >= (u64)LG_MAX_STEPS << (LG_X_Q - 1))
		return goal;
	steps += x >> (LG_X_Q - 1);
	g = lg_expm1_q44(div_u64(x, steps));
	for (i = 0; i < steps; i++) {
		u64 wg = lg_mul_q44(w_q32, g);

		if (goal >= w_q32)
			w_q32 += lg_fraction_of(goal - w_q32, wg, goal + wg);
		else
			w_q32 -= lg_fraction_of(w_q32 - goal, wg, goal + wg);
	}
	return w_q32;
}

#endif /* AIRTCP_LOGISTIC_H */
