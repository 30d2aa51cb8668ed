/* completions.c: /v1/completions and /v1/chat/completions.  I/O thread. */
#include "server/generate/generate.h"
#include "server/routes/routes.h"

void handle_completions(struct routes *rt, struct exchange *x)
{
    gen_start(rt->gen, x, OAI_COMPLETION);
}

void handle_chat(struct routes *rt, struct exchange *x)
{
    gen_start(rt->gen, x, OAI_CHAT);
}
