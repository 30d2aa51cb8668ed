/* plugin_path.h: where a test program finds the CUDA plugin of its build, and how
 * it says that there is nothing to test.  Any thread. */
#ifndef TESTS_SUPPORT_PLUGIN_PATH_H
#define TESTS_SUPPORT_PLUGIN_PATH_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SKIPPED = 77 }; /* ctest's SKIP_RETURN_CODE */

/* build/<preset>/tests/NAME -> build/<preset>/quire_cuda.so; n > 32. */
static inline void default_plugin(char *path, size_t n)
{
    ssize_t len = readlink("/proc/self/exe", path, n - 32);
    path[len > 0 ? len : 0] = '\0';
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (slash != NULL)
            *slash = '\0';
    }
    strcat(path, "/quire_cuda.so");
}

/* Say why nothing ran; the exit code. */
static inline int skip(const char *why)
{
    printf("skipped: %s\n", why);
    return SKIPPED;
}

#endif
