/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Inline measurement of capacity and available bandwidth, for congestion
 * controls: what imtcp.ko exports.
 *
 * A congestion control that wants to know its path
 *
 *	init		imtcp_attach()
 *	min_tso_segs	returns imtcp_before_xmit()
 *	pkts_acked	imtcp_acked(), then imtcp_get() where something is new
 *	set_state	imtcp_state_changed()
 *	TX start	imtcp_idle()
 *	release		imtcp_detach()
 *
 * and holds the pointer in its private area.  All take the socket's lock for
 * granted, all accept a NULL measurement (no memory: the socket lives without).
 */
#ifndef AIRTCP_IMTCP_H
#define AIRTCP_IMTCP_H

#include <linux/types.h>

struct ack_sample;
struct imtcp;
struct sock;

/**
 * struct imtcp_result - what is known about the path
 * @number: results so far; 0: nothing is known
 * @avail_kbps: A, the available bandwidth, kbit/s on the wire
 * @avail_half_kbps: half of its 95 % interval over @agree results, 0 if one
 * @capacity_kbps: C, the capacity, kbit/s on the wire
 * @capacity_half_kbps: half of its 95 % interval over the trains used
 * @agree: confidence: results in a row that were found inside the search range
 * @wire_bytes: size of a full packet on the wire
 * @age_us: time since the result was made
 */
struct imtcp_result {
	u32 number;
	u32 avail_kbps;
	u32 avail_half_kbps;
	u32 capacity_kbps;
	u32 capacity_half_kbps;
	u32 agree;
	u32 wire_bytes;
	u64 age_us;
};

struct imtcp *imtcp_attach(struct sock *sk);
void imtcp_detach(struct sock *sk, struct imtcp *im);
u32 imtcp_before_xmit(struct sock *sk, struct imtcp *im);
bool imtcp_acked(struct sock *sk, struct imtcp *im,
		 const struct ack_sample *sample);
void imtcp_state_changed(struct sock *sk, struct imtcp *im, u8 new_state);
void imtcp_idle(struct sock *sk, struct imtcp *im);
void imtcp_discard(struct sock *sk, struct imtcp *im);
bool imtcp_get(const struct sock *sk, const struct imtcp *im,
	       struct imtcp_result *result);
u32 imtcp_kbps_to_segs(const struct sock *sk, u32 kbps, u32 rtt_us);

#endif /* AIRTCP_IMTCP_H */
