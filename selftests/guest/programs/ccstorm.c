/*
 * ccstorm: connections that come and go all the time, and meanwhile a module that does, too.
 *
 *   ccstorm --from NETNS --to NETNS [--module MODULE --cycles N | --seconds N] [--gap-ms N]
 *           [--bytes MAX] [--seed N] KIND:CC:ADDR...
 *
 * Each KIND:CC:ADDR is a process that opens one connection after the other to ADDR, sends some
 * data, checks every byte at the other end, and ends in one of four ways drawn from the seed: the
 * sender's FIN first, the receiver's, a reset, or an orphan (closed with unsent data). Then it
 * waits for up to --gap-ms. Who uses CC, and how it is asked for:
 *
 *   own      the client, by setsockopt before connect
 *   child    the server's end, inherited from a listener that asked by setsockopt
 *   route    the client, because the route says so; without the module it gets something else
 *   switch   the client changes between CC, reno and cubic while it sends
 *
 * With --cycles the module is unloaded whenever the kernel lets it go, and loaded again, in turns
 * by modprobe and by whoever asks for CC by name, until it was unloaded that often. A process that
 * asks for CC just when the module goes may be told ENOENT or EBUSY; anything else it did not
 * expect ends the program. At the end "NAME VALUE" lines say what happened.
 */
#define _GNU_SOURCE
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS_MAX	32
#define FIRST_PORT	6000
#define SESSION_BYTES_MAX	(1024 * 1024)
#define CHUNK_BYTES	4096
#define CC_NAME_MAX	16
/* A prime: the pattern does not line up with segments or pages. */
#define PATTERN_BYTES	65521
#define PATIENCE_S	300

enum kind { OWN, CHILD, ROUTE, SWITCH };
static const char *const kinds[] = { "own", "child", "route", "switch" };

enum ending { SENDER_FIRST, RECEIVER_FIRST, RESET, ORPHAN, ENDINGS };

enum count {
	SESSIONS, BYTES, USED, NOT_USED, ABSENT, BUSY, SWITCHES, RESETS, ORPHANS, COUNTS
};
static const char *const count_names[] = {
	"sessions", "bytes", "used", "not_used", "absent", "busy", "switches", "resets", "orphans",
};

struct worker {
	enum kind kind;
	const char *cc;
	struct sockaddr_storage to;
	socklen_t to_len;
	uint64_t dice;
	pid_t pid;
};

static struct worker workers[WORKERS_MAX];
static size_t n_workers;
static uint64_t *counts;	/* shared with the workers */
static int from_ns, to_ns;
static uint64_t gap_ns = 400 * NSEC_PER_MSEC, session_bytes = 48 * 1024;
static volatile sig_atomic_t stopping;
static unsigned char pattern[PATTERN_BYTES + SESSION_BYTES_MAX];

static void count(enum count what, uint64_t n)
{
	__atomic_add_fetch(&counts[what], n, __ATOMIC_RELAXED);
}

static uint64_t roll(struct worker *w, uint64_t sides)
{
	w->dice = splitmix64(w->dice);
	return w->dice % sides;
}

static void must(bool good, const char *what)
{
	if (!good)
		die(EXIT_RUN, "%s: %s", what, strerror(errno));
}

static int open_socket(int netns, const struct worker *w)
{
	int fd;

	must(!setns(netns, CLONE_NEWNET), "setns");
	fd = socket(w->to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	must(fd >= 0, "socket");
	return fd;
}

/* False when the module is not there or on its way, which is nobody's fault here. */
static bool ask_for(int fd, const char *cc)
{
	if (!setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)))
		return true;
	must(errno == ENOENT || errno == EBUSY, "TCP_CONGESTION");
	count(errno == ENOENT ? ABSENT : BUSY, 1);
	return false;
}

static bool uses(int fd, const char *cc)
{
	char name[CC_NAME_MAX + 1] = "";
	socklen_t len = CC_NAME_MAX;

	must(!getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), "TCP_CONGESTION");
	return !strcmp(name, cc);
}

