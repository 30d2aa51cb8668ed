/* http_server.c: the server as a whole: creation, listening, the loop coming round,
 * the end.  Freed when its last handle has closed.  The thread of the loop. */
#include "server/http/http_server.h"

#include "server/http/connection.h"

static void on_prepare(uv_prepare_t *p)
{
    conn_flush_all(p->data);
}

enum err_code http_server_create(struct http_server **out, const struct http_config *cfg,
                                 struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);

    if (s == NULL)
        return err_nomem(e, "HTTP server", sizeof *s);
    s->cfg = *cfg;
    s->bodies.max = cfg->max_total_body_bytes;
    s->n_users = 1;
    uv_prepare_init(cfg->loop, &s->prepare);
    s->prepare.data = s;
    uv_prepare_start(&s->prepare, on_prepare);
    *out = s;
    return ERR_OK;
}

enum err_code http_server_listen(struct http_server *s, const struct http_address *a, struct err *e)
{
    return listener_open(&s->listener, s, a, e);
}

const char *http_server_url(const struct http_server *s)
{
    return s->listener ? listener_url(s->listener) : "";
}

void http_server_drain(struct http_server *s)
{
    s->draining = true;
}

bool http_server_all_sent(const struct http_server *s)
{
    for (const struct conn *c = s->conns; c; c = c->next)
        if (c->state != CONN_CLOSED && (conn_unsent(c) > 0 || c->dirty))
            return false;
    return true;
}

uint32_t http_server_n_connections(const struct http_server *s)
{
    return s->n_conns;
}

static void on_prepare_closed(uv_handle_t *h)
{
    http_server_release(h->data);
}

void http_server_close(struct http_server *s)
{
    if (s == NULL)
        return;
    if (s->listener)
        listener_close(s->listener);
    s->listener = NULL;
    for (struct conn *c = s->conns; c; c = c->next)
        conn_drop(c); /* it leaves the list when its handles have closed */
    uv_close((uv_handle_t *)&s->prepare, on_prepare_closed);
}
