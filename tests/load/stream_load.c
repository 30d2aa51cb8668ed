/* stream_load.c: load an OpenAI-compatible server with streaming requests.
 *
 * Owns one libuv loop and `concurrency` connections, each a closed loop: connect,
 * post, read the event stream to [DONE], next.  One thread.  Every request ends
 * in exactly one of done, cancelled, refused (an HTTP error) and lost (anything
 * else: cut connection, no finish reason, an error event, no [DONE]). */
#include "load/stream_load.h"

#include <cjson/cJSON.h>
#include <llhttp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "support/rng.h"

struct load;

struct stream {
    struct load *load;
    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_write_t write;
    llhttp_t parser;
    char *request;
    size_t n_request;
    char *text; /* event-stream bytes not yet cut into lines */
    size_t n_text, cap_text;
    char inbox[65536];
    uint64_t t_start, t_last;
    uint32_t events, cancel_after; /* content events; 0: never cancelled */
    bool finished, done_mark, failed, cancelled, complete;
};

struct load {
    struct load_options o;
    struct load_result r;
    uv_loop_t loop;
    uv_timer_t deadline;
    llhttp_settings_t settings;
    struct sockaddr_in address;
    struct rng rng;
    uint32_t started, ended;
    bool expired;
    struct stream *streams;
};

static void start(struct stream *s);

static void note_fault(struct stream *s, const char *what, const char *detail)
{
    struct load_result *r = &s->load->r;
    if (r->first_fault[0] == '\0')
        snprintf(r->first_fault, sizeof r->first_fault, "%s: %.200s", what, detail);
    s->failed = true;
}

static void closed(uv_handle_t *h)
{
    struct stream *s = h->data;
    struct load *l = s->load;
    if (s->cancelled)
        l->r.cancelled++;
    else if (s->parser.status_code != 0 && s->parser.status_code != 200)
        l->r.refused++;
    else if (s->failed || !s->finished || !s->done_mark)
        l->r.lost++;
    else
        l->r.done++;
    l->ended++;
    free(s->request);
    s->request = NULL;
    if (l->started < l->o.requests && !l->expired)
        start(s);
    else if (l->ended == l->started)
        uv_close((uv_handle_t *)&l->deadline, NULL);
}

static void finish(struct stream *s)
{
    if (!uv_is_closing((uv_handle_t *)&s->tcp))
        uv_close((uv_handle_t *)&s->tcp, closed);
}

static void take_usage(struct stream *s, const cJSON *usage)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(usage, "completion_tokens");
    const cJSON *p = cJSON_GetObjectItemCaseSensitive(usage, "prompt_tokens");
    const cJSON *d = cJSON_GetObjectItemCaseSensitive(usage, "prompt_tokens_details");
    const cJSON *c = cJSON_GetObjectItemCaseSensitive(d, "cached_tokens");
    s->load->r.tokens += cJSON_IsNumber(n) ? (uint64_t)n->valuedouble : 0;
    s->load->r.prompt_tokens += cJSON_IsNumber(p) ? (uint64_t)p->valuedouble : 0;
    s->load->r.cached_tokens += cJSON_IsNumber(c) ? (uint64_t)c->valuedouble : 0;
}

/* The text of a choice in either dialect; NULL when the event has none. */
static const char *content_of(const cJSON *choice)
{
    const cJSON *t = cJSON_GetObjectItemCaseSensitive(choice, "text");
    if (t == NULL) {
        const cJSON *delta = cJSON_GetObjectItemCaseSensitive(choice, "delta");
        t = cJSON_GetObjectItemCaseSensitive(delta, "content");
    }
    return cJSON_IsString(t) && t->valuestring[0] != '\0' ? t->valuestring : NULL;
}

static void take_event(struct stream *s, const char *data)
{
    struct load *l = s->load;
    if (strcmp(data, "[DONE]") == 0) {
        s->done_mark = true;
        return;
    }
    cJSON *j = cJSON_Parse(data);
    if (j == NULL || cJSON_GetObjectItemCaseSensitive(j, "error") != NULL) {
        note_fault(s, j == NULL ? "not JSON" : "error event", data);
        cJSON_Delete(j);
        return;
    }
    const cJSON *choice = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(j, "choices"), 0);
    if (content_of(choice) != NULL) {
        uint64_t now = uv_hrtime();
        samples_add(s->events == 0 ? &l->r.ttft : &l->r.itl,
                    (double)(now - (s->events == 0 ? s->t_start : s->t_last)) / 1e3);
        s->t_last = now;
        s->events++;
        if (s->cancel_after != 0 && s->events >= s->cancel_after)
            s->cancelled = true;
    }
    if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(choice, "finish_reason")))
        s->finished = true;
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(j, "usage");
    if (cJSON_IsObject(usage))
        take_usage(s, usage);
    cJSON_Delete(j);
}

