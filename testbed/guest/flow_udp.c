/* airflow's datagram modes: udp-recv, udp-send, burst, echo, ping. */
#define _GNU_SOURCE
#include "airflow.h"

#include <endian.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static unsigned char datagram[65536];	/* starts with its number, little-endian */

static int64_t *times;
static size_t n_times, times_room;

static void keep_time(int64_t t)
{
	times = grow(times, n_times, &times_room, sizeof(*times));
	times[n_times++] = t;
}

static void json_times(struct json *j, const char *key)
{
	json_key(j, key);
	json_open(j, '[');
	for (size_t i = 0; i < n_times; i++)
		json_s64(j, times[i]);
	json_close(j, ']');
	free(times);
}

static uint64_t get_number(void)
{
	uint64_t v;

	memcpy(&v, datagram, sizeof(v));
	return le64toh(v);
}

static void set_number(uint64_t v)
{
	v = htole64(v);
	memcpy(datagram, &v, sizeof(v));
}

static int connected_client(const struct opts *o)
{
	int fd = open_client(o, SOCK_DGRAM);

	if (fd < 0)
		return -1;
	big_buffers(fd);
	if (!connect(fd, (const struct sockaddr *)&o->to, o->to_len))
		return fd;
	fail("connect", errno);
	close(fd);
	return -1;
}

/* A send reports the ICMP error of an earlier datagram; that one was sent all the same. */
static bool send_number(int fd, uint64_t number, size_t size)
{
	set_number(number);
	for (int tries = 0; tries < 3; tries++) {
		if (send(fd, datagram, size, MSG_NOSIGNAL) >= 0)
			return true;
		if (errno == EINTR && stopping)
			return false;
		if (errno != ECONNREFUSED && errno != EINTR)
			break;
	}
	fail("send", errno);
	return false;
}

void run_udp_recv(const struct opts *o, struct json *j)
{
	uint64_t datagrams = 0, bytes = 0, reordered = 0, next = 0, short_ones = 0;
	int64_t first = 0, last = 0;
	int fd = open_server(o, SOCK_DGRAM);

	if (fd >= 0)
		big_buffers(fd);
	while (fd >= 0 && !stopping) {
		/* Only the number is copied; MSG_TRUNC makes recv tell the whole length. */
		ssize_t got = recv(fd, datagram, sizeof(uint64_t), MSG_TRUNC);
		uint64_t number;

		if (got < 0) {
			if (errno == EINTR)
				continue;
			fail("recv", errno);
			break;
		}
		if ((size_t)got < sizeof(uint64_t)) {
			short_ones++;	/* not from airflow */
			continue;
		}
		last = mono_ns();
		if (!datagrams++)
			first = last;
		bytes += (uint64_t)got;
		if (datagrams <= o->keep)
			keep_time(last);
		number = get_number();
		if (number < next)
			reordered++;
		else
			next = number + 1;
	}
	if (short_ones)
		fail("datagrams came that are not airflow's", 0);
	if (fd >= 0)
		close(fd);
	json_key(j, "datagrams");
	json_u64(j, datagrams);
	json_key(j, "bytes");
	json_u64(j, bytes);
	json_key(j, "first_ns");
	json_s64(j, first);
	json_key(j, "last_ns");
	json_s64(j, last);
	json_times(j, "arrivals_ns");
	json_key(j, "reordered");
	json_u64(j, reordered);
	json_key(j, "lost");
	/* Below the highest number seen; what was lost after it only the sender can tell. */
	json_u64(j, next > datagrams ? next - datagrams : 0);
}

static void json_sent(struct json *j, uint64_t datagrams, size_t size)
{
	json_key(j, "datagrams");
	json_u64(j, datagrams);
	json_key(j, "bytes");
	json_u64(j, datagrams * size);
}

void run_udp_send(const struct opts *o, struct json *j)
{
	size_t headers = 14 + (o->to.ss_family == AF_INET6 ? 40 : 20) + 8;
	double gap_ns = (double)(o->size + headers) * 8e9 / o->rate_bps, at = 0;
	uint64_t sent = 0, dice = o->seed;
	int fd = connected_client(o);
	int64_t start = mono_ns();

	while (fd >= 0 && at < (double)o->duration_ns) {
		if (stopping) {
			fail("terminated", 0);
			break;
		}
		if (!sleep_until(start + (int64_t)at))
			continue;
		if (!send_number(fd, sent, o->size))
			continue;
		sent++;
		if (!o->poisson) {
			at = gap_ns * (double)sent;
			continue;
		}
		/* 53 random bits give u in (0, 1]. */
		dice = splitmix64(dice);
		at -= gap_ns * log(((double)(dice >> 11) + 1) * 0x1p-53);
	}
	if (fd >= 0)
		close(fd);
	json_sent(j, sent, o->size);
	json_key(j, "start_ns");
	json_s64(j, start);
	json_key(j, "end_ns");
	json_s64(j, mono_ns());
}

