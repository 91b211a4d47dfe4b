/*
 * airsched: starts programs at given instants of CLOCK_MONOTONIC, each in its network namespace.
 *
 * Everything that can be wrong with a schedule is found before anything is started: files are
 * read, namespaces opened and programs looked up first, so that nothing of that costs time later.
 */
#define _GNU_SOURCE
#include "util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_NS	NSEC_PER_SEC	/* between SIGTERM and SIGKILL */

struct job {
	int64_t at_ns;		/* after t0 */
	int line;
	int netns;		/* -1: the namespace of airsched */
	char *label;
	char *path;
	char **argv;
	pid_t pid;		/* 0: not running */
	const char *ended_by;	/* "term" or "kill", when airsched ended it */
};

static struct {
	const char *file, *t0_file, *tend_file, *proc_dir, *console;
	int64_t end_ns, lead_ns, progress_ns;
} opt = { .lead_ns = 50 * NSEC_PER_MSEC, .proc_dir = "/out/proc", .console = "/dev/console" };

static struct job *jobs;
static size_t n_jobs, jobs_room;
static bool any_failed;

static void bad_line(int line, const char *why, const char *text) __attribute__((noreturn));
static void bad_line(int line, const char *why, const char *text)
{
	die(EXIT_USAGE, "%s:%d: %s: '%s'", opt.file, line, why, text);
}

static char *find_program(const char *name)
{
	const char *path = getenv("PATH");
	char *full = NULL;
	struct stat st;

	if (strchr(name, '/'))
		return access(name, X_OK) ? NULL : need_mem(strdup(name));
	while (path && *path) {
		size_t len = strcspn(path, ":");

		if (asprintf(&full, "%.*s/%s", (int)len, path, name) < 0)
			need_mem(NULL);
		if (!access(full, X_OK) && !stat(full, &st) && S_ISREG(st.st_mode))
			return full;
		free(full);
		path += len + (path[len] == ':');
	}
	return NULL;
}

static char **split_argv(char *text)
{
	char **argv = NULL;
	size_t n = 0, room = 0;

	/* Single spaces, no quoting: two in a row are an empty argument. */
	do {
		argv = grow(argv, n, &room, sizeof(*argv));
		argv[n++] = strsep(&text, " ");
	} while (text);
	argv = grow(argv, n, &room, sizeof(*argv));
	argv[n] = NULL;
	return argv;
}

static bool good_label(const char *s)
{
	if (!*s || *s == '.')
		return false;
	for (; *s; s++)
		if (!isalnum((unsigned char)*s) && !strchr("._-+", *s))
			return false;
	return true;
}

static int open_netns(int line, const char *name)
{
	char path[256];
	int fd;

	if (!strcmp(name, "-"))
		return -1;
	if (!netns_path(name, path, sizeof(path)))
		bad_line(line, "not the name of a network namespace", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		bad_line(line, "no such network namespace", name);
	return fd;
}

static void add_job(char *text, int line)
{
	char *at = strsep(&text, "\t"), *netns = strsep(&text, "\t");
	char *label = strsep(&text, "\t"), *argv = strsep(&text, "\t");
	struct job *job;
	int64_t at_us;

	if (!argv || text)
		die(EXIT_USAGE, "%s:%d: a line has 4 columns separated by tabs: at_us, netns, label, argv",
		    opt.file, line);
	if (!parse_s64(at, &at_us) || at_us > INT64_MAX / NSEC_PER_USEC)
		bad_line(line, "at_us is not a whole number", at);
	if (at_us * NSEC_PER_USEC < -opt.lead_ns)
		bad_line(line, "at_us lies before the start (see --lead-ms)", at);
	if (at_us * NSEC_PER_USEC > opt.end_ns)
		bad_line(line, "at_us lies after --end-us", at);
	if (!good_label(label))
		bad_line(line, "not a label (letters, digits, . _ - +)", label);
	for (size_t i = 0; i < n_jobs; i++)
		if (!strcmp(jobs[i].label, label))
			bad_line(line, "label used twice", label);
	if (!*argv || *argv == ' ')
		bad_line(line, "argv is empty or starts with a space", argv);
	jobs = grow(jobs, n_jobs, &jobs_room, sizeof(*jobs));
	job = &jobs[n_jobs++];
	*job = (struct job){ .at_ns = at_us * NSEC_PER_USEC, .line = line, .label = label };
	job->argv = split_argv(argv);
	job->path = find_program(job->argv[0]);
	if (!job->path)
		bad_line(line, "no such program", job->argv[0]);
	job->netns = open_netns(line, netns);
}

static char *read_whole(const char *path)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	size_t room = 0;

	if (!f)
		die(EXIT_USAGE, "%s: %s", path, strerror(errno));
	/* Schedules are text: a NUL cannot be in one, so getdelim reads all of it. */
	if (getdelim(&text, &room, '\0', f) < 0) {
		if (ferror(f))
			die(EXIT_USAGE, "%s: %s", path, strerror(errno));
		/* An empty file; what getdelim left in the buffer is undefined. */
		free(text);
		text = need_mem(strdup(""));
	}
	fclose(f);
	return text;
}

