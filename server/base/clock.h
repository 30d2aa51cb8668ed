/* clock.h: the daemon's one clock, which every time in the server is on.
 *
 * Owns nothing: any thread. */
#ifndef SERVER_BASE_CLOCK_H
#define SERVER_BASE_CLOCK_H

#include <stdint.h>

/* Monotonic microseconds since an arbitrary start, never set back. */
uint64_t srv_now_us(void);

#endif
