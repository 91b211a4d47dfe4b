/*
 * airflow: makes and measures traffic inside the laboratory's guest.
 *
 * The guest's time is counted in instructions, so every wake-up, system call and copied byte
 * slows the experiment down. Hence: one thread, large writes, reads that throw data away
 * inside the kernel, samples kept in memory, and no output before the end.
 */
#define _GNU_SOURCE
#include "airflow.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

volatile sig_atomic_t stopping;

static timer_t nudge;
static char first_error[256];

enum mode {
	M_RECV, M_SEND, M_CHURN, M_UDP_RECV, M_UDP_SEND, M_BURST, M_ECHO, M_PING,
};

static const struct {
	const char *name;
	void (*run)(const struct opts *o, struct json *j);
} modes[] = {
	[M_RECV] = { "recv", run_recv },
	[M_SEND] = { "send", run_send },
	[M_CHURN] = { "churn", run_churn },
	[M_UDP_RECV] = { "udp-recv", run_udp_recv },
	[M_UDP_SEND] = { "udp-send", run_udp_send },
	[M_BURST] = { "burst", run_burst },
	[M_ECHO] = { "echo", run_echo },
	[M_PING] = { "ping", run_ping },
};

#define B(m)		(1U << (m))
#define SERVERS		(B(M_RECV) | B(M_UDP_RECV) | B(M_ECHO))
#define CLIENTS		(B(M_SEND) | B(M_CHURN) | B(M_UDP_SEND) | B(M_BURST) | B(M_PING))
#define TCP_CLIENTS	(B(M_SEND) | B(M_CHURN))

enum {
	O_JSON = 256, O_PORT, O_FAMILY, O_TO, O_CC, O_SECONDS, O_BYTES, O_SNDBUF, O_RCVBUF,
	O_SAMPLE, O_BIN, O_VERIFY, O_SWITCH, O_PAUSE, O_APP_RATE, O_CLOSE, O_COUNT, O_SEED, O_KEEP,
	O_PARALLEL, O_SIZE, O_RATE, O_DIST, O_INTERVAL, O_WAIT, O_TX_DELAY, O_END,
};

/* Which option belongs to which mode, and which modes cannot do without it. */
static const struct {
	const char *name;
	unsigned int allowed, required;
} options[O_END - O_JSON] = {
#define OPT(o, name, allowed, required)	[(o) - O_JSON] = { name, allowed, required }
	OPT(O_JSON, "json", ~0U, 0),
	OPT(O_PORT, "port", ~0U, ~0U),
	OPT(O_FAMILY, "family", SERVERS, 0),
	OPT(O_TO, "to", CLIENTS, CLIENTS),
	OPT(O_CC, "cc", TCP_CLIENTS, TCP_CLIENTS),
	OPT(O_SECONDS, "seconds", B(M_SEND) | B(M_UDP_SEND), B(M_UDP_SEND)),
	OPT(O_BYTES, "bytes", B(M_SEND), 0),
	OPT(O_SNDBUF, "sndbuf", B(M_SEND), 0),
	OPT(O_RCVBUF, "rcvbuf", B(M_RECV), 0),
	OPT(O_SAMPLE, "sample-ms", B(M_SEND), 0),
	OPT(O_BIN, "bin-ms", B(M_RECV), 0),
	OPT(O_VERIFY, "verify", B(M_SEND) | B(M_RECV), 0),
	OPT(O_SWITCH, "switch", B(M_SEND), 0),
	OPT(O_PAUSE, "pause", B(M_SEND), 0),
	OPT(O_APP_RATE, "app-rate", B(M_SEND), 0),
	OPT(O_CLOSE, "close", B(M_SEND), 0),
	OPT(O_COUNT, "count", B(M_RECV) | B(M_CHURN) | B(M_BURST) | B(M_PING),
	    B(M_CHURN) | B(M_BURST) | B(M_PING)),
	OPT(O_SEED, "seed", B(M_CHURN) | B(M_UDP_SEND), B(M_CHURN)),
	OPT(O_KEEP, "keep", B(M_UDP_RECV), 0),
	OPT(O_PARALLEL, "parallel", B(M_CHURN), 0),
	OPT(O_SIZE, "size", B(M_UDP_SEND) | B(M_BURST) | B(M_PING), B(M_UDP_SEND) | B(M_BURST)),
	OPT(O_RATE, "rate", B(M_UDP_SEND), B(M_UDP_SEND)),
	OPT(O_DIST, "dist", B(M_UDP_SEND), 0),
	OPT(O_INTERVAL, "interval-ms", B(M_PING), B(M_PING)),
	OPT(O_WAIT, "wait-ms", B(M_PING), 0),
	OPT(O_TX_DELAY, "tx-delay-ms", B(M_SEND), 0),
#undef OPT
};

