/*
 * airship: gets files out of the kernel's pseudo file systems and results out of the guest.
 *
 *   pack      a folder as a tar stream into reserved physical memory (or a file, for tests)
 *   copy      pseudo files to ordinary ones, many with one start of a program
 *   sysctl    a namespace's network sysctls as "name = value" lines
 *   rawtrace  the ring buffer's pages, until there are no more
 */
#define _GNU_SOURCE
#include "util.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAR_BLOCK	512
#define USTAR_NAME_MAX	100
#define USTAR_SIZE_MAX	077777777777ULL
#define EXIT_NO_ROOM	3

/* ---- pack ---- */

struct ship_header {
	char magic[8];
	uint64_t length, flags;		/* little-endian, of the payload; flags: none yet */
	uint32_t crc32;
	unsigned char zero[36];
};

_Static_assert(sizeof(struct ship_header) == 64, "the host expects 64 bytes");

struct entry {
	char *path;		/* on disk */
	const char *name;	/* in the archive: the part of path after the folder */
	char *target;		/* of a symbolic link */
	mode_t mode;
	uint64_t size;
};

static struct entry *entries;
static size_t n_entries, entries_room;

static unsigned char *dest;
static uint64_t dest_at;

static void scan(const char *dir, size_t prefix)
{
	struct dirent **list;
	int n = scandir(dir, &list, NULL, alphasort);

	if (n < 0)
		die(EXIT_RUN, "%s: %s", dir, strerror(errno));
	for (int i = 0; i < n; i++) {
		const char *name = list[i]->d_name;
		struct entry e = { 0 };
		struct stat st;
		char target[4096];
		ssize_t len;

		if (!strcmp(name, ".") || !strcmp(name, ".."))
			goto next;
		if (asprintf(&e.path, "%s/%s", dir, name) < 0)
			need_mem(NULL);
		if (lstat(e.path, &st))
			die(EXIT_RUN, "%s: %s", e.path, strerror(errno));
		e.name = e.path + prefix;
		e.mode = st.st_mode;
		if (S_ISLNK(st.st_mode)) {
			len = readlink(e.path, target, sizeof(target) - 1);
			if (len < 0)
				die(EXIT_RUN, "%s: %s", e.path, strerror(errno));
			target[len] = '\0';
			e.target = need_mem(strdup(target));
		} else if (S_ISREG(st.st_mode)) {
			e.size = (uint64_t)st.st_size;
		} else if (!S_ISDIR(st.st_mode)) {
			warn_msg("%s: neither file, folder nor link: left out", e.path);
			free(e.path);
			goto next;
		}
		entries = grow(entries, n_entries, &entries_room, sizeof(*entries));
		entries[n_entries++] = e;
		if (S_ISDIR(st.st_mode))
			scan(e.path, prefix);
next:
		free(list[i]);
	}
	free(list);
}

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

/* One pax record: "LENGTH key=value\n", where LENGTH counts its own digits. */
static size_t pax_record(char *to, size_t room, const char *key, const char *value)
{
	size_t body = strlen(key) + strlen(value) + 3, len = body + 1, digits;

	for (;;) {
		digits = (size_t)snprintf(NULL, 0, "%zu", len);
		if (body + digits == len)
			break;
		len = body + digits;
	}
	return (size_t)snprintf(to, room, "%zu %s=%s\n", len, key, value);
}

/* What does not fit into a ustar header; returns the text's length, 0 when all fits. */
static size_t pax_text(const struct entry *e, char *to, size_t room)
{
	size_t len = 0;
	char size[24];

	if (strlen(e->name) + S_ISDIR(e->mode) > USTAR_NAME_MAX)
		len += pax_record(to, room, "path", e->name);
	if (e->target && strlen(e->target) > USTAR_NAME_MAX)
		len += pax_record(to + len, room - len, "linkpath", e->target);
	if (e->size > USTAR_SIZE_MAX) {
		snprintf(size, sizeof(size), "%llu", (unsigned long long)e->size);
		len += pax_record(to + len, room - len, "size", size);
	}
	return len;
}

static uint64_t payload_size(void)
{
	char pax[3 * 4096];
	uint64_t sum = 2 * TAR_BLOCK;

	for (size_t i = 0; i < n_entries; i++) {
		size_t len = pax_text(&entries[i], pax, sizeof(pax));

		if (len)
			sum += TAR_BLOCK + blocks(len);
		sum += TAR_BLOCK + blocks(entries[i].size);
	}
	return sum;
}

