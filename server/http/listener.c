/* listener.c: bind, listen, accept.  Owns one listening handle and,
 * for a Unix socket, the path that it is bound to.  The thread of the loop. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/http/connection.h"

enum { BACKLOG = 1024, TCP_KEEPALIVE_S = 60 };

struct listener {
    struct http_server *server;
    union http_stream u;
    bool is_pipe;
    char path[sizeof((struct sockaddr_un *)0)->sun_path]; /* of the Unix socket */
    char url[256];
};

bool listener_is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family != AF_INET6)
        return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* Where the other end of a TCP connection is. */
static enum http_peer peer_of(const uv_tcp_t *t)
{
    struct sockaddr_storage a;
    int n = sizeof a;

    if (uv_tcp_getpeername(t, (struct sockaddr *)&a, &n) != 0)
        return HTTP_PEER_REMOTE;
    return listener_is_loopback((struct sockaddr *)&a) ? HTTP_PEER_LOOPBACK : HTTP_PEER_REMOTE;
}

static void on_connection(uv_stream_t *s, int status)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
                               "Retry-After: 5\r\nContent-Length: 0\r\n\r\n";
    struct listener *l = s->data;
    struct http_server *server = l->server;

    if (status < 0) {
        srv_logf(server->cfg.log, SRV_WARNING, "accept: %s", uv_strerror(status));
        return;
    }
    struct conn *c = conn_new(server);
    if (c == NULL) {
        srv_logf(server->cfg.log, SRV_ERROR, "accept: out of memory");
        return;
    }
    if (l->is_pipe)
        uv_pipe_init(server->cfg.loop, &c->u.pipe, 0);
    else
        uv_tcp_init(server->cfg.loop, &c->u.tcp);
    c->u.handle.data = c; /* which the init above has cleared */
    if (uv_accept(s, &c->u.stream) != 0) {
        conn_drop(c);
        return;
    }
    if (server->n_conns > server->cfg.max_connections) {
        uv_buf_t buf = uv_buf_init((char *)full, sizeof full - 1);
        uv_try_write(&c->u.stream, &buf, 1);
        conn_drop(c);
        return;
    }
    if (!l->is_pipe) {
        uv_tcp_nodelay(&c->u.tcp, 1);
        uv_tcp_keepalive(&c->u.tcp, 1, TCP_KEEPALIVE_S);
    }
    conn_start(c, l->is_pipe ? HTTP_PEER_UNIX : peer_of(&c->u.tcp));
}

/* A socket file that nobody listens on any more is removed. */
static void remove_stale(const char *path)
{
    struct stat st;

    if (stat(path, &st) == 0 && S_ISSOCK(st.st_mode))
        unlink(path);
}

static int bind_uds(struct listener *l, const char *path)
{
    l->is_pipe = true;
    uv_pipe_init(l->server->cfg.loop, &l->u.pipe, 0);
    strcpy(l->path, path); /* listener_open has measured it */
    remove_stale(path);
    return uv_pipe_bind(&l->u.pipe, path);
}

/* Whether IPv6 sockets can be bound here at all. */
static bool has_ipv6(void)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0;

    if (fd >= 0)
        close(fd);
    return ok;
}

static int bind_host(struct listener *l, const char *host, int port)
{
    struct sockaddr_storage addr;
    int rc;

    uv_tcp_init(l->server->cfg.loop, &l->u.tcp);
    if (host == NULL) /* both families where the machine has them */
        host = has_ipv6() ? "::" : "0.0.0.0";
    if (strcmp(host, "localhost") == 0)
        host = "127.0.0.1";
    rc = uv_ip4_addr(host, port, (struct sockaddr_in *)&addr);
    if (rc != 0)
        rc = uv_ip6_addr(host, port, (struct sockaddr_in6 *)&addr);
    return rc ? rc : uv_tcp_bind(&l->u.tcp, (struct sockaddr *)&addr, 0);
}

static void name_url(struct listener *l, const struct http_address *at)
{
    struct sockaddr_storage a;
    int n = sizeof a, port = at->port;

    if (l->is_pipe) {
        snprintf(l->url, sizeof l->url, "unix:%s", l->path);
        return;
    }
    if (uv_tcp_getsockname(&l->u.tcp, (struct sockaddr *)&a, &n) == 0)
        port = ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port
                                            : ((struct sockaddr_in6 *)&a)->sin6_port);
    const char *host = at->host ? at->host : "0.0.0.0";
    snprintf(l->url, sizeof l->url, strchr(host, ':') ? "http://[%s]:%d" : "http://%s:%d", host,
             port);
}

static void on_closed(uv_handle_t *h)
{
    struct listener *l = h->data;

    http_server_release(l->server);
    free(l);
}

enum err_code listener_open(struct listener **out, struct http_server *server,
                            const struct http_address *a, struct err *e)
{
    struct listener *l;
    int rc;

    if (a->uds && strlen(a->uds) >= sizeof l->path)
        return err_set_param(e, ERR_INVALID, "uds",
                             "uds: found a path of %zu bytes, expected at most %zu: %.200s",
                             strlen(a->uds), sizeof l->path - 1, a->uds);
    l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_nomem(e, "listener", sizeof *l);
    l->server = server;
    server->n_users++;
    rc = a->uds ? bind_uds(l, a->uds) : bind_host(l, a->host, a->port);
    l->u.handle.data = l;
    if (rc == 0)
        rc = uv_listen(&l->u.stream, BACKLOG, on_connection);
    if (rc != 0) {
        if (a->uds)
            err_set_param(e, ERR_IO, "uds", "cannot listen on %s: %s", a->uds, uv_strerror(rc));
        else
            err_set_param(e, ERR_IO, "port", "cannot listen on %s port %d: %s",
                          a->host ? a->host : "any address,", a->port, uv_strerror(rc));
        uv_close(&l->u.handle, on_closed);
        return ERR_IO;
    }
    name_url(l, a);
    *out = l;
    return ERR_OK;
}

void listener_close(struct listener *l)
{
    if (l->is_pipe)
        unlink(l->path);
    uv_close(&l->u.handle, on_closed);
}

const char *listener_url(const struct listener *l)
{
    return l->url;
}
