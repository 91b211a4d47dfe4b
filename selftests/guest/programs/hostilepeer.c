/*
 * hostilepeer: plays the receiving end of one TCP connection over a packet socket, as badly as asked.
 *
 *   hostilepeer --dev NAME --mode MODE --seed N --bytes N [--window N] [--mss N] [--no-sack]
 *               [--no-ts] [--verify N] [--patience-s N] --json FILE
 *
 * The device's namespace must have no IPv4 address, so that its kernel stays out of it, and the
 * sender a static neighbour. The sender is "airflow send --verify": every byte that comes is
 * compared with that stream. Until two thirds of --bytes have been acknowledged, at most HOSTILE_MS,
 * it behaves as --mode says; then it is honest, and the transfer has to come to its end.
 *
 *   honest	ACKs and SACKs each segment as it came
 *   fuzz	each answer tells each of lies[] with the probability given there
 *   ahead	acknowledges now and then what has not come: such bytes are given up
 *   renege	forgets now and then all that it has SACKed
 *   zero	closes the window in the middle, and opens it later
 *   shrink	takes back most of the window offered, and gives it again later
 */
#define _GNU_SOURCE
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOSTILE_MS	60000
#define FIN_AGAIN_MS	1000
#define WSCALE		5
/* Nothing but a FIN is ever sent, so that any number does. */
#define ISS		1000
#define LE_DSCP		1
#define RANGES		2048
#define BLOCKS		4
/* Flags that <netinet/tcp.h> does not have. */
#define TH_ECE		0x40
#define TH_CWR		0x80

enum mode { HONEST, FUZZ, AHEAD, RENEGE, ZERO, SHRINK };
static const char *const mode_names[] = { "honest", "fuzz", "ahead", "renege", "zero", "shrink" };

/* Bytes [from, to) of the stream. */
struct range {
	uint32_t from, to;
};

struct set {
	struct range r[RANGES];
	size_t n;
};

struct answer {
	uint32_t ack, tsecr, window;
	struct range block[BLOCKS];
	size_t n_blocks;
	unsigned int repeats;
	bool ece;
};

/* A segment that came; from is where its first byte stands in the stream, which begins at 0. */
struct arrival {
	uint32_t from, len;
	uint8_t flags;
	bool supplement;
	const uint8_t *data;
};

struct frame {
	struct ether_header eth;
	struct iphdr ip;
	struct tcphdr tcp;
	uint8_t options[40];
} __attribute__((packed));

#define IP_AT		offsetof(struct frame, ip)
#define ADDRESSES_AT	offsetof(struct frame, ip.saddr)
#define TCP_AT		offsetof(struct frame, tcp)
#define FLAGS_AT	(TCP_AT + 13)

static struct {
	enum mode mode;
	uint64_t seed, verify;
	uint32_t bytes, window, mss;
	bool no_sack, no_ts;
	int64_t patience_ns;
	const char *dev, *json;
} o;

static struct {
	int fd;
	struct frame reply;		/* addresses and ports of what is sent */
	uint32_t irs;			/* sequence number of the stream's first byte */
	bool open, sack, ts, ecn;
	uint32_t ts_recent;
	struct set held, seen;		/* forgotten at times; never forgotten */
	uint32_t recent[BLOCKS];	/* where the last segments came: SACKed first */
	struct range again;		/* what came a second time, to be D-SACKed */
	uint32_t last_ack, edge, highest, fin;
	bool has_fin, fin_sent, done;
	bool hostile;
	int64_t start, honest_since, quiet_until, closed_until, fin_again;
	bool deaf;
	uint32_t until_act;		/* arrivals until renege, zero or shrink act again */
	uint64_t dice;
} c;

static struct {
	uint64_t segments, supplements, wrong, twice, beyond, answers, silences, forgotten, closed;
} count;

/* Ranges -------------------------------------------------------------------- */

