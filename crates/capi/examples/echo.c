/*
 * An echo server and its client.
 *
 *   echo serve 127.0.0.1:7000
 *   echo say 127.0.0.1:7000 hello
 *
 * cc -o echo echo.c $(pkg-config --cflags --libs ropeway)
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ropeway.h>

static void die(const char *doing)
{
	fprintf(stderr, "%s: %s\n", doing, ropeway_error());
	exit(1);
}

static void *echo(void *argument)
{
	int s = (int)(long)argument;
	char buffer[65536];
	ssize_t count;

	while ((count = ropeway_recv(s, buffer, sizeof buffer, 0)) > 0)
		if (ropeway_send(s, buffer, (size_t)count, 0) != count)
			break;
	ropeway_close(s);
	return NULL;
}

static void serve(const char *address)
{
	int listener = ropeway_serve(address, ROPEWAY_STREAM, 128);
	struct sockaddr_storage at;
	socklen_t length = sizeof at;
	char text[64];

	if (listener < 0)
		die(address);
	if (ropeway_getsockname(listener, (struct sockaddr *)&at, &length) < 0 ||
	    ropeway_format((struct sockaddr *)&at, length, text, sizeof text) < 0)
		die("its address");
	printf("listening at %s\n", text);
	fflush(stdout);
	for (;;) {
		int s = ropeway_accept(listener, NULL, NULL);
		pthread_t thread;

		if (s < 0)
			die("accept");
		if (pthread_create(&thread, NULL, echo, (void *)(long)s) == 0)
			pthread_detach(thread);
		else
			ropeway_close(s);
	}
}

static void say(const char *address, const char *text)
{
	int s = ropeway_dial(address, ROPEWAY_STREAM);
	size_t length = strlen(text);
	char *answer = malloc(length + 1);

	if (s < 0 || !answer)
		die(address);
	if (ropeway_send(s, text, length, 0) < 0)
		die("send");
	if (ropeway_recv(s, answer, length, MSG_WAITALL) != (ssize_t)length)
		die("receive");
	printf("%.*s\n", (int)length, answer);
	free(answer);
	ropeway_close(s);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "serve") == 0)
		serve(argv[2]);
	else if (argc == 4 && strcmp(argv[1], "say") == 0)
		say(argv[2], argv[3]);
	else {
		fprintf(stderr, "usage: echo serve ADDRESS | echo say ADDRESS TEXT\n");
		return 2;
	}
	return 0;
}