static void end_with_reset(int fd)
{
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

struct pair {
	int sender, receiver;
};

/* Opens a connection; false when CC could not be had just now. */
static bool open_pair(struct worker *w, struct pair *p)
{
	int listener = open_socket(to_ns, w), client, server, one = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (w->kind == CHILD && !ask_for(listener, w->cc)) {
		close(listener);
		return false;
	}
	must(!bind(listener, (struct sockaddr *)&w->to, w->to_len), "bind");
	must(!listen(listener, 4), "listen");
	client = open_socket(from_ns, w);
	if ((w->kind == OWN || w->kind == SWITCH) && !ask_for(client, w->cc)) {
		close(listener);
		close(client);
		return false;
	}
	must(!connect(client, (struct sockaddr *)&w->to, w->to_len), "connect");
	server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	must(server >= 0, "accept");
	close(listener);
	*p = w->kind == CHILD ? (struct pair){ server, client } : (struct pair){ client, server };
	if (uses(p->sender, w->cc))
		count(USED, 1);
	else if (w->kind == ROUTE)
		count(NOT_USED, 1);
	else
		die(EXIT_RUN, "a %s socket has another algorithm than %s", kinds[w->kind], w->cc);
	return true;
}

static size_t receive(int fd, size_t at, int flags)
{
	unsigned char data[CHUNK_BYTES];
	ssize_t got = recv(fd, data, sizeof(data), flags);

	if (got < 0 && errno == EAGAIN)
		return 0;
	must(got >= 0, "recv");
	if (memcmp(data, pattern + at, (size_t)got))
		die(EXIT_RUN, "wrong data at byte %zu", at);
	return (size_t)got;
}

static void change(struct worker *w, int fd)
{
	const char *const names[] = { w->cc, "reno", "cubic" };

	if (ask_for(fd, names[roll(w, ARRAY_SIZE(names))]))
		count(SWITCHES, 1);
}

/* Sends all of it while the other end reads and compares. Returns what was read. */
static size_t transfer(struct worker *w, const struct pair *p, size_t start, size_t bytes)
{
	size_t sent = 0, got = 0;

	while (got < bytes) {
		struct pollfd fds[] = {
			{ .fd = p->sender, .events = sent < bytes ? POLLOUT : 0 },
			{ .fd = p->receiver, .events = POLLIN },
		};

		must(poll(fds, 2, -1) > 0 || errno == EINTR, "poll");
		if (fds[0].revents & POLLOUT) {
			size_t len = bytes - sent < CHUNK_BYTES ? bytes - sent : CHUNK_BYTES;
			ssize_t done = send(p->sender, pattern + start + sent, len,
					    MSG_DONTWAIT | MSG_NOSIGNAL);

			must(done >= 0 || errno == EAGAIN, "send");
			sent += done > 0 ? (size_t)done : 0;
			if (w->kind == SWITCH)
				change(w, p->sender);
		}
		if (fds[1].revents)
			got += receive(p->receiver, start + got, MSG_DONTWAIT);
	}
	return got;
}

/* The sender is gone with data that nobody has read yet: read them now. */
static void drain(int fd, size_t at)
{
	size_t got;

	while ((got = receive(fd, at, 0)) > 0)
		at += got;
}

static void finish(enum ending how, const struct pair *p, size_t start, size_t done)
{
	char byte;

	switch (how) {
	case RESET:
		end_with_reset(p->sender);
		count(RESETS, 1);
		break;
	case ORPHAN:
		must(send(p->sender, pattern + start + done, session_bytes - done,
			  MSG_DONTWAIT | MSG_NOSIGNAL) > 0 || done == session_bytes, "send");
		close(p->sender);
		drain(p->receiver, start + done);
		close(p->receiver);
		count(ORPHANS, 1);
		return;
	case RECEIVER_FIRST:
		shutdown(p->receiver, SHUT_WR);
		must(!recv(p->sender, &byte, 1, 0), "end of stream");
		break;
	default:
		shutdown(p->sender, SHUT_WR);
		must(!recv(p->receiver, &byte, 1, 0), "end of stream");
	}
	close(p->sender);
	close(p->receiver);
}

static void session(struct worker *w)
{
	size_t start = roll(w, PATTERN_BYTES), bytes = roll(w, session_bytes), done;
	struct pair p;

	if (!open_pair(w, &p))
		return;
	done = transfer(w, &p, start, bytes);
	finish((enum ending)roll(w, ENDINGS), &p, start, done);
	count(SESSIONS, 1);
	count(BYTES, done);
}

static void on_stop(int sig)
{
	(void)sig;
	stopping = 1;
}

static void be_worker(struct worker *w)
{
	/* Only the pause is to be cut short, never a connection. */
	struct sigaction stop = { .sa_handler = on_stop, .sa_flags = SA_RESTART };

	sigaction(SIGTERM, &stop, NULL);
	while (!stopping) {
		session(w);
		sleep_until(mono_ns() + (int64_t)roll(w, gap_ns));
	}
	exit(0);
}

/* ---- the module ---- */

static bool loaded(const char *module)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", module);
	return !access(path, F_OK);
}

