/* clock.c: the monotonic clock in microseconds.  Owns nothing; any thread. */
#include "server/base/clock.h"

#include <time.h>

uint64_t srv_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}