void fail(const char *what, int err)
{
	if (failed())
		return;
	if (err)
		snprintf(first_error, sizeof(first_error), "%s: %s", what, strerror(err));
	else
		snprintf(first_error, sizeof(first_error), "%s", what);
	warn_msg("%s", first_error);
}

bool failed(void)
{
	return first_error[0];
}

static void on_stop(int sig)
{
	/*
	 * A signal between a look at `stopping` and a blocking call would be lost: the timer
	 * interrupts again until the program has noticed.
	 */
	static const struct itimerspec again = {
		.it_value.tv_nsec = 10 * NSEC_PER_MSEC, .it_interval.tv_nsec = 10 * NSEC_PER_MSEC,
	};
	int saved = errno;

	stopping = 1;
	if (sig != SIGALRM)
		timer_settime(nudge, 0, &again, NULL);
	errno = saved;
}

static void catch_signals(void)
{
	struct sigaction sa = { .sa_handler = on_stop };
	struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };

	if (timer_create(CLOCK_MONOTONIC, &ev, &nudge))
		die(EXIT_RUN, "timer_create: %s", strerror(errno));
	/* No SA_RESTART: blocking calls are to come back. */
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGALRM, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
}

static void server_address(const struct opts *o, struct sockaddr_storage *ss, socklen_t *len)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)ss;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)ss;

	memset(ss, 0, sizeof(*ss));
	if (o->family == 6) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(o->port);
		*len = sizeof(*v6);
	} else {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(o->port);
		*len = sizeof(*v4);
	}
}

int open_server(const struct opts *o, int type)
{
	struct sockaddr_storage ss;
	socklen_t len;
	int fd, one = 1;

	server_address(o, &ss, &len);
	fd = socket(ss.ss_family, type | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		fail("socket", errno);
		return -1;
	}
	if (type == SOCK_STREAM)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (ss.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	/* The window scale is fixed when a listener's handshake starts: before listen(). */
	if (o->rcvbuf && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &o->rcvbuf, sizeof(o->rcvbuf)))
		fail("SO_RCVBUF", errno);
	if (bind(fd, (struct sockaddr *)&ss, len))
		fail("bind", errno);
	else if (type == SOCK_STREAM && listen(fd, SOMAXCONN))
		fail("listen", errno);
	if (!failed())
		return fd;
	close(fd);
	return -1;
}

int open_client(const struct opts *o, int type)
{
	int fd = socket(o->to.ss_family, type | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket", errno);
	return fd;
}

void big_buffers(int fd)
{
	int bytes = 16 << 20;

	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)))
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

