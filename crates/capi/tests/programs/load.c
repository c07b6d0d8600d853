/* A program that loads the library when it wants it, and lets go of it; the test program of crates/capi/tests/c.rs. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

static const char *path;

static void *look_up(void *library, const char *name)
{
	void *found = dlsym(library, name);

	CHECK(found);
	return found;
}

/* ISO C does not turn pointers to data into pointers to functions. */
#define CALL(library, name, variable)                                 \
	do {                                                          \
		void *found = look_up(library, name);                 \
		memcpy(&variable, &found, sizeof found);              \
	} while (0)

/* The sockets stay open, and the library's threads run, when it is let go of. */
static void use(void)
{
	int (*serve)(const char *, int, int), (*dial)(const char *, int), (*accept_one)(int, struct sockaddr *, socklen_t *);
	int (*name_of)(int, struct sockaddr *, socklen_t *), (*format)(const struct sockaddr *, socklen_t, char *, size_t);
	ssize_t (*send_some)(int, const void *, size_t, int), (*receive)(int, void *, size_t, int);
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	struct sockaddr_storage at;
	socklen_t length = sizeof at;
	char text[64], word[5];
	int l, client, server;

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	CALL(library, "ropeway_serve", serve);
	CALL(library, "ropeway_dial", dial);
	CALL(library, "ropeway_accept", accept_one);
	CALL(library, "ropeway_getsockname", name_of);
	CALL(library, "ropeway_format", format);
	CALL(library, "ropeway_send", send_some);
	CALL(library, "ropeway_recv", receive);
	CHECK((l = serve("127.0.0.1:0", 1, 4)) > 0);
	CHECK(name_of(l, (struct sockaddr *)&at, &length) == 0 && format((struct sockaddr *)&at, length, text, sizeof text) == 0);
	CHECK((client = dial(text, 1)) > 0 && (server = accept_one(l, NULL, NULL)) > 0);
	CHECK(send_some(client, "hello", 5, 0) == 5 && receive(server, word, 5, MSG_WAITALL) == 5 && memcmp(word, "hello", 5) == 0);
	CHECK(send_some(client, "never read", 10, 0) == 10);
	CHECK(dlclose(library) == 0);
}

static void *use_in_a_thread(void *argument)
{
	use();
	return argument;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int round;

	CHECK(argc == 2);
	path = argv[1];
	for (round = 0; round < 3; round++) {
		use();
		/* What the library keeps of a thread goes after the library was let go of. */
		CHECK(pthread_create(&thread, NULL, use_in_a_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
		/* Time for its threads to look around. */
		usleep(20000);
	}
	printf("loaded and let go\n");
	return 0;
}
