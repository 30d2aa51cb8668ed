/* linear.c: see linear.h. */
#include "model/cpu/linear.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "model/load/convert.h"
#include "model/cpu/vmath.h"
#include "proto/number/formats.h"

enum {
    HUGE_BYTES = 2 << 20,
    GROUP_BYTES = 512 << 10, /* panels that stay in a core's cache over many blocks */
    TASKS_PER_WORKER = 8,
    INLINE_WORK = 1 << 17,   /* multiplications below which a fork costs more */
    PARALLEL_PACK = 1 << 15, /* activations above which packing is shared     */
    AHEAD_BYTES = 6144,      /* of the weights that a single pass streams     */
    FEW_BLOCKS = 6           /* panel by panel up to here, else block by block */
};

/* ---- memory ---- */

enum err_code model_cpu_map(size_t bytes, const char *what, void **out, struct err *e)
{
    size_t n = bytes ? (bytes + 4095) & ~(size_t)4095 : 4096;
    size_t room = n >= HUGE_BYTES ? n + HUGE_BYTES : n;
    unsigned char *p = mmap(NULL, room, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return err_nomem(e, what, bytes);
    if (room > n) {
        size_t lead = (HUGE_BYTES - (uintptr_t)p % HUGE_BYTES) % HUGE_BYTES;
        if (lead > 0)
            munmap(p, lead);
        if (room - lead - n > 0)
            munmap(p + lead + n, room - lead - n);
        p += lead;
        (void)madvise(p, n, MADV_HUGEPAGE); /* only a hint */
    }
    *out = p;
    return ERR_OK;
}

void model_cpu_unmap(void *p, size_t bytes)
{
    if (p != NULL)
        munmap(p, bytes ? (bytes + 4095) & ~(size_t)4095 : 4096);
}

/* ---- packing ---- */

struct packing {
    struct op_matrix *m;
    const struct op_matrix_desc *d;
};

/* The piece and its row behind column `col` of a panel; NULL beyond the end. */
static const struct op_piece *column_source(const struct packing *p, uint32_t panel, uint32_t col,
                                            uint32_t *row)
{
    const struct op_matrix_desc *d = p->d;
    if (d->glu) {
        *row = panel * (PANEL / 2) + col % (PANEL / 2);
        return *row < p->m->n_rows ? &d->piece[col / (PANEL / 2)] : NULL;
    }
    *row = panel * PANEL + col;
    for (uint32_t i = 0; i < d->n_pieces; i++) {
        if (*row < d->piece[i].n_rows)
            return &d->piece[i];
        *row -= d->piece[i].n_rows;
    }
    return NULL;
}

static void pack_chunk(const struct op_matrix *m, unsigned char *panel, uint32_t k0, uint32_t n,
                       uint32_t col, const float *v)
{
    if (m->store == PANEL_F32) {
        float *to = (float *)panel + (size_t)k0 * PANEL + col;
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)i * PANEL] = v[i];
    } else if (m->store == PANEL_BF16) {
        uint16_t *to = (uint16_t *)panel + (size_t)k0 * PANEL + col;
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)i * PANEL] = float_to_bf16(v[i]);
    } else {
        uint16_t *to = (uint16_t *)panel + (size_t)k0 * PANEL + (size_t)col * 2;
        for (uint32_t i = 0; i < n; i++)
            to[(size_t)(i / 2) * (PANEL * 2) + i % 2] = float_to_bf16(v[i]);
    }
}

static void pack_panel(void *ctx, uint32_t panel, uint32_t worker)
{
    enum { CHUNK = 256 };
    const struct packing *p = ctx;
    const struct op_matrix *m = p->m;
    unsigned char *to = m->data + (size_t)panel * m->panel_bytes;
    float v[CHUNK];
    (void)worker;
    for (uint32_t k0 = 0; k0 < m->n_cols; k0 += CHUNK) {
        uint32_t n = m->n_cols - k0 < CHUNK ? m->n_cols - k0 : CHUNK;
        for (uint32_t col = 0; col < PANEL; col++) {
            uint32_t row;
            const struct op_piece *s = column_source(p, panel, col, &row);
            if (s == NULL)
                continue; /* the memory is zero */
            model_convert_strided(s->data, s->dtype, row * s->row_stride + k0 * s->col_stride,
                                  s->col_stride, n, v);
            pack_chunk(m, to, k0, n, col, v);
        }
    }
    for (uint32_t col = 0; m->bias != NULL && col < PANEL; col++) {
        uint32_t row;
        const struct op_piece *s = column_source(p, panel, col, &row);
        if (s != NULL && s->bias != NULL)
            model_convert_strided(s->bias->data, s->bias->dtype, s->bias_at + row * s->bias_stride,
                                  1, 1, &m->bias[panel * PANEL + col]);
    }
}