static void parse_to(struct opts *o, const char *text)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)&o->to;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&o->to;
	char addr[64];
	char *scope;

	snprintf(addr, sizeof(addr), "%s", text);
	scope = strchr(addr, '%');
	if (scope)
		*scope++ = '\0';
	if (!scope && inet_pton(AF_INET, addr, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		o->to_len = sizeof(*v4);
	} else if (inet_pton(AF_INET6, addr, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		o->to_len = sizeof(*v6);
		v6->sin6_scope_id = scope ? if_nametoindex(scope) : 0;
		if (scope && !v6->sin6_scope_id)
			die(EXIT_USAGE, "--to: no interface '%s' here", scope);
	} else {
		die(EXIT_USAGE, "--to: '%s' is not an IPv4 or IPv6 address", text);
	}
}

/* "MS:REST": returns REST. */
static const char *parse_at(const char *what, const char *text, int64_t *at_ns)
{
	const char *colon = strchr(text, ':');
	char ms[24];

	if (!colon || (size_t)(colon - text) >= sizeof(ms))
		die(EXIT_USAGE, "%s: '%s' is not MILLISECONDS:VALUE", what, text);
	memcpy(ms, text, (size_t)(colon - text));
	ms[colon - text] = '\0';
	*at_ns = (int64_t)need_u64(what, ms, 0, 1000000000) * NSEC_PER_MSEC;
	return colon + 1;
}

static void add_switch(struct opts *o, const char *text)
{
	struct cc_switch *s;
	const char *cc;

	o->switches = need_mem(reallocarray(o->switches, o->n_switches + 1, sizeof(*s)));
	s = &o->switches[o->n_switches];
	cc = parse_at("--switch", text, &s->at_ns);
	if (!*cc || strlen(cc) >= sizeof(s->cc))
		die(EXIT_USAGE, "--switch: '%s' is not an algorithm's name", cc);
	if (o->n_switches && s->at_ns < s[-1].at_ns)
		die(EXIT_USAGE, "--switch: times must rise");
	snprintf(s->cc, sizeof(s->cc), "%s", cc);
	o->n_switches++;
}

static void add_pause(struct opts *o, const char *text)
{
	struct app_pause *p;
	const char *len;

	o->pauses = need_mem(reallocarray(o->pauses, o->n_pauses + 1, sizeof(*p)));
	p = &o->pauses[o->n_pauses];
	len = parse_at("--pause", text, &p->at_ns);
	p->len_ns = (int64_t)need_u64("--pause", len, 1, 1000000000) * NSEC_PER_MSEC;
	if (o->n_pauses && p->at_ns < p[-1].at_ns + p[-1].len_ns)
		die(EXIT_USAGE, "--pause: pauses must rise and not overlap");
	o->n_pauses++;
}

static bool choose(const char *what, const char *text, const char *no, const char *yes)
{
	if (strcmp(text, no) && strcmp(text, yes))
		die(EXIT_USAGE, "%s: '%s' is neither %s nor %s", what, text, no, yes);
	return !strcmp(text, yes);
}

static int64_t need_ns(const char *what, const char *text, uint64_t min_ms)
{
	return (int64_t)need_u64(what, text, min_ms, 100000000) * NSEC_PER_MSEC;
}

static void set_option(struct opts *o, int opt, const char *arg)
{
	char what[32];

	snprintf(what, sizeof(what), "--%s", options[opt - O_JSON].name);
	switch (opt) {
	case O_JSON:
		o->json = arg;
		break;
	case O_PORT:
		o->port = (uint16_t)need_u64(what, arg, 1, 65535);
		break;
	case O_FAMILY:
		o->family = choose(what, arg, "4", "6") ? 6 : 4;
		break;
	case O_TO:
		parse_to(o, arg);
		break;
	case O_CC:
		if (!*arg || strlen(arg) >= CC_NAME_MAX)
			die(EXIT_USAGE, "%s: '%s' is not an algorithm's name", what, arg);
		o->cc = arg;
		break;
	case O_SECONDS:
		o->duration_ns = (int64_t)(need_double(what, arg, 1e-3, 1e6) * 1e9);
		break;
	case O_BYTES:
		o->bytes = need_u64(what, arg, 1, INT64_MAX);
		break;
	case O_SNDBUF:
		o->sndbuf = (int)need_u64(what, arg, 1, 1 << 30);
		break;
	case O_RCVBUF:
		o->rcvbuf = (int)need_u64(what, arg, 1, 1 << 30);
		break;
	case O_SAMPLE:
		o->sample_ns = need_ns(what, arg, 0);
		break;
	case O_BIN:
		o->bin_ns = need_ns(what, arg, 1);
		break;
	case O_VERIFY:
		o->verify = true;
		o->verify_seed = need_u64(what, arg, 0, UINT64_MAX);
		break;
	case O_SWITCH:
		add_switch(o, arg);
		break;
	case O_PAUSE:
		add_pause(o, arg);
		break;
	case O_APP_RATE:
		o->app_rate_bps = need_double(what, arg, 1, 1e12);
		break;
	case O_CLOSE:
		o->close_fin = choose(what, arg, "rst", "fin");
		break;
	case O_COUNT:
		o->count = need_u64(what, arg, 1, 100000000);
		break;
	case O_SEED:
		o->seed = need_u64(what, arg, 0, UINT64_MAX);
		break;
	case O_KEEP:
		o->keep = need_u64(what, arg, 0, 100000000);
		break;
	case O_PARALLEL:
		o->parallel = need_u64(what, arg, 1, 1000);
		break;
	case O_SIZE:
		/* A datagram carries its number. */
		o->size = need_u64(what, arg, sizeof(uint64_t), 65000);
		break;
	case O_RATE:
		o->rate_bps = need_double(what, arg, 1, 1e12);
		break;
	case O_DIST:
		o->poisson = choose(what, arg, "cbr", "poisson");
		break;
	case O_INTERVAL:
		o->interval_ns = need_ns(what, arg, 1);
		break;
	case O_WAIT:
		o->wait_ns = need_ns(what, arg, 0);
		break;
	case O_TX_DELAY:
		o->tx_delay_us = (int)need_u64(what, arg, 1, 60000) * 1000;
		break;
	}
}

static int find_mode(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
		if (!strcmp(modes[i].name, name))
			return (int)i;
	die(EXIT_USAGE, "no mode '%s'; there are recv, send, churn, udp-recv, udp-send, burst, "
	    "echo and ping", name);
}

static void parse(int argc, char **argv, int mode, struct opts *o)
{
	struct option longs[ARRAY_SIZE(options) + 1] = { 0 };
	bool given[ARRAY_SIZE(options)] = { 0 };
	int opt;

	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		longs[i] = (struct option){ options[i].name, required_argument, NULL, O_JSON + (int)i };
	while ((opt = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (opt == '?')
			exit(EXIT_USAGE);	/* getopt has named the option */
		if (!(options[opt - O_JSON].allowed & B(mode)))
			die(EXIT_USAGE, "--%s does not belong to %s", options[opt - O_JSON].name,
			    modes[mode].name);
		given[opt - O_JSON] = true;
		set_option(o, opt, optarg);
	}
	if (optind < argc)
		die(EXIT_USAGE, "'%s' is not an option", argv[optind]);
	for (size_t i = 0; i < ARRAY_SIZE(options); i++)
		if (!given[i] && options[i].required & B(mode))
			die(EXIT_USAGE, "%s needs --%s", modes[mode].name, options[i].name);
	if (mode == M_SEND && !given[O_SECONDS - O_JSON] && !given[O_BYTES - O_JSON])
		die(EXIT_USAGE, "send needs --seconds or --bytes");
	if (o->poisson && !given[O_SEED - O_JSON])
		die(EXIT_USAGE, "--dist poisson needs --seed");
	/* What was sent whole is to arrive whole, unless somebody asked for an abort. */
	if (mode == M_SEND && !given[O_CLOSE - O_JSON])
		o->close_fin = !given[O_SECONDS - O_JSON];
	if (o->to.ss_family == AF_INET)
		((struct sockaddr_in *)&o->to)->sin_port = htons(o->port);
	else
		((struct sockaddr_in6 *)&o->to)->sin6_port = htons(o->port);
}

int main(int argc, char **argv)
{
	struct opts o = {
		.family = 4, .sample_ns = 100 * NSEC_PER_MSEC, .bin_ns = 100 * NSEC_PER_MSEC,
		.count = 1, .parallel = 1, .size = 64, .wait_ns = 3 * NSEC_PER_SEC,
	};
	struct json j = { 0 };
	int mode;

	prog = "airflow";
	if (argc < 2)
		die(EXIT_USAGE, "usage: airflow MODE OPTIONS...");
	mode = find_mode(argv[1]);
	parse(argc - 1, argv + 1, mode, &o);
	catch_signals();
	exact_timers();

	/* Opened first: a result that cannot be written should not cost a run. */
	j.f = o.json ? fopen(o.json, "we") : stdout;
	if (!j.f)
		die(EXIT_USAGE, "--json: %s: %s", o.json, strerror(errno));
	json_open(&j, '{');
	json_key(&j, "mode");
	json_str(&j, modes[mode].name);
	modes[mode].run(&o, &j);
	json_key(&j, "error");
	json_str(&j, failed() ? first_error : NULL);
	json_close(&j, '}');
	fputc('\n', j.f);
	if (ferror(j.f) || fclose(j.f))
		die(EXIT_RUN, "--json: %s: %s", o.json ? o.json : "stdout", strerror(errno));
	free(o.switches);
	free(o.pauses);
	return failed() ? EXIT_RUN : 0;
}
