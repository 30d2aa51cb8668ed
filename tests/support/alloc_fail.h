/* alloc_fail.h: make the n-th allocation of the code under test fail.
 *
 * A test program that links test_support with the option
 *   target_link_options(... -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc)
 * sees every malloc, calloc and realloc of the linked static libraries counted
 * here, whichever thread they are on; with --wrap=posix_memalign, these too. */
#ifndef TESTS_SUPPORT_ALLOC_FAIL_H
#define TESTS_SUPPORT_ALLOC_FAIL_H

#include <stdbool.h>
#include <stdint.h>

/* The n-th allocation from now (0: the next one) fails, and all later ones
 * when sticky; n < 0: none fails. */
void alloc_fail_at(int64_t n, bool sticky);

/* Whether the failure armed last has happened. */
bool alloc_fail_fired(void);

/* Allocations counted since the last alloc_fail_at. */
int64_t alloc_fail_count(void);

#endif