static void put(const void *data, size_t len)
{
	memcpy(dest + dest_at, data, len);
	dest_at += len;
}

static void put_zero(size_t len)
{
	memset(dest + dest_at, 0, len);
	dest_at += len;
}

static void field(char *to, size_t width, uint64_t v)
{
	for (size_t i = width - 1; i-- > 0; v >>= 3)
		to[i] = (char)('0' + (v & 7));
}

/* Cuts what is too long: a pax header before it then holds the whole. */
static void put_text(char *to, size_t room, const char *text)
{
	memcpy(to, text, strnlen(text, room));
}

/*
 * Owner and time are left zero: the same results are to give the same bytes.
 */
static void put_tar_header(const struct entry *e, char type)
{
	char h[TAR_BLOCK] = { 0 };
	unsigned int sum = 0;

	put_text(h, USTAR_NAME_MAX, e->name);
	if (type == '5' && strlen(e->name) < USTAR_NAME_MAX)
		h[strlen(e->name)] = '/';
	field(h + 100, 8, e->mode & 07777);
	field(h + 108, 8, 0);
	field(h + 116, 8, 0);
	field(h + 124, 12, e->size > USTAR_SIZE_MAX ? 0 : e->size);
	field(h + 136, 12, 0);
	memset(h + 148, ' ', 8);
	h[156] = type;
	if (e->target)
		put_text(h + 157, USTAR_NAME_MAX, e->target);
	memcpy(h + 257, "ustar\0" "00", 8);
	for (size_t i = 0; i < sizeof(h); i++)
		sum += (unsigned char)h[i];
	field(h + 148, 7, sum);
	h[154] = '\0';
	put(h, sizeof(h));
}

static void put_file(const struct entry *e)
{
	int fd = open(e->path, O_RDONLY | O_CLOEXEC);
	uint64_t left = e->size;

	if (fd < 0)
		die(EXIT_RUN, "%s: %s", e->path, strerror(errno));
	while (left) {
		/* Straight from the file to its place: no copy in between. */
		ssize_t n = read(fd, dest + dest_at, left < (1 << 30) ? left : 1 << 30);

		if (n < 0)
			die(EXIT_RUN, "%s: %s", e->path, strerror(errno));
		if (!n) {
			warn_msg("%s: became shorter while it was read: filled with zeros", e->path);
			put_zero(left);
			break;
		}
		dest_at += (uint64_t)n;
		left -= (uint64_t)n;
	}
	close(fd);
	put_zero(blocks(e->size) - e->size);
}

static void put_entry(const struct entry *e)
{
	char pax[3 * 4096];
	size_t len = pax_text(e, pax, sizeof(pax));

	if (len) {
		struct entry x = { .name = "pax", .mode = 0644, .size = len };

		put_tar_header(&x, 'x');
		put(pax, len);
		put_zero(blocks(len) - len);
	}
	put_tar_header(e, S_ISDIR(e->mode) ? '5' : e->target ? '2' : '0');
	if (S_ISREG(e->mode))
		put_file(e);
}

static uint32_t crc_tables[8][256];

static void crc_init(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t c = i;

		for (int bit = 0; bit < 8; bit++)
			c = c & 1 ? c >> 1 ^ 0xedb88320U : c >> 1;
		crc_tables[0][i] = c;
	}
	for (uint32_t i = 0; i < 256; i++)
		for (int t = 1; t < 8; t++)
			crc_tables[t][i] = crc_tables[t - 1][i] >> 8 ^
					   crc_tables[0][crc_tables[t - 1][i] & 255];
}

/* The CRC of zlib and tar's friends, eight bytes a step: payloads are tens of megabytes. */
static uint32_t crc32_of(const unsigned char *p, uint64_t len)
{
	uint32_t c = ~0U;

	crc_init();
	for (; len >= 8; len -= 8, p += 8) {
		uint64_t w;

		memcpy(&w, p, sizeof(w));
		w = le64toh(w) ^ c;
		c = 0;
		for (int t = 0; t < 8; t++)
			c ^= crc_tables[7 - t][w >> (8 * t) & 255];
	}
	while (len--)
		c = c >> 8 ^ crc_tables[0][(c ^ *p++) & 255];
	return ~c;
}

