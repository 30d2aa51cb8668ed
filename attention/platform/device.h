/* device.h: a device backend's memory, queues, events and graphs.
 *
 * The plugin's interface "device" (plugin.h) is a const struct device_ops *.
 * Whoever feeds the operator from outside the plugin - the model's steps, the
 * tests, the benchmarks - moves bytes and captures graphs through it, so that
 * no CUDA type leaves the plugin.  A queue is the `stream` of attn_run; NULL is
 * the device's default queue.
 *
 * Owns nothing; every handle belongs to the caller, who gives it back.  One
 * device_open a thread that uses the device; copies, launches and recordings
 * on one queue come from one thread at a time.  Errors are ERR_GPU with the
 * runtime's own words, ERR_NOMEM when device or pinned memory is exhausted. */
#ifndef ATTENTION_PLATFORM_DEVICE_H
#define ATTENTION_PLATFORM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

struct device_info {
    char name[128];
    int32_t major, minor; /* compute capability */
    int32_t n_sm;
    uint64_t total_bytes, free_bytes, l2_bytes;
};

enum device_copy { DEVICE_TO_DEVICE, HOST_TO_DEVICE, DEVICE_TO_HOST };

struct device_ops {
    uint32_t abi; /* ATTN_ABI */

    /* How many devices there are: 0 with a reason in *e when none can be used
     * (no driver, no GPU). */
    uint32_t (*count)(struct err *e);
    /* Make device i the calling thread's, and describe it. */
    enum err_code (*open)(int32_t i, struct device_info *out, struct err *e);

    enum err_code (*alloc)(void **out, size_t bytes, struct err *e);
    void (*free)(void *p);
    enum err_code (*alloc_pinned)(void **out, size_t bytes, struct err *e);
    void (*free_pinned)(void *p);
    enum err_code (*copy)(void *to, const void *from, size_t bytes, enum device_copy way,
                          void *stream, struct err *e);
    enum err_code (*fill)(void *to, int byte, size_t bytes, void *stream, struct err *e);

    enum err_code (*stream_create)(void **out, struct err *e);
    void (*stream_destroy)(void *stream);
    enum err_code (*stream_wait)(void *stream, struct err *e);

    enum err_code (*event_create)(void **out, struct err *e);
    void (*event_destroy)(void *event);
    enum err_code (*event_record)(void *event, void *stream, struct err *e);
    /* Whether all before the event is done; never waits. */
    enum err_code (*event_done)(void *event, int *done, struct err *e);
    enum err_code (*event_wait)(void *event, struct err *e);
    /* Microseconds between two recorded and finished events. */
    enum err_code (*event_elapsed)(void *from, void *to, double *us, struct err *e);

    /* Everything enqueued on stream between begin and end becomes a graph and
     * does not run. */
    enum err_code (*capture_begin)(void *stream, struct err *e);
    enum err_code (*capture_end)(void *stream, void **graph, struct err *e);
    enum err_code (*graph_launch)(void *graph, void *stream, struct err *e);
    void (*graph_destroy)(void *graph);
};

#endif