static void set_add(struct set *s, uint32_t from, uint32_t to)
{
	size_t at = 0, end;

	if (from >= to)
		return;
	while (at < s->n && s->r[at].to < from)
		at++;
	for (end = at; end < s->n && s->r[end].from <= to; end++) {
		from = s->r[end].from < from ? s->r[end].from : from;
		to = s->r[end].to > to ? s->r[end].to : to;
	}
	if (s->n - (end - at) + 1 > RANGES)
		die(EXIT_RUN, "more than %d pieces", RANGES);
	memmove(s->r + at + 1, s->r + end, (s->n - end) * sizeof(*s->r));
	s->n = s->n - (end - at) + 1;
	s->r[at] = (struct range){ from, to };
}

static uint64_t set_size(const struct set *s)
{
	uint64_t size = 0;

	for (size_t i = 0; i < s->n; i++)
		size += s->r[i].to - s->r[i].from;
	return size;
}

/* How much has come without a hole. */
static uint32_t set_front(const struct set *s)
{
	return s->n && !s->r[0].from ? s->r[0].to : 0;
}

static const struct range *set_find(const struct set *s, uint32_t at)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->r[i].from <= at && at < s->r[i].to)
			return &s->r[i];
	return NULL;
}

static void forget(void)
{
	uint32_t front = set_front(&c.held);
	uint64_t before = set_size(&c.held);

	c.held.n = 0;
	set_add(&c.held, 0, front);
	count.forgotten += before - front;
}

/* Chance -------------------------------------------------------------------- */

/* Below bound, which is above 0. */
static uint32_t dice(uint32_t bound)
{
	return (uint32_t)(splitmix64(o.seed << 32 ^ c.dice++) % bound);
}

/* Within [from, to]; from where there is nothing between. */
static uint32_t between(uint32_t from, uint32_t to)
{
	return to > from ? from + dice(to - from + 1) : from;
}

/* Answers ------------------------------------------------------------------- */

static void add_block(struct answer *a, uint32_t from, uint32_t to)
{
	if (a->n_blocks < BLOCKS)
		a->block[a->n_blocks++] = (struct range){ from, to };
}

static void put_first(struct answer *a, uint32_t from, uint32_t to)
{
	if (a->n_blocks < BLOCKS)
		a->n_blocks++;
	memmove(a->block + 1, a->block, (a->n_blocks - 1) * sizeof(*a->block));
	a->block[0] = (struct range){ from, to };
}

static bool has_block(const struct answer *a, uint32_t from)
{
	for (size_t i = 0; i < a->n_blocks; i++)
		if (a->block[i].from == from)
			return true;
	return false;
}

/* RFC 2018: the block of the last segment first; RFC 2883: before it what came twice. */
static struct answer honest(void)
{
	struct answer a = { .tsecr = c.ts_recent, .window = o.window };
	uint32_t front = set_front(&c.held);

	a.ack = front;
	if (c.again.to)
		add_block(&a, c.again.from, c.again.to);
	for (size_t i = 0; i < BLOCKS; i++) {
		const struct range *r = set_find(&c.held, c.recent[i]);

		if (r && r->from > front && !has_block(&a, r->from))
			add_block(&a, r->from, r->to);
	}
	if (c.has_fin && front == c.fin)
		a.ack++;
	return a;
}

static void put32(uint8_t *to, uint32_t value)
{
	value = htonl(value);
	memcpy(to, &value, 4);
}

static size_t put_options(uint8_t *to, const struct answer *a)
{
	size_t at = 0, most = c.ts ? 3 : 4;

	if (c.ts) {
		memcpy(to, "\1\1\10\12", 4);
		put32(to + 4, (uint32_t)(mono_ns() / NSEC_PER_MSEC));
		put32(to + 8, a->tsecr);
		at = 12;
	}
	if (c.sack && a->n_blocks) {
		size_t n = a->n_blocks < most ? a->n_blocks : most;

		memcpy(to + at, "\1\1\5", 3);
		to[at + 3] = (uint8_t)(2 + 8 * n);
		at += 4;
		for (size_t i = 0; i < n; i++, at += 8) {
			put32(to + at, c.irs + a->block[i].from);
			put32(to + at + 4, c.irs + a->block[i].to);
		}
	}
	return at;
}

