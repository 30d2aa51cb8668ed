/* attention_feature_table.c: print the feature x backend table from the code.
 *
 *   attention_feature_table                  print it, as attention/README.md has it
 *   attention_feature_table --check README [PLUGIN]
 *       fail unless README holds exactly what would be printed, and, where the
 *       plugin file exists, unless its own table is the one printed */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/attn.h"
#include "attention/cuda/kernel_table.h"
#include "attention/platform/plugin.h"

#define BEGIN "<!-- generated: attention_feature_table -->\n"
#define END   "<!-- end -->\n"

struct column {
    const char *backend;
    const struct attn_kernel *kernel;
};

struct text {
    char at[16384];
    size_t n;
};

static void say(struct text *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

static void say(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;
    va_start(ap, fmt);
    n = vsnprintf(t->at + t->n, sizeof t->at - t->n, fmt, ap);
    va_end(ap);
    t->n += n > 0 ? (size_t)n : 0;
}

static bool serves(const struct attn_kernel *k, int feature)
{
    if (k->latent_only &&
        (feature == ATTN_HAS_SINK || feature == ATTN_HAS_QK_NORM || feature == ATTN_HAS_PACKED))
        return false; /* the contract excludes these with LATENT */
    return (k->features & ATTN_BIT(feature)) != 0;
}

static void print_table(struct text *t, const struct column *c, int n)
{
    say(t, BEGIN "| feature |");
    for (int i = 0; i < n; i++)
        say(t, " %s/%s |", c[i].backend, c[i].kernel->name);
    say(t, "\n|---|");
    for (int i = 0; i < n; i++)
        say(t, "---|");
    for (int f = 0; f < ATTN_FEATURES; f++) {
        say(t, "\n| %s |", attn_feature_name(f));
        for (int i = 0; i < n; i++)
            say(t, " %s |", serves(c[i].kernel, f) ? "yes" : "-");
    }
    for (int d = ATTN_F32; d <= ATTN_BF16; d++) {
        say(t, "\n| query %s |", attn_dtype_name(d));
        for (int i = 0; i < n; i++)
            say(t, " %s |", c[i].kernel->dtypes & ATTN_BIT(d) ? "yes" : "-");
    }
    say(t, "\n| head_size, a multiple of 8, up to |");
    for (int i = 0; i < n; i++)
        say(t, " %d |", c[i].kernel->max_head_size);
    say(t, "\n| shape |");
    for (int i = 0; i < n; i++)
        say(t, " %s |", c[i].kernel->note);
    say(t, "\n" END);
}

static int check_readme(const char *path, const struct text *want)
{
    static char readme[1 << 17];
    FILE *f = fopen(path, "rb");
    size_t n = f != NULL ? fread(readme, 1, sizeof readme - 1, f) : 0;
    const char *at = strstr(readme, BEGIN);
    if (f != NULL)
        fclose(f);
    if (n == 0 || at == NULL || strncmp(at, want->at, want->n) != 0) {
        fprintf(stderr, "%s does not hold the table that the code gives:\n%s", path, want->at);
        return 1;
    }
    return 0;
}

/* The plugin's own rows are the ones printed. */
static int check_plugin(const char *path)
{
    struct plugin *p = NULL;
    const struct attn_backend *b;
    struct err e = { 0 };
    int bad = 0;
    if (path == NULL || access(path, F_OK) != 0)
        return 0;
    if (plugin_open(&p, path, &e) != ERR_OK) {
        fprintf(stderr, "%s\n", e.message);
        return 1;
    }
    b = plugin_find(p, ATTN_ABI, "attention");
    if (b == NULL || b->n_kernels != CUDA_KERNELS)
        bad = 1;
    for (int i = 0; !bad && i < CUDA_KERNELS; i++) {
        const struct attn_kernel *x = &b->kernel[i], *y = &cuda_kernel_table[i];
        bad = strcmp(x->name, y->name) != 0 || x->features != y->features ||
              x->dtypes != y->dtypes || x->max_head_size != y->max_head_size ||
              x->latent_only != y->latent_only || strcmp(x->note, y->note) != 0;
    }
    if (bad)
        fprintf(stderr, "%s: its kernels are not those of attention/cuda/kernel_table.h\n", path);
    plugin_close(p);
    return bad;
}

int main(int argc, char **argv)
{
    const struct attn_backend *cpu = attn_cpu_backend();
    struct column column[16];
    static struct text t;
    int n = 0;
    for (int i = 0; i < CUDA_KERNELS; i++)
        column[n++] = (struct column){ "cuda", &cuda_kernel_table[i] };
    for (uint32_t i = 0; i < cpu->n_kernels; i++)
        column[n++] = (struct column){ cpu->name, &cpu->kernel[i] };
    print_table(&t, column, n);
    if (argc >= 3 && strcmp(argv[1], "--check") == 0)
        return check_readme(argv[2], &t) | check_plugin(argc > 3 ? argv[3] : NULL);
    fputs(t.at, stdout);
    return 0;
}