void run_burst(const struct opts *o, struct json *j)
{
	uint64_t sent = 0;
	int fd = connected_client(o);

	while (fd >= 0 && sent < o->count && !stopping && send_number(fd, sent, o->size))
		sent++;
	if (stopping)
		fail("terminated", 0);
	if (fd >= 0)
		close(fd);
	json_sent(j, sent, o->size);
}

void run_echo(const struct opts *o, struct json *j)
{
	uint64_t datagrams = 0, bytes = 0;
	int fd = open_server(o, SOCK_DGRAM);

	if (fd >= 0)
		big_buffers(fd);
	while (fd >= 0 && !stopping) {
		struct sockaddr_storage from;
		socklen_t len = sizeof(from);
		ssize_t got = recvfrom(fd, datagram, sizeof(datagram), 0,
				       (struct sockaddr *)&from, &len);

		if (got < 0) {
			if (errno == EINTR)
				continue;
			fail("recv", errno);
			break;
		}
		datagrams++;
		bytes += (uint64_t)got;
		/* An answer that cannot be sent is an answer lost: the other side counts it. */
		if (sendto(fd, datagram, (size_t)got, MSG_NOSIGNAL, (struct sockaddr *)&from, len) < 0 &&
		    errno != EINTR)
			fail("send", errno);
	}
	if (fd >= 0)
		close(fd);
	json_key(j, "datagrams");
	json_u64(j, datagrams);
	json_key(j, "bytes");
	json_u64(j, bytes);
}

/* Waits for answers until that time. True when all `sent` have been answered. */
static bool collect(int fd, int64_t *sent_at, int64_t *rtt, uint64_t sent, uint64_t *answered,
		    int64_t until)
{
	while (!stopping && *answered < sent) {
		int64_t left = until - mono_ns();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct timespec ts = { left / NSEC_PER_SEC, left % NSEC_PER_SEC };
		uint64_t number;
		int64_t now;
		ssize_t got;

		if (left <= 0)
			return false;
		if (ppoll(&p, 1, &ts, NULL) <= 0)
			continue;
		got = recv(fd, datagram, sizeof(datagram), MSG_DONTWAIT);
		now = mono_ns();
		if (got < 0) {
			if (errno == EAGAIN || errno == EINTR || errno == ECONNREFUSED)
				continue;
			fail("recv", errno);
			return false;
		}
		if ((size_t)got < sizeof(uint64_t))
			continue;
		number = get_number();
		if (number >= sent || rtt[number] >= 0)
			continue;	/* a duplicate, or somebody else's */
		rtt[number] = now - sent_at[number];
		(*answered)++;
	}
	return *answered == sent;
}

void run_ping(const struct opts *o, struct json *j)
{
	int64_t *sent_at = need_mem(calloc(o->count, sizeof(*sent_at)));
	int64_t *rtt = need_mem(calloc(o->count, sizeof(*rtt)));
	uint64_t sent = 0, answered = 0;
	int fd = connected_client(o);
	int64_t start = mono_ns();

	while (fd >= 0 && sent < o->count && !failed() && !stopping) {
		int64_t next = start + (int64_t)sent * o->interval_ns;

		collect(fd, sent_at, rtt, sent, &answered, next);
		if (failed() || stopping || !sleep_until(next))
			continue;
		rtt[sent] = -1;
		sent_at[sent] = mono_ns();
		if (send_number(fd, sent, o->size))
			sent++;
	}
	if (fd >= 0 && !failed())
		collect(fd, sent_at, rtt, sent, &answered, mono_ns() + o->wait_ns);
	if (stopping)
		fail("terminated", 0);
	for (uint64_t i = 0; i < sent; i++)
		if (rtt[i] >= 0)
			keep_time(rtt[i]);
	json_times(j, "rtts_ns");
	json_key(j, "lost");
	json_u64(j, sent - answered);
	json_key(j, "sent");
	json_u64(j, sent);
	if (fd >= 0)
		close(fd);
	free(sent_at);
	free(rtt);
}
