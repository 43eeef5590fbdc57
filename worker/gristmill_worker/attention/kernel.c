/* Causal attention over the paged KV cache, in place, and the writing of new keys and values.
 *
 * Layout of one layer:   keys    [num_blocks][num_kv_heads][k_dim][block_size]
 *                        values  [num_blocks][num_kv_heads][block_size][v_dim]
 *
 * Keys lie transposed within a Block, so that one vector holds the same component of several keys
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

#define TILE 16      /* keys of one step; block_size is a multiple of it */
#define LINE 16      /* floats of one cache line */
#define AHEAD 4      /* tiles between the one that is fetched and the one in use */
#define EARLY 16     /* tiles of values, and of the next item's keys, fetched still earlier */
#define MANY 8       /* query rows that share one reading of the keys, where they have registers */
#define FEW 4        /* the same elsewhere, and where fewer are left */
#define ITEM_ROWS 32 /* query rows of one unit of parallel work */
#ifdef __AVX512F__   /* 32 vector registers instead of 16 */
#define LANES 16     /* floats of one vector */
#define ROWS MANY
#else
#define LANES 8
#define ROWS FEW
#endif
#define VECS (TILE / LANES)

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float eight __attribute__((vector_size(32), aligned(4)));

/* spans [num_spans][3]: start, num_tokens, context_len; tables [num_spans][max_blocks]; slots
 * [num_tokens], or NULL when the cache holds the new keys and values already; sinks may be NULL;
 * skipped [num_spans]: the first tokens of each whose result nobody reads, or NULL. */
typedef struct {
    const float *query, *key, *value;
    const int64_t *slots;
    float *keys, *values;
    const float *sinks;
    const int64_t *spans;
    const int32_t *tables;
    const int64_t *skipped;
    float *out;
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

/* Asks for a cache line to come into the second cache. The first has room for a few lines under way
 * only, which is less than what memory can have. */
#define FETCH(address) __builtin_prefetch((address), 0, 2)

/* Scores of N queries against one tile of keys, and their share of one tile of values. Meanwhile
 * the tiles of keys and values at `next_k` and `next_v` are fetched: Blocks lie in different pages,
 * into which the hardware does not look ahead. */
#define DEFINE_TILE(N)                                                                            \
    static inline void scores_##N(const float *q, const float *k, const float *next_k,            \
                                  const float *next_v, int64_t k_dim, int64_t stride,             \
                                  float *out) {                                                   \
        vec sum[N][VECS];                                                                         \
        for (int r = 0; r < N; r++)                                                               \
            for (int i = 0; i < VECS; i++) sum[r][i] = (vec){0};                                  \
        for (int64_t d = 0; d < k_dim; d++) {                                                     \
            FETCH(next_k + d * stride);                                                           \
            FETCH(next_v + d * LINE);                                                             \
            for (int i = 0; i < VECS; i++) {                                                      \
                vec keys = *(const vec_u *)(k + d * stride + i * LANES);                          \
                for (int r = 0; r < N; r++) sum[r][i] += keys * q[d * N + r];                     \
            }                                                                                     \
        }                                                                                         \
        for (int r = 0; r < N; r++)                                                               \
            for (int i = 0; i < VECS; i++) *(vec_u *)(out + r * TILE + i * LANES) = sum[r][i];    \
    }                                                                                             \
    static inline void mix_##N(const float *p, const float *v, const float *next_k,               \
                               int64_t stride, const float *next_v, int64_t v_dim, int count,     \
                               float *const *out) {                                               \
        int64_t d = 0;                                                                            \
        for (; d + TILE <= v_dim; d += TILE) {                                                    \
            vec sum[N][VECS];                                                                     \
            for (int r = 0; r < N; r++)                                                           \
                for (int i = 0; i < VECS; i++) sum[r][i] = *(vec_u *)(out[r] + d + i * LANES);    \
            for (int j = 0; j < count; j++) {                                                     \
                FETCH(next_k + (d + j) * stride);                                                 \
                FETCH(next_v + j * v_dim + d);                                                    \
                for (int i = 0; i < VECS; i++) {                                                  \
                    vec values = *(const vec_u *)(v + j * v_dim + d + i * LANES);                 \
                    for (int r = 0; r < N; r++) sum[r][i] += values * p[r * TILE + j];            \
                }                                                                                 \
            }                                                                                     \
            for (int r = 0; r < N; r++)                                                           \
                for (int i = 0; i < VECS; i++) *(vec_u *)(out[r] + d + i * LANES) = sum[r][i];    \
        }                                                                                         \
        for (; d < v_dim; d++)                                                                    \
            for (int r = 0; r < N; r++)                                                           \
                for (int j = 0; j < count; j++) out[r][d] += v[j * v_dim + d] * p[r * TILE + j];  \
    }
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(8)
#define FOR_ROWS(rows, call)                  \
    switch (rows) {                           \
        case 1: call(1); break;               \
        case 2: call(2); break;               \
        case 3: call(3); break;               \
        case FEW: call(4); break;             \
        default: call(8);                     \
    }
