/* numbers.h: how far apart two vectors are.  Pure functions; any thread. */
#ifndef TESTS_SUPPORT_NUMBERS_H
#define TESTS_SUPPORT_NUMBERS_H

#include <math.h>
#include <stddef.h>

/* |got - want| / |want| over n elements. */
static inline double relative_error(const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - want[i];
        diff += d * d;
        norm += (double)want[i] * want[i];
    }
    return sqrt(diff / norm);
}

/* For qsort of doubles. */
static inline int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#endif