static size_t put_syn_options(uint8_t *to)
{
	size_t at = 8;

	to[0] = 2;
	to[1] = 4;
	to[2] = (uint8_t)(o.mss >> 8);
	to[3] = (uint8_t)o.mss;
	memcpy(to + 4, "\1\3\3", 3);
	to[7] = WSCALE;
	if (c.sack) {
		memcpy(to + at, "\1\1\4\2", 4);
		at += 4;
	}
	if (c.ts)
		at += put_options(to + at, &(struct answer){ .tsecr = c.ts_recent });
	return at;
}

static uint32_t sum(const void *data, size_t len, uint32_t s)
{
	const uint8_t *p = data;

	for (size_t i = 0; i < len; i++)
		s += i % 2 ? p[i] : (uint32_t)p[i] << 8;
	return s;
}

static uint16_t folded(uint32_t s)
{
	while (s >> 16)
		s = (s & 0xffff) + (s >> 16);
	return htons((uint16_t)~s);
}

static void transmit(uint8_t flags, uint32_t seq, uint32_t ack, uint16_t window,
		     const uint8_t *options, size_t n)
{
	struct frame f = c.reply;
	size_t size = sizeof(f.tcp) + n;
	uint32_t pseudo;

	memcpy(f.options, options, n);
	f.tcp.seq = htonl(seq);
	f.tcp.ack_seq = htonl(ack);
	f.tcp.doff = (size / 4) & 15;
	((uint8_t *)&f)[FLAGS_AT] = flags;
	f.tcp.window = htons(window);
	f.ip.tot_len = htons((uint16_t)(sizeof(f.ip) + size));
	f.ip.check = folded(sum((uint8_t *)&f + IP_AT, sizeof(f.ip), 0));
	pseudo = sum((uint8_t *)&f + ADDRESSES_AT, 8, (uint32_t)(IPPROTO_TCP + size));
	f.tcp.check = folded(sum((uint8_t *)&f + TCP_AT, size, pseudo));
	if (send(c.fd, &f, sizeof(f.eth) + sizeof(f.ip) + size, 0) < 0 && errno != ENOBUFS)
		die(EXIT_RUN, "send: %s", strerror(errno));
	count.answers++;
}

static void say(const struct answer *a)
{
	uint8_t options[40];
	size_t n = put_options(options, a);
	uint32_t edge = a->ack + (a->window >> WSCALE << WSCALE), seq = ISS + 1 + c.fin_sent;

	if (edge > c.edge && a->ack <= c.highest + 1)
		c.edge = edge;
	if (a->ack > c.last_ack && a->ack <= c.highest + 1)
		c.last_ack = a->ack;
	for (unsigned int i = 0; i <= a->repeats; i++)
		transmit(TH_ACK | (a->ece && c.ecn ? TH_ECE : 0), seq, c.irs + a->ack,
			 (uint16_t)(a->window >> WSCALE), options, n);
}

/* Lies ---------------------------------------------------------------------- */

static void sack_inside(struct answer *a)
{
	uint32_t from = between(a->ack, c.highest);

	put_first(a, from, between(from + 1, c.highest));
}

static void sack_outside(struct answer *a)
{
	uint32_t from = c.highest + dice(1 << dice(24));

	put_first(a, from, from + 1 + dice(1 << dice(20)));
}

static void sack_reversed(struct answer *a)
{
	uint32_t to = between(a->ack, c.highest);

	put_first(a, between(to, c.highest), to);
}

static void sack_overlapping(struct answer *a)
{
	uint32_t from = between(a->ack, c.highest), mid = between(from, c.highest);

	put_first(a, from, between(mid, c.highest));
	put_first(a, mid, between(mid, c.highest));
}

/* What was never sent twice, below the ACK or within the block after it. */
static void dsack(struct answer *a)
{
	uint32_t from = dice(2) ? dice(a->ack + 1) : between(a->ack, c.highest);

	put_first(a, from, from + 1 + dice(4000));
}