static int on_body(llhttp_t *p, const char *at, size_t n)
{
    struct stream *s = p->data;
    if (p->status_code != 200) {
        char text[240];
        snprintf(text, sizeof text, "%.*s", (int)(n < 200 ? n : 200), at);
        note_fault(s, "refused", text);
        return 0;
    }
    if (s->n_text + n + 1 > s->cap_text) {
        s->cap_text = 2 * (s->n_text + n + 1);
        s->text = realloc(s->text, s->cap_text);
        if (s->text == NULL)
            abort();
    }
    memcpy(s->text + s->n_text, at, n);
    s->n_text += n;
    size_t from = 0;
    char *nl;
    while ((nl = memchr(s->text + from, '\n', s->n_text - from)) != NULL) {
        *nl = '\0';
        char *line = s->text + from;
        if (strncmp(line, "data: ", 6) == 0)
            take_event(s, line + 6);
        from = (size_t)(nl - s->text) + 1;
    }
    memmove(s->text, s->text + from, s->n_text - from);
    s->n_text -= from;
    return 0;
}

static int on_complete(llhttp_t *p)
{
    struct stream *s = p->data;
    s->complete = true;
    samples_add(&s->load->r.total, (double)(uv_hrtime() - s->t_start) / 1e3);
    return 0;
}

static void on_alloc(uv_handle_t *h, size_t n, uv_buf_t *buf)
{
    (void)n;
    struct stream *s = h->data;
    *buf = uv_buf_init(s->inbox, sizeof s->inbox);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf)
{
    struct stream *s = h->data;
    if (n > 0) {
        enum llhttp_errno rc = llhttp_execute(&s->parser, buf->base, (size_t)n);
        if (rc != HPE_OK)
            note_fault(s, "bad response", llhttp_errno_name(rc));
    } else if (n < 0 && !s->complete) {
        note_fault(s, "connection cut", uv_strerror((int)n));
    }
    if (n < 0 || s->complete || s->failed || s->cancelled)
        finish(s);
}

static void on_written(uv_write_t *w, int status)
{
    struct stream *s = w->data;
    if (status < 0 && !uv_is_closing((uv_handle_t *)&s->tcp)) {
        note_fault(s, "write", uv_strerror(status));
        finish(s);
    }
}

static void on_connected(uv_connect_t *c, int status)
{
    struct stream *s = c->data;
    if (status < 0) {
        note_fault(s, "connect", uv_strerror(status));
        finish(s);
        return;
    }
    uv_tcp_nodelay(&s->tcp, 1);
    uv_buf_t buf = uv_buf_init(s->request, (unsigned)s->n_request);
    s->write.data = s;
    uv_write(&s->write, (uv_stream_t *)&s->tcp, &buf, 1, on_written);
    uv_read_start((uv_stream_t *)&s->tcp, on_alloc, on_read);
}

/* One prompt: shared_tokens equal in every request, the rest drawn afresh. */
static cJSON *make_prompt(struct load *l)
{
    static const char *const word[] = { "the", "king",  "went", "over", "hill",  "and",   "saw",
                                        "a",   "river", "old",  "tree", "house", "light", "sea" };
    struct rng shared = { 42 };
    cJSON *ids = cJSON_CreateArray();
    char *text = malloc(8 * (size_t)l->o.prompt_tokens + 1);
    size_t n = 0;
    if (ids == NULL || text == NULL)
        abort();
    for (uint32_t i = 0; i < l->o.prompt_tokens; i++) {
        struct rng *r = i < l->o.shared_tokens ? &shared : &l->rng;
        if (l->o.text)
            n += (size_t)sprintf(text + n, "%s ", word[rng_below(r, 14)]);
        else
            cJSON_AddItemToArray(ids, cJSON_CreateNumber(8 + rng_below(r, l->o.vocab - 8)));
    }
    text[n] = '\0';
    cJSON *out = l->o.text ? cJSON_CreateString(text) : ids;
    if (l->o.text)
        cJSON_Delete(ids);
    free(text);
    return out;
}

