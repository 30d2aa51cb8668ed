/* sse.h: framing of server-sent events over a buffer.
 *
 * One event is "data: " + one line of JSON + a blank line; the writer of json.h
 * never emits a line break inside a value.  Pure functions; any thread. */
#ifndef PROTO_OPENAI_SSE_H
#define PROTO_OPENAI_SSE_H

#include "proto/text/json.h"

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"
#define SSE_DATA         "data: "
#define SSE_END          "\n\n"
#define SSE_DONE         "data: [DONE]\n\n"
/* A comment that clients ignore and proxies count as traffic. */
#define SSE_PING ": ping\n\n"

static inline void sse_begin(struct buf *o)
{
    BUF_LIT(o, SSE_DATA);
}

static inline void sse_end(struct buf *o)
{
    BUF_LIT(o, SSE_END);
}

/* The last event of a stream that OpenAI's clients wait for. */
static inline void sse_done(struct buf *o)
{
    BUF_LIT(o, SSE_DONE);
}

#endif
