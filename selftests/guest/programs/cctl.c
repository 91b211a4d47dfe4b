/*
 * cctl: does what a script on its standard input says, and says how each step ended.
 *
 * For tests of who may use a congestion control, and of what holds its module. All steps are taken
 * by one process: nothing is forked between two of them, and a result is the kernel's own errno,
 * not a program's message about it.
 *
 * A line is [LABEL:] [host] STATEMENT. With a label its result is printed as "LABEL RESULT", and is
 * whatever it is; without one anything but success ends the program. RESULT is "ok", the name of
 * an errno, or what was asked for. "host" has the step taken by a process that stays in the
 * initial namespaces as root, whatever became of this one.
 *
 *   netns NAME|init              from now on in that network namespace
 *   userns                       from now on root of a user namespace that owns a network of its own
 *   as admin|root|user           root; root without CAP_NET_ADMIN; user 65534 with no capability
 *   load|unload|loaded MODULE    modprobe, delete_module(2), is it there (yes, no)
 *   refs MODULE                  its reference count, "none" when it is not loaded
 *   read FILE, write FILE TEXT   a line of a pseudo file
 *   socket|close|reset S         S is any name; reset closes with a RST
 *   set S CC, get S              TCP_CONGESTION
 *   listen|connect S ADDR PORT   IPv4
 *   accept S LISTENER
 *   fill S                       writes until the kernel takes no more
 *   send|recv S BYTES            all of them
 *   eof S                        reads until the peer's FIN
 *   route ADDR CC [lock]         a local route with that congctl
 *   unroute ADDR                 its end
 *   sleep SECONDS
 *   until RESULT STATEMENT       takes the step until it ends like that
 */
#define _GNU_SOURCE
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/rtnetlink.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESULT_MAX	256
#define LINE_MAX_BYTES	1024
#define SOCKETS		32
#define NOBODY		65534
/* Where the child user namespace's ids 0 to 65535 begin, as container managers do it. */
#define ID_BASE		100000
#define ID_COUNT	65536
#define PATIENCE_S	400

static char said[RESULT_MAX];
static int initial_netns;
static int operator_to, operator_from;
static unsigned int number;	/* of the script's line */

static struct named {
	char name[16];
	int fd;
} sockets[SOCKETS];

static const char *outcome(int status)
{
	return status < 0 ? strerrorname_np(errno) : "ok";
}

static const char *word(char **rest)
{
	char *w = strsep(rest, " ");

	if (!w || !*w)
		die(EXIT_USAGE, "a word is missing");
	return w;
}

/* ---- who and where ---- */

static const char *do_netns(char *rest)
{
	const char *name = word(&rest);

	if (!strcmp(name, "init"))
		return outcome(setns(initial_netns, CLONE_NEWNET));
	errno = enter_netns(name);
	return outcome(errno ? -1 : 0);
}

/* All of the permitted capabilities become effective, but not `without`. */
static int capabilities(int without)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];

	if (syscall(SYS_capget, &head, caps))
		return -1;
	caps[0].effective = caps[0].permitted;
	caps[1].effective = caps[1].permitted;
	if (without >= 0)
		caps[without / 32].effective &= ~(1U << without % 32);
	return (int)syscall(SYS_capset, &head, caps);
}

static const char *do_as(char *rest)
{
	const char *who = word(&rest);

	/* Back to root first; the kernel gives back the capabilities with the user id. */
	if (seteuid(0) || setegid(0) || capabilities(-1))
		return outcome(-1);
	if (!strcmp(who, "root"))
		return outcome(capabilities(CAP_NET_ADMIN));
	if (!strcmp(who, "user"))
		return outcome(setegid(NOBODY) || seteuid(NOBODY) ? -1 : 0);
	if (strcmp(who, "admin"))
		die(EXIT_USAGE, "as %s: none of admin, root, user", who);
	return "ok";
}

static int loopback_up(void)
{
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int status = fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &lo);

	if (fd >= 0)
		close(fd);
	return status;
}

static int put_map(pid_t pid, const char *file)
{
	char path[64], map[64];
	int fd, len, status;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	len = snprintf(map, sizeof(map), "0 %d %d\n", ID_BASE, ID_COUNT);
	status = write(fd, map, (size_t)len) == len ? 0 : -1;
	close(fd);
	return status;
}

