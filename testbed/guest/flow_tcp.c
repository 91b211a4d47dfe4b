/* airflow's TCP modes: recv, send, churn. */
#define _GNU_SOURCE
#include "airflow.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char chunk[IO_CHUNK];

/*
 * The content of a verified stream: byte i is byte i % 8 of the little-endian word
 * splitmix64(seed + i / 8), so that a reader can start anywhere and nothing repeats.
 */
static unsigned char stream_byte(uint64_t seed, uint64_t at)
{
	return (unsigned char)(splitmix64(seed + at / 8) >> (at % 8 * 8));
}

/* `at` must be a multiple of 8 and so must `len`. */
static void stream_fill(unsigned char *to, size_t len, uint64_t seed, uint64_t at)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = splitmix64(seed + (at + i) / 8);

		for (size_t b = 0; b < 8; b++)
			to[i + b] = (unsigned char)(word >> (b * 8));
	}
}

/* Offset in the stream of the first wrong byte, or -1. */
static int64_t stream_check(const unsigned char *p, size_t len, uint64_t seed, uint64_t at)
{
	size_t i = 0;

	for (; i < len && (at + i) % 8; i++)
		if (p[i] != stream_byte(seed, at + i))
			return (int64_t)(at + i);
	for (; i + 8 <= len; i += 8) {
		uint64_t word = splitmix64(seed + (at + i) / 8), got = 0;

		for (size_t b = 0; b < 8; b++)
			got |= (uint64_t)p[i + b] << (b * 8);
		if (got != word)
			break;
	}
	for (; i < len; i++)
		if (p[i] != stream_byte(seed, at + i))
			return (int64_t)(at + i);
	return -1;
}

static void get_cc(int fd, char cc[CC_NAME_MAX])
{
	socklen_t len = CC_NAME_MAX - 1;

	memset(cc, 0, CC_NAME_MAX);
	if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, &len))
		cc[0] = '\0';
}

static bool set_cc(int fd, const char *want)
{
	char what[64], got[CC_NAME_MAX];

	if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, want, (socklen_t)strlen(want))) {
		snprintf(what, sizeof(what), "TCP_CONGESTION %s", want);
		fail(what, errno);
		return false;
	}
	get_cc(fd, got);
	if (strcmp(got, want)) {
		snprintf(what, sizeof(what), "asked for %s, the kernel gave %s", want, got);
		fail(what, 0);
		return false;
	}
	return true;
}

static void abort_on_close(int fd)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

static int socket_error(int fd)
{
	int err = 0;
	socklen_t len = sizeof(err);

	getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
	return err;
}

/* ---- recv ---- */

struct bin {
	int64_t t_ns;
	uint64_t bytes;
};

struct recv_state {
	const struct opts *o;
	struct pollfd *fds;	/* [0] is the listener */
	uint64_t *offset;	/* bytes of each connection */
	size_t open, room, room_off;
	uint64_t accepted, resets, bytes;
	int64_t first_ns, last_ns;
	struct bin *bins;
	size_t n_bins, bin_room;
	int64_t mismatch_at;
	char cc[CC_NAME_MAX];
};

static void account(struct recv_state *s, uint64_t got)
{
	int64_t now = mono_ns(), t = now - now % s->o->bin_ns;

	if (!s->bytes)
		s->first_ns = now;
	s->last_ns = now;
	s->bytes += got;
	if (!s->n_bins || s->bins[s->n_bins - 1].t_ns != t) {
		s->bins = grow(s->bins, s->n_bins, &s->bin_room, sizeof(*s->bins));
		s->bins[s->n_bins++] = (struct bin){ t, 0 };
	}
	s->bins[s->n_bins - 1].bytes += got;
}

static void accept_one(struct recv_state *s)
{
	int fd = accept4(s->fds[0].fd, NULL, NULL, SOCK_CLOEXEC);

	if (fd < 0) {
		/* A connection that was reset while it waited is no fault of ours. */
		if (errno == ECONNABORTED || errno == EINTR || errno == EAGAIN)
			return;
		fail("accept", errno);
		return;
	}
	if (!s->accepted++)
		get_cc(fd, s->cc);
	s->open++;
	s->fds = grow(s->fds, s->open, &s->room, sizeof(*s->fds));
	s->offset = grow(s->offset, s->open, &s->room_off, sizeof(*s->offset));
	s->fds[s->open] = (struct pollfd){ .fd = fd, .events = POLLIN };
	s->offset[s->open] = 0;
}

