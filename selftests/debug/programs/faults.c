/*
 * faults: takes a step again and again and has another one of its allocations fail each time.
 *
 *   faults load FILE MODULE          finit_module(2); delete_module(2) when it was loaded
 *   faults open ADDR PORT CC         socket, TCP_CONGESTION, connect, send, close
 *   faults switch ADDR PORT CC       a connected socket: CC, reno, CC, then send and close
 *   faults autoload CC MODULE        TCP_CONGESTION while nothing has loaded the module; unloads it
 *   faults dump                      what ss -ti asks: all TCP sockets with their private data
 *   faults write FILE VALUE          open, write, close, as for a module's parameter
 *
 * In try n the n-th allocation fails (/proc/thread-self/fail-nth); the tries end with the first one
 * whose step took less than n allocations. "WHAT.tries", "WHAT.failed" and one "WHAT.ERRNO" for
 * each errno seen are printed, with their counts. A step that fails must leave nothing behind:
 * after each try the same step is taken without a fault and must succeed, or the program ends.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES_MAX	5000
#define ERRNO_MAX	200
#define DATA_BYTES	4096

static int fail_nth = -1;
static char **args;

static void die(const char *what)
{
	fprintf(stderr, "faults: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void arm(unsigned int n)
{
	char text[16];
	int length = snprintf(text, sizeof(text), "%u", n);

	if (pwrite(fail_nth, text, (size_t)length, 0) != length)
		die("fail-nth");
}

/* Whether the fault was injected; none is pending afterwards. */
static bool disarm(void)
{
	char text[16] = "";

	if (pread(fail_nth, text, sizeof(text) - 1, 0) <= 0)
		die("fail-nth");
	arm(0);
	return atoi(text) == 0;
}

/* The steps: 0 or -1 with errno. They close what they opened. */

static int end(int fd, int status)
{
	int saved = errno;

	close(fd);
	errno = saved;
	return status;
}

/* With a fault pending it may fail, too; without one it must not. */
static void unload(const char *module)
{
	if (!syscall(SYS_delete_module, module, O_NONBLOCK))
		return;
	disarm();
	if (syscall(SYS_delete_module, module, O_NONBLOCK))
		die("delete_module");
}

static int load(void)
{
	int fd = open(args[0], O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	if (end(fd, (int)syscall(SYS_finit_module, fd, "", 0)))
		return -1;
	unload(args[1]);
	return 0;
}

static int choose(int fd, const char *cc)
{
	return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc));
}

static int dial(int fd)
{
	struct sockaddr_in to = { .sin_family = AF_INET };

	to.sin_port = htons((in_port_t)atoi(args[1]));
	if (inet_pton(AF_INET, args[0], &to.sin_addr) != 1) {
		errno = EINVAL;
		return -1;
	}
	return connect(fd, (struct sockaddr *)&to, sizeof(to));
}

static int talk(int fd)
{
	static const char data[DATA_BYTES];

	return send(fd, data, sizeof(data), MSG_NOSIGNAL) < 0 ? -1 : 0;
}

static int open_one(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		return -1;
	return end(fd, choose(fd, args[2]) || dial(fd) || talk(fd) ? -1 : 0);
}

static int held = -1;

static int switch_cc(void)
{
	return choose(held, args[2]) || choose(held, "reno") || choose(held, args[2]) ? -1 : 0;
}

static int autoload(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		return -1;
	if (end(fd, choose(fd, args[0])))
		return -1;
	unload(args[1]);
	return 0;
}

static int dump(void)
{
	static char answer[65536];
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 body;
	} ask = {
		.head = { .nlmsg_len = sizeof(ask), .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			  .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.body = { .sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0U,
			  .idiag_ext = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_VEGASINFO - 1) },
	};
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);

	if (fd < 0)
		return -1;
	if (send(fd, &ask, sizeof(ask), 0) < 0)
		return end(fd, -1);
	for (;;) {
		ssize_t got = recv(fd, answer, sizeof(answer), 0);
		struct nlmsghdr *head = (struct nlmsghdr *)answer;

		if (got < 0)
			return end(fd, -1);
		for (; NLMSG_OK(head, got); head = NLMSG_NEXT(head, got)) {
			if (head->nlmsg_type == NLMSG_DONE)
				return end(fd, 0);
			if (head->nlmsg_type == NLMSG_ERROR) {
				errno = -((struct nlmsgerr *)NLMSG_DATA(head))->error;
				return end(fd, -1);
			}
		}
	}
}

static int write_value(void)
{
	int fd = open(args[0], O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	return end(fd, write(fd, args[1], strlen(args[1])) < 0 ? -1 : 0);
}

static const struct {
	const char *name;
	int (*step)(void);
	int arguments;
	bool on_socket;
} steps[] = {
	{ "load", load, 2, false },	{ "open", open_one, 3, false },
	{ "switch", switch_cc, 3, true }, { "autoload", autoload, 2, false },
	{ "dump", dump, 0, false },	{ "write", write_value, 2, false },
};

static void run(const char *name, int (*step)(void))
{
	unsigned int counts[ERRNO_MAX] = { 0 }, failed = 0, n = 0;
	bool injected = true;

	while (injected && ++n < TRIES_MAX) {
		int status;

		arm(n);
		errno = 0;
		status = step();
		if (status) {
			failed++;
			counts[errno < ERRNO_MAX ? errno : 0]++;
		}
		injected = disarm();
		if (status && !injected)
			die("failed without a fault");
		if (step())
			die("does not work after a fault");
	}
	printf("%s.tries %u\n%s.failed %u\n", name, n, name, failed);
	for (int e = 0; e < ERRNO_MAX; e++)
		if (counts[e])
			printf("%s.%s %u\n", name, strerrorname_np(e), counts[e]);
	if (injected)
		die("still failing after the last try");
}

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (argc < 2 || strcmp(argv[1], steps[i].name) || argc - 2 != steps[i].arguments)
			continue;
		args = argv + 2;
		fail_nth = open("/proc/thread-self/fail-nth", O_RDWR | O_CLOEXEC);
		if (fail_nth < 0)
			die("/proc/thread-self/fail-nth");
		if (steps[i].on_socket) {
			held = socket(AF_INET, SOCK_STREAM, 0);
			if (held < 0 || dial(held))
				die("connect");
		}
		run(steps[i].name, steps[i].step);
		if (steps[i].on_socket && talk(held))
			die("send");
		return 0;
	}
	fprintf(stderr, "faults: usage: faults load|open|switch|autoload|dump|write ARGUMENTS\n");
	return 2;
}