static enum panel_store choose_store(enum op_dtype type, const struct op_matrix_desc *d,
                                     const struct cpu_kernels *k)
{
    bool all_bf16 = true;
    for (uint32_t i = 0; i < d->n_pieces; i++)
        all_bf16 = all_bf16 && d->piece[i].dtype == ST_BF16;
    if (type == OP_BF16 && !d->exact)
        return k->micro[PANEL_PAIRS] != NULL && model_cpu_has_bf16() ? PANEL_PAIRS : PANEL_BF16;
    return all_bf16 ? PANEL_BF16 : PANEL_F32;
}

static enum err_code pack_matrix(struct workers *pool, const struct cpu_kernels *k,
                                 enum op_dtype type, const struct op_matrix_desc *d,
                                 struct op_matrix **out, struct err *e)
{
    struct op_matrix *m = calloc(1, sizeof *m);
    if (m == NULL)
        return err_nomem(e, "weight matrix", sizeof *m);
    bool bias = false;
    for (uint32_t i = 0; i < d->n_pieces; i++) {
        m->n_rows += d->piece[i].n_rows;
        bias = bias || d->piece[i].bias != NULL;
    }
    if (d->glu)
        m->n_rows = d->piece[0].n_rows;
    m->n_cols = d->n_cols;
    m->glu = d->glu;
    m->exact = d->exact;
    m->store = choose_store(type, d, k);
    uint32_t width = d->glu ? PANEL / 2 : PANEL;
    m->n_panels = (m->n_rows + width - 1) / width;
    size_t even = m->store == PANEL_PAIRS ? ((size_t)m->n_cols + 1) / 2 * 2 : m->n_cols;
    m->panel_bytes = even * PANEL * (m->store == PANEL_F32 ? 4 : 2);
    m->n_bytes = m->panel_bytes * m->n_panels;
    void *data;
    enum err_code rc = model_cpu_map(m->n_bytes, "weights", &data, e);
    if (rc)
        goto fail;
    m->data = data;
    if (bias) {
        m->bias = calloc((size_t)m->n_panels * PANEL, sizeof *m->bias);
        if (m->bias == NULL) {
            rc = err_nomem(e, "bias", (size_t)m->n_panels * PANEL * sizeof *m->bias);
            goto fail;
        }
    }
    struct packing p = { m, d };
    workers_run(pool, pack_panel, &p, m->n_panels);
    *out = m;
    return ERR_OK;

fail:
    model_cpu_matrix_destroy(m);
    return rc;
}

/* Panels run along outputs, so the transpose needs panels of its own. */
enum err_code model_cpu_matrix_create(struct workers *pool, const struct cpu_kernels *k,
                                      enum op_dtype type, const struct op_matrix_desc *d,
                                      struct op_matrix **out, struct err *e)
{
    enum err_code rc = pack_matrix(pool, k, type, d, out, e);
    if (rc || !d->transposed)
        return rc;
    struct op_matrix_desc t = {
        .n_cols = d->piece[0].n_rows, .n_pieces = 1, .exact = d->exact, .piece = { d->piece[0] }
    };
    t.piece[0].n_rows = d->n_cols;
    t.piece[0].row_stride = d->piece[0].col_stride;
    t.piece[0].col_stride = d->piece[0].row_stride;
    rc = pack_matrix(pool, k, type, &t, &(*out)->transposed, e);
    if (rc) {
        model_cpu_matrix_destroy(*out);
        *out = NULL;
    }
    return rc;
}