static void ack_middle(struct answer *a)
{
	a->ack = between(c.last_ack, a->ack);
}

static void ack_old(struct answer *a)
{
	a->ack -= dice(1 << dice(20));
}

/* Of what no sender of --bytes can ever have sent. */
static void ack_beyond(struct answer *a)
{
	a->ack = o.bytes + 2 + dice(1 << dice(30));
}

static void ts_garbage(struct answer *a)
{
	a->tsecr = dice(2) ? a->tsecr - dice(1 << dice(16)) : dice(UINT32_MAX);
}

static void ts_zero(struct answer *a)
{
	a->tsecr = 0;
}

static void ece(struct answer *a)
{
	a->ece = true;
}

static void window(struct answer *a)
{
	a->window = dice(3) ? dice(UINT16_MAX << WSCALE) : dice(4) ? dice(1 << 16) : 0;
}

static void repeat(struct answer *a)
{
	a->repeats = 1 + dice(5);
}

static void renege(struct answer *a)
{
	forget();
	a->n_blocks = 0;
}

/* Nothing is said for a while, and perhaps nothing heard. */
static void silence(struct answer *a)
{
	(void)a;
	c.quiet_until = mono_ns() + (50 + dice(1 << (6 + dice(7)))) * NSEC_PER_MSEC;
	c.deaf = dice(2);
	count.silences++;
}

static struct lie {
	const char *name;
	unsigned int permille;
	void (*tell)(struct answer *a);
	uint64_t told;
} lies[] = {
	{ "sack_inside", 30, sack_inside, 0 },
	{ "sack_outside", 30, sack_outside, 0 },
	{ "sack_reversed", 20, sack_reversed, 0 },
	{ "sack_overlapping", 30, sack_overlapping, 0 },
	{ "dsack", 40, dsack, 0 },
	{ "ack_middle", 60, ack_middle, 0 },
	{ "ack_old", 40, ack_old, 0 },
	{ "ack_beyond", 20, ack_beyond, 0 },
	{ "ts_garbage", 20, ts_garbage, 0 },
	{ "ts_zero", 20, ts_zero, 0 },
	{ "ece", 20, ece, 0 },
	{ "window", 30, window, 0 },
	{ "repeat", 50, repeat, 0 },
	{ "renege", 5, renege, 0 },
	{ "silence", 15, silence, 0 },
};

static void lie(struct answer *a)
{
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		if (dice(1000) >= lies[i].permille)
			continue;
		lies[i].tell(a);
		lies[i].told++;
	}
}

/* The other modes ----------------------------------------------------------- */

/* Once in some ten arrivals, the first time when supplements are coming. */
static bool time_to_act(void)
{
	if (!count.supplements || c.until_act--)
		return false;
	c.until_act = 10 + dice(50);
	return true;
}

/* Some of what came last is kept back, so that a smaller window can come with a new ACK. */
static void shrink(struct answer *a, bool act)
{
	uint32_t back = a->ack - c.last_ack;

	a->ack = c.last_ack + back - (back < 700 ? back : 700);
	if (act && back)
		a->ack = c.last_ack + 1;
}

static void act(struct answer *a)
{
	bool now = o.mode != FUZZ && time_to_act();

	switch (o.mode) {
	case FUZZ:
		lie(a);
		break;
	case AHEAD:
		if (now) {
			a->ack = between(a->ack, c.highest);
			set_add(&c.held, 0, a->ack);
		}
		break;
	case RENEGE:
		if (now)
			renege(a);
		break;
	case SHRINK:
		shrink(a, now);
		/* fall through */
	case ZERO:
		if (now) {
			c.closed_until = mono_ns() + (50 + dice(3000)) * NSEC_PER_MSEC;
			count.closed++;
		}
		if (c.closed_until)
			a->window = o.mode == ZERO ? 0 : 2000;
		break;
	default:
		break;
	}
}

static void answer(void)
{
	struct answer a = honest();

	c.again = (struct range){ 0, 0 };
	if (c.hostile)
		act(&a);
	if (!c.quiet_until)
		say(&a);
}