static void map_dest(const char *file, uint64_t phys, uint64_t size)
{
	int fd = open(file ? file : "/dev/mem", O_RDWR | O_CLOEXEC | (file ? O_CREAT : 0), 0644);

	if (fd < 0)
		die(EXIT_RUN, "%s: %s", file ? file : "/dev/mem", strerror(errno));
	if (file && ftruncate(fd, (off_t)size))
		die(EXIT_RUN, "%s: %s", file, strerror(errno));
	dest = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, file ? 0 : (off_t)phys);
	if (dest == MAP_FAILED)
		die(EXIT_RUN, "mapping %llu bytes at 0x%llx: %s (is the region reserved by memmap=?)",
		    (unsigned long long)size, (unsigned long long)phys, strerror(errno));
	close(fd);
}

static int pack(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "dir", required_argument, NULL, 'd' },
		{ "phys", required_argument, NULL, 'p' },
		{ "size", required_argument, NULL, 's' },
		{ "file", required_argument, NULL, 'f' },
		{ 0 },
	};
	const char *dir = NULL, *file = NULL;
	struct ship_header h = { .magic = "AIRSHIP1" };
	uint64_t phys = 0, size = 0, need;
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'd':
			dir = optarg;
			break;
		case 'p':
			phys = need_u64("--phys", optarg, 4096, INT64_MAX);
			break;
		case 's':
			size = need_u64("--size", optarg, sizeof(h), INT64_MAX);
			break;
		case 'f':
			file = optarg;
			break;
		default:
			return EXIT_USAGE;
		}
	}
	if (optind != argc || !dir || !size || !phys == !file)
		die(EXIT_USAGE, "usage: airship pack --dir DIR --size BYTES (--phys 0xADDR | --file PATH)");
	if (phys % 4096)
		die(EXIT_USAGE, "--phys: 0x%llx is not at the start of a page", (unsigned long long)phys);
	scan(dir, strlen(dir) + 1);
	need = sizeof(h) + payload_size();
	if (need > size)
		die(EXIT_NO_ROOM, "the results need %llu bytes, there is room for %llu",
		    (unsigned long long)need, (unsigned long long)size);
	map_dest(file, phys, size);
	/* An old header must not outlive a new payload that never got finished. */
	memset(dest, 0, sizeof(h));
	dest_at = sizeof(h);
	for (size_t i = 0; i < n_entries; i++) {
		put_entry(&entries[i]);
		free(entries[i].path);
		free(entries[i].target);
	}
	put_zero(2 * TAR_BLOCK);
	free(entries);
	h.length = htole64(dest_at - sizeof(h));
	h.crc32 = htole32(crc32_of(dest + sizeof(h), dest_at - sizeof(h)));
	/* Last, and behind a barrier: whoever sees the magic sees all of the payload. */
	__sync_synchronize();
	memcpy(dest, &h, sizeof(h));
	if (file && (msync(dest, size, MS_SYNC) || truncate(file, (off_t)dest_at)))
		die(EXIT_RUN, "%s: %s", file, strerror(errno));
	munmap(dest, size);
	printf("airship: %llu bytes, crc32 %08x\n", (unsigned long long)dest_at, le32toh(h.crc32));
	return 0;
}

/* ---- copy ---- */