static void finish_one(struct recv_state *s, size_t i)
{
	close(s->fds[i].fd);
	s->fds[i] = s->fds[s->open];
	s->offset[i] = s->offset[s->open];
	s->open--;
}

/* Reads once from connection i; it may be gone afterwards. */
static void read_one(struct recv_state *s, size_t i, int flags)
{
	ssize_t got;

	/* MSG_TRUNC drops TCP data inside the kernel: nothing is copied. */
	got = recv(s->fds[i].fd, chunk, sizeof(chunk), flags | (s->o->verify ? 0 : MSG_TRUNC));
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0) {
		/* A reset is how a timed sender ends; a timeout is not how anything should. */
		if (got < 0 && errno != ECONNRESET)
			fail("recv", errno);
		s->resets += got < 0;
		finish_one(s, i);
		return;
	}
	account(s, (uint64_t)got);
	if (s->o->verify && s->mismatch_at < 0) {
		s->mismatch_at = stream_check(chunk, (size_t)got, s->o->verify_seed, s->offset[i]);
		if (s->mismatch_at >= 0)
			fail("the data received are not the data of this --verify seed", 0);
	}
	s->offset[i] += (uint64_t)got;
}

static void recv_loop(struct recv_state *s)
{
	while (!stopping && (s->open || s->accepted < s->o->count)) {
		size_t open = s->open;

		/* The common case, one flow and no other to come, needs one system call a wake-up. */
		if (open == 1 && s->accepted == s->o->count) {
			read_one(s, 1, 0);
			continue;
		}
		s->fds[0].events = s->accepted < s->o->count ? POLLIN : 0;
		if (poll(s->fds, open + 1, -1) < 0) {
			if (errno == EINTR)
				continue;
			fail("poll", errno);
			return;
		}
		/* Backwards: finish_one() moves the last entry into the gap. */
		for (size_t i = open; i; i--)
			if (s->fds[i].revents)
				read_one(s, i, MSG_DONTWAIT);
		if (s->fds[0].revents) {
			accept_one(s);
			if (failed())
				return;
		}
	}
}

void run_recv(const struct opts *o, struct json *j)
{
	struct recv_state s = { .o = o, .mismatch_at = -1 };

	s.fds = grow(s.fds, 0, &s.room, sizeof(*s.fds));
	s.fds[0] = (struct pollfd){ .fd = open_server(o, SOCK_STREAM) };
	if (!failed()) {
		/* The peer may reset between poll and accept: never block there. */
		fcntl(s.fds[0].fd, F_SETFL, O_NONBLOCK);
		recv_loop(&s);
		for (size_t i = 0; i <= s.open; i++)
			close(s.fds[i].fd);
	}
	json_key(j, "bytes");
	json_u64(j, s.bytes);
	json_key(j, "first_ns");
	json_s64(j, s.first_ns);
	json_key(j, "last_ns");
	json_s64(j, s.last_ns);
	json_key(j, "bins");
	json_open(j, '[');
	for (size_t i = 0; i < s.n_bins; i++) {
		json_open(j, '[');
		json_s64(j, s.bins[i].t_ns);
		json_u64(j, s.bins[i].bytes);
		json_close(j, ']');
	}
	json_close(j, ']');
	json_key(j, "verified");
	json_raw(j, !o->verify ? "null" : s.mismatch_at < 0 ? "true" : "false");
	json_key(j, "mismatch_at");
	if (s.mismatch_at < 0)
		json_raw(j, "null");
	else
		json_s64(j, s.mismatch_at);
	json_key(j, "cc");
	json_str(j, s.accepted ? s.cc : NULL);
	json_key(j, "connections");
	json_u64(j, s.accepted);
	json_key(j, "resets");
	json_u64(j, s.resets);
	free(s.fds);
	free(s.offset);
	free(s.bins);
}

/* ---- send ---- */

struct sample {
	int64_t t_ns;
	struct tcp_info i;
};

/* The columns of `samples`, which are also the members of `final`. */
#define COLUMNS(C)						\
	C(t_ns, (uint64_t)s->t_ns)				\
	C(cwnd_segs, s->i.tcpi_snd_cwnd)			\
	C(ssthresh_segs, s->i.tcpi_snd_ssthresh)		\
	C(srtt_us, s->i.tcpi_rtt)				\
	C(min_rtt_us, s->i.tcpi_min_rtt)			\
	C(unacked_segs, s->i.tcpi_unacked)			\
	C(sacked_segs, s->i.tcpi_sacked)			\
	C(lost_segs, s->i.tcpi_lost)				\
	C(retrans_total, s->i.tcpi_total_retrans)		\
	C(ca_state, s->i.tcpi_ca_state)				\
	C(delivery_rate_Bps, s->i.tcpi_delivery_rate)		\
	C(bytes_acked, s->i.tcpi_bytes_acked)			\
	C(rto_us, s->i.tcpi_rto)				\
	C(mss_bytes, s->i.tcpi_snd_mss)