#define SCORES(N) scores_##N(q, k, next_k, next_v, c->k_dim, c->block_size, tile)
#define MIX(N) mix_##N(tile, v, next_k, next_stride, next_v, c->v_dim, count, o)

/* One key head of one Sequence's context. */
typedef struct {
    const float *keys, *values;
    const int32_t *table;
    int64_t kv_head, end; /* end: positions of the context */
} Context;

static inline const float *key_tile(const Call *c, const Context *x, int64_t t) {
    const int64_t head = x->table[t / c->block_size] * c->num_kv_heads + x->kv_head;
    return x->keys + head * c->k_dim * c->block_size + t % c->block_size;
}

static inline const float *value_tile(const Call *c, const Context *x, int64_t t) {
    const int64_t head = x->table[t / c->block_size] * c->num_kv_heads + x->kv_head;
    return x->values + (head * c->block_size + t % c->block_size) * c->v_dim;
}

/* `rows` consecutive query rows (token-major, head within the group minor) of one key head. The
 * first `num_fetched` tiles of keys have been fetched; gives the number of those of `after`. There
 * is room for the rows' components at `q`, side by side, and for their scores at `s`: tile by tile,
 * row by row. So one register tells where all of them are. */
static int64_t attend_rows(const Call *c, const float *query, const float *sinks, float *out,
                           const Context *x, const Context *after, int64_t num_fetched,
                           int64_t start, int64_t num_tokens, int64_t row, int rows, float *q,
                           float *s) {
    const int64_t group = c->num_heads / c->num_kv_heads;
    float *o[MANY];
    int64_t from[MANY], to[MANY], head[MANY], begin = x->end, end = 0;
    for (int r = 0; r < rows; r++) {
        const int64_t token = (row + r) / group, position = x->end - num_tokens + token;
        head[r] = x->kv_head * group + (row + r) % group;
        to[r] = position + 1;
        from[r] = c->sliding_window && to[r] > c->sliding_window ? to[r] - c->sliding_window : 0;
        if (from[r] < begin) begin = from[r];
        if (to[r] > end) end = to[r];
        const float *from_query =
            query + (start + token) * c->query_token_stride + head[r] * c->query_head_stride;
        for (int64_t d = 0; d < c->k_dim; d++) q[d * rows + r] = from_query[d];
        o[r] = out + ((start + token) * c->num_heads + head[r]) * c->v_dim;
        memset(o[r], 0, c->v_dim * sizeof(float));
    }
    begin -= begin % TILE;
    const int64_t fetched = begin + num_fetched * TILE, early = begin + EARLY * TILE;
    vec largest[MANY];
    for (int r = 0; r < rows; r++) largest[r] = (vec){0} - INFINITY;
    ivec lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i;

    for (int64_t t = begin; t < end; t += TILE) {
        const int64_t ahead = t + AHEAD * TILE;
        const float *k = key_tile(c, x, t);
        const float *next_k = ahead >= fetched && ahead < end ? key_tile(c, x, ahead) : k;
        const float *next_v = t < early ? value_tile(c, x, t) : k;
        float *tile = s + (t - begin) * rows;
        FOR_ROWS(rows, SCORES);
        for (int r = 0; r < rows; r++)
            for (int64_t u = t; u < t + TILE; u += LANES) {
                vec_u *scores = (vec_u *)(tile + r * TILE + (u - t));
                vec y = *scores * c->scale;
                if (c->softcap != 0.0f) y = tanh_vec(y / c->softcap) * c->softcap;
                if (u + LANES > to[r] || u < from[r]) {
                    ivec mask = (lanes < (int32_t)(from[r] - u)) | (lanes >= (int32_t)(to[r] - u));
                    y = select_vec(mask, (vec){0} - INFINITY, y);
                }
                *scores = y;
                largest[r] = select_vec(y > largest[r], y, largest[r]);
            }
    }
    const int64_t padded = (end - begin + TILE - 1) / TILE * TILE;
    float sum[MANY];
    for (int r = 0; r < rows; r++) {
        float top = sinks ? sinks[head[r]] : -INFINITY;
        for (int i = 0; i < LANES; i++) top = largest[r][i] > top ? largest[r][i] : top;
        eight total = {0};
        /* Whole tiles: what lies behind `end` is hidden and adds nothing. */
        for (int64_t t = 0; t < padded; t += TILE) {
            vec_u *scores = (vec_u *)(s + t * rows + r * TILE);
            for (int i = 0; i < VECS; i++) scores[i] = exp_vec(scores[i] - top);
            for (int i = 0; i < TILE; i += 8) total += *(const eight *)((float *)scores + i);
        }
        sum[r] = sinks ? exp_vec((vec){0} + (sinks[head[r]] - top))[0] : 0.0f;
        for (int i = 0; i < 8; i++) sum[r] += total[i];
    }
    /* Of a context behind a window only the end is wanted, and where it begins is not known here. */
    const int64_t wanted = c->sliding_window && after->end > c->sliding_window
                               ? (after->end - c->sliding_window) / TILE * TILE
                               : 0;
    for (int64_t t = begin; t < end; t += TILE) {
        const int64_t ahead = t + AHEAD * TILE, theirs = wanted + (t - begin);
        const float *v = value_tile(c, x, t);
        const float *next_v = ahead >= early && ahead < end ? value_tile(c, x, ahead) : v;
        const int is_early = t < early && theirs < after->end;
        const float *next_k = is_early ? key_tile(c, after, theirs) : v;
        const int64_t next_stride = is_early ? c->block_size : 0;
        const float *tile = s + (t - begin) * rows;
        /* Slots after the context were never written: 0 times what lies there may be NaN. */
        int count = end - t < TILE ? (int)(end - t) : TILE;
        FOR_ROWS(rows, MIX);
    }
    for (int r = 0; r < rows; r++)
        for (int64_t d = 0; d < c->v_dim; d++) o[r][d] /= sum[r];
    return padded / TILE < EARLY ? padded / TILE : EARLY;
}