static void copy_into(int out, const char *src, const char *dst)
{
	static char buf[65536];
	int in = open(src, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (in < 0)
		die(EXIT_RUN, "%s: %s", src, strerror(errno));
	while ((n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			die(EXIT_RUN, "%s: %s", dst, strerror(errno));
	if (n < 0)
		die(EXIT_RUN, "%s: %s", src, strerror(errno));
	close(in);
}

static int create(const char *dst)
{
	int fd = open(dst, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		die(EXIT_RUN, "%s: %s", dst, strerror(errno));
	return fd;
}

static void need_netns(const char *name)
{
	int err = enter_netns(name);

	if (err)
		die(EXIT_RUN, "--netns %s: %s", name, strerror(err));
}

/* airship copy [--netns NAME] SRC[,SRC...] DST ...: from --netns on, in that namespace. */
static int copy(int argc, char **argv)
{
	int i = 1;

	while (i + 1 < argc) {
		char *list = argv[i], *dst = argv[i + 1];
		int out;

		i += 2;
		if (!strcmp(list, "--netns")) {
			need_netns(dst);
			continue;
		}
		out = create(dst);
		while (list)
			copy_into(out, strsep(&list, ","), dst);
		close(out);
	}
	if (i != argc || argc == 1)
		die(EXIT_USAGE, "usage: airship copy [--netns NAME] SRC[,SRC...] DST ...");
	return 0;
}

/* ---- sysctl ---- */

/* The value if it can be read and is text; lines are joined by ';'. */
static bool sysctl_value(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = read(fd, buf, size - 1);
	close(fd);
	if (n < 0)
		return false;
	while (n > 0 && buf[n - 1] == '\n')
		n--;
	buf[n] = '\0';
	for (char *p = buf; *p; p++)
		if (*p == '\n')
			*p = ';';
	return true;
}

static void sysctl_tree(FILE *out, const char *dir)
{
	struct dirent **list;
	int n = scandir(dir, &list, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		const char *name = list[i]->d_name;
		char path[1024], value[4096];

		/* Keys are secrets, and per-neighbour tables say nothing about the path. */
		if (*name != '.' && !strstr(name, "_key") && !strstr(name, "secret") &&
		    strcmp(name, "neigh")) {
			snprintf(path, sizeof(path), "%s/%s", dir, name);
			if (list[i]->d_type == DT_DIR) {
				sysctl_tree(out, path);
			} else if (sysctl_value(path, value, sizeof(value))) {
				for (char *p = path + strlen("/proc/sys/"); *p; p++)
					fputc(*p == '/' ? '.' : *p, out);
				fprintf(out, " = %s\n", value);
			}
		}
		free(list[i]);
	}
	if (n >= 0)
		free(list);
}

/* airship sysctl --netns NAME DST ... */
static int sysctls(int argc, char **argv)
{
	if (argc < 4 || (argc - 1) % 3)
		die(EXIT_USAGE, "usage: airship sysctl --netns NAME DST ...");
	for (int i = 1; i + 2 < argc; i += 3) {
		FILE *out;

		if (strcmp(argv[i], "--netns"))
			die(EXIT_USAGE, "sysctl: '%s' instead of --netns", argv[i]);
		need_netns(argv[i + 1]);
		out = fdopen(create(argv[i + 2]), "w");
		if (!out)
			die(EXIT_RUN, "%s: %s", argv[i + 2], strerror(errno));
		sysctl_tree(out, "/proc/sys/net");
		if (fclose(out))
			die(EXIT_RUN, "%s: %s", argv[i + 2], strerror(errno));
	}
	return 0;
}

/* ---- rawtrace ---- */

/*
 * trace_pipe_raw gives one page a read, however much is asked for, and would wait at its end
 * for more: hence O_NONBLOCK. Tracing must be off, or the end never comes.
 */
static int rawtrace(int argc, char **argv)
{
	static char pages[64][4096];
	size_t used = 0;
	ssize_t n;
	int in, out;

	if (argc != 3)
		die(EXIT_USAGE, "usage: airship rawtrace SRC DST");
	in = open(argv[1], O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (in < 0)
		die(EXIT_RUN, "%s: %s", argv[1], strerror(errno));
	out = create(argv[2]);
	do {
		n = read(in, pages[used], sizeof(pages[0]));
		if (n < 0 && errno != EAGAIN)
			die(EXIT_RUN, "%s: %s", argv[1], strerror(errno));
		if (n > 0 && n != sizeof(pages[0]))
			die(EXIT_RUN, "%s: a page of %zd bytes instead of %zu", argv[1], n, sizeof(pages[0]));
		used += n > 0;
		if (used == ARRAY_SIZE(pages) || n <= 0) {
			size_t len = used * sizeof(pages[0]);

			if (write(out, pages, len) != (ssize_t)len)
				die(EXIT_RUN, "%s: %s", argv[2], strerror(errno));
			used = 0;
		}
	} while (n > 0);
	close(in);
	close(out);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int argc, char **argv);
	} commands[] = {
		{ "pack", pack }, { "copy", copy }, { "sysctl", sysctls }, { "rawtrace", rawtrace },
	};

	prog = "airship";
	for (size_t i = 0; argc > 1 && i < ARRAY_SIZE(commands); i++)
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	die(EXIT_USAGE, "usage: airship pack|copy|sysctl|rawtrace ...");
}