void model_cpu_matrix_destroy(struct op_matrix *m)
{
    if (m == NULL)
        return;
    model_cpu_matrix_destroy(m->transposed);
    model_cpu_unmap(m->data, m->n_bytes);
    free(m->bias);
    free(m);
}

/* ---- matrix multiplication ---- */

struct matmul {
    const struct cpu_kernels *k;
    const struct op_linear *l;
    enum op_dtype type;
    const uint32_t *row; /* NULL: 0, 1, ... */
    uint32_t n, n_blocks, group;
    uint32_t n_k;     /* k steps of a micro kernel */
    size_t row_bytes; /* of one packed row         */
    unsigned char *packed;
};

static uint32_t block_start(const struct matmul *p, uint32_t b)
{
    uint32_t base = p->n / p->n_blocks, extra = p->n % p->n_blocks;
    return b * base + (b < extra ? b : extra);
}

/* Interleave mr rows: [k][mr] of the micro kernel's unit. */
static void pack_block(void *ctx, uint32_t b, uint32_t worker)
{
    const struct matmul *p = ctx;
    const struct op_linear *l = p->l;
    uint32_t first = block_start(p, b), mr = block_start(p, b + 1) - first, n_k = l->w->n_cols;
    unsigned char *to = p->packed + first * p->row_bytes;
    (void)worker;
    for (uint32_t m = 0; m < mr; m++) {
        size_t row = p->row ? p->row[first + m] : first + m;
        if (l->w->store == PANEL_PAIRS) {
            const uint16_t *x = (const uint16_t *)l->in + row * l->in_ld;
            uint32_t *pair = (uint32_t *)to + m;
            uint32_t i = 0;
            for (; i + 1 < n_k; i += 2, pair += mr)
                memcpy(pair, x + i, 4);
            if (i < n_k)
                *pair = x[i];
        } else if (p->type == OP_F32) {
            const float *x = (const float *)l->in + row * l->in_ld;
            float *f = (float *)to + m;
            for (uint32_t i = 0; i < n_k; i++)
                f[(size_t)i * mr] = x[i];
        } else {
            const uint16_t *x = (const uint16_t *)l->in + row * l->in_ld;
            float *f = (float *)to + m;
            for (uint32_t i = 0; i < n_k; i++)
                f[(size_t)i * mr] = bf16_to_float(x[i]);
        }
    }
}

static void finish_block(const struct matmul *p, uint32_t panel, uint32_t first, uint32_t mr,
                         float *c)
{
    const struct op_linear *l = p->l;
    const struct op_matrix *w = l->w;
    uint32_t width = w->glu ? PANEL / 2 : PANEL, at = panel * width;
    size_t size = l->out == OP_OUT_F32 || l->out == OP_OUT_ADD || p->type == OP_F32 ? 4 : 2;
    struct finish f = {
        .out = l->out,
        .act = l->act,
        .limit = l->limit,
        .type = p->type,
        .bias = w->bias ? w->bias + (size_t)panel * PANEL : NULL,
        .n_valid = w->n_rows - at < width ? w->n_rows - at : width,
        .to = (unsigned char *)l->to + (first * l->to_ld + at) * size,
        .ld = l->to_ld,
    };
    p->k->finish(&f, c, mr);
}

/* One block of rows times one panel.  The first block to use a panel streams it
 * in; the last two of several fetch the next panel meanwhile. */
static void multiply_block(const struct matmul *p, uint32_t panel, uint32_t b)
{
    const struct op_matrix *w = p->l->w;
    uint32_t first = block_start(p, b), mr = block_start(p, b + 1) - first;
    const unsigned char *at = w->data + panel * w->panel_bytes;
    const char *ahead = (const char *)at + AHEAD_BYTES;
    size_t row = w->panel_bytes / p->n_k, stride = row < 128 ? row : 128;
    uint32_t left = p->n_blocks - b;
    _Alignas(64) float c[MICRO_ROWS_MAX * PANEL];
    if (b > 0) {
        stride = p->n_blocks == 2 ? stride : left <= 2 ? stride / 2 : 0;
        ahead = (const char *)at + w->panel_bytes + (left == 1 ? stride * p->n_k : 0);
        if (p->n_blocks == 2)
            ahead = (const char *)at + w->panel_bytes;
    }
    p->k->micro[w->store](at, p->packed + first * p->row_bytes, p->n_k, mr, c, ahead, stride);
    finish_block(p, panel, first, mr, c);
}