/* The stream ---------------------------------------------------------------- */

/* As airflow makes it: byte i is byte i % 8 of splitmix64(seed + i / 8), little-endian. */
static void verify(const struct arrival *in)
{
	uint64_t word = 0;

	for (uint32_t i = 0; i < in->len; i++) {
		uint64_t at = (uint64_t)in->from + i;

		if (!i || at % 8 == 0)
			word = splitmix64(o.verify + at / 8);
		if (at >= o.bytes || in->data[i] != (uint8_t)(word >> (at % 8 * 8)))
			count.wrong++;
	}
}

static void take_data(const struct arrival *in)
{
	uint32_t to = in->from + in->len;
	const struct range *r = set_find(&c.held, in->from);

	count.segments++;
	count.supplements += in->supplement;
	count.beyond += to > c.edge;
	verify(in);
	if (r && r->to >= to) {
		c.again = (struct range){ in->from, to };
		count.twice += in->len;
	}
	set_add(&c.held, in->from, to);
	set_add(&c.seen, in->from, to);
	memmove(c.recent + 1, c.recent, sizeof(c.recent) - sizeof(*c.recent));
	c.recent[0] = in->from;
	if (to > c.highest)
		c.highest = to;
}

static void send_fin(void)
{
	struct answer a = honest();
	uint8_t options[40];
	size_t n = put_options(options, &a);

	transmit(TH_ACK | TH_FIN, ISS + 1, c.irs + a.ack, (uint16_t)(o.window >> WSCALE), options, n);
	c.fin_sent = true;
	c.fin_again = mono_ns() + FIN_AGAIN_MS * NSEC_PER_MSEC;
}

static void become_honest(void)
{
	c.hostile = false;
	c.honest_since = mono_ns();
	c.closed_until = 0;
	c.quiet_until = 0;
}

static void take(const struct arrival *in)
{
	bool old = in->from + 1 <= c.last_ack;

	if (c.quiet_until && c.deaf)
		return;
	if (in->len)
		take_data(in);
	if (in->flags & TH_FIN) {
		c.has_fin = true;
		c.fin = in->from + in->len;
	}
	if (c.has_fin && set_front(&c.held) == c.fin) {
		if (c.hostile)
			become_honest();
		send_fin();
		return;
	}
	/* A probe of a closed window has no data, or old ones. */
	if (in->len || in->flags & TH_FIN || old)
		answer();
	if (c.hostile && c.last_ack > o.bytes / 3 * 2) {
		become_honest();
		answer();
	}
}

/* Frames -------------------------------------------------------------------- */

static void take_options(const struct frame *in, uint32_t seq, bool syn)
{
	const uint8_t *p = in->options, *end = p + in->tcp.doff * 4 - sizeof(in->tcp);
	uint32_t tsval;

	while (p < end && *p) {
		if (*p == 1) {
			p++;
			continue;
		}
		if (end - p < 2 || p[1] < 2 || p[1] > end - p)
			die(EXIT_RUN, "malformed TCP options");
		if (syn && *p == 4)
			c.sack = !o.no_sack;
		if (syn && *p == 8)
			c.ts = !o.no_ts;
		/* RFC 7323: of the segment at the left edge. */
		if (*p == 8 && (syn || (int32_t)(seq - c.irs - c.last_ack) <= 0)) {
			memcpy(&tsval, p + 2, 4);
			c.ts_recent = ntohl(tsval);
		}
		p += p[1];
	}
}

