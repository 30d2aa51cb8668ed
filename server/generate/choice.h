/* choice.h: one output sequence on its way from token ids to text.
 *
 * Detokenises, holds back what may begin a stop string, cuts at stops, gathers
 * scores and ids, and decides why the sequence ended as the client sees it.
 * What is gathered is either the whole output or what was not yet sent:
 * choice_sent forgets it.  One user at a time. */
#ifndef SERVER_GENERATE_CHOICE_H
#define SERVER_GENERATE_CHOICE_H

#include "model/tokenizer/tokenizer.h"
#include "proto/openai/response.h"
#include "proto/plan/step_plan.h"
#include "server/generate/stops.h"

/* Scores of tokens in a row. */
struct score {
    int32_t id;
    float logprob;
    uint32_t n_top, top; /* alternatives [top, top + n_top) */
    bool scored, silent;
};
struct score_list {
    struct score *token; /* owned */
    uint32_t n, cap;
    int32_t *top_id;    /* owned */
    float *top_logprob; /* owned */
    uint32_t n_top, cap_top;
};

/* Append; at most n_top alternatives.  False: memory is short. */
bool score_list_add(struct score_list *l, const struct sampled *t, uint32_t n_top, bool scored,
                    bool silent);
void score_list_fini(struct score_list *l);

/* What is the same for all choices of a request; borrowed. */
struct choice_rules {
    const struct tokenizer *tokenizer;
    const struct oai_request *req;
    const struct stop_set *stops;
    uint32_t n_eos; /* leading entries of req->params.stop_ids that are the model's */
};

struct choice {
    const struct choice_rules *rules;
    struct detok *detok;
    struct stop_match match;
    struct buf text; /* gathered; whole characters */
    struct score_list scores;
    int32_t *ids; /* with return_token_ids; owned */
    uint32_t n_ids, cap_ids;
    uint32_t n_tokens;      /* generated, the stopping one included */
    uint32_t n_gathered;    /* tokens since choice_sent */
    uint32_t text_offset;   /* characters before scores.token[0] */
    enum oai_finish finish; /* OAI_FINISH_NONE while it runs */
    struct oai_stop_reason reason;
};

MUST_USE enum err_code choice_init(struct choice *c, const struct choice_rules *rules,
                                   struct err *e);
void choice_fini(struct choice *c);

/* One more token.  A stop string in the text ends the choice: c->finish is set
 * and further tokens must not be given.  ERR_NOMEM. */
MUST_USE enum err_code choice_push(struct choice *c, const struct sampled *t, struct err *e);
/* The engine ended it (stop_id -1 unless a token stopped it). */
MUST_USE enum err_code choice_end(struct choice *c, bool by_length, int32_t stop_id, struct err *e);
/* Forget what was gathered. */
void choice_sent(struct choice *c);

#endif
