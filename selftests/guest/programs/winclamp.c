/*
 * winclamp PORT BYTES LIMIT: takes one connection, limits its window by TCP_WINDOW_CLAMP when half
 * of LIMIT bytes have come, and takes the limit away again when LIMIT have come; reads to the end.
 * Prints the clamp before, while and after.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void need(int ok, const char *what)
{
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static int clamp_of(int fd)
{
	int value = 0;
	socklen_t len = sizeof(value);

	need(!getsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &value, &len), "getsockopt");
	return value;
}

static void set_clamp(int fd, int value)
{
	need(!setsockopt(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &value, sizeof(value)), "setsockopt");
}

int main(int argc, char **argv)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	static char data[1 << 16];
	int fd, before = 0, one = 1;
	long long got = 0, limit;
	int step = 0;
	ssize_t n;

	need(argc == 4, "usage: winclamp PORT BYTES LIMIT");
	any.sin_port = htons((unsigned short)atoi(argv[1]));
	limit = atoll(argv[3]);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	need(fd >= 0, "socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	need(!bind(fd, (struct sockaddr *)&any, sizeof(any)) && !listen(fd, 1), "listen");
	fd = accept(fd, NULL, NULL);
	need(fd >= 0, "accept");
	while ((n = read(fd, data, sizeof(data))) > 0) {
		got += n;
		if (step == 0 && got >= limit / 2) {
			before = clamp_of(fd);
			set_clamp(fd, atoi(argv[2]));
			printf("%d %d", before, clamp_of(fd));
			step = 1;
		} else if (step == 1 && got >= limit) {
			set_clamp(fd, before);
			printf(" %d", clamp_of(fd));
			step = 2;
		}
	}
	printf("\n");
	return 0;
}
