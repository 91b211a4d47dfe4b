/*
 * ccmany: many connections at the same time, all with one congestion control, each one checked.
 *
 *   ccmany --count N --bytes N [--rounds N] --cc NAME --module MODULE --to ADDR --port N
 *
 * Both ends are in this process. All connections are opened; then, --rounds times, every one of
 * them is given --bytes to send before the first is read, so that all have data under way at
 * once; every byte is compared with what this connection was given. The module's reference count
 * must be the number of connections then, and 0 after they were closed. "NAME VALUE" lines say
 * what memory the machine had left at each stage, in kB.
 */
#define _GNU_SOURCE
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* Fewer than the queue of a listener holds. */
#define BATCH		256
#define BYTES_MAX	(64 * 1024)
/* Virtual seconds for all of it; without an end a lost byte would be waited for. */
#define PATIENCE_S	1000

static unsigned char block[BYTES_MAX], data[BYTES_MAX];

static void must(bool good, const char *what)
{
	if (!good)
		die(EXIT_RUN, "%s: %s", what, strerror(errno));
}

static long number_in(const char *path, const char *key)
{
	char line[256];
	long value = -1;
	FILE *f = fopen(path, "r");

	must(f, path);
	while (value < 0 && fgets(line, sizeof(line), f))
		if (!strncmp(line, key, strlen(key)))
			value = strtol(line + strlen(key), NULL, 10);
	fclose(f);
	if (value < 0)
		die(EXIT_RUN, "%s has no %s", path, key);
	return value;
}

/* Free pages lie in the zones and, some MB at times, in the processors' lists. */
static long free_kb(void)
{
	char line[256];
	long pages = 0, n;
	FILE *f = fopen("/proc/zoneinfo", "r");

	must(f, "/proc/zoneinfo");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, " pages free %ld", &n) == 1 || sscanf(line, " count: %ld", &n) == 1)
			pages += n;
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE) / 1024;
}

/* Of all the kernel's caches together; unlike Slab: it leaves out what they keep for later. */
static long objects_kb(void)
{
	FILE *f = fopen("/proc/slabinfo", "r");
	long bytes = 0, used, size;
	char line[512];

	must(f, "/proc/slabinfo");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %ld %*d %ld", &used, &size) == 2)
			bytes += used * size;
	fclose(f);
	return bytes / 1024;
}

static void memory(const char *stage)
{
	printf("free_kB.%s %ld\n", stage, free_kb());
	printf("slab_kB.%s %ld\n", stage, number_in("/proc/meminfo", "Slab:"));
	printf("objects_kB.%s %ld\n", stage, objects_kb());
	printf("sockets.%s %ld\n", stage, number_in("/proc/net/sockstat", "TCP: inuse "));
	fflush(stdout);
}

static long references(const char *module)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s/refcnt", module);
	return number_in(path, "");
}

/* Each connection and round has bytes of its own. */
static void fill(unsigned char *to, size_t bytes, uint64_t which)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = splitmix64(which ^ splitmix64(i));

		memcpy(to + i, &word, 8);
	}
}

static void open_files(uint64_t count)
{
	rlim_t files = 2 * count + 64;
	struct rlimit limit = { files, files };

	must(!setrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE");
}

static int open_client(const struct sockaddr_in *to, const char *cc)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	must(fd >= 0, "socket");
	must(!setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)), cc);
	must(!connect(fd, (const struct sockaddr *)to, sizeof(*to)) || errno == EINPROGRESS, "connect");
	return fd;
}

static void wait_connected(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	socklen_t len = sizeof(errno);

	must(poll(&p, 1, -1) == 1, "poll");
	must(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &errno, &len) && !errno, "connect");
}

/* Which client an accepted socket belongs to: its peer's port says so. */
static void accept_batch(int listener, const int *clients, int *servers, size_t n)
{
	static int by_port[65536];
	struct sockaddr_in peer;
	socklen_t len;

	for (size_t i = 0; i < n; i++) {
		wait_connected(clients[i]);
		len = sizeof(peer);
		must(!getsockname(clients[i], (struct sockaddr *)&peer, &len), "getsockname");
		by_port[ntohs(peer.sin_port)] = (int)i;
	}
	for (size_t i = 0; i < n; i++) {
		int fd;

		len = sizeof(peer);
		fd = accept4(listener, (struct sockaddr *)&peer, &len, SOCK_CLOEXEC);
		must(fd >= 0, "accept");
		servers[by_port[ntohs(peer.sin_port)]] = fd;
	}
}