static int by_time(const void *a, const void *b)
{
	const struct job *x = a, *y = b;

	if (x->at_ns != y->at_ns)
		return x->at_ns < y->at_ns ? -1 : 1;
	return x->line - y->line;	/* at the same time: in the order of the file */
}

static void read_schedule(char *text)
{
	for (int line = 1; *text; line++) {
		char *next = strchrnul(text, '\n');

		if (*next)
			*next++ = '\0';
		if (*text)
			add_job(text, line);
		text = next;
	}
	if (n_jobs)
		qsort(jobs, n_jobs, sizeof(*jobs), by_time);
}

static int open_out(const char *label, const char *suffix)
{
	char path[512];
	int fd;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s.%s", opt.proc_dir, label, suffix) >= sizeof(path))
		die(EXIT_RUN, "%s: label too long", label);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		die(EXIT_RUN, "%s: %s", path, strerror(errno));
	return fd;
}

static void write_rc(const struct job *job, const char *rc)
{
	int fd = open_out(job->label, "rc");

	if (dprintf(fd, "%s\n", rc) < 0)
		die(EXIT_RUN, "%s.rc: %s", job->label, strerror(errno));
	close(fd);
}

static void child(const struct job *job, int out, int err, const sigset_t *mask)
	__attribute__((noreturn));
static void child(const struct job *job, int out, int err, const sigset_t *mask)
{
	int null = open("/dev/null", O_RDONLY);

	/* A group of its own, so that a shell's children end with it. */
	setpgid(0, 0);
	dup2(null, 0);
	dup2(out, 1);
	dup2(err, 2);
	if (null > 2)
		close(null);
	sigprocmask(SIG_SETMASK, mask, NULL);
	if (job->netns >= 0 && setns(job->netns, CLONE_NEWNET))
		dprintf(2, "airsched: setns: %s\n", strerror(errno));
	else if (execv(job->path, job->argv))
		dprintf(2, "airsched: %s: %s\n", job->path, strerror(errno));
	_exit(127);
}

static void start(struct job *job, const sigset_t *mask)
{
	int out = open_out(job->label, "out"), err = open_out(job->label, "err");

	job->pid = fork();
	if (job->pid < 0)
		die(EXIT_RUN, "fork: %s", strerror(errno));
	if (!job->pid)
		child(job, out, err, mask);
	/* Also here: a signal to the group must not come before the child has made it. */
	setpgid(job->pid, job->pid);
	close(out);
	close(err);
}

static void ended(struct job *job, int status)
{
	int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	char rc[16];

	job->pid = 0;
	if (job->ended_by) {
		write_rc(job, job->ended_by);
		return;
	}
	snprintf(rc, sizeof(rc), "%d", code);
	write_rc(job, rc);
	if (code) {
		any_failed = true;
		warn_msg("%s (%s:%d) ended with %d", job->label, opt.file, job->line, code);
	}
}

static size_t reap(void)
{
	size_t running = 0;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (size_t i = 0; i < n_jobs; i++)
			if (jobs[i].pid == pid)
				ended(&jobs[i], status);
	for (size_t i = 0; i < n_jobs; i++)
		running += jobs[i].pid > 0;
	return running;
}

static void signal_all(int sig, const char *name)
{
	for (size_t i = 0; i < n_jobs; i++) {
		if (jobs[i].pid <= 0)
			continue;
		jobs[i].ended_by = name;
		kill(-jobs[i].pid, sig);
	}
}

/* Until all children are gone or that time has come. */
static void await_end(int64_t until)
{
	sigset_t chld;

	sigemptyset(&chld);
	sigaddset(&chld, SIGCHLD);
	while (reap()) {
		int64_t left = until - mono_ns();
		struct timespec ts = { left / NSEC_PER_SEC, left % NSEC_PER_SEC };

		if (left <= 0)
			return;
		/* The signal is blocked: none is lost between reap() and here. */
		sigtimedwait(&chld, NULL, &ts);
	}
}