static void load(const char *module)
{
	char *const argv[] = { "modprobe", (char *)module, NULL };
	char *const env[] = { "PATH=/usr/sbin:/usr/bin", NULL };
	int status;
	pid_t child;

	errno = posix_spawn(&child, "/sbin/modprobe", NULL, NULL, argv, env);
	must(!errno && waitpid(child, &status, 0) == child, "modprobe");
	if (status)
		die(EXIT_RUN, "modprobe %s failed", module);
}

static void all_alive(void)
{
	int status;
	pid_t pid = waitpid(-1, &status, WNOHANG);

	if (pid > 0)
		die(EXIT_RUN, "a worker ended with status %d", status);
}

struct cycling {
	uint64_t unloaded, refused, busy, by_modprobe;
};

static void cycle(const char *module, uint64_t cycles, struct worker *dice, struct cycling *c)
{
	int64_t end = mono_ns() + PATIENCE_S * NSEC_PER_SEC;

	while (c->unloaded < cycles) {
		all_alive();
		if (mono_ns() > end)
			die(EXIT_RUN, "%s stayed in use for %d s", module, PATIENCE_S);
		sleep_until(mono_ns() + (int64_t)roll(dice, 5 * NSEC_PER_MSEC));
		if (!loaded(module)) {
			/* Every other time it is up to those who ask for it by name. */
			if (c->unloaded % 2)
				continue;
			load(module);
			c->by_modprobe++;
		}
		if (!syscall(SYS_delete_module, module, O_NONBLOCK)) {
			c->unloaded++;
			end = mono_ns() + PATIENCE_S * NSEC_PER_SEC;
		} else if (errno == EWOULDBLOCK) {
			c->refused++;
		} else {
			/* Loading has not ended, or somebody else's loading failed meanwhile. */
			must(errno == EBUSY || errno == ENOENT, "delete_module");
			c->busy++;
		}
	}
}

/* ---- the command line ---- */

static void parse_worker(char *text, uint64_t seed)
{
	struct worker *w = &workers[n_workers];
	struct sockaddr_in *v4 = (struct sockaddr_in *)&w->to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&w->to;
	uint16_t port = htons((uint16_t)(FIRST_PORT + n_workers));
	const char *kind = strsep(&text, ":"), *cc = text ? strsep(&text, ":") : NULL;

	if (n_workers == WORKERS_MAX || !text)
		die(EXIT_USAGE, "'%s' is not KIND:CC:ADDR, or one too many", kind);
	for (w->kind = OWN; strcmp(kinds[w->kind], kind); w->kind++)
		if (w->kind == SWITCH)
			die(EXIT_USAGE, "'%s' is none of own, child, route, switch", kind);
	w->cc = cc;
	w->dice = splitmix64(seed + n_workers);
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = port;
		w->to_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = port;
		w->to_len = sizeof(*v6);
	} else {
		die(EXIT_USAGE, "'%s' is not an address", text);
	}
	n_workers++;
}