static void connect_all(int *clients, int *servers, uint64_t count, const struct sockaddr_in *to,
			const char *cc)
{
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	must(listener >= 0, "socket");
	must(!bind(listener, (const struct sockaddr *)to, sizeof(*to)), "bind");
	must(!listen(listener, BATCH), "listen");
	for (size_t at = 0; at < count; at += BATCH) {
		size_t n = count - at < BATCH ? count - at : BATCH;

		for (size_t i = 0; i < n; i++)
			clients[at + i] = open_client(to, cc);
		accept_batch(listener, clients + at, servers + at, n);
	}
	close(listener);
}

static void one_round(const int *clients, const int *servers, uint64_t count, size_t bytes,
		      uint64_t round)
{
	for (uint64_t i = 0; i < count; i++) {
		fill(block, bytes, round << 32 | i);
		must(send(clients[i], block, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "send");
	}
	if (!round)
		memory("sending");
	for (uint64_t i = 0; i < count; i++) {
		fill(block, bytes, round << 32 | i);
		must(recv(servers[i], data, bytes, MSG_WAITALL) == (ssize_t)bytes, "recv");
		if (memcmp(block, data, bytes))
			die(EXIT_RUN, "round %llu: connection %llu got other data",
			    (unsigned long long)round, (unsigned long long)i);
	}
}

static void close_all(const int *clients, const int *servers, uint64_t count, const char *module)
{
	for (uint64_t i = 0; i < count; i++)
		close(clients[i]);
	for (uint64_t i = 0; i < count; i++) {
		must(!recv(servers[i], data, 1, 0), "end of stream");
		close(servers[i]);
	}
	while (references(module))
		sleep_until(mono_ns() + 10 * NSEC_PER_MSEC);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "count", required_argument, NULL, 'n' }, { "bytes", required_argument, NULL, 'b' },
		{ "rounds", required_argument, NULL, 'r' }, { "cc", required_argument, NULL, 'c' },
		{ "module", required_argument, NULL, 'm' }, { "to", required_argument, NULL, 't' },
		{ "port", required_argument, NULL, 'p' }, { NULL, 0, NULL, 0 },
	};
	uint64_t count = 0, bytes = 0, rounds = 1, port = 0;
	const char *cc = NULL, *module = NULL, *text = NULL;
	struct sockaddr_in to = { .sin_family = AF_INET };
	int *clients, *servers, o;

	prog = "ccmany";
	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		/* Fewer than there are local ports for one destination. */
		case 'n': count = need_u64("--count", optarg, 1, 28000); break;
		case 'b': bytes = need_u64("--bytes", optarg, 8, BYTES_MAX) / 8 * 8; break;
		case 'r': rounds = need_u64("--rounds", optarg, 1, 1000); break;
		case 'c': cc = optarg; break;
		case 'm': module = optarg; break;
		case 't': text = optarg; break;
		case 'p': port = need_u64("--port", optarg, 1, 65535); break;
		default: return EXIT_USAGE;
		}
	}
	if (!count || !bytes || !cc || !module || !port || !text ||
	    inet_pton(AF_INET, text, &to.sin_addr) != 1)
		die(EXIT_USAGE, "say --count, --bytes, --cc, --module, --to (IPv4) and --port");
	to.sin_port = htons((uint16_t)port);
	alarm(PATIENCE_S);
	open_files(count);
	clients = need_mem(calloc(count, sizeof(*clients)));
	servers = need_mem(calloc(count, sizeof(*servers)));
	memory("before");
	connect_all(clients, servers, count, &to, cc);
	memory("connected");
	printf("references.connected %ld\n", references(module));
	for (uint64_t round = 0; round < rounds; round++)
		one_round(clients, servers, count, bytes, round);
	memory("idle");
	printf("verified %llu\n", (unsigned long long)(count * bytes * rounds));
	close_all(clients, servers, count, module);
	memory("closed");
	printf("references.closed %ld\n", references(module));
	free(clients);
	free(servers);
	return 0;
}