#define GETTER(name, value)					\
static uint64_t get_##name(const struct sample *s)		\
{								\
	return value;						\
}
COLUMNS(GETTER)

#define COLUMN(name, value)	{ #name, get_##name },
static const struct {
	const char *name;
	uint64_t (*get)(const struct sample *s);
} columns[] = { COLUMNS(COLUMN) };

struct send_state {
	const struct opts *o;
	int fd;
	int64_t start_ns, end_ns, deadline, next_sample;
	uint64_t written;
	size_t at, len;		/* unsent part of chunk: [at, len) */
	bool connected, shut, done;
	size_t next_switch, next_pause;
	char cc[CC_NAME_MAX], cc_end[CC_NAME_MAX];
	struct sample *samples;
	size_t n_samples, room;
	struct sample final;
};

static void take_sample(struct send_state *s, struct sample *to)
{
	socklen_t len = sizeof(to->i);

	memset(to, 0, sizeof(*to));
	to->t_ns = mono_ns();
	if (getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &to->i, &len))
		fail("TCP_INFO", errno);
}

static int64_t earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Time the application has spent producing data, pauses left out. */
static int64_t active_ns(const struct send_state *s, int64_t now)
{
	int64_t t = now - s->start_ns, idle = 0;

	for (size_t i = 0; i < s->o->n_pauses; i++) {
		const struct app_pause *p = &s->o->pauses[i];

		if (t <= p->at_ns)
			break;
		idle += earlier(t - p->at_ns, p->len_ns);
	}
	return t - idle;
}

/*
 * How many bytes the application may write now; when none, *wake is lowered to the time it may.
 * A limited application writes blocks of 20 ms, like a media source does, not single bytes.
 */
static uint64_t allowance(struct send_state *s, int64_t now, int64_t *wake)
{
	const struct opts *o = s->o;
	uint64_t left = o->bytes ? o->bytes - s->written : UINT64_MAX, block;
	double due;

	while (s->next_pause < o->n_pauses) {
		const struct app_pause *p = &o->pauses[s->next_pause];
		int64_t from = s->start_ns + p->at_ns, to = from + p->len_ns;

		if (now < from) {
			*wake = earlier(*wake, from);
			break;
		}
		if (now < to) {
			*wake = earlier(*wake, to);
			return 0;
		}
		s->next_pause++;
	}
	if (o->app_rate_bps <= 0)
		return left;
	due = (double)active_ns(s, now) * o->app_rate_bps / 8e9 - (double)s->written;
	block = (uint64_t)(o->app_rate_bps / 8 * 0.02);
	if (block < 1448)
		block = 1448;
	if (block > left)
		block = left;
	if (due < (double)block) {
		/* One ns on top: rounding down would wake it a byte too early, again and again. */
		*wake = earlier(*wake, now + 1 + (int64_t)(((double)block - due) * 8e9 / o->app_rate_bps));
		return 0;
	}
	return due < (double)left ? (uint64_t)due : left;
}

static void write_some(struct send_state *s, uint64_t allowed)
{
	size_t len;
	ssize_t n;

	if (!s->o->verify) {
		s->at = 0;
		s->len = sizeof(chunk);
	} else if (s->at == s->len) {
		stream_fill(chunk, sizeof(chunk), s->o->verify_seed, s->written);
		s->at = 0;
		s->len = sizeof(chunk);
	}
	len = s->len - s->at;
	if (len > allowed)
		len = (size_t)allowed;
	n = send(s->fd, chunk + s->at, len, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0) {
		if (errno != EAGAIN && errno != EINTR)
			fail("send", errno);
		return;
	}
	s->at += (size_t)n;
	s->written += (uint64_t)n;
}

/* Nothing more to write: ends the stream, or ends at once. */
static void end_stream(struct send_state *s)
{
	if (!s->o->close_fin) {
		s->done = true;
		return;
	}
	if (shutdown(s->fd, SHUT_WR))
		fail("shutdown", errno);
	s->shut = true;
}

