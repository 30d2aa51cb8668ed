/* write.h: parts of replies that whole bodies and streams share.
 * Private to proto/openai/.  Any thread; a buffer belongs to one. */
#ifndef PROTO_OPENAI_WRITE_H
#define PROTO_OPENAI_WRITE_H

#include "proto/openai/response.h"

/* A quoted string, or null. */
void oai_put_text(struct buf *o, struct oai_text t);
void oai_put_ids(struct buf *o, const int32_t *ids, uint32_t n);
void oai_put_finish(struct buf *o, enum oai_finish finish);
void oai_put_stop_reason(struct buf *o, struct oai_stop_reason r);
void oai_put_usage(struct buf *o, const struct oai_usage *u);
/* `,"cache":{...}` */
void oai_put_cache(struct buf *o, const struct oai_cache_report *c);
void oai_put_tool_call(struct buf *o, const struct oai_tool_call *t, bool with_index);
/* The body's start, up to and with system_fingerprint; no closing brace. */
void oai_put_identity(struct buf *o, const struct oai_identity *id, const char *object);

/* logprobs.c: the value of `logprobs` in the kind's dialect; NULL: null. */
void oai_put_logprobs(struct buf *o, enum oai_kind kind, const struct oai_logprobs *lp);
/* [null, {"id": {"logprob", "rank", "decoded_token"}, ...}, ...] */
void oai_put_prompt_logprobs(struct buf *o, const struct oai_logprobs *lp);

#endif
