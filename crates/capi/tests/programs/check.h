/* What the test programs share. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <ropeway.h>

#define CHECK(condition)                                                                                                  \
	do {                                                                                                              \
		errno = 0;                                                                                                \
		if (!(condition)) {                                                                                       \
			fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #condition, errno, ropeway_error()); \
			exit(1);                                                                                          \
		}                                                                                                         \
	} while (0)