static void write_head(const Call *c, const float *key, const float *value, int64_t slot,
                       int64_t token, int64_t kv_head, float *keys, float *values) {
    const int64_t head = slot / c->block_size * c->num_kv_heads + kv_head;
    const int64_t offset = slot % c->block_size;
    float *k = keys + head * c->k_dim * c->block_size + offset;
    const float *new_key = key + token * c->key_token_stride + kv_head * c->key_head_stride;
    for (int64_t d = 0; d < c->k_dim; d++) k[d * c->block_size] = new_key[d];
    memcpy(values + (head * c->block_size + offset) * c->v_dim,
           value + token * c->value_token_stride + kv_head * c->value_head_stride,
           c->v_dim * sizeof(float));
}

void gristmill_attend(const Call *c) {
    const float *query = c->query, *key = c->key, *value = c->value, *sinks = c->sinks;
    const int64_t *slots = c->slots, *spans = c->spans, *skipped = c->skipped;
    const int32_t *tables = c->tables;
    float *keys = c->keys, *values = c->values, *out = c->out;
    const int64_t group = c->num_heads / c->num_kv_heads, num_kv_heads = c->num_kv_heads;
    int64_t num_items = 0, longest = 0, item = 0, num_taken = 0;
    for (int64_t n = 0; n < c->num_spans; n++) {
        const int64_t num_asked = spans[3 * n + 1] - (skipped ? skipped[n] : 0);
        num_items += (num_asked * group + ITEM_ROWS - 1) / ITEM_ROWS;
        if (spans[3 * n + 2] > longest) longest = spans[3 * n + 2];
    }
    int64_t *span_of = malloc(2 * num_items * sizeof(int64_t)), *row_of = span_of + num_items;
    for (int64_t n = 0; n < c->num_spans; n++) {
        const int64_t last = spans[3 * n + 1] * group;
        for (int64_t row = skipped ? skipped[n] * group : 0; row < last; row += ITEM_ROWS)
            span_of[item] = n, row_of[item++] = row;
    }
    const int64_t last_item = num_items * num_kv_heads;
    /* A Sequence's only new token is written by those who read it, when it is in their cache. Of
     * several, all must be there before any is read, and what is skipped is read by nobody now. */
    const int writes_first = slots && (skipped || c->num_tokens > c->num_spans);
#pragma omp parallel
    {
        float *scores = malloc(ROWS * (longest + 2 * TILE + c->k_dim) * sizeof(float));
        float *packed = scores + ROWS * (longest + 2 * TILE);
        if (writes_first) {
#pragma omp for schedule(static)
            for (int64_t n = 0; n < c->num_spans * num_kv_heads; n++) {
                const int64_t *span = spans + 3 * (n / num_kv_heads);
                const int64_t end = span[1] > 1 || skipped ? span[0] + span[1] : 0;
                for (int64_t t = span[0]; t < end; t++)
                    write_head(c, key, value, slots[t], t, n % num_kv_heads, keys, values);
            }
        }
        int64_t i, next, num_fetched = 0;
#pragma omp atomic capture
        i = num_taken++;
        for (; i < last_item; i = next) {
#pragma omp atomic capture
            next = num_taken++;
            const int64_t n = span_of[i / num_kv_heads], *span = spans + 3 * n;
            const int64_t m = next < last_item ? span_of[next / num_kv_heads] : n;
            const int32_t *table = tables + n * c->max_blocks;
            const Context context = {keys, values, table, i % num_kv_heads, span[2]};
            const Context after = {keys, values, tables + m * c->max_blocks, next % num_kv_heads,
                                   next < last_item ? spans[3 * m + 2] : 0};
            const int64_t first = row_of[i / num_kv_heads], last = span[1] * group;
            const int64_t stop = first + ITEM_ROWS < last ? first + ITEM_ROWS : last;
            if (slots && span[1] == 1 && !skipped)
                write_head(c, key, value, slots[span[0]], span[0], context.kv_head, keys, values);
            for (int64_t row = first, rows; row < stop; row += rows) {
                rows = stop - row >= ROWS ? ROWS : stop - row >= FEW ? FEW : stop - row;
                num_fetched = attend_rows(c, query, sinks, out, &context, &after, num_fetched,
                                          span[0], span[1], row, (int)rows, packed, scores);
            }
        }
        free(scores);
    }
    free(span_of);
}