/* A few rows times two neighbouring panels. */
static void multiply_pair(const struct matmul *p, uint32_t panel)
{
    const struct op_matrix *w = p->l->w;
    _Alignas(64) float c[2 * PAIR_ROWS * PANEL];
    p->k->micro_pair[w->store](w->data + panel * w->panel_bytes, w->panel_bytes, p->packed, p->n_k,
                               p->n, c);
    finish_block(p, panel, 0, p->n, c);
    finish_block(p, panel + 1, 0, p->n, c + p->n * PANEL);
}

static void multiply_group(void *ctx, uint32_t task, uint32_t worker)
{
    const struct matmul *p = ctx;
    uint32_t begin = task * p->group, end = begin + p->group;
    (void)worker;
    if (end > p->l->w->n_panels)
        end = p->l->w->n_panels;
    if (p->n <= PAIR_ROWS && p->k->micro_pair[p->l->w->store] != NULL)
        for (; begin + 1 < end; begin += 2)
            multiply_pair(p, begin);
    if (p->n_blocks <= FEW_BLOCKS) {
        for (uint32_t panel = begin; panel < end; panel++)
            for (uint32_t b = 0; b < p->n_blocks; b++)
                multiply_block(p, panel, b);
        return;
    }
    for (uint32_t b = 0; b < p->n_blocks; b++)
        for (uint32_t panel = begin; panel < end; panel++)
            multiply_block(p, panel, b);
}

size_t model_cpu_linear_scratch(uint32_t n, uint32_t n_cols)
{
    return (size_t)n * (n_cols + 1) * sizeof(float);
}

/* One row that is already in the micro kernel's form is used where it lies. */
static bool in_place(const struct matmul *p)
{
    const struct op_linear *l = p->l;
    if (p->n != 1)
        return false;
    return l->w->store == PANEL_PAIRS ? l->w->n_cols % 2 == 0 && (l->in_ld % 2 == 0)
                                      : p->type == OP_F32;
}

void model_cpu_linear_rows(struct workers *pool, const struct cpu_kernels *k, enum op_dtype type,
                           const struct op_linear *l, const uint32_t *row, uint32_t n,
                           void *scratch)
{
    const struct op_matrix *w = l->w;
    if (n == 0 || w->n_panels == 0)
        return;
    struct matmul p = { .k = k, .l = l, .type = type, .row = row, .n = n };
    bool pairs = w->store == PANEL_PAIRS;
    p.n_blocks = (n + k->micro_rows - 1) / k->micro_rows;
    p.n_k = pairs ? (w->n_cols + 1) / 2 : w->n_cols;
    p.row_bytes = (size_t)p.n_k * 4;
    uint32_t n_workers = workers_count(pool);
    uint64_t work = (uint64_t)n * w->n_panels * PANEL * w->n_cols;
    struct workers *crew = work < INLINE_WORK ? NULL : pool;
    if (in_place(&p)) {
        size_t at = (row ? row[0] : 0) * l->in_ld;
        p.packed = (unsigned char *)l->in + at * (pairs ? 2 : 4);
    } else {
        p.packed = scratch;
        bool large = (uint64_t)n * w->n_cols >= PARALLEL_PACK;
        workers_run(large ? crew : NULL, pack_block, &p, p.n_blocks);
    }
    uint32_t even = w->n_panels / (n_workers * TASKS_PER_WORKER);
    uint32_t cached = (uint32_t)(GROUP_BYTES / (w->panel_bytes + 1));
    p.group = even < cached ? even : cached;
    if (p.group == 0)
        p.group = 1;
    if (n <= PAIR_ROWS) /* pairs */
        p.group = (p.group + 1) & ~1u;
    workers_run(crew, multiply_group, &p, (w->n_panels + p.group - 1) / p.group);
}

void model_cpu_linear(struct workers *pool, const struct cpu_kernels *k, enum op_dtype type,
                      const struct op_linear *l, uint32_t n, void *scratch)
{
    model_cpu_linear_rows(pool, k, type, l, NULL, n, scratch);
}
