/* Causal attention over the paged KV cache, in place, and the writing of new keys and values.
 *
 * Layout of one layer:   keys    [num_blocks][num_kv_heads][k_dim][block_size]
 *                        values  [num_blocks][num_kv_heads][block_size][v_dim]
 *
 * Keys lie transposed within a Block, so that one vector holds the same component of eight keys
 * and scores need no sums across lanes.
 *
 * What must stay true: the floats of a query depend on its own position and its own context only.
 * Keys are always taken in tiles of TILE at fixed positions, components and keys one after the
 * other, so neither the number of queries that are computed together, nor the chunk they came in,
 * nor the number of threads changes a bit.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 8      /* floats of one vector */
#define TILE 16      /* keys of one step: two vectors; block_size is a multiple of it */
#define LINE 16      /* floats of one cache line */
#define AHEAD 128    /* keys whose values are fetched while scores are computed */
#define ROWS 4       /* query rows that share one reading of the keys */
#define ITEM_ROWS 32 /* query rows of one unit of parallel work */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

typedef struct {
    int64_t num_spans, num_heads, num_kv_heads, k_dim, v_dim, block_size, max_blocks;
    int64_t query_token_stride, query_head_stride;
    int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
    int64_t num_tokens;
    int64_t sliding_window; /* 0: none */
    float scale, softcap;   /* softcap 0: none */
} Call;

static inline vec select_vec(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* e^x for x <= 0 within 2 ulp: 2^n times a polynomial of the rest (Cephes expf). */
static inline vec exp_vec(vec x) {
    vec low = (vec){0} - 87.0f;
    ivec is_low = x < low;
    x = select_vec(is_low, low, x);
    vec n = x * 1.44269504088896341f + 12582912.0f - 12582912.0f; /* rounds: 1.5 * 2^23 */
    vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    vec p = (vec){0} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec bits = (__builtin_convertvector(n, ivec) + 127) << 23;
    return select_vec(is_low, (vec){0}, p * (vec)bits);
}

static inline vec tanh_vec(vec x) {
    vec a = select_vec(x < 0, -x, x);
    vec e = exp_vec(a * -2.0f);
    vec t = (1.0f - e) / (1.0f + e);
    return select_vec(x < 0, -t, t);
}

/* Scores of N queries against one tile of keys, and their share of one tile of values. `next` is
 * the tile after it: Blocks lie in different pages, into which the hardware does not look ahead. */
#define DEFINE_TILE(N)                                                                            \
    static inline void scores_##N(const float *const *q, const float *k, const float *next,       \
                                  const float *v, int64_t k_dim, int64_t stride,                  \
                                  float *const *out) {                                            \
        vec a[N], b[N];                                                                           \
        for (int r = 0; r < N; r++) a[r] = b[r] = (vec){0};                                       \
        for (int64_t d = 0; d < k_dim; d++) {                                                     \
            __builtin_prefetch(next + d * stride);                                                \
            __builtin_prefetch(v + d * LINE);                                                     \
            vec ka = *(const vec_u *)(k + d * stride);                                            \
            vec kb = *(const vec_u *)(k + d * stride + LANES);                                    \
            for (int r = 0; r < N; r++) a[r] += ka * q[r][d], b[r] += kb * q[r][d];               \
        }                                                                                         \
        for (int r = 0; r < N; r++)                                                               \
            *(vec_u *)out[r] = a[r], *(vec_u *)(out[r] + LANES) = b[r];                           \
    }                                                                                             \
    static inline void mix_##N(const float *const *p, const float *v, const float *next,          \
                               int64_t v_dim, int count, float *const *out) {                     \
        int64_t d = 0;                                                                            \
        for (; d + 2 * LANES <= v_dim; d += 2 * LANES) {                                          \
            vec a[N], b[N];                                                                       \
            for (int r = 0; r < N; r++)                                                           \
                a[r] = *(vec_u *)(out[r] + d), b[r] = *(vec_u *)(out[r] + d + LANES);             \
            for (int j = 0; j < count; j++) {                                                     \
                __builtin_prefetch(next + j * v_dim + d);                                         \
                vec va = *(const vec_u *)(v + j * v_dim + d);                                     \
                vec vb = *(const vec_u *)(v + j * v_dim + d + LANES);                             \
                for (int r = 0; r < N; r++) a[r] += va * p[r][j], b[r] += vb * p[r][j];           \
            }                                                                                     \
            for (int r = 0; r < N; r++)                                                           \
                *(vec_u *)(out[r] + d) = a[r], *(vec_u *)(out[r] + d + LANES) = b[r];             \
        }                                                                                         \
        for (; d < v_dim; d++)                                                                    \
            for (int r = 0; r < N; r++)                                                           \
                for (int j = 0; j < count; j++) out[r][d] += v[j * v_dim + d] * p[r][j];          \
    }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)