/* A child that stays behind writes the maps: more than one id takes a capability out there. */
static const char *do_userns(char *rest)
{
	int ready[2], status;
	pid_t self = getpid(), child;
	char byte;

	(void)rest;
	if (pipe2(ready, O_CLOEXEC))
		return outcome(-1);
	child = fork();
	if (child < 0)
		return outcome(-1);
	if (!child) {
		close(ready[1]);
		status = read(ready[0], &byte, 1) == 1 ? 0 : -1;
		_exit(status || put_map(self, "uid_map") || put_map(self, "gid_map"));
	}
	close(ready[0]);
	status = unshare(CLONE_NEWUSER | CLONE_NEWNET);
	if (!status && write(ready[1], "", 1) != 1)
		status = -1;
	close(ready[1]);
	if (status)
		return outcome(-1);
	if (waitpid(child, &status, 0) != child || status)
		die(EXIT_RUN, "userns: the maps of ids were not written; is this `as admin`?");
	return outcome(setresgid(0, 0, 0) || setresuid(0, 0, 0) || loopback_up() ? -1 : 0);
}

/* ---- the module and the kernel's files ---- */

static const char *do_load(char *rest)
{
	char *const argv[] = { "modprobe", (char *)word(&rest), NULL };
	char *const env[] = { "PATH=/usr/sbin:/usr/bin", NULL };
	int status;
	pid_t child;

	errno = posix_spawn(&child, "/sbin/modprobe", NULL, NULL, argv, env);
	if (errno || waitpid(child, &status, 0) < 0)
		return outcome(-1);
	return status ? "failed" : "ok";
}

static const char *do_unload(char *rest)
{
	return outcome((int)syscall(SYS_delete_module, word(&rest), O_NONBLOCK));
}

static const char *do_loaded(char *rest)
{
	char path[128];

	snprintf(path, sizeof(path), "/sys/module/%s", word(&rest));
	return access(path, F_OK) ? "no" : "yes";
}

static const char *do_read(char *rest)
{
	int fd = open(word(&rest), O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return outcome(-1);
	len = read(fd, said, sizeof(said) - 1);
	close(fd);
	if (len < 0)
		return outcome(-1);
	said[len] = '\0';
	said[strcspn(said, "\n")] = '\0';
	return said;
}

static const char *do_refs(char *rest)
{
	char path[128];
	const char *count;

	snprintf(path, sizeof(path), "/sys/module/%s/refcnt", word(&rest));
	count = do_read(path);
	return strcmp(count, "ENOENT") ? count : "none";
}

static const char *do_write(char *rest)
{
	int fd = open(word(&rest), O_WRONLY | O_CLOEXEC);
	ssize_t done;

	if (!rest)
		die(EXIT_USAGE, "write: no text");
	if (fd < 0)
		return outcome(-1);
	done = write(fd, rest, strlen(rest));
	if (done < 0) {
		int err = errno;

		close(fd);
		errno = err;
		return outcome(-1);
	}
	close(fd);
	return "ok";
}

/* ---- sockets ---- */

static struct named *find(const char *name)
{
	for (size_t i = 0; i < SOCKETS; i++)
		if (!strcmp(sockets[i].name, name))
			return &sockets[i];
	return NULL;
}

static int named_fd(const char *name)
{
	struct named *s = find(name);

	if (!s)
		die(EXIT_USAGE, "no socket %s", name);
	return s->fd;
}

static const char *keep(const char *name, int fd)
{
	struct named *s = find("");

	if (fd < 0)
		return outcome(-1);
	if (!s || find(name) || strlen(name) >= sizeof(s->name))
		die(EXIT_USAGE, "socket %s: known already, too long, or one too many", name);
	strcpy(s->name, name);
	s->fd = fd;
	return "ok";
}

static const char *do_socket(char *rest)
{
	return keep(word(&rest), socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

static const char *drop(const char *name)
{
	int fd = named_fd(name);

	find(name)->name[0] = '\0';
	return outcome(close(fd));
}

static const char *do_close(char *rest)
{
	return drop(word(&rest));
}

static const char *do_reset(char *rest)
{
	const char *name = word(&rest);
	struct linger now = { .l_onoff = 1, .l_linger = 0 };

	setsockopt(named_fd(name), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	return drop(name);
}

static const char *do_set(char *rest)
{
	int fd = named_fd(word(&rest));
	const char *cc = word(&rest);

	return outcome(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cc, (socklen_t)strlen(cc)));
}

static const char *do_get(char *rest)
{
	socklen_t len = sizeof(said) - 1;

	memset(said, 0, sizeof(said));
	if (getsockopt(named_fd(word(&rest)), IPPROTO_TCP, TCP_CONGESTION, said, &len))
		return outcome(-1);
	return said;
}

static struct sockaddr_in address(char *rest)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	const char *text = word(&rest);

	if (inet_pton(AF_INET, text, &to.sin_addr) != 1)
		die(EXIT_USAGE, "'%s' is not an IPv4 address", text);
	to.sin_port = htons((uint16_t)need_u64("port", word(&rest), 1, 65535));
	return to;
}

static const char *do_listen(char *rest)
{
	int fd = named_fd(word(&rest)), one = 1;
	struct sockaddr_in at = address(rest);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&at, sizeof(at)))
		return outcome(-1);
	return outcome(listen(fd, SOMAXCONN));
}

