/* completions.c: /v1/completions and /v1/chat/completions.  I/O thread. */
#include "server/generate/generate.h"
#include "server/routes/routes.h"
#include "server/server.h"

void handle_completions(struct srv *srv, struct exchange *x)
{
    gen_start(srv->gen, x, OAI_COMPLETION);
}

void handle_chat(struct srv *srv, struct exchange *x)
{
    gen_start(srv->gen, x, OAI_CHAT);
}
