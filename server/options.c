/* options.c: the rule table and the one function that applies a rule; files,
 * environment and command line are three ways to reach it.
 *
 * Owns nothing static but the const table; strings belong to the struct.  The
 * main thread, before anything else runs. */
#include "server/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum opt_kind { OPT_TEXT, OPT_LIST, OPT_COUNT, OPT_REAL, OPT_FLAG, OPT_CHOICE };

struct opt_rule {
    const char *name;
    enum opt_kind kind;
    size_t at;
    double lo, hi;
    const char *words; /* CHOICE: a|b|c, the value is the index; COUNT: word for 0 */
    const char *initial;
    const char *help;
};

#define AT(field) offsetof(struct srv_options, field)
#define BIG       1e15

static const struct opt_rule rules[] = {
    { "model", OPT_TEXT, AT(model), 0, 0, NULL, NULL,
      "model directory (the same as the MODEL argument)" },
    { "config", OPT_TEXT, AT(config), 0, 0, NULL, NULL,
      "read options from this file: one `name: value` a line" },
    { "tokenizer", OPT_TEXT, AT(tokenizer), 0, 0, NULL, NULL,
      "directory of tokenizer.json; default the model's" },
    { "served-model-name", OPT_LIST, AT(served_names), 0, 0, NULL, NULL,
      "name in the API; repeat, or separate by commas, for several; default the MODEL argument" },
    { "chat-template", OPT_TEXT, AT(chat_template), 0, 0, NULL, NULL,
      "Jinja file, or the template itself; default the model's" },
    { "generation-config", OPT_CHOICE, AT(generation_config), 0, 0, "auto|vllm", "auto",
      "sampling defaults: the model's (auto) or neutral ones (vllm)" },

    { "host", OPT_TEXT, AT(host), 0, 0, NULL, NULL, "address to listen on; default all" },
    { "port", OPT_COUNT, AT(port), 0, 65535, NULL, "8000", "TCP port; 0 lets the system choose" },
    { "uds", OPT_TEXT, AT(uds), 0, 0, NULL, NULL, "listen on this Unix socket instead" },
    { "api-key", OPT_LIST, AT(api_keys), 0, 0, NULL, NULL,
      "key that /v1 and the token endpoints demand; several allowed" },
    { "admin-key", OPT_LIST, AT(admin_keys), 0, 0, NULL, NULL,
      "key that /admin demands; without one /admin answers loopback only" },

    { "device", OPT_CHOICE, AT(device), 0, 0, "auto|cpu|cuda", "auto", "where to compute" },
    { "dtype", OPT_CHOICE, AT(dtype), 0, 0, "auto|float32|bfloat16|float16", "auto",
      "type of weights and KV cache; float32 is exact" },
    { "threads", OPT_COUNT, AT(threads), 0, 4096, "auto", "auto",
      "CPU compute threads; auto: one a physical core" },
    { "max-model-len", OPT_COUNT, AT(max_model_len), 0, 1 << 24, "auto", "auto",
      "context length, prompt and output; auto: the model's, if the pool holds it" },
    { "block-size", OPT_COUNT, AT(block_size), 16, 256, NULL, "16",
      "tokens in a KV block: 16, 32, 64, 128 or 256" },
    { "kv-cache-memory-bytes", OPT_COUNT, AT(kv_bytes), 0, BIG, "auto", "auto",
      "bytes of KV cache; auto: on a CPU a quarter of free memory, at most 4 GiB, on a GPU "
      "what --gpu-memory-utilization leaves" },
    { "gpu-memory-utilization", OPT_REAL, AT(gpu_share), 0.01, 1, NULL, "0.9",
      "share of the GPU's memory that weights, steps and KV cache fill" },
    { "enforce-eager", OPT_FLAG, AT(eager), 0, 0, NULL, "false",
      "never replay captured steps on a GPU" },
    { "overlap", OPT_CHOICE, AT(overlap), 0, 0, "auto|on|off", "auto",
      "plan a step while the one before it runs; auto: on a GPU" },
    { "num-gpu-blocks-override", OPT_COUNT, AT(n_blocks), 0, 1 << 30, "auto", "auto",
      "exact number of KV blocks" },
    { "poison-kv-blocks", OPT_FLAG, AT(poison), 0, 0, NULL, "false",
      "debugging: fill a KV block with NaN whenever it begins to be used" },
    { "enable-prefix-caching", OPT_FLAG, AT(prefix_caching), 0, 0, NULL, "true",
      "share computed prefixes between requests" },
    { "cache-pin-budget", OPT_REAL, AT(pin_budget), 0, 0.9, NULL, "0",
      "share of the KV blocks that pinned prefixes may hold; requests are sized for the rest" },
    { "max-cache-pins", OPT_COUNT, AT(max_pins), 1, 4096, NULL, "64", "pinned prefixes at once" },

    { "max-num-seqs", OPT_COUNT, AT(max_num_seqs), 1, 65536, NULL, "256",
      "sequences running at once" },
    { "max-num-batched-tokens", OPT_COUNT, AT(max_num_batched_tokens), 0, 1 << 20, "auto", "auto",
      "tokens computed in a step; auto: 512 on a CPU, else 2048" },
    { "long-prefill-token-threshold", OPT_COUNT, AT(long_prefill_threshold), 0, 1 << 20, NULL, "0",
      "most tokens of one prompt in a step; 0: the step's budget" },
    { "max-num-partial-prefills", OPT_COUNT, AT(max_partial_prefills), 1, 65536, NULL, "1",
      "prompts part-computed at once" },
    { "look-ahead-tokens", OPT_COUNT, AT(look_ahead_tokens), 1, 1 << 20, NULL, "64",
      "room to grow that a request should find before it starts; 1: none, preempt sooner" },
    { "scheduling-policy", OPT_CHOICE, AT(policy), 0, 0, "fcfs|priority", "fcfs",
      "order of waiting requests" },
    { "max-num-queued-reqs", OPT_COUNT, AT(max_queued_reqs), 1, 1 << 20, NULL, "1024",
      "waiting requests; more are refused with 429" },
    { "max-num-queued-tokens", OPT_COUNT, AT(max_queued_tokens), 0, BIG, NULL, "0",
      "prompt tokens of waiting requests; 0: no cap" },
    { "itl-target-ms", OPT_COUNT, AT(itl_target_ms), 0, 60000, NULL, "0",
      "size prompt chunks so that a step takes about this long; 0: off" },

    { "max-logprobs", OPT_COUNT, AT(max_logprobs), 0, 1024, NULL, "20",
      "most alternatives a request may ask for" },
    { "stream-interval", OPT_COUNT, AT(stream_interval), 1, 4096, NULL, "1",
      "tokens a streamed chunk holds" },
    { "seed", OPT_COUNT, AT(seed), 0, BIG, "auto", "auto",
      "make the seeds of unseeded requests repeatable; auto: random" },
    { "enable-force-include-usage", OPT_FLAG, AT(force_include_usage), 0, 0, NULL, "false",
      "end every stream with usage" },
    { "enable-request-id-headers", OPT_FLAG, AT(request_id_headers), 0, 0, NULL, "true",
      "answer with x-request-id" },

    { "max-connections", OPT_COUNT, AT(max_connections), 1, 1 << 20, NULL, "4096",
      "open connections; more are answered 503 and closed" },
    { "max-body-bytes", OPT_COUNT, AT(max_body_bytes), 1024, BIG, NULL, "32M",
      "largest request body" },
    { "max-total-body-bytes", OPT_COUNT, AT(max_total_body_bytes), 1024, BIG, NULL, "1G",
      "request bodies held at once, over all connections; more are refused with 503" },
    { "max-header-bytes", OPT_COUNT, AT(max_header_bytes), 1024, 1 << 24, NULL, "64K",
      "largest request head" },
    { "stream-buffer-bytes", OPT_COUNT, AT(stream_buffer_bytes), 4096, BIG, NULL, "1M",
      "unsent bytes a stream may pile up before it is dropped" },
    { "http-header-timeout", OPT_REAL, AT(header_timeout), 0.01, 86400, NULL, "10",
      "seconds in which a request's head must arrive" },
    { "http-body-timeout", OPT_REAL, AT(body_timeout), 0.01, 86400, NULL, "60",
      "seconds in which a request's body must arrive" },
    { "http-idle-timeout", OPT_REAL, AT(idle_timeout), 0.01, 86400, NULL, "75",
      "seconds an idle connection is kept" },
    { "http-write-timeout", OPT_REAL, AT(write_timeout), 0.01, 86400, NULL, "20",
      "seconds a reader may take nothing before it is dropped" },
    { "health-timeout", OPT_REAL, AT(health_timeout), 0.01, 86400, NULL, "60",
      "seconds without a finished step, with work waiting, until /health says 503" },
    { "shutdown-timeout", OPT_REAL, AT(shutdown_timeout), 0, 86400, NULL, "30",
      "seconds that running requests get after SIGTERM" },

    { "step-history", OPT_COUNT, AT(step_history), 0, 65536, NULL, "512",
      "steps that /admin/steps remembers; 0: none" },
    { "log-level", OPT_CHOICE, AT(log_level), 0, 0, "debug|info|warning|error", "info",
      "least level that is logged; debug: also connections, each request's sizes and times as it "
      "goes, a summary of steps once a second, and which kernels compute" },
    { "log-format", OPT_CHOICE, AT(log_format), 0, 0, "text|json", "text", "form of log lines" },
    { "enable-log-requests", OPT_FLAG, AT(log_requests), 0, 0, NULL, "true",
      "log one line a request, at its end" },
    { "plan", OPT_FLAG, AT(plan), 0, 0, NULL, "false", "print the memory arithmetic and exit" },
    { "help", OPT_FLAG, AT(help), 0, 0, NULL, "false", "print this and exit" },
    { "version", OPT_FLAG, AT(version), 0, 0, NULL, "false", "print the version and exit" },
};

