/*
 * Sends messages to and fro and says how long they take, one way.
 *
 *   pingpong serve 127.0.0.1:7002
 *   pingpong measure 127.0.0.1:7002 [BYTES [COUNT]]
 *
 * cc -o pingpong pingpong.c $(pkg-config --cflags --libs ropeway)
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ropeway.h>

#define MOST_BYTES (1024 * 1024)

static char message[MOST_BYTES];

static void die(const char *doing)
{
	fprintf(stderr, "%s: %s\n", doing, ropeway_error());
	exit(1);
}

static double now_us(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* One client, until it is through. */
static void serve(const char *address)
{
	int listener = ropeway_serve(address, ROPEWAY_MESSAGES, 1), s, ended = 0;
	struct sockaddr_storage at;
	socklen_t at_length = sizeof at, length = sizeof ended;
	ssize_t count;
	char text[64];

	if (listener < 0)
		die(address);
	if (ropeway_getsockname(listener, (struct sockaddr *)&at, &at_length) < 0 ||
	    ropeway_format((struct sockaddr *)&at, at_length, text, sizeof text) < 0)
		die("its address");
	printf("listening at %s\n", text);
	fflush(stdout);
	if ((s = ropeway_accept(listener, NULL, NULL)) < 0)
		die(address);
	for (;;) {
		count = ropeway_recv(s, message, sizeof message, 0);
		if (count < 0)
			die("receive");
		/* An empty message has no bytes either. */
		if (count == 0 && ropeway_getsockopt(s, SOL_ROPEWAY, ROPEWAY_SO_ENDED, &ended, &length) == 0 && ended)
			break;
		if (ropeway_send(s, message, (size_t)count, 0) < 0)
			die("send");
	}
	ropeway_close(s);
	ropeway_close(listener);
}

static void measure(const char *address, size_t bytes, size_t count)
{
	static const double percentiles[] = {50, 90, 99, 99.9};
	int s = ropeway_dial(address, ROPEWAY_MESSAGES);
	double *samples = malloc(count * sizeof *samples);
	size_t i;

	if (s < 0 || !samples)
		die(address);
	for (i = 0; i < count; i++) {
		double begin = now_us();

		if (ropeway_send(s, message, bytes, 0) < 0 || ropeway_recv(s, message, sizeof message, 0) != (ssize_t)bytes)
			die("a round trip");
		samples[i] = (now_us() - begin) / 2;
	}
	qsort(samples, count, sizeof *samples, ascending);
	printf("%zu messages of %zu bytes, one way in us:", count, bytes);
	for (i = 0; i < sizeof percentiles / sizeof *percentiles; i++)
		printf("  p%g %.2f", percentiles[i], samples[(size_t)((double)(count - 1) * percentiles[i] / 100)]);
	printf("\n");
	free(samples);
	ropeway_close(s);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "serve") == 0) {
		serve(argv[2]);
	} else if (argc >= 3 && argc <= 5 && strcmp(argv[1], "measure") == 0) {
		size_t bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 64, count = argc > 4 ? strtoul(argv[4], NULL, 10) : 10000;

		if (bytes > MOST_BYTES || count == 0) {
			fprintf(stderr, "at most %d bytes, at least one message\n", MOST_BYTES);
			return 2;
		}
		measure(argv[2], bytes, count);
	} else {
		fprintf(stderr, "usage: pingpong serve ADDRESS | pingpong measure ADDRESS [BYTES [COUNT]]\n");
		return 2;
	}
	return 0;
}