static void make_request(struct stream *s)
{
    struct load *l = s->load;
    cJSON *j = cJSON_CreateObject();
    if (l->o.chat) {
        cJSON *m = cJSON_CreateObject();
        cJSON_AddStringToObject(m, "role", "user");
        cJSON_AddItemToObject(m, "content", make_prompt(l));
        cJSON_AddItemToArray(cJSON_AddArrayToObject(j, "messages"), m);
    } else {
        cJSON_AddItemToObject(j, "prompt", make_prompt(l));
    }
    if (l->o.model[0] != '\0')
        cJSON_AddStringToObject(j, "model", l->o.model);
    cJSON_AddNumberToObject(j, "max_tokens", l->o.max_tokens);
    cJSON_AddNumberToObject(j, "temperature", l->o.temperature);
    cJSON_AddBoolToObject(j, "stream", true);
    cJSON_AddBoolToObject(cJSON_AddObjectToObject(j, "stream_options"), "include_usage", true);
    if (l->o.ignore_eos)
        cJSON_AddBoolToObject(j, "ignore_eos", true);
    char *body = cJSON_PrintUnformatted(j);
    cJSON_Delete(j);
    size_t cap = strlen(body) + 256;
    s->request = malloc(cap);
    if (s->request == NULL)
        abort();
    s->n_request =
        (size_t)snprintf(s->request, cap,
                         "POST %s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n"
                         "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                         l->o.chat ? "/v1/chat/completions" : "/v1/completions", l->o.host,
                         l->o.port, strlen(body), body);
    free(body);
}

static void start(struct stream *s)
{
    struct load *l = s->load;
    l->started++;
    s->n_text = 0;
    s->events = 0;
    s->finished = s->done_mark = s->failed = s->cancelled = s->complete = false;
    s->cancel_after = rng_unit(&l->rng) < l->o.cancel_share ? 1 + rng_below(&l->rng, 8) : 0;
    make_request(s);
    llhttp_init(&s->parser, HTTP_RESPONSE, &l->settings);
    s->parser.data = s;
    uv_tcp_init(&l->loop, &s->tcp);
    s->tcp.data = s;
    s->connect.data = s;
    s->t_start = uv_hrtime();
    if (uv_tcp_connect(&s->connect, &s->tcp, (const struct sockaddr *)&l->address, on_connected) !=
        0) {
        note_fault(s, "connect", "refused at once");
        finish(s);
    }
}

static void on_deadline(uv_timer_t *t)
{
    struct load *l = t->data;
    l->expired = true;
    for (uint32_t i = 0; i < l->o.concurrency; i++) {
        struct stream *s = &l->streams[i];
        if (s->request != NULL && !uv_is_closing((uv_handle_t *)&s->tcp)) {
            note_fault(s, "timeout", "the run's deadline passed");
            finish(s);
        }
    }
}

int main(int argc, char **argv)
{
    static struct load l;
    if (!load_options_parse(&l.o, argc, argv))
        return 2;
    if (uv_ip4_addr(l.o.host, l.o.port, &l.address) != 0) {
        fprintf(stderr, "stream_load: --host: found '%s', expected an IPv4 address\n", l.o.host);
        return 2;
    }
    l.rng.state = l.o.seed;
    llhttp_settings_init(&l.settings);
    l.settings.on_body = on_body;
    l.settings.on_message_complete = on_complete;
    uv_loop_init(&l.loop);
    uv_timer_init(&l.loop, &l.deadline);
    l.deadline.data = &l;
    uv_timer_start(&l.deadline, on_deadline, 1000ull * l.o.timeout_s, 0);
    if (l.o.concurrency > l.o.requests)
        l.o.concurrency = l.o.requests;
    l.streams = calloc(l.o.concurrency, sizeof *l.streams);
    if (l.streams == NULL)
        return 2;
    uint64_t t0 = uv_hrtime();
    for (uint32_t i = 0; i < l.o.concurrency; i++) {
        l.streams[i].load = &l;
        start(&l.streams[i]);
    }
    uv_run(&l.loop, UV_RUN_DEFAULT);
    l.r.wall_s = (double)(uv_hrtime() - t0) / 1e9;
    uv_loop_close(&l.loop);
    load_report(&l.o, &l.r);
    for (uint32_t i = 0; i < l.o.concurrency; i++)
        free(l.streams[i].text);
    free(l.streams);
    free(l.r.ttft.us);
    free(l.r.itl.us);
    free(l.r.total.us);
    return l.r.lost + l.r.refused == 0 ? 0 : 1;
}