static const char *do_connect(char *rest)
{
	int fd = named_fd(word(&rest));
	struct sockaddr_in to = address(rest);

	return outcome(connect(fd, (struct sockaddr *)&to, sizeof(to)));
}

static const char *do_accept(char *rest)
{
	const char *name = word(&rest);

	return keep(name, accept4(named_fd(word(&rest)), NULL, NULL, SOCK_CLOEXEC));
}

static const char *do_fill(char *rest)
{
	static const char block[65536];
	int fd = named_fd(word(&rest));

	while (send(fd, block, sizeof(block), MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
	return outcome(errno == EAGAIN ? 0 : -1);
}

static const char *do_send(char *rest)
{
	static const char block[65536];
	int fd = named_fd(word(&rest));
	size_t left = need_u64("send", word(&rest), 1, sizeof(block));

	while (left) {
		ssize_t done = send(fd, block, left, MSG_NOSIGNAL);

		if (done < 0)
			return outcome(-1);
		left -= (size_t)done;
	}
	return "ok";
}

static const char *do_recv(char *rest)
{
	static char block[65536];
	int fd = named_fd(word(&rest));
	size_t len = need_u64("recv", word(&rest), 1, sizeof(block));
	ssize_t got = recv(fd, block, len, MSG_WAITALL);

	if (got >= 0 && (size_t)got < len)
		return "short";
	return outcome((int)got);
}

static const char *do_eof(char *rest)
{
	static char block[65536];
	int fd = named_fd(word(&rest));
	ssize_t got;

	do
		got = recv(fd, block, sizeof(block), 0);
	while (got > 0);
	return outcome((int)got);
}

/* ---- routes ---- */

struct route_request {
	struct nlmsghdr head;
	struct rtmsg msg;
	char attributes[256];
};

/* Puts an attribute at buf + *at, where *at is aligned; there must be room. */
static void add_attribute(char *buf, size_t *at, unsigned short type, const void *value, size_t len)
{
	struct rtattr a = { .rta_type = type, .rta_len = (unsigned short)RTA_LENGTH(len) };

	memcpy(buf + *at, &a, sizeof(a));
	memcpy(buf + *at + RTA_LENGTH(0), value, len);
	*at += RTA_ALIGN(a.rta_len);
}

/* RTA_METRICS with the algorithm's name and, if asked for, its lock. */
static void add_congctl(char *attributes, size_t *at, char *rest)
{
	const uint32_t locked = 1U << RTAX_CC_ALGO;
	const char *cc = word(&rest);
	char metrics[64] = "";
	size_t len = 0;

	if (strlen(cc) > 32)
		die(EXIT_USAGE, "route: '%s' is too long", cc);
	add_attribute(metrics, &len, RTAX_CC_ALGO, cc, strlen(cc) + 1);
	if (rest && !strcmp(rest, "lock"))
		add_attribute(metrics, &len, RTAX_LOCK, &locked, sizeof(locked));
	add_attribute(attributes, at, RTA_METRICS, metrics, len);
}

static int ask_kernel(struct nlmsghdr *head)
{
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char rest[512];
	} reply;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), status = -1;

	if (fd < 0)
		return -1;
	head->nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
	if (send(fd, head, head->nlmsg_len, 0) >= 0 && recv(fd, &reply, sizeof(reply), 0) > 0) {
		errno = -reply.error.error;
		status = errno ? -1 : 0;
	}
	/* A closed socket leaves errno alone when closing succeeds, which it does. */
	close(fd);
	return status;
}

static const char *change_route(unsigned short type, int flags, char *rest)
{
	struct route_request r = {
		.head = { .nlmsg_type = type, .nlmsg_flags = (unsigned short)flags },
		.msg = { .rtm_family = AF_INET, .rtm_dst_len = 32, .rtm_table = RT_TABLE_LOCAL,
			 .rtm_protocol = RTPROT_STATIC, .rtm_scope = RT_SCOPE_HOST,
			 .rtm_type = RTN_LOCAL },
	};
	const char *to = word(&rest);
	unsigned int lo = 1;	/* the index of lo in every namespace */
	struct in_addr addr;
	size_t len = 0;

	if (inet_pton(AF_INET, to, &addr) != 1)
		die(EXIT_USAGE, "'%s' is not an IPv4 address", to);
	add_attribute(r.attributes, &len, RTA_DST, &addr, sizeof(addr));
	add_attribute(r.attributes, &len, RTA_OIF, &lo, sizeof(lo));
	if (type == RTM_NEWROUTE)
		add_congctl(r.attributes, &len, rest);
	r.head.nlmsg_len = (uint32_t)(NLMSG_LENGTH(sizeof(r.msg)) + len);
	return outcome(ask_kernel(&r.head));
}

