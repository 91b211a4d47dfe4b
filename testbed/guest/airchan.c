/*
 * airchan: puts a precomputed channel pattern at a device's egress, starts it, and reads its counters.
 */
#define _GNU_SOURCE
#include "pattern.h"
#include "util.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/magic.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define BPF_FS		"/sys/fs/bpf"
#define PIN_ROOT	BPF_FS "/airchan"

extern const unsigned char airchan_bpf[], airchan_bpf_end[];

static const struct {
	const char *name;
	size_t elem;
} maps[] = {
	{ "state", sizeof(struct airchan_state) },
	{ "good", sizeof(uint64_t) },
	{ "bad", sizeof(uint64_t) },
	{ "windows", sizeof(struct airchan_window) },
	{ "lengths", sizeof(uint64_t) },
	{ "lengths_bad", sizeof(uint64_t) },
};

/*
 * `ip netns exec` gives its program a mount namespace with a fresh /sys, in which no BPF file
 * system is mounted. Pins must be where everybody finds them: in the one of process 1.
 */
static void find_bpf_fs(void)
{
	struct statfs fs;
	int fd;

	if (!statfs(BPF_FS, &fs) && fs.f_type == BPF_FS_MAGIC)
		return;
	fd = open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNS))
		die(EXIT_RUN, "/proc/1/ns/mnt: %s", strerror(errno));
	close(fd);
	if (statfs(BPF_FS, &fs) || fs.f_type != BPF_FS_MAGIC)
		die(EXIT_RUN, "no BPF file system is mounted at " BPF_FS);
}

static void *map_memory(const char *name, int fd, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *p = mmap(NULL, (bytes + page - 1) / page * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		die(EXIT_RUN, "map %s: %s", name, strerror(errno));
	return p;
}

static void *open_pinned(const char *channel, const char *map, size_t bytes)
{
	char path[256];
	void *p;
	int fd;

	snprintf(path, sizeof(path), PIN_ROOT "/%s/%s", channel, map);
	fd = bpf_obj_get(path);
	if (fd < 0)
		die(EXIT_RUN, "--name: no channel '%s' here (%s: %s)", channel, path, strerror(errno));
	p = map_memory(map, fd, bytes);
	close(fd);
	return p;
}

/* What libbpf and the verifier say is only wanted when something fails. */
static char *libbpf_log;
static size_t log_len, log_room;

static int collect_log(enum libbpf_print_level level, const char *fmt, va_list ap)
{
	char line[4096];
	int n = vsnprintf(line, sizeof(line), fmt, ap);

	if (level == LIBBPF_DEBUG || n <= 0)
		return 0;
	for (int i = 0; i <= (int)strlen(line); i++) {
		libbpf_log = grow(libbpf_log, log_len, &log_room, 1);
		libbpf_log[log_len] = line[i];
		log_len += line[i] != '\0';
	}
	return n;
}

static void bpf_failed(const char *what, int err) __attribute__((noreturn));
static void bpf_failed(const char *what, int err)
{
	if (libbpf_log)
		fputs(libbpf_log, stderr);
	die(EXIT_RUN, "%s: %s", what, strerror(err < 0 ? -err : err));
}

static struct bpf_map *get_map(struct bpf_object *obj, const char *name)
{
	struct bpf_map *map = bpf_object__find_map_by_name(obj, name);

	if (!map)
		bpf_failed(name, ENOENT);
	return map;
}

static void size_map(struct bpf_object *obj, const char *name, uint32_t n)
{
	int err = bpf_map__set_max_entries(get_map(obj, name), n ? n : 1);

	if (err)
		bpf_failed(name, err);
}

static void fill_map(struct bpf_object *obj, const char *name, const void *data, size_t bytes)
{
	void *p;

	if (!bytes)
		return;
	/* One copy into the map's memory instead of a system call per element. */
	p = map_memory(name, bpf_map__fd(get_map(obj, name)), bytes);
	memcpy(p, data, bytes);
}

static void fill_state(struct bpf_object *obj, const struct pattern *p)
{
	struct airchan_state s = {
		.good = { .unit = p->unit_good, .n = p->n_good, .next = 1 },
		.bad = { .unit = p->unit_bad, .n = p->n_bad, .next = 1 },
		.stop_ns = p->stop_ns, .min_len = p->min_len, .n_windows = p->n_windows,
	};

	if (p->n_good)
		s.good.left = p->good[0];
	if (p->n_bad)
		s.bad.left = p->bad[0];
	fill_map(obj, "state", &s, sizeof(s));
}

static void attach_program(struct bpf_object *obj, const char *dev, int ifindex)
{
	struct bpf_program *prog_ = bpf_object__find_program_by_name(obj, "airchan");
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_EGRESS);
	LIBBPF_OPTS(bpf_tc_opts, tc, .handle = 1, .priority = 1);
	int err;

	if (!prog_)
		bpf_failed("airchan", ENOENT);
	tc.prog_fd = bpf_program__fd(prog_);
	err = bpf_tc_hook_create(&hook);
	if (err && err != -EEXIST)
		bpf_failed("clsact", err);
	err = bpf_tc_attach(&hook, &tc);
	if (err)
		bpf_failed(dev, err);
}

static void pin_maps(struct bpf_object *obj, const char *channel)
{
	char path[256];

	if (mkdir(PIN_ROOT, 0700) && errno != EEXIST)
		die(EXIT_RUN, "%s: %s", PIN_ROOT, strerror(errno));
	snprintf(path, sizeof(path), PIN_ROOT "/%s", channel);
	if (mkdir(path, 0700))
		die(EXIT_RUN, "--name: %s: %s", path, strerror(errno));
	for (size_t i = 0; i < ARRAY_SIZE(maps); i++) {
		int err;

		snprintf(path, sizeof(path), PIN_ROOT "/%s/%s", channel, maps[i].name);
		err = bpf_map__pin(get_map(obj, maps[i].name), path);
		if (err)
			bpf_failed(path, err);
	}
}