/* Everything whose time has come. Returns the time of the next such thing. */
static int64_t do_due(struct send_state *s, int64_t now)
{
	const struct opts *o = s->o;
	int64_t wake = INT64_MAX;

	if (o->sample_ns && s->connected) {
		if (now >= s->next_sample) {
			s->samples = grow(s->samples, s->n_samples, &s->room, sizeof(*s->samples));
			take_sample(s, &s->samples[s->n_samples++]);
			while (s->next_sample <= now)
				s->next_sample += o->sample_ns;
		}
		wake = earlier(wake, s->next_sample);
	}
	while (s->next_switch < o->n_switches && !s->shut) {
		int64_t at = s->start_ns + o->switches[s->next_switch].at_ns;

		if (now < at) {
			wake = earlier(wake, at);
			break;
		}
		if (!set_cc(s->fd, o->switches[s->next_switch++].cc))
			return now;
	}
	if (s->deadline && !s->shut) {
		if (now >= s->deadline) {
			if (!s->connected)
				fail("connect", ETIMEDOUT);
			else
				end_stream(s);
		}
		wake = earlier(wake, s->deadline);
	}
	return wake;
}

static void wait_for(struct send_state *s, short events, int64_t now, int64_t wake, uint64_t allowed)
{
	struct pollfd p = { .fd = s->fd, .events = events };
	struct timespec ts = { 0, 0 };
	char byte;
	ssize_t n;
	int err;

	if (wake > now) {
		ts.tv_sec = (wake - now) / NSEC_PER_SEC;
		ts.tv_nsec = (wake - now) % NSEC_PER_SEC;
	}
	if (ppoll(&p, 1, wake == INT64_MAX ? NULL : &ts, NULL) < 0) {
		if (errno != EINTR)
			fail("poll", errno);
		return;
	}
	if (!p.revents)
		return;
	if (!s->connected) {
		err = socket_error(s->fd);
		if (err) {
			fail("connect", err);
			return;
		}
		s->connected = true;
		s->next_sample = mono_ns();
		return;
	}
	if (s->shut) {
		n = recv(s->fd, &byte, 1, MSG_DONTWAIT);
		if (n == 0)
			s->done = true;	/* the peer read all of it and closed */
		else if (n < 0 && errno != EAGAIN && errno != EINTR)
			fail("waiting for the peer's close", errno);
		return;
	}
	if (p.revents & POLLOUT && events & POLLOUT) {
		write_some(s, allowed);
		return;
	}
	err = socket_error(s->fd);
	fail("connection lost", err ? err : ECONNRESET);
}

static void send_loop(struct send_state *s)
{
	const struct opts *o = s->o;

	if (o->sndbuf && setsockopt(s->fd, SOL_SOCKET, SO_SNDBUF, &o->sndbuf, sizeof(o->sndbuf))) {
		fail("SO_SNDBUF", errno);
		return;
	}
	if (o->tx_delay_us &&
	    setsockopt(s->fd, IPPROTO_TCP, TCP_TX_DELAY, &o->tx_delay_us, sizeof(o->tx_delay_us))) {
		fail("TCP_TX_DELAY", errno);
		return;
	}
	if (!set_cc(s->fd, o->cc))
		return;
	get_cc(s->fd, s->cc);
	fcntl(s->fd, F_SETFL, O_NONBLOCK);
	s->start_ns = mono_ns();
	if (o->duration_ns)
		s->deadline = s->start_ns + o->duration_ns;
	if (connect(s->fd, (const struct sockaddr *)&o->to, o->to_len) && errno != EINPROGRESS) {
		fail("connect", errno);
		return;
	}
	while (!failed() && !s->done) {
		int64_t now = mono_ns(), wake = do_due(s, now);
		uint64_t allowed = 0;
		short events = 0;

		if (failed() || s->done)
			break;
		if (stopping) {
			fail("terminated", 0);
			break;
		}
		if (!s->connected) {
			events = POLLOUT;
		} else if (s->shut) {
			events = POLLIN;
		} else if (o->bytes && s->written == o->bytes) {
			end_stream(s);
			continue;
		} else {
			allowed = allowance(s, now, &wake);
			events = allowed ? POLLOUT : 0;
		}
		wait_for(s, events, now, wake, allowed);
	}
	s->end_ns = mono_ns();
	take_sample(s, &s->final);
	get_cc(s->fd, s->cc_end);
}