static const char *do_route(char *rest)
{
	return change_route(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, rest);
}

static const char *do_unroute(char *rest)
{
	return change_route(RTM_DELROUTE, 0, rest);
}

/* ---- the script ---- */

static const char *do_sleep(char *rest)
{
	uint64_t seconds = need_u64("sleep", word(&rest), 0, PATIENCE_S);

	return outcome(sleep_until(mono_ns() + (int64_t)seconds * NSEC_PER_SEC) ? 0 : -1);
}

static const char *do_host(char *rest);
static const char *do_until(char *rest);

static const struct {
	const char *name;
	const char *(*run)(char *rest);
} statements[] = {
	{ "netns", do_netns }, { "userns", do_userns }, { "as", do_as },
	{ "load", do_load }, { "unload", do_unload }, { "loaded", do_loaded },
	{ "refs", do_refs }, { "read", do_read }, { "write", do_write },
	{ "socket", do_socket }, { "close", do_close }, { "reset", do_reset },
	{ "set", do_set }, { "get", do_get }, { "listen", do_listen },
	{ "connect", do_connect }, { "accept", do_accept }, { "fill", do_fill },
	{ "send", do_send }, { "recv", do_recv }, { "eof", do_eof },
	{ "route", do_route }, { "unroute", do_unroute }, { "host", do_host },
	{ "sleep", do_sleep }, { "until", do_until },
};

static const char *run(char *line)
{
	const char *name = word(&line);

	for (size_t i = 0; i < ARRAY_SIZE(statements); i++)
		if (!strcmp(statements[i].name, name))
			return statements[i].run(line);
	die(EXIT_USAGE, "no statement %s", name);
}

static const char *do_until(char *rest)
{
	const char *wanted = word(&rest), *result;
	char line[LINE_MAX_BYTES];
	for (;;) {
		strcpy(line, rest);
		result = run(line);
		if (!strcmp(result, wanted))
			return "ok";
		sleep_until(mono_ns() + NSEC_PER_MSEC);
	}
}

/* Serves do_host(): a line in, a result out. */
static void be_operator(int from, int to)
{
	char line[LINE_MAX_BYTES];
	ssize_t len;

	while ((len = read(from, line, sizeof(line) - 1)) > 0) {
		const char *result;

		line[len] = '\0';
		result = run(line);
		if (write(to, result, strlen(result)) < 0)
			break;
	}
	_exit(0);
}

static const char *do_host(char *rest)
{
	ssize_t len = -1;

	if (write(operator_to, rest, strlen(rest)) > 0)
		len = read(operator_from, said, sizeof(said) - 1);
	if (len <= 0)
		die(EXIT_RUN, "host %s: no answer", rest);
	said[len] = '\0';
	return said;
}

/* A step that never ends must be named, not only time out. */
static void on_alarm(int sig)
{
	(void)sig;
	die(EXIT_RUN, "line %u has not ended after %d s", number, PATIENCE_S);
}

static void start_operator(void)
{
	int there[2], back[2];
	pid_t child;

	if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
		die(EXIT_RUN, "pipe: %s", strerror(errno));
	child = fork();
	if (child < 0)
		die(EXIT_RUN, "fork: %s", strerror(errno));
	if (!child) {
		close(there[1]);
		close(back[0]);
		be_operator(there[0], back[1]);
	}
	close(there[0]);
	close(back[1]);
	operator_to = there[1];
	operator_from = back[0];
}

int main(void)
{
	char line[LINE_MAX_BYTES], command[LINE_MAX_BYTES];

	prog = "cctl";
	initial_netns = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	start_operator();
	signal(SIGALRM, on_alarm);
	while (fgets(line, sizeof(line), stdin)) {
		char *colon, *rest = line;
		const char *result;

		number++;
		alarm(PATIENCE_S);
		line[strcspn(line, "\n")] = '\0';
		rest += strspn(rest, " \t");
		if (!*rest || *rest == '#')
			continue;
		colon = strstr(rest, ": ");
		if (colon) {
			*colon = '\0';
			strcpy(command, colon + 2);
			printf("%s %s\n", rest, run(command));
			fflush(stdout);
			continue;
		}
		strcpy(command, rest);
		result = run(command);
		if (strcmp(result, "ok"))
			die(EXIT_RUN, "line %u: %s: %s", number, rest, result);
	}
	return 0;
}