static int open_netns(const char *name)
{
	char path[256];
	int fd;

	if (!netns_path(name, path, sizeof(path)))
		die(EXIT_USAGE, "'%s' is not a namespace's name", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	must(fd >= 0, path);
	return fd;
}

static void start_workers(void)
{
	for (size_t i = 0; i < n_workers; i++) {
		workers[i].pid = fork();
		must(workers[i].pid >= 0, "fork");
		if (!workers[i].pid)
			be_worker(&workers[i]);
	}
}

static void stop_workers(void)
{
	int status;

	for (size_t i = 0; i < n_workers; i++)
		kill(workers[i].pid, SIGTERM);
	for (size_t i = 0; i < n_workers; i++) {
		must(waitpid(workers[i].pid, &status, 0) == workers[i].pid, "waitpid");
		if (status)
			die(EXIT_RUN, "worker %zu ended with status %d", i, status);
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "from", required_argument, NULL, 'f' }, { "to", required_argument, NULL, 't' },
		{ "module", required_argument, NULL, 'm' }, { "cycles", required_argument, NULL, 'c' },
		{ "seconds", required_argument, NULL, 's' }, { "gap-ms", required_argument, NULL, 'g' },
		{ "bytes", required_argument, NULL, 'b' }, { "seed", required_argument, NULL, 'r' },
		{ NULL, 0, NULL, 0 },
	};
	const char *module = NULL, *from = NULL, *to = NULL;
	uint64_t cycles = 0, seconds = 0, seed = 1;
	struct worker dice = { .dice = 1 };
	struct cycling c = { 0 };
	int o;

	prog = "ccstorm";
	while ((o = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (o) {
		case 'f': from = optarg; break;
		case 't': to = optarg; break;
		case 'm': module = optarg; break;
		case 'c': cycles = need_u64("--cycles", optarg, 1, 100000); break;
		case 's': seconds = need_u64("--seconds", optarg, 1, 100000); break;
		case 'g': gap_ns = need_u64("--gap-ms", optarg, 1, 100000) * NSEC_PER_MSEC; break;
		case 'b':
			session_bytes = need_u64("--bytes", optarg, 1, SESSION_BYTES_MAX);
			break;
		case 'r': seed = need_u64("--seed", optarg, 0, UINT64_MAX); break;
		default: return EXIT_USAGE;
		}
	}
	if (!from || !to || optind == argc || !cycles == !seconds || !cycles != !module)
		die(EXIT_USAGE, "say --from, --to, a worker, and --seconds or --module and --cycles");
	for (; optind < argc; optind++)
		parse_worker(argv[optind], seed);
	from_ns = open_netns(from);
	to_ns = open_netns(to);
	for (size_t i = 0; i < sizeof(pattern); i++)
		pattern[i] = (unsigned char)(splitmix64(i % PATTERN_BYTES) >> 56);
	counts = mmap(NULL, COUNTS * sizeof(*counts), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(counts != MAP_FAILED, "mmap");
	start_workers();
	if (cycles)
		cycle(module, cycles, &dice, &c);
	for (int64_t end = mono_ns() + (int64_t)seconds * NSEC_PER_SEC; mono_ns() < end; all_alive())
		sleep_until(mono_ns() + 100 * NSEC_PER_MSEC);
	stop_workers();
	for (size_t i = 0; i < COUNTS; i++)
		printf("%s %llu\n", count_names[i], (unsigned long long)counts[i]);
	printf("unloaded %llu\nrefused %llu\nunload_busy %llu\nby_modprobe %llu\n",
	       (unsigned long long)c.unloaded, (unsigned long long)c.refused,
	       (unsigned long long)c.busy, (unsigned long long)c.by_modprobe);
	return 0;
}