/* `rows` consecutive query rows (token-major, head within the group minor) of one key head. */
static void attend_rows(const Call *c, const float *query, const float *keys, const float *values,
                        const float *sinks, float *out, const int32_t *table, int64_t start,
                        int64_t num_tokens, int64_t context_len, int64_t kv_head, int64_t row,
                        int rows, float *buffer, int64_t buffer_stride) {
    const int64_t group = c->num_heads / c->num_kv_heads;
    const float *q[ROWS];
    float *o[ROWS], *s[ROWS];
    int64_t from[ROWS], to[ROWS], head[ROWS], begin = context_len, end = 0;
    for (int r = 0; r < rows; r++) {
        int64_t token = (row + r) / group;
        head[r] = kv_head * group + (row + r) % group;
        int64_t position = context_len - num_tokens + token;
        from[r] = 0;
        if (c->sliding_window && position + 1 > c->sliding_window)
            from[r] = position + 1 - c->sliding_window;
        to[r] = position + 1;
        if (from[r] < begin) begin = from[r];
        if (to[r] > end) end = to[r];
        q[r] = query + (start + token) * c->query_token_stride + head[r] * c->query_head_stride;
        o[r] = out + ((start + token) * c->num_heads + head[r]) * c->v_dim;
        memset(o[r], 0, c->v_dim * sizeof(float));
        s[r] = buffer + r * buffer_stride;
    }
    begin -= begin % TILE;
    const int64_t head_keys = c->k_dim * c->block_size, head_values = c->v_dim * c->block_size;
    vec largest[ROWS];
    for (int r = 0; r < rows; r++) largest[r] = (vec){0} - INFINITY;
    const ivec lanes = {0, 1, 2, 3, 4, 5, 6, 7};

    for (int64_t t = begin; t < end; t += TILE) {
        const int64_t after = t + TILE < end ? t + TILE : t;
        const float *k = keys + (table[t / c->block_size] * c->num_kv_heads + kv_head) * head_keys +
                         t % c->block_size;
        const float *next = keys +
                            (table[after / c->block_size] * c->num_kv_heads + kv_head) * head_keys +
                            after % c->block_size;
        /* The first values are wanted as soon as the scores are there. */
        const float *v = k;
        if (t - begin < AHEAD)
            v = values + (table[t / c->block_size] * c->num_kv_heads + kv_head) * head_values +
                t % c->block_size * c->v_dim;
        float *tile[ROWS];
        for (int r = 0; r < rows; r++) tile[r] = s[r] + (t - begin);
        switch (rows) {
            case 1: scores_1(q, k, next, v, c->k_dim, c->block_size, tile); break;
            case 2: scores_2(q, k, next, v, c->k_dim, c->block_size, tile); break;
            case 3: scores_3(q, k, next, v, c->k_dim, c->block_size, tile); break;
            default: scores_4(q, k, next, v, c->k_dim, c->block_size, tile);
        }
        for (int r = 0; r < rows; r++)
            for (int64_t u = t; u < t + TILE; u += LANES) {
                vec_u *scores = (vec_u *)(s[r] + (u - begin));
                vec x = *scores * c->scale;
                if (c->softcap != 0.0f) x = tanh_vec(x / c->softcap) * c->softcap;
                if (u + LANES > to[r] || u < from[r]) {
                    ivec hidden =
                        (lanes < (int32_t)(from[r] - u)) | (lanes >= (int32_t)(to[r] - u));
                    x = select_vec(hidden, (vec){0} - INFINITY, x);
                }
                *scores = x;
                largest[r] = select_vec(x > largest[r], x, largest[r]);
            }
    }
    const int64_t padded = (end - begin + TILE - 1) / TILE * TILE;
    float sum[ROWS];
    for (int r = 0; r < rows; r++) {
        float top = sinks ? sinks[head[r]] : -INFINITY;
        for (int i = 0; i < LANES; i++) top = largest[r][i] > top ? largest[r][i] : top;
        vec total = (vec){0};
        /* Whole tiles: what lies behind `end` is hidden and adds nothing. */
        for (int64_t t = begin; t < begin + padded; t += LANES) {
            vec p = exp_vec(*(vec_u *)(s[r] + (t - begin)) - top);
            *(vec_u *)(s[r] + (t - begin)) = p;
            total += p;
        }
        sum[r] = sinks ? exp_vec((vec){0} + (sinks[head[r]] - top))[0] : 0.0f;
        for (int i = 0; i < LANES; i++) sum[r] += total[i];
    }
    for (int64_t t = begin; t < end; t += TILE) {
        const int64_t after = t + TILE < end ? t + TILE : t;
        const float *next =
            values + (table[after / c->block_size] * c->num_kv_heads + kv_head) * head_values +
            after % c->block_size * c->v_dim;
        const float *v = values +
                         (table[t / c->block_size] * c->num_kv_heads + kv_head) * head_values +
                         t % c->block_size * c->v_dim;
        const float *tile[ROWS];
        for (int r = 0; r < rows; r++) tile[r] = s[r] + (t - begin);
        /* Slots after the context were never written: 0 times what lies there may be NaN. */
        int count = end - t < TILE ? (int)(end - t) : TILE;
        switch (rows) {
            case 1: mix_1(tile, v, next, c->v_dim, count, o); break;
            case 2: mix_2(tile, v, next, c->v_dim, count, o); break;
            case 3: mix_3(tile, v, next, c->v_dim, count, o); break;
            default: mix_4(tile, v, next, c->v_dim, count, o);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int64_t d = 0; d < c->v_dim; d++) o[r][d] /= sum[r];
}

static void write_token(const Call *c, const float *key, const float *value, int64_t slot,
                        int64_t token, float *keys, float *values) {
    const int64_t head_keys = c->k_dim * c->block_size, head_values = c->v_dim * c->block_size;
    const int64_t block = slot / c->block_size, offset = slot % c->block_size;
    for (int64_t h = 0; h < c->num_kv_heads; h++) {
        float *k = keys + (block * c->num_kv_heads + h) * head_keys + offset;
        const float *new_key = key + token * c->key_token_stride + h * c->key_head_stride;
        for (int64_t d = 0; d < c->k_dim; d++) k[d * c->block_size] = new_key[d];
        memcpy(values + (block * c->num_kv_heads + h) * head_values + offset * c->v_dim,
               value + token * c->value_token_stride + h * c->value_head_stride,
               c->v_dim * sizeof(float));
    }
}

/* spans [num_spans][3]: start, num_tokens, context_len; tables [num_spans][max_blocks];
 * slots [num_tokens], or NULL when the cache holds the new keys and values already. */
void gristmill_attend(const Call *c, const float *query, const float *key, const float *value,
                      const int64_t *slots, float *keys, float *values, const float *sinks,
                      const int64_t *spans, const int32_t *tables, float *out) {
    const int64_t group = c->num_heads / c->num_kv_heads;
    int64_t num_items = 0, longest = 0;
    for (int64_t n = 0; n < c->num_spans; n++) {
        num_items += (spans[3 * n + 1] * group + ITEM_ROWS - 1) / ITEM_ROWS;
        if (spans[3 * n + 2] > longest) longest = spans[3 * n + 2];
    }
    int64_t *span_of = malloc(2 * num_items * sizeof(int64_t)), *row_of = span_of + num_items;
    int64_t item = 0;
    for (int64_t n = 0; n < c->num_spans; n++)
        for (int64_t row = 0; row < spans[3 * n + 1] * group; row += ITEM_ROWS) {
            span_of[item] = n;
            row_of[item++] = row;
        }
    const int64_t stride = longest + 2 * TILE;
#pragma omp parallel
    {
        float *buffer = malloc(ROWS * stride * sizeof(float));
        if (slots) {
#pragma omp for schedule(static)
            for (int64_t t = 0; t < c->num_tokens; t++)
                write_token(c, key, value, slots[t], t, keys, values);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < num_items * c->num_kv_heads; i++) {
            const int64_t n = span_of[i / c->num_kv_heads];
            const int64_t *span = spans + 3 * n;
            const int64_t last = span[1] * group;
            const int64_t first = row_of[i / c->num_kv_heads];
            const int64_t stop = first + ITEM_ROWS < last ? first + ITEM_ROWS : last;
            for (int64_t row = first; row < stop; row += ROWS)
                attend_rows(c, query, keys, values, sinks, out, tables + n * c->max_blocks, span[0],
                            span[1], span[2], i % c->num_kv_heads, row,
                            (int)(stop - row < ROWS ? stop - row : ROWS), buffer, stride);
        }
        free(buffer);
    }
    free(span_of);
}
