// A library loaded with RTLD_DEEPBIND finds read() in its own dependency, the C library, before any preload.
#include <unistd.h>

ssize_t deep_read(int fd, void *to, size_t n) { return read(fd, to, n); }
