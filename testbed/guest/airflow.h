/* airflow: the one traffic program of the laboratory. See docs/lab-internals.md section 5. */
#ifndef AIRFLOW_H
#define AIRFLOW_H

#include "util.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#define CC_NAME_MAX	16	/* TCP_CA_NAME_MAX of the kernel */
#define IO_CHUNK	(256 * 1024)

struct cc_switch {
	int64_t at_ns;
	char cc[CC_NAME_MAX];
};

struct app_pause {
	int64_t at_ns, len_ns;
};

struct opts {
	const char *json;
	struct sockaddr_storage to;
	socklen_t to_len;
	int family;		/* 4 or 6 */
	uint16_t port;
	const char *cc;
	int64_t duration_ns;	/* 0: no limit in time */
	uint64_t bytes;		/* 0: no limit in bytes */
	int sndbuf, rcvbuf;	/* 0: the kernel's choice */
	int64_t sample_ns, bin_ns;
	bool verify;
	uint64_t verify_seed;
	struct cc_switch *switches;
	size_t n_switches;
	struct app_pause *pauses;
	size_t n_pauses;
	double app_rate_bps;	/* 0: as fast as the socket takes it */
	bool close_fin;
	uint64_t count, seed, keep;
	size_t parallel;
	size_t size;
	double rate_bps;
	bool poisson;
	int64_t interval_ns, wait_ns;
	int tx_delay_us;	/* TCP_TX_DELAY; 0: leave it alone */
};

extern volatile sig_atomic_t stopping;	/* SIGTERM or SIGINT came */

/* Remembers the first thing that went wrong: it goes to stderr and into the JSON. */
void fail(const char *what, int err);
bool failed(void);

int open_server(const struct opts *o, int type);
int open_client(const struct opts *o, int type);
/* Memory for bursts and backlogs, past the sysctl limit when allowed. */
void big_buffers(int fd);

void run_recv(const struct opts *o, struct json *j);
void run_send(const struct opts *o, struct json *j);
void run_churn(const struct opts *o, struct json *j);
void run_udp_recv(const struct opts *o, struct json *j);
void run_udp_send(const struct opts *o, struct json *j);
void run_burst(const struct opts *o, struct json *j);
void run_echo(const struct opts *o, struct json *j);
void run_ping(const struct opts *o, struct json *j);

#endif