static void take_syn(const struct frame *in)
{
	uint8_t options[40], flags = ((const uint8_t *)in)[FLAGS_AT];
	size_t n;

	c.reply.eth = in->eth;
	memcpy(c.reply.eth.ether_shost, in->eth.ether_dhost, ETH_ALEN);
	memcpy(c.reply.eth.ether_dhost, in->eth.ether_shost, ETH_ALEN);
	c.reply.ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP,
				     .saddr = in->ip.daddr, .daddr = in->ip.saddr };
	c.reply.tcp = (struct tcphdr){ .source = in->tcp.dest, .dest = in->tcp.source };
	c.irs = ntohl(in->tcp.seq) + 1;
	c.ecn = (flags & (TH_ECE | TH_CWR)) == (TH_ECE | TH_CWR);
	take_options(in, 0, true);
	n = put_syn_options(options);
	transmit(TH_SYN | TH_ACK | (c.ecn ? TH_ECE : 0), ISS, c.irs, UINT16_MAX, options, n);
	c.edge = UINT16_MAX;
	if (!c.open) {
		c.open = true;
		c.hostile = o.mode != HONEST;
		c.start = mono_ns();
		c.honest_since = c.start;
	}
}

static void take_frame(const uint8_t *raw, size_t size)
{
	const struct frame *f = (const struct frame *)raw;
	struct arrival in = { 0 };
	size_t head, end;

	if (size < sizeof(*f) - sizeof(f->options) || f->eth.ether_type != htons(ETHERTYPE_IP) ||
	    f->ip.protocol != IPPROTO_TCP)
		return;
	in.flags = raw[FLAGS_AT];
	if (in.flags & TH_SYN) {
		take_syn(f);
		return;
	}
	if (!c.open)
		return;
	if (in.flags & TH_RST)
		die(EXIT_RUN, "the sender gave up: reset");
	end = sizeof(f->eth) + ntohs(f->ip.tot_len);
	head = sizeof(f->eth) + sizeof(f->ip) + f->tcp.doff * 4U;
	if (end > size || head > end)
		die(EXIT_RUN, "a frame of %zu bytes is cut off", size);
	take_options(f, ntohl(f->tcp.seq), false);
	in.from = ntohl(f->tcp.seq) - c.irs;
	in.len = (uint32_t)(end - head);
	in.data = raw + head;
	in.supplement = f->ip.tos >> 2 == LE_DSCP;
	if (c.fin_sent && ntohl(f->tcp.ack_seq) == ISS + 2)
		c.done = true;
	else
		take(&in);
}

/* Time ---------------------------------------------------------------------- */

static void on_time(int64_t now)
{
	if (!c.open)
		return;
	if (c.quiet_until && now >= c.quiet_until) {
		c.quiet_until = 0;
		if (dice(2))
			answer();
	}
	if (c.closed_until && now >= c.closed_until) {
		c.closed_until = 0;
		answer();
	}
	if (c.hostile && now - c.start > HOSTILE_MS * NSEC_PER_MSEC) {
		become_honest();
		answer();
	}
	if (c.fin_sent && now >= c.fin_again)
		send_fin();
}

static bool out_of_patience(int64_t now)
{
	return c.open && !c.hostile && now - c.honest_since > o.patience_ns;
}

static void run(void)
{
	static uint8_t raw[1 << 17] __attribute__((aligned(8)));
	struct sockaddr_ll from;

	while (!c.done && !out_of_patience(mono_ns())) {
		struct pollfd p = { .fd = c.fd, .events = POLLIN };
		socklen_t len = sizeof(from);
		ssize_t n;

		/* Times here are no finer than this. */
		if (poll(&p, 1, 5) < 0)
			die(EXIT_RUN, "poll: %s", strerror(errno));
		on_time(mono_ns());
		if (!p.revents)
			continue;
		n = recvfrom(c.fd, raw, sizeof(raw), 0, (struct sockaddr *)&from, &len);
		if (n < 0)
			die(EXIT_RUN, "recv: %s", strerror(errno));
		if (from.sll_pkttype != PACKET_OUTGOING)
			take_frame(raw, (size_t)n);
	}
}

/* Around -------------------------------------------------------------------- */

