/* attention_plan_fuzz.c: see attention_plan_fuzz.h.  Properties:
 * (1) Whatever the shapes, types and attributes, attn_plan returns ERR_OK, or a
 *     rejection with a message and a name.
 * (2) An accepted call runs on buffers of exactly its shapes, whatever lengths,
 *     tables, slots and positions hold, without touching a byte outside. */
#include "fuzz/attention_plan_fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attn.h"

#define REQUIRE(c)                                                                                 \
    do {                                                                                           \
        if (!(c)) {                                                                                \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #c);                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static uint64_t n_planned, n_accepted, n_ran;

void attention_plan_fuzz_counts(uint64_t *planned, uint64_t *accepted, uint64_t *ran)
{
    *planned = n_planned;
    *accepted = n_accepted;
    *ran = n_ran;
}

/* ---- bytes -------------------------------------------------------------------- */

struct bytes {
    const uint8_t *at;
    size_t left;
    uint64_t spin; /* after the end: a fixed sequence */
};

static uint32_t take(struct bytes *b, uint32_t below)
{
    uint32_t x = 0;
    for (int i = 0; i < 2; i++) {
        if (b->left > 0) {
            x = x << 8 | *b->at++;
            b->left--;
        } else {
            b->spin = b->spin * 6364136223846793005u + 1442695040888963407u;
            x = x << 8 | (uint32_t)(b->spin >> 56);
        }
    }
    return x % below;
}

/* Numbers near every edge. */
static int64_t edge(struct bytes *b)
{
    static const int64_t edges[] = { 0,
                                     1,
                                     -1,
                                     2,
                                     3,
                                     7,
                                     8,
                                     15,
                                     16,
                                     17,
                                     32,
                                     64,
                                     100,
                                     128,
                                     255,
                                     256,
                                     -2147483648LL,
                                     2147483647,
                                     2147483648LL,
                                     1LL << 40,
                                     INT64_MAX,
                                     INT64_MIN };
    return edges[take(b, sizeof edges / sizeof *edges)];
}

/* ---- a call -------------------------------------------------------------------- */

static struct attn_tensor view(enum attn_dtype d, int32_t rank, int64_t a, int64_t b, int64_t c,
                               int64_t e)
{
    return attn_view(NULL, d, rank, a, b, c, e);
}

struct dims {
    int64_t tokens, batch, heads, kv_heads, d, dv, blocks, block, cols;
};

static void add_features(struct bytes *b, struct attn_attrs *at, struct attn_args *a,
                         const struct dims *m, enum attn_dtype t)
{
    struct attn_tensor *in = a->in;
    bool latent = at->kv_cache_layout == ATTN_LATENT;
    if (take(b, 2)) {
        int64_t half = 1 + take(b, (uint32_t)m->d / 2);
        at->do_rotary = 1;
        at->rotary_interleaved = (int32_t)take(b, 2);
        in[ATTN_COS_CACHE] = in[ATTN_SIN_CACHE] = view(t, 2, 1 + take(b, 40), half, 0, 0);
    }
    if (take(b, 2))
        in[ATTN_SLOT_MAPPING] = view(ATTN_I32, 1, m->tokens, 0, 0, 0);
    if (take(b, 2))
        in[ATTN_QUERY_POSITIONS] = view(ATTN_I32, 1, m->tokens, 0, 0, 0);
    if (!latent && take(b, 2))
        in[ATTN_HEAD_SINK] = view(t, 1, m->heads, 0, 0, 0);
    if (!latent && take(b, 2))
        in[ATTN_Q_NORM_WEIGHT] = in[ATTN_K_NORM_WEIGHT] = view(t, 1, m->d, 0, 0, 0);
    if (take(b, 2))
        in[ATTN_BIAS] = view(t, 4, take(b, 2) ? 1 : m->batch, take(b, 2) ? 1 : m->heads, take(b, 6),
                             take(b, 60));
    if (take(b, 2))
        in[ATTN_BIAS] = (struct attn_tensor){ 0 };
    if (take(b, 3) == 0) {
        at->qk_output = 1 + (int32_t)take(b, 2);
        a->out[ATTN_QK] = view((enum attn_dtype)take(b, 3), 3, m->heads, m->tokens, take(b, 70), 0);
    }
    if (take(b, 3) == 0)
        in[ATTN_METADATA] = view(ATTN_I32, 1, 2, 0, 0, 0);
    at->local_window_size = take(b, 2) ? -1 : 1 + (int32_t)take(b, 50);
    at->softcap = take(b, 3) ? 0 : 3;
}

/* A call that is valid but for what `spoil` does to it afterwards. */
static void make_call(struct bytes *b, struct attn_attrs *at, struct attn_args *a)
{
    enum attn_dtype t = (enum attn_dtype)take(b, 3), cache = t;
    bool latent = take(b, 4) == 0, packed = !latent && take(b, 3) == 0;
    struct dims m = { .tokens = take(b, 9),
                      .batch = 1 + take(b, 4),
                      .kv_heads = latent ? 1 : 1 + take(b, 3),
                      .d = 8 * (1 + take(b, 6)),
                      .blocks = take(b, 6),
                      .block = 16 << take(b, 3),
                      .cols = take(b, 5) };
    m.heads = m.kv_heads * (1 + take(b, 5));
    *at = attn_attrs_default((int32_t)m.heads, (int32_t)m.kv_heads);
    memset(a, 0, sizeof *a);
    m.dv = m.d;
    if (latent) {
        at->kv_cache_layout = ATTN_LATENT;
        at->scale = 0.2f;
        m.dv = 1 + take(b, (uint32_t)m.d);
        at->v_head_size = (int32_t)m.dv;
    }
    if (take(b, 2)) {
        cache = take(b, 2) ? ATTN_INT8 : ATTN_E4M3;
        at->k_quant_type = 1 + (int32_t)take(b, 2);
        at->v_quant_type = latent ? 0 : 1 + (int32_t)take(b, 2);
    }
    a->in[ATTN_QUERY] = view(t, 2, m.tokens, (m.heads + (packed ? 2 * m.kv_heads : 0)) * m.d, 0, 0);
    if (!packed)
        a->in[ATTN_KEY] = view(t, 2, m.tokens, m.kv_heads * m.d, 0, 0);
    if (!packed && !latent)
        a->in[ATTN_VALUE] = a->in[ATTN_KEY];
    a->in[ATTN_KEY_CACHE] = view(cache, 4, m.blocks, m.block, m.kv_heads, m.d);
    if (!latent)
        a->in[ATTN_VALUE_CACHE] = a->in[ATTN_KEY_CACHE];
    a->in[ATTN_CU_SEQLENS] = view(ATTN_I32, 1, m.batch + 1, 0, 0, 0);
    a->in[ATTN_PAST_SEQLENS] = view(ATTN_I32, 1, m.batch, 0, 0, 0);
    a->in[ATTN_BLOCK_TABLE] = view(ATTN_I32, 2, m.batch, m.cols, 0, 0);
    for (int v = 0; v < 2; v++) {
        int32_t quant = v ? at->v_quant_type : at->k_quant_type;
        if (quant != 0)
            a->in[ATTN_K_SCALE + v] = quant == ATTN_PER_TENSOR
                                          ? view(ATTN_F32, 1, 1, 0, 0, 0)
                                          : view(ATTN_F32, 3, m.kv_heads, 1, m.d, 0);
    }
    a->out[ATTN_OUT] = view(t, 2, m.tokens, m.heads * m.dv, 0, 0);
    add_features(b, at, a, &m, t);
}

static void spoil(struct bytes *b, struct attn_attrs *at, struct attn_args *a)
{
    int32_t *const ints[] = { &at->num_heads,    &at->kv_num_heads,       &at->local_window_size,
                              &at->do_rotary,    &at->rotary_interleaved, &at->rotary_offset,
                              &at->k_quant_type, &at->v_quant_type,       &at->kv_cache_layout,
                              &at->v_head_size,  &at->qk_output };
    static const char *const names[] = { "", "int8", "uint4", "int4", "bfloat16", "nonsense" };
    uint32_t which = take(b, 40);
    struct attn_tensor *t = which < ATTN_INPUTS ? &a->in[which] : &a->out[which % ATTN_OUTPUTS];
    switch (take(b, 8)) {
    case 0:
        *ints[take(b, sizeof ints / sizeof *ints)] = (int32_t)edge(b);
        break;
    case 1:
        t->rank = (int32_t)take(b, 7) - 1;
        break;
    case 2:
        t->dtype = (enum attn_dtype)take(b, 8);
        break;
    case 3:
        t->shape[take(b, ATTN_RANK)] = edge(b);
        break;
    case 4:
        t->shape[take(b, ATTN_RANK)] += (int64_t)take(b, 5) - 2;
        break;
    case 5:
        t->device = (enum attn_device)take(b, 3);
        break;
    case 6:
        at->k_cache_dtype = names[take(b, 6)];
        break;
    default:
        *(take(b, 2) ? &at->scale : &at->softcap) = (float)edge(b);
        break;
    }
}

/* ---- running --------------------------------------------------------------------- */

static size_t bytes_of(const struct attn_tensor *t)
{
    size_t n = t->rank > 0 ? attn_dtype_bytes(t->dtype) : 0;
    for (int i = 0; i < t->rank; i++)
        n = t->shape[i] == 0 ? 0 : n > (size_t)1 << 40 ? n : n * (size_t)t->shape[i];
    return n;
}

/* Integers near every edge half of the time, else small. */
static void fill(struct bytes *b, struct attn_tensor *t, size_t n)
{
    if (t->dtype == ATTN_I32)
        for (size_t i = 0; i < n / 4; i++)
            ((int32_t *)t->data)[i] = take(b, 4) == 0 ? (int32_t)edge(b) : (int32_t)take(b, 40) - 1;
    else
        for (size_t i = 0; i < n; i++)
            ((uint8_t *)t->data)[i] = (uint8_t)take(b, 256);
}

static void run(struct bytes *b, struct attn *a, const struct attn_plan *plan,
                const struct attn_args *shapes)
{
    struct attn_args args = *shapes;
    struct attn_tensor *all[ATTN_INPUTS + ATTN_OUTPUTS];
    struct err e = { 0 };
    void *workspace;
    int n = 0;
    for (int i = 0; i < ATTN_INPUTS; i++)
        all[n++] = &args.in[i];
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        all[n++] = &args.out[o];
    for (int i = 0; i < n; i++) {
        size_t bytes = bytes_of(all[i]);
        all[i]->data = NULL;
        if (bytes == 0)
            continue;
        all[i]->data = malloc(bytes);
        REQUIRE(all[i]->data != NULL);
        fill(b, all[i], bytes);
    }
    for (int o = 0; o < 2; o++)
        if (attn_present(&args.out[ATTN_KEY_CACHE_OUT + o])) {
            free(args.out[ATTN_KEY_CACHE_OUT + o].data);
            args.out[ATTN_KEY_CACHE_OUT + o].data = args.in[ATTN_KEY_CACHE + o].data;
        }
    workspace = malloc(plan->workspace_bytes);
    REQUIRE(workspace != NULL);
    REQUIRE(attn_run(a, plan, &args, workspace, NULL, &e) == ERR_OK);
    n_ran++;
    free(workspace);
    for (int i = 0; i < n; i++)
        if (all[i] != &args.out[ATTN_KEY_CACHE_OUT] && all[i] != &args.out[ATTN_VALUE_CACHE_OUT])
            free(all[i]->data);
}

void attention_plan_fuzz(const uint8_t *data, size_t size)
{
    struct bytes b = { data, size, size + 1 };
    struct attn_options opt = { .qk_bytes_limit = 1 << 20 };
    struct attn *a = NULL;
    struct attn_attrs attrs;
    struct attn_args args;
    struct attn_plan plan;
    struct err e = { 0 };
    int32_t meta[2] = { 0, 0 };
    size_t total = 0;
    enum err_code rc;
    REQUIRE(attn_open(&a, &opt, &e) == ERR_OK);
    make_call(&b, &attrs, &args);
    for (uint32_t i = take(&b, 4); i > 1; i--)
        spoil(&b, &attrs, &args);
    for (int i = 0; i < 2; i++)
        meta[i] = take(&b, 3) ? (int32_t)take(&b, 100) : (int32_t)edge(&b);
    args.in[ATTN_METADATA].data = meta;
    n_planned++;
    rc = attn_plan(a, &attrs, &args, &plan, &e);
    if (rc != ERR_OK) {
        REQUIRE(rc == ERR_INVALID || rc == ERR_LIMIT);
        REQUIRE(e.code == rc && e.message[0] != '\0' && e.param[0] != '\0');
        attn_close(a);
        return;
    }
    n_accepted++;
    for (int i = 0; i < ATTN_INPUTS; i++)
        total += bytes_of(&args.in[i]);
    for (int o = 0; o < ATTN_OUTPUTS; o++)
        total += bytes_of(&args.out[o]);
    if (total < 1 << 20 && plan.workspace_bytes < 16 << 20)
        run(&b, a, &plan, &args);
    attn_close(a);
}