static void attach(const char *channel, const char *netns, const char *dev, const char *file)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts, .object_name = "airchan");
	struct bpf_object *obj;
	struct pattern p;
	int err, ifindex;

	/* Before the mount namespace may change: the path is the caller's. */
	pattern_read(&p, file);
	if (netns) {
		err = enter_netns(netns);
		if (err)
			die(EXIT_USAGE, "--netns %s: %s", netns, strerror(err));
	}
	ifindex = (int)if_nametoindex(dev);
	if (!ifindex)
		die(EXIT_USAGE, "--dev %s: %s", dev, strerror(errno));
	find_bpf_fs();
	libbpf_set_print(collect_log);
	obj = bpf_object__open_mem(airchan_bpf, (size_t)(airchan_bpf_end - airchan_bpf), &opts);
	if (!obj)
		bpf_failed("open", errno);
	size_map(obj, "good", p.n_good);
	size_map(obj, "bad", p.n_bad);
	size_map(obj, "windows", p.n_windows);
	err = bpf_object__load(obj);
	if (err)
		bpf_failed("load", err);
	fill_map(obj, "good", p.good, p.n_good * sizeof(*p.good));
	fill_map(obj, "bad", p.bad, p.n_bad * sizeof(*p.bad));
	fill_map(obj, "windows", p.windows, p.n_windows * sizeof(*p.windows));
	fill_state(obj, &p);
	pin_maps(obj, channel);
	attach_program(obj, dev, ifindex);
	free(p.data);
	bpf_object__close(obj);
}

static void arm(const char *channel, const char *t0_file)
{
	FILE *f = fopen(t0_file, "re");
	volatile struct airchan_state *s;
	unsigned long long t0;

	if (!f || fscanf(f, "%llu", &t0) != 1 || !t0)
		die(EXIT_USAGE, "--t0-file %s: no MONOTONIC_NS in it", t0_file);
	fclose(f);
	find_bpf_fs();
	s = open_pinned(channel, "state", sizeof(*s));
	if (s->armed)
		die(EXIT_RUN, "--name: channel '%s' is armed already", channel);
	/* In this order: the program looks at `armed` first. */
	s->t0_ns = t0;
	__sync_synchronize();
	s->armed = 1;
}

static void json_lengths(struct json *j, const char *channel, const char *map)
{
	const uint64_t *n = open_pinned(channel, map, AIRCHAN_LENGTHS * sizeof(*n));
	char key[16];

	json_key(j, map);
	json_open(j, '{');
	for (unsigned int i = 0; i < AIRCHAN_LENGTHS; i++) {
		if (!n[i])
			continue;
		snprintf(key, sizeof(key), "%u", i);
		json_key(j, key);
		json_u64(j, n[i]);
	}
	json_close(j, '}');
}

static void stats(const char *channel)
{
	struct json j = { .f = stdout };
	const struct airchan_state *s;

	find_bpf_fs();
	s = open_pinned(channel, "state", sizeof(*s));
	json_open(&j, '{');
#define COUNTER(name)	do { json_key(&j, #name); json_u64(&j, s->name); } while (0)
	COUNTER(frames);
	COUNTER(bytes);
	COUNTER(dropped_good);
	COUNTER(dropped_bad);
	COUNTER(dropped_outage);
	COUNTER(exhausted);
	COUNTER(overrun);
	COUNTER(gso);
	COUNTER(bypassed);
	COUNTER(idle_frames);
#undef COUNTER
	json_key(&j, "armed");
	json_raw(&j, s->armed ? "true" : "false");
	json_lengths(&j, channel, "lengths");
	json_lengths(&j, channel, "lengths_bad");
	json_close(&j, '}');
	puts("");
	if (fflush(stdout))
		die(EXIT_RUN, "stdout: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "name", required_argument, NULL, 'n' },
		{ "dev", required_argument, NULL, 'd' },
		{ "pattern", required_argument, NULL, 'p' },
		{ "t0-file", required_argument, NULL, 't' },
		{ "netns", required_argument, NULL, 'N' },
		{ 0 },
	};
	const char *cmd = argc > 1 ? argv[1] : "", *name = NULL, *dev = NULL, *file = NULL;
	const char *t0_file = NULL, *netns = NULL;
	int c;

	prog = "airchan";
	while ((c = getopt_long(argc - (argc > 1), argv + (argc > 1), "", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			name = optarg;
			break;
		case 'd':
			dev = optarg;
			break;
		case 'p':
			file = optarg;
			break;
		case 't':
			t0_file = optarg;
			break;
		case 'N':
			netns = optarg;
			break;
		default:
			return EXIT_USAGE;
		}
	}
	if (name && (!*name || strlen(name) > 64 || strchr(name, '/') || strchr(name, '.')))
		die(EXIT_USAGE, "--name: '%s' has characters that a BPF file system does not take", name);
	if (!strcmp(cmd, "attach") && name && dev && file)
		attach(name, netns, dev, file);
	else if (!strcmp(cmd, "arm") && name && t0_file)
		arm(name, t0_file);
	else if (!strcmp(cmd, "stats") && name)
		stats(name);
	else
		die(EXIT_USAGE, "usage: airchan attach --name NAME --dev DEV --pattern FILE [--netns NS]\n"
		    "       airchan arm --name NAME --t0-file FILE\n"
		    "       airchan stats --name NAME");
	return 0;
}