static void write_times(const char *path, int64_t mono)
{
	FILE *f;

	if (!path)
		return;
	f = fopen(path, "we");
	if (!f || fprintf(f, "%lld %lld\n", (long long)mono,
			  (long long)(clock_ns(CLOCK_REALTIME) - mono_ns() + mono)) < 0 || fclose(f))
		die(EXIT_RUN, "%s: %s", path, strerror(errno));
}

static void on_child(int sig)
{
	(void)sig;	/* it only has to interrupt the sleep */
}

static void progress(int console, int64_t seconds)
{
	if (console >= 0)
		dprintf(console, "@T %lld\n", (long long)seconds);
}

/* Sleeps until then, taking note of every child that ends meanwhile. */
static void pass_time(int64_t until, const sigset_t *asleep, const sigset_t *awake)
{
	bool over;

	do {
		sigprocmask(SIG_SETMASK, asleep, NULL);
		over = sleep_until(until);
		sigprocmask(SIG_SETMASK, awake, NULL);
		reap();
	} while (!over);
}

static void run(void)
{
	struct sigaction sa = { .sa_handler = on_child };
	int console = opt.progress_ns ? open(opt.console, O_WRONLY | O_CLOEXEC | O_NOCTTY) : -1;
	int64_t t0, next_progress = opt.progress_ns;
	sigset_t before, blocked;
	size_t next = 0;

	sigaction(SIGCHLD, &sa, NULL);
	sigprocmask(SIG_BLOCK, NULL, &before);
	blocked = before;
	sigaddset(&blocked, SIGCHLD);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	t0 = mono_ns() + opt.lead_ns;
	write_times(opt.t0_file, t0);
	for (;;) {
		int64_t then = next < n_jobs ? jobs[next].at_ns : opt.end_ns;

		if (opt.progress_ns && next_progress < then)
			then = next_progress;
		pass_time(t0 + then, &before, &blocked);
		if (opt.progress_ns && then == next_progress) {
			progress(console, next_progress / NSEC_PER_SEC);
			next_progress += opt.progress_ns;
		}
		while (next < n_jobs && jobs[next].at_ns <= then)
			start(&jobs[next++], &before);
		if (then >= opt.end_ns)
			break;
	}
	reap();
	write_times(opt.tend_file, mono_ns());
	signal_all(SIGTERM, "term");
	await_end(t0 + opt.end_ns + GRACE_NS);
	signal_all(SIGKILL, "kill");
	await_end(INT64_MAX);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "end-us", required_argument, NULL, 'e' },
		{ "lead-ms", required_argument, NULL, 'l' },
		{ "t0-file", required_argument, NULL, 't' },
		{ "tend-file", required_argument, NULL, 'T' },
		{ "progress-s", required_argument, NULL, 'p' },
		{ "proc-dir", required_argument, NULL, 'd' },
		{ "console", required_argument, NULL, 'c' },
		{ 0 },
	};
	bool end_given = false;
	char *text;
	int c;

	prog = "airsched";
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'e':
			opt.end_ns = (int64_t)need_u64("--end-us", optarg, 0, 1000000000000000) *
				     NSEC_PER_USEC;
			end_given = true;
			break;
		case 'l':
			opt.lead_ns = (int64_t)need_u64("--lead-ms", optarg, 0, 3600000) * NSEC_PER_MSEC;
			break;
		case 't':
			opt.t0_file = optarg;
			break;
		case 'T':
			opt.tend_file = optarg;
			break;
		case 'p':
			opt.progress_ns = (int64_t)need_u64("--progress-s", optarg, 0, 1000000) *
					  NSEC_PER_SEC;
			break;
		case 'd':
			opt.proc_dir = optarg;
			break;
		case 'c':
			opt.console = optarg;
			break;
		default:
			return EXIT_USAGE;
		}
	}
	if (optind + 1 != argc || !end_given)
		die(EXIT_USAGE, "usage: airsched FILE --end-us N [--lead-ms N] [--t0-file F] "
		    "[--tend-file F] [--progress-s N] [--proc-dir DIR] [--console F]");
	opt.file = argv[optind];
	exact_timers();
	text = read_whole(opt.file);
	read_schedule(text);
	if (mkdir(opt.proc_dir, 0755) && errno != EEXIST)
		die(EXIT_RUN, "%s: %s", opt.proc_dir, strerror(errno));
	run();
	for (size_t i = 0; i < n_jobs; i++) {
		free(jobs[i].path);
		free(jobs[i].argv);
	}
	free(jobs);
	free(text);
	return any_failed ? EXIT_RUN : 0;
}