void run_send(const struct opts *o, struct json *j)
{
	struct send_state s = { .o = o, .fd = open_client(o, SOCK_STREAM) };

	if (s.fd >= 0) {
		send_loop(&s);
		if (!s.done || !o->close_fin)
			abort_on_close(s.fd);
		close(s.fd);
	}
	json_key(j, "bytes");
	json_u64(j, s.written);
	json_key(j, "cc");
	json_str(j, s.cc[0] ? s.cc : NULL);
	json_key(j, "cc_end");
	json_str(j, s.cc_end[0] ? s.cc_end : NULL);
	json_key(j, "start_ns");
	json_s64(j, s.start_ns);
	json_key(j, "end_ns");
	json_s64(j, s.end_ns);
	json_key(j, "samples");
	json_open(j, '{');
	for (size_t c = 0; c < ARRAY_SIZE(columns); c++) {
		json_key(j, columns[c].name);
		json_open(j, '[');
		for (size_t i = 0; i < s.n_samples; i++)
			json_u64(j, columns[c].get(&s.samples[i]));
		json_close(j, ']');
	}
	json_close(j, '}');
	json_key(j, "final");
	json_open(j, '{');
	for (size_t c = 0; c < ARRAY_SIZE(columns) && s.end_ns; c++) {
		json_key(j, columns[c].name);
		json_u64(j, columns[c].get(&s.final));
	}
	json_close(j, '}');
	free(s.samples);
}

/* ---- churn ---- */

#define CHURN_MAX_BYTES	(64 * 1024)

struct slot {
	size_t left;
	bool connected, reset, shut;
};

struct churn_state {
	const struct opts *o;
	struct pollfd *fds;
	struct slot *slots;
	size_t used;
	uint64_t started, opened, closed, reset, failed;
};

/* Many short connections, sizes and endings drawn from the seed: one in four is reset. */
static void churn_start(struct churn_state *c)
{
	uint64_t dice = splitmix64(c->o->seed ^ splitmix64(c->started));
	struct slot *slot = &c->slots[c->used];
	int fd = open_client(c->o, SOCK_STREAM);

	if (fd < 0)
		return;
	c->started++;
	if (!set_cc(fd, c->o->cc)) {
		close(fd);
		return;
	}
	*slot = (struct slot){ .left = dice % CHURN_MAX_BYTES, .reset = dice >> 62 == 0 };
	fcntl(fd, F_SETFL, O_NONBLOCK);
	if (connect(fd, (const struct sockaddr *)&c->o->to, c->o->to_len) && errno != EINPROGRESS) {
		c->failed++;
		close(fd);
		return;
	}
	c->fds[c->used++] = (struct pollfd){ .fd = fd, .events = POLLOUT };
}

/* True when the connection is over. */
static bool churn_step(struct churn_state *c, size_t i)
{
	struct slot *slot = &c->slots[i];
	int fd = c->fds[i].fd;
	ssize_t n;

	if (!slot->connected) {
		if (socket_error(fd)) {
			c->failed++;
			return true;
		}
		slot->connected = true;
		c->opened++;
	}
	if (slot->left) {
		n = send(fd, chunk, slot->left, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		if (n < 0) {
			c->failed++;
			return true;
		}
		slot->left -= (size_t)n;
		if (slot->left)
			return false;
	}
	if (slot->reset) {
		abort_on_close(fd);
		c->reset++;
		return true;
	}
	if (!slot->shut) {
		shutdown(fd, SHUT_WR);
		slot->shut = true;
		c->fds[i].events = POLLIN;
		return false;
	}
	n = recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT);
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
		return false;
	if (n < 0)
		c->failed++;
	else
		c->closed++;
	return true;
}

void run_churn(const struct opts *o, struct json *j)
{
	struct churn_state c = { .o = o };

	c.fds = need_mem(calloc(o->parallel, sizeof(*c.fds)));
	c.slots = need_mem(calloc(o->parallel, sizeof(*c.slots)));
	while (!failed() && (c.used || c.started < o->count)) {
		if (stopping) {
			fail("terminated", 0);
			break;
		}
		while (c.used < o->parallel && c.started < o->count && !failed())
			churn_start(&c);
		if (!c.used)
			continue;
		if (poll(c.fds, c.used, -1) < 0 && errno != EINTR) {
			fail("poll", errno);
			break;
		}
		for (size_t i = c.used; i-- > 0;) {
			if (!c.fds[i].revents || !churn_step(&c, i))
				continue;
			close(c.fds[i].fd);
			c.used--;
			c.fds[i] = c.fds[c.used];
			c.slots[i] = c.slots[c.used];
		}
	}
	for (size_t i = 0; i < c.used; i++)
		close(c.fds[i].fd);
	free(c.fds);
	free(c.slots);
	json_key(j, "opened");
	json_u64(j, c.opened);
	json_key(j, "closed");
	json_u64(j, c.closed);
	json_key(j, "reset");
	json_u64(j, c.reset);
	json_key(j, "failed");
	json_u64(j, c.failed);
}