static void report(void)
{
	int64_t now = mono_ns();
	const struct {
		const char *name;
		uint64_t value;
	} values[] = {
		{ "right", set_size(&c.seen) }, { "wrong", count.wrong }, { "twice", count.twice },
		{ "segments", count.segments }, { "supplements", count.supplements },
		{ "beyond", count.beyond }, { "answers", count.answers },
		{ "silences", count.silences }, { "forgotten", count.forgotten },
		{ "closed", count.closed }, { "missing", o.bytes - set_size(&c.seen) },
		{ "hostile_ms", (uint64_t)(c.honest_since - c.start) / NSEC_PER_MSEC },
		{ "honest_ms", (uint64_t)(now - c.honest_since) / NSEC_PER_MSEC },
	};
	struct json j = { .f = fopen(o.json, "w") };

	if (!j.f)
		die(EXIT_RUN, "%s: %s", o.json, strerror(errno));
	json_open(&j, '{');
	json_key(&j, "mode");
	json_str(&j, mode_names[o.mode]);
	json_key(&j, "complete");
	json_raw(&j, c.done ? "true" : "false");
	for (size_t i = 0; i < ARRAY_SIZE(values); i++) {
		json_key(&j, values[i].name);
		json_u64(&j, values[i].value);
	}
	json_key(&j, "told");
	json_open(&j, '{');
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		json_key(&j, lies[i].name);
		json_u64(&j, lies[i].told);
	}
	json_close(&j, '}');
	json_close(&j, '}');
	if (fclose(j.f))
		die(EXIT_RUN, "%s: %s", o.json, strerror(errno));
}

static int listen_on(const char *dev)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP) };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), room = 8 << 20;

	at.sll_ifindex = (int)if_nametoindex(dev);
	if (fd < 0 || !at.sll_ifindex ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room)) ||
	    bind(fd, (struct sockaddr *)&at, sizeof(at)))
		die(EXIT_RUN, "%s: %s", dev, strerror(errno));
	return fd;
}

static enum mode mode_of(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(mode_names); i++)
		if (!strcmp(name, mode_names[i]))
			return (enum mode)i;
	die(EXIT_USAGE, "--mode %s: no such mode", name);
}

static void read_options(int argc, char **argv)
{
	static const struct option options[] = {
		{ "dev", required_argument, NULL, 'd' }, { "mode", required_argument, NULL, 'm' },
		{ "seed", required_argument, NULL, 's' }, { "bytes", required_argument, NULL, 'b' },
		{ "window", required_argument, NULL, 'w' }, { "mss", required_argument, NULL, 'M' },
		{ "verify", required_argument, NULL, 'v' }, { "no-sack", no_argument, NULL, 'S' },
		{ "no-ts", no_argument, NULL, 'T' }, { "patience-s", required_argument, NULL, 'p' },
		{ "json", required_argument, NULL, 'j' }, { NULL, 0, NULL, 0 },
	};
	uint64_t patience_s = 600;
	int opt;

	o.mss = 1460;
	o.window = 1 << 20;
	o.verify = 1;
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 'd': o.dev = optarg; break;
		case 'm': o.mode = mode_of(optarg); break;
		case 's': o.seed = need_u64("--seed", optarg, 0, UINT32_MAX); break;
		case 'b': o.bytes = (uint32_t)need_u64("--bytes", optarg, 1, 1 << 28); break;
		case 'w': o.window = (uint32_t)need_u64("--window", optarg, 1, UINT16_MAX << WSCALE); break;
		case 'M': o.mss = (uint32_t)need_u64("--mss", optarg, 1, UINT16_MAX); break;
		case 'v': o.verify = need_u64("--verify", optarg, 0, UINT64_MAX); break;
		case 'S': o.no_sack = true; break;
		case 'T': o.no_ts = true; break;
		case 'p': patience_s = need_u64("--patience-s", optarg, 1, 100000); break;
		case 'j': o.json = optarg; break;
		default: exit(EXIT_USAGE);
		}
	}
	o.patience_ns = (int64_t)patience_s * NSEC_PER_SEC;
	if (!o.dev || !o.bytes || !o.json)
		die(EXIT_USAGE, "say --dev, --bytes and --json");
}

int main(int argc, char **argv)
{
	prog = "hostilepeer";
	read_options(argc, argv);
	c.fd = listen_on(o.dev);
	run();
	report();
	return c.done ? 0 : EXIT_RUN;
}
