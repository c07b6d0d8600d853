/*
 * Copies a file to another host, and shows how far it is.
 *
 *   copy receive 127.0.0.1:7001 there
 *   copy send here 127.0.0.1:7001
 *
 * First the length of the file goes over, in 8 bytes, then its content; the receiver answers with one byte when it has written it all.
 *
 * cc -o copy copy.c $(pkg-config --cflags --libs ropeway)
 */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <ropeway.h>

#define BLOCK_BYTES (256 * 1024)
#define BAR_WIDTH 40

static void die(const char *doing, const char *why)
{
	fprintf(stderr, "%s: %s\n", doing, why);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* At most ten times a second, and at the end. */
static void show(uint64_t done, uint64_t total, double begin)
{
	static double shown;
	double time = now(), part = total ? (double)done / (double)total : 1;
	int filled = (int)(part * BAR_WIDTH);

	if (done < total && time - shown < 0.1)
		return;
	shown = time;
	fprintf(stderr, "\r[%.*s%*s] %3d %%  %.1f MB/s", filled, "########################################", BAR_WIDTH - filled, "",
		(int)(part * 100), (double)done / 1e6 / (time - begin + 1e-9));
	if (done == total)
		fputc('\n', stderr);
}

static void send_file(const char *path, const char *address)
{
	FILE *file = fopen(path, "rb");
	unsigned char length[8], done;
	char *block = malloc(BLOCK_BYTES);
	uint64_t total = 0, sent = 0;
	double begin = now();
	size_t count;
	int i, s;

	if (!file || !block || fseeko(file, 0, SEEK_END) != 0)
		die(path, strerror(errno));
	total = (uint64_t)ftello(file);
	rewind(file);
	s = ropeway_dial(address, ROPEWAY_STREAM);
	if (s < 0)
		die(address, ropeway_error());
	for (i = 0; i < 8; i++)
		length[i] = (unsigned char)(total >> (56 - 8 * i));
	if (ropeway_send(s, length, sizeof length, 0) < 0)
		die("send", ropeway_error());
	while (sent < total && (count = fread(block, 1, BLOCK_BYTES, file)) > 0) {
		if (ropeway_send(s, block, count, 0) != (ssize_t)count)
			die("send", ropeway_error());
		sent += count;
		show(sent, total, begin);
	}
	if (sent != total)
		die(path, "it has become shorter");
	if (ropeway_recv(s, &done, 1, 0) != 1)
		die("the other end", "it did not say that it has everything");
	ropeway_close(s);
	free(block);
	fclose(file);
}

static void receive_file(const char *address, const char *path)
{
	int listener = ropeway_serve(address, ROPEWAY_STREAM, 1), s, i;
	FILE *file = fopen(path, "wb");
	unsigned char length[8], done = 1;
	char *block = malloc(BLOCK_BYTES);
	uint64_t total = 0, received = 0;
	double begin;
	ssize_t count;

	if (!file || !block)
		die(path, strerror(errno));
	if (listener < 0 || (s = ropeway_accept(listener, NULL, NULL)) < 0)
		die(address, ropeway_error());
	if (ropeway_recv(s, length, sizeof length, MSG_WAITALL) != sizeof length)
		die("receive", ropeway_error());
	for (i = 0; i < 8; i++)
		total = total << 8 | length[i];
	begin = now();
	while (received < total && (count = ropeway_recv(s, block, BLOCK_BYTES, 0)) > 0) {
		if (fwrite(block, 1, (size_t)count, file) != (size_t)count)
			die(path, strerror(errno));
		received += (uint64_t)count;
		show(received, total, begin);
	}
	if (received != total)
		die("receive", "the other end stopped too early");
	if (fclose(file) != 0)
		die(path, strerror(errno));
	if (ropeway_send(s, &done, 1, 0) != 1)
		die("send", ropeway_error());
	ropeway_close(s);
	ropeway_close(listener);
	free(block);
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "send") == 0)
		send_file(argv[2], argv[3]);
	else if (argc == 4 && strcmp(argv[1], "receive") == 0)
		receive_file(argv[2], argv[3]);
	else {
		fprintf(stderr, "usage: copy send FILE ADDRESS | copy receive ADDRESS FILE\n");
		return 2;
	}
	return 0;
}