enum { N_RULES = sizeof rules / sizeof *rules };

/* Flags of vLLM that deployments carry along and that change nothing here:
 * accepted with a warning.  'v' takes a value, 'f' does not. */
static const struct {
    const char *name;
    char form;
} without_effect[] = {
    { "trust-remote-code", 'f' },
    { "enable-chunked-prefill", 'f' },
    { "disable-log-stats", 'f' },
    { "disable-log-requests", 'f' },
    { "swap-space", 'v' },
    { "enable-prompt-tokens-details", 'f' },
    { "prefix-caching-hash-algo", 'v' },
};

struct srv_text {
    struct srv_text *next;
    char text[];
};

/* A copy that lives as long as the options; NULL when memory is short. */
static const char *keep(struct srv_options *o, const char *text)
{
    size_t n = strlen(text) + 1;
    struct srv_text *t = malloc(sizeof *t + n);

    if (t == NULL)
        return NULL;
    memcpy(t->text, text, n);
    t->next = o->texts;
    o->texts = t;
    return t->text;
}

enum err_code srv_parse_size(const char *text, uint64_t *out, struct err *e)
{
    static const char units[] = "kmgt";
    char *end;
    double v, scale = 1;

    if (!isdigit((unsigned char)text[0]) && text[0] != '.')
        goto bad;
    errno = 0;
    v = strtod(text, &end);
    if (errno != 0 || !isfinite(v) || memchr(text, 'x', (size_t)(end - text)))
        goto bad;
    if (*end != '\0' && strchr(units, tolower((unsigned char)*end))) {
        const char *u = strchr(units, tolower((unsigned char)*end));
        bool binary = isupper((unsigned char)*end) || end[1] == 'i';
        for (const char *p = units; p <= u; p++)
            scale *= binary ? 1024 : 1000;
        end++;
        if (*end == 'i')
            end++;
    }
    if (*end == 'B')
        end++;
    v *= scale;
    if (*end != '\0' || v > BIG || v != floor(v))
        goto bad;
    *out = (uint64_t)v;
    return ERR_OK;
bad:
    return err_set(e, ERR_INVALID, "%s: not a whole number such as 4096, 128k, 128K or 1.5G", text);
}

