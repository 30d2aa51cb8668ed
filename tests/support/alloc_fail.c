/* alloc_fail.c: see alloc_fail.h. */
#include "support/alloc_fail.h"

#include <errno.h>
#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t k, size_t n);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t k, size_t n);
void *__wrap_realloc(void *p, size_t n);
int __real_posix_memalign(void **out, size_t align, size_t n) __attribute__((weak));
int __wrap_posix_memalign(void **out, size_t align, size_t n);

static _Atomic int64_t countdown = -1, counted;
static _Atomic bool stay, fired;

void alloc_fail_at(int64_t n, bool sticky)
{
    countdown = n;
    counted = 0;
    stay = sticky;
    fired = false;
}

bool alloc_fail_fired(void)
{
    return fired;
}

int64_t alloc_fail_count(void)
{
    return counted;
}

static bool fails(void)
{
    counted++;
    if (fired && stay)
        return true;
    if (countdown < 0 || countdown-- > 0)
        return false;
    fired = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t k, size_t n)
{
    return fails() ? NULL : __real_calloc(k, n);
}

void *__wrap_realloc(void *p, size_t n)
{
    return fails() ? NULL : __real_realloc(p, n);
}

int __wrap_posix_memalign(void **out, size_t align, size_t n)
{
    return fails() ? ENOMEM : __real_posix_memalign(out, align, n);
}
