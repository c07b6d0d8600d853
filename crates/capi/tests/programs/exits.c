/* What the exit of a process does to its connections; a test program of crates/capi/tests/c.rs. */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define LENGTH 300000

/* What the processes tell each other. */
static struct {
	volatile long sent, exited_ms, ended_ms;
} *told;

static char message[LENGTH];
static int listening, connected;

static long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A listener, whose address goes to who reads `to`. */
static int serve(int kind, int to)
{
	struct sockaddr_storage at;
	socklen_t length = sizeof at;
	char text[64] = "";
	int l = ropeway_serve("127.0.0.1:0", kind, 8);

	CHECK(l > 0 && ropeway_getsockname(l, (struct sockaddr *)&at, &length) == 0);
	CHECK(ropeway_format((struct sockaddr *)&at, length, text, sizeof text) == 0);
	CHECK(write(to, text, sizeof text) == sizeof text);
	return l;
}

static int dial(int kind, int from)
{
	char text[64];
	int s;

	CHECK(read(from, text, sizeof text) == sizeof text && (s = ropeway_dial(text, kind)) > 0);
	return s;
}

static pid_t child(void)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0)
		alarm(30);
	return pid;
}

static void *sends(void *argument)
{
	/* Until the exit has ended the connection. */
	while (ropeway_send(connected, message, LENGTH, 0) == LENGTH)
		told->sent++;
	return argument;
}

/* The exit comes while another thread is in the middle of a message, behind some that the peer has not given credit for. */
static long beside_a_send(useconds_t after_us)
{
	pthread_t thread;
	int addresses[2], l, s, status = -1;
	long received = 0;
	ssize_t count;
	pid_t sender;

	told->sent = 0;
	CHECK(pipe(addresses) == 0);
	sender = child();
	if (sender == 0) {
		connected = dial(ROPEWAY_MESSAGES, addresses[0]);
		CHECK(pthread_create(&thread, NULL, sends, NULL) == 0);
		usleep(after_us);
		exit(0);
	}
	l = serve(ROPEWAY_MESSAGES, addresses[1]);
	CHECK((s = ropeway_accept(l, NULL, NULL)) > 0);
	usleep(after_us + 50000);
	while ((count = ropeway_recv(s, message, LENGTH, 0)) > 0) {
		CHECK(count == LENGTH);
		received++;
	}
	CHECK(count == 0);
	CHECK(waitpid(sender, &status, 0) == sender && status == 0);
	/* The last one may have been sent and not counted. */
	CHECK(received == told->sent || received == told->sent + 1);
	CHECK(ropeway_close(s) == 0 && ropeway_close(l) == 0 && close(addresses[0]) == 0 && close(addresses[1]) == 0);
	return received;
}

static void *accepts(void *argument)
{
	ropeway_accept(listening, NULL, NULL);
	return argument;
}

static void *receives(void *argument)
{
	char byte;

	ropeway_recv(connected, &byte, 1, 0);
	return argument;
}

static pthread_t waiting[2];

/* As the end of an object of C++ that has threads. */
static void end_threads(void)
{
	CHECK(ropeway_close(listening) == 0 && ropeway_close(connected) == 0);
	CHECK(pthread_join(waiting[0], NULL) == 0 && pthread_join(waiting[1], NULL) == 0);
}

/* A process that exits has a peer that does not answer any more, one that does, and threads that wait. */
static void beside_threads_that_wait(void)
{
	int stopping[2], exiting[2], begun[2], status = -1, s;
	pid_t stopped, healthy, exits;
	struct rusage used;
	char bytes[2];

	CHECK(pipe(stopping) == 0 && pipe(exiting) == 0 && pipe(begun) == 0);
	stopped = child();
	if (stopped == 0) {
		s = ropeway_accept(serve(ROPEWAY_STREAM, stopping[1]), NULL, NULL);
		CHECK(s > 0 && ropeway_recv(s, bytes, 2, MSG_WAITALL) == 2 && write(begun[1], "x", 1) == 1);
		pause();
	}
	exits = child();
	if (exits == 0) {
		/* It is called after that of the library, which is used only then. */
		CHECK(atexit(end_threads) == 0 && setenv("ROPEWAY_LINGER_MS", "2000", 1) == 0);
		s = dial(ROPEWAY_STREAM, stopping[0]);
		CHECK(ropeway_send(s, "hi", 2, 0) == 2);
		listening = serve(ROPEWAY_STREAM, exiting[1]);
		CHECK((connected = ropeway_accept(listening, NULL, NULL)) > 0);
		CHECK(pthread_create(&waiting[0], NULL, accepts, NULL) == 0);
		CHECK(pthread_create(&waiting[1], NULL, receives, NULL) == 0);
		CHECK(read(begun[0], bytes, 1) == 1 && kill(stopped, SIGSTOP) == 0);
		usleep(100000);
		CHECK(ropeway_send(s, "more", 4, 0) == 4);
		told->exited_ms = now_ms();
		exit(0);
	}
	healthy = child();
	if (healthy == 0) {
		s = dial(ROPEWAY_STREAM, exiting[0]);
		CHECK(ropeway_recv(s, bytes, 1, 0) == 0);
		told->ended_ms = now_ms();
		exit(0);
	}
	CHECK(wait4(exits, &status, 0, &used) == exits && status == 0);
	CHECK(now_ms() - told->exited_ms >= 1900);
	CHECK(used.ru_utime.tv_sec + used.ru_stime.tv_sec == 0);
	CHECK(waitpid(healthy, &status, 0) == healthy && status == 0);
	CHECK(told->ended_ms - told->exited_ms < 1000);
	CHECK(kill(stopped, SIGKILL) == 0 && waitpid(stopped, &status, 0) == stopped);
}

int main(void)
{
	useconds_t after_us;
	long received = 0;

	told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(told != MAP_FAILED);
	beside_threads_that_wait();
	for (after_us = 10000; after_us <= 90000; after_us += 20000)
		received += beside_a_send(after_us);
	CHECK(received > 0);
	printf("the exit keeps its word\n");
	return 0;
}