uint32_t srv_edit_distance(const char *a, const char *b)
{
    enum { MOST = 48 };
    uint32_t row[3][MOST + 1];
    size_t na = strlen(a), nb = strlen(b);

    if (na > MOST || nb > MOST)
        return MOST;
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = (uint32_t)j;
    for (size_t i = 1; i <= na; i++) {
        uint32_t *now = row[i % 3], *up = row[(i - 1) % 3], *up2 = row[(i + 1) % 3];
        now[0] = (uint32_t)i;
        for (size_t j = 1; j <= nb; j++) {
            uint32_t best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

static const struct opt_rule *find_rule(const char *name)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}

static enum err_code unknown(const char *name, struct err *e)
{
    const char *best = NULL;
    uint32_t least = 1 + (uint32_t)strlen(name) / 3;
    bool no = strncmp(name, "no-", 3) == 0;

    if (least < 3)
        least = 3;
    for (size_t i = 0; i < N_RULES; i++) {
        uint32_t d = srv_edit_distance(name + (no ? 3 : 0), rules[i].name);
        if (d < least) {
            least = d;
            best = rules[i].name;
        }
    }
    if (best)
        return err_set_param(e, ERR_INVALID, name, "--%s: unknown option; did you mean --%s%s?",
                             name, no && find_rule(best)->kind == OPT_FLAG ? "no-" : "", best);
    return err_set_param(e, ERR_INVALID, name, "--%s: unknown option; --help lists them", name);
}

/* Index of word in "a|b|c", -1 when it is none. */
static int find_word(const char *words, const char *word)
{
    size_t n = strlen(word);
    int i = 0;

    for (const char *w = words; w && n; i++) {
        const char *bar = strchr(w, '|');
        size_t len = bar ? (size_t)(bar - w) : strlen(w);
        if (len == n && memcmp(w, word, n) == 0)
            return i;
        w = bar ? bar + 1 : NULL;
    }
    return -1;
}

static enum err_code apply_count(struct srv_options *o, const struct opt_rule *r, const char *value,
                                 struct err *e)
{
    uint64_t *slot = (uint64_t *)((char *)o + r->at), v = 0;

    if (!(r->words && (strcmp(value, r->words) == 0 || strcmp(value, "-1") == 0))) {
        enum err_code rc = srv_parse_size(value, &v, NULL);
        if (rc != ERR_OK)
            return err_set_param(e, rc, r->name, "--%s: \"%s\" is not a number%s%s", r->name, value,
                                 r->words ? " or " : "", r->words ? r->words : "");
        if ((double)v < r->lo || (double)v > r->hi)
            return err_set_param(e, ERR_INVALID, r->name, "--%s: %s is outside %.0f to %.0f",
                                 r->name, value, r->lo, r->hi);
        if (r->at == AT(seed))
            o->seed_given = true;
    }
    *slot = v;
    return ERR_OK;
}

static enum err_code apply_list(struct srv_options *o, const struct opt_rule *r, const char *value,
                                struct err *e)
{
    struct srv_list *l = (struct srv_list *)((char *)o + r->at);
    const char *copy = keep(o, value);
    char *rest = (char *)copy;

    if (copy == NULL)
        return err_nomem(e, r->name, strlen(value));
    for (char *item; (item = strsep(&rest, ",")) != NULL;) {
        while (*item == ' ')
            item++;
        if (*item == '\0')
            return err_set_param(e, ERR_INVALID, r->name, "--%s: an empty entry", r->name);
        if (l->n == SRV_LIST_MAX)
            return err_set_param(e, ERR_INVALID, r->name, "--%s: more than %d entries", r->name,
                                 SRV_LIST_MAX);
        l->item[l->n++] = item;
    }
    return ERR_OK;
}

static enum err_code apply(struct srv_options *o, const struct opt_rule *r, const char *value,
                           struct err *e)
{
    char *base = (char *)o + r->at, *end;
    int i;

    switch (r->kind) {
    case OPT_TEXT:
        if (*value == '\0')
            return err_set_param(e, ERR_INVALID, r->name, "--%s: empty", r->name);
        *(const char **)base = keep(o, value);
        return *(const char **)base ? ERR_OK : err_nomem(e, r->name, strlen(value));
    case OPT_LIST:
        return apply_list(o, r, value, e);
    case OPT_COUNT:
        return apply_count(o, r, value, e);
    case OPT_REAL: {
        double v = strtod(value, &end);
        if (end == value || *end != '\0' || !(v >= r->lo && v <= r->hi))
            return err_set_param(e, ERR_INVALID, r->name,
                                 "--%s: \"%s\" is not a number of %g to %g", r->name, value, r->lo,
                                 r->hi);
        *(double *)base = v;
        return ERR_OK;
    }
    case OPT_FLAG:
        i = find_word("false|true|0|1|no|yes|off|on", value);
        if (i < 0)
            return err_set_param(e, ERR_INVALID, r->name, "--%s: \"%s\" is not true or false",
                                 r->name, value);
        *(bool *)base = i & 1;
        return ERR_OK;
    case OPT_CHOICE:
        i = find_word(r->words, value);
        if (i < 0)
            return err_set_param(e, ERR_INVALID, r->name, "--%s: \"%s\" is none of %s", r->name,
                                 value, r->words);
        *(int *)base = i;
        return ERR_OK;
    }
    return ERR_OK;
}

/* A list set by a nearer source replaces the farther source's whole list. */
static void clear_list(struct srv_options *o, const struct opt_rule *r, bool seen[N_RULES])
{
    if (r->kind == OPT_LIST && !seen[r - rules])
        memset((char *)o + r->at, 0, sizeof(struct srv_list));
    seen[r - rules] = true;
}

/* Names may be written with underscores. */
static void dashes(char *s)
{
    for (; *s; s++)
        if (*s == '_')
            *s = '-';
}

/* One `name: value` or `name = value` line; comments and blanks are skipped. */
static enum err_code file_line(struct srv_options *o, char *line, unsigned number,
                               bool seen[N_RULES], struct err *e)
{
    char *name = line + strspn(line, " \t"), *value, *end;
    const struct opt_rule *r;
    struct err inner = { 0 };
    enum err_code rc;

    if (*name == '#' || *name == '\0' || strncmp(name, "---", 3) == 0)
        return ERR_OK;
    value = strpbrk(name, ":=");
    if (value == NULL)
        return err_set_param(e, ERR_INVALID, "config", "%s line %u: \"%.80s\" is not name: value",
                             o->config, number, name);
    for (end = value; end > name && isspace((unsigned char)end[-1]);)
        end--;
    *value++ = '\0';
    *end = '\0';
    dashes(name);
    value += strspn(value, " \t");
    end = value + strlen(value);
    if (*value != '"' && *value != '\'' && strstr(value, " #"))
        end = strstr(value, " #");
    while (end > value && isspace((unsigned char)end[-1]))
        end--;
    if (end - value >= 2 && (*value == '"' || *value == '\'') && end[-1] == *value)
        value++, end--;
    else if (end - value >= 2 && *value == '[' && end[-1] == ']')
        value++, end--;
    *end = '\0';
    r = find_rule(name);
    if (r && strcmp(name, "config") == 0)
        rc = err_set(&inner, ERR_INVALID, "config: a configuration file cannot name another");
    else if (r == NULL)
        rc = unknown(name, &inner);
    else {
        clear_list(o, r, seen);
        rc = apply(o, r, value, &inner);
    }
    if (rc != ERR_OK)
        return err_set_param(e, rc, name, "%s line %u: %s", o->config, number, inner.message);
    return ERR_OK;
}

static enum err_code read_file(struct srv_options *o, struct err *e)
{
    bool seen[N_RULES] = { false };
    FILE *f = fopen(o->config, "r");
    char line[4096];
    enum err_code rc = ERR_OK;

    if (f == NULL)
        return err_set_param(e, ERR_INVALID, "config", "--config: %s: %s", o->config,
                             strerror(errno));
    for (unsigned n = 1; rc == ERR_OK && fgets(line, sizeof line, f); n++) {
        size_t len = strlen(line);
        if (len + 1 == sizeof line) {
            rc = err_set_param(e, ERR_INVALID, "config", "%s line %u: longer than %zu bytes",
                               o->config, n, sizeof line - 2);
            break;
        }
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            line[--len] = '\0';
        rc = file_line(o, line, n, seen, e);
    }
    fclose(f);
    return rc;
}

static const char *lookup_env(char *const envp[], const char *name)
{
    size_t n = strlen(name);

    for (; envp && *envp; envp++)
        if (strncmp(*envp, name, n) == 0 && (*envp)[n] == '=')
            return *envp + n + 1;
    return NULL;
}

static enum err_code read_env(struct srv_options *o, char *const envp[], struct err *e)
{
    bool seen[N_RULES] = { false };

    for (size_t i = 0; i < N_RULES; i++) {
        char name[80] = "QUIRE_";
        size_t n = 6;
        for (const char *p = rules[i].name; *p && n + 1 < sizeof name; p++)
            name[n++] = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
        name[n] = '\0';
        const char *value = lookup_env(envp, name);
        if (value == NULL && rules[i].at == AT(api_keys))
            value = lookup_env(envp, "VLLM_API_KEY");
        if (value == NULL || *value == '\0')
            continue;
        clear_list(o, &rules[i], seen);
        enum err_code rc = apply(o, &rules[i], value, e);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* An argument that changes nothing here: true, and *takes whether a value follows. */
static bool is_without_effect(const char *name, bool *takes)
{
    if (strncmp(name, "no-", 3) == 0)
        name += 3;
    for (size_t i = 0; i < sizeof without_effect / sizeof *without_effect; i++)
        if (strcmp(without_effect[i].name, name) == 0) {
            *takes = without_effect[i].form == 'v';
            return true;
        }
    return false;
}

/* Apply argv[i], which starts with a dash; returns how many arguments it took. */
static enum err_code flag(struct srv_options *o, char *const argv[], int argc, int *i,
                          bool seen[N_RULES], struct err *e)
{
    char name[64];
    const char *arg = argv[*i] + 1 + (argv[*i][1] == '-'), *value = strchr(arg, '=');
    size_t n = value ? (size_t)(value - arg) : strlen(arg);
    bool takes = false, no = false;

    if (n >= sizeof name)
        return err_set(e, ERR_INVALID, "%.60s...: unknown option; --help lists them", argv[*i]);
    memcpy(name, arg, n);
    name[n] = '\0';
    dashes(name);
    if (argv[*i][1] != '-') {
        const char *full = strcmp(name, "h") == 0   ? "help"
                           : strcmp(name, "V") == 0 ? "version"
                                                    : "";
        if (*full == '\0')
            return err_set(e, ERR_INVALID, "%s: unknown option; --help lists them", argv[*i]);
        strcpy(name, full);
    }
    if (value)
        value++;
    const struct opt_rule *r = find_rule(name);
    if (r == NULL && strncmp(name, "no-", 3) == 0) {
        r = find_rule(name + 3);
        no = r && r->kind == OPT_FLAG && value == NULL;
        if (!no)
            r = NULL;
    }
    if (r == NULL && is_without_effect(name, &takes)) {
        if (o->n_ignored < SRV_LIST_MAX)
            o->ignored[o->n_ignored++] = argv[*i];
        if (takes && value == NULL)
            ++*i;
        return ERR_OK;
    }
    if (r == NULL)
        return unknown(name, e);
    if (r->kind == OPT_FLAG && value == NULL)
        value = no ? "false" : "true";
    if (value == NULL) {
        if (*i + 1 >= argc)
            return err_set_param(e, ERR_INVALID, name, "--%s: needs a value", name);
        value = argv[++*i];
    }
    clear_list(o, r, seen);
    return apply(o, r, value, e);
}

static enum err_code read_args(struct srv_options *o, int argc, char *const argv[], struct err *e)
{
    bool seen[N_RULES] = { false }, only_model = false, have_model = false;

    for (int i = 1; i < argc; i++) {
        if (!only_model && strcmp(argv[i], "--") == 0) {
            only_model = true;
        } else if (!only_model && argv[i][0] == '-' && argv[i][1] != '\0') {
            enum err_code rc = flag(o, argv, argc, &i, seen, e);
            if (rc != ERR_OK)
                return rc;
        } else if (have_model) {
            return err_set(e, ERR_INVALID, "%s: a second MODEL argument; one expected", argv[i]);
        } else {
            have_model = true;
            enum err_code rc = apply(o, find_rule("model"), argv[i], e);
            if (rc != ERR_OK)
                return rc;
        }
    }
    return ERR_OK;
}

/* --config must be known before the other sources are read. */
static const char *early_config(int argc, char *const argv[], char *const envp[])
{
    const char *found = lookup_env(envp, "QUIRE_CONFIG");

    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            found = argv[i] + 9;
        else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            found = argv[i + 1];
    }
    return found;
}

static enum err_code check(const struct srv_options *o, struct err *e)
{
    if (o->block_size & (o->block_size - 1))
        return err_set_param(e, ERR_INVALID, "block-size",
                             "--block-size: %llu is not a power of two of 16 to 256",
                             (unsigned long long)o->block_size);
    if (o->max_total_body_bytes < o->max_body_bytes)
        return err_set_param(e, ERR_INVALID, "max-total-body-bytes",
                             "--max-total-body-bytes: %llu is less than --max-body-bytes, %llu",
                             (unsigned long long)o->max_total_body_bytes,
                             (unsigned long long)o->max_body_bytes);
    if (!o->help && !o->version && o->model == NULL)
        return err_set_param(e, ERR_INVALID, "model",
                             "no MODEL given: name a model directory (quired --help)");
    return ERR_OK;
}

enum err_code srv_options_read(struct srv_options *out, int argc, char *const argv[],
                               char *const envp[], struct err *e)
{
    enum err_code rc = ERR_OK;
    const char *config = early_config(argc, argv, envp);

    memset(out, 0, sizeof *out);
    for (size_t i = 0; rc == ERR_OK && i < N_RULES; i++)
        if (rules[i].initial)
            rc = apply(out, &rules[i], rules[i].initial, e);
    if (rc == ERR_OK && config) {
        rc = apply(out, find_rule("config"), config, e);
        if (rc == ERR_OK)
            rc = read_file(out, e);
    }
    if (rc == ERR_OK)
        rc = read_env(out, envp, e);
    if (rc == ERR_OK)
        rc = read_args(out, argc, argv, e);
    if (rc == ERR_OK)
        rc = check(out, e);
    return rc;
}

void srv_options_fini(struct srv_options *o)
{
    while (o->texts) {
        struct srv_text *t = o->texts;
        o->texts = t->next;
        free(t);
    }
    memset(o, 0, sizeof *o);
}

bool srv_options_row(size_t i, struct srv_option *out)
{
    if (i >= N_RULES)
        return false;
    *out = (struct srv_option){ rules[i].name, rules[i].initial, rules[i].help };
    return true;
}

void srv_options_help(FILE *f)
{
    static const char *const form[] = {
        [OPT_TEXT] = " TEXT", [OPT_LIST] = " TEXT", [OPT_COUNT] = " N",
        [OPT_REAL] = " S",    [OPT_FLAG] = "",      [OPT_CHOICE] = " ",
    };

    fputs("usage: quired [options] MODEL\n\n"
          "Serve the model in directory MODEL over an OpenAI-compatible HTTP API.\n"
          "Every option may also stand in a file (--config) or the environment\n"
          "(QUIRE_PORT=8000); the command line wins.  Numbers may be written 128k\n"
          "(128,000), 128K (131,072), 4G.  --no-NAME turns a flag off.\n\n",
          f);
    for (size_t i = 0; i < N_RULES; i++) {
        const struct opt_rule *r = &rules[i];
        bool on = r->kind == OPT_FLAG && strcmp(r->initial, "true") == 0;
        fprintf(f, "  --%s%s%s\n        %s", r->name, form[r->kind],
                r->kind == OPT_CHOICE ? r->words : "", r->help);
        if (r->kind == OPT_FLAG)
            fprintf(f, "%s", on ? " (on)" : "");
        else if (r->initial)
            fprintf(f, " (%s)", r->initial);
        fputc('\n', f);
    }
}
