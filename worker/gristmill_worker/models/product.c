/* The product of rows with a packed weight: y = x @ weight.T + bias + residual, in float32.
 *
 * Layout of a weight [num_columns, depth]:   [num_panels][depth][PANEL], filled up with zeros
 *
 * A panel is what PANEL columns of the result need, in the order of its use. It is read from
 * memory once and used for all rows while it lies in the second-level cache; meanwhile the next one
 * is fetched. A tile of TILE rows and one panel is summed in registers, one weight after the other.
 *
 * What must stay true: an element of the result is one chain of additions over depth, from the
 * first to the last. Neither the number of rows, nor how they fall into tiles, nor how deep a weight
 * is cut, nor the number of threads changes a bit.
 */
#include <omp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) /* 24 of 32 registers hold sums */
#define LANES 16
#define VECS 3
#define TILE 8
#else /* 12 of 16 */
#if defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#define VECS 2
#define TILE 6
#endif
#define PANEL (LANES * VECS)
#define LINE 16                                          /* floats of one cache line */
#define STREAMS ((PANEL + LINE - 1) / LINE)              /* lines that are fetched in one step */
#define NEAR 64                                          /* lines ahead, when a panel is used once */
#define DEPTH 1536                                       /* of a panel in the cache at once */
#define SMALL (1 << 16)                                  /* multiplications not worth a second thread */
#define MAX_THREADS 256

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {
    const float *x, *weight, *bias, *residual; /* bias and residual may be NULL */
    float *y;
    int64_t num_rows, num_columns, depth; /* strides in floats, of a row: */
    int64_t x_stride, y_stride, residual_stride;
} Product;

/* One call of a kernel: up to TILE rows times one panel, or a piece of its depth. */
typedef struct {
    const float *x, *panel, *bias, *residual;
    float *y;
    int64_t depth, x_stride, y_stride, residual_stride;
    int is_continued;            /* y holds the sum over what came before */
    const char *ahead;           /* what to fetch: STREAMS streams of bytes, */
    int64_t ahead_apart, ahead_step; /* so far apart, each by so much a step */
} Tile;

static inline __attribute__((always_inline)) void multiply_tile(const Tile *t, const int rows) {
    const float *x = t->x, *panel = t->panel;
    const int64_t depth = t->depth, x_stride = t->x_stride, y_stride = t->y_stride;
    const int64_t apart = t->ahead_apart, step = t->ahead_step;
    const char *ahead = t->ahead;
    float *y = t->y;
    vec sum[TILE][VECS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECS; v++)
            sum[r][v] = t->is_continued ? *(vec_u *)(y + r * y_stride + v * LANES) : (vec){0};
    for (int64_t k = 0; k < depth; k++) {
        for (int s = 0; s < STREAMS; s++) __builtin_prefetch(ahead + s * apart);
        ahead += step;
        vec weights[VECS];
        for (int v = 0; v < VECS; v++) weights[v] = *(const vec_u *)(panel + k * PANEL + v * LANES);
        for (int r = 0; r < rows; r++) {
            const float factor = x[r * x_stride + k];
            for (int v = 0; v < VECS; v++) sum[r][v] += weights[v] * factor;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECS; v++) {
            if (t->bias) sum[r][v] += *(const vec_u *)(t->bias + v * LANES);
            if (t->residual)
                sum[r][v] += *(const vec_u *)(t->residual + r * t->residual_stride + v * LANES);
            *(vec_u *)(y + r * y_stride + v * LANES) = sum[r][v];
        }
}

/* One kernel for each number of rows, so that the sums stay in registers. */
#define DEFINE_KERNEL(N)                                \
    static void multiply_##N(const Tile *t) {           \
        multiply_tile(t, N);                            \
    }
DEFINE_KERNEL(1)
DEFINE_KERNEL(2)
DEFINE_KERNEL(3)
DEFINE_KERNEL(4)
DEFINE_KERNEL(5)
DEFINE_KERNEL(6)
#if TILE == 8
DEFINE_KERNEL(7)
DEFINE_KERNEL(8)
#endif

static void (*const kernels[TILE + 1])(const Tile *) = {
    0, multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6,
#if TILE == 8
    multiply_7, multiply_8,
#endif
};

/* The last panel may be wider than what is left of y: it is computed beside it. */
static void multiply_last(Tile tile, int64_t rows, int64_t width) {
    float beside[TILE * PANEL] = {0}, residual[TILE * PANEL] = {0}, bias[PANEL] = {0};
    float *y = tile.y;
    const int64_t stride = tile.y_stride;
    if (tile.is_continued)
        for (int64_t r = 0; r < rows; r++)
            memcpy(beside + r * PANEL, y + r * stride, width * sizeof(float));
    if (tile.bias) {
        memcpy(bias, tile.bias, width * sizeof(float));
        tile.bias = bias;
    }
    if (tile.residual) {
        for (int64_t r = 0; r < rows; r++)
            memcpy(residual + r * PANEL, tile.residual + r * tile.residual_stride,
                   width * sizeof(float));
        tile.residual = residual;
        tile.residual_stride = PANEL;
    }
    tile.y = beside;
    tile.y_stride = PANEL;
    kernels[rows](&tile);
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * stride, beside + r * PANEL, width * sizeof(float));
}

static inline int64_t count_tiles(const Product *p) { return (p->num_rows + TILE - 1) / TILE; }

/* Tiles [begin, end) of one panel. `next` is the panel that this thread takes after it, or NULL. */
static void multiply_panel(const Product *p, int64_t n, int64_t begin, int64_t end,
                           const float *next) {
    const int64_t num_tiles = count_tiles(p), num_pieces = (p->depth + DEPTH - 1) / DEPTH;
    const float *panel = p->weight + n * p->depth * PANEL;
    const int64_t column = n * PANEL, width = p->num_columns - column;
    for (int64_t piece = 0; piece < num_pieces; piece++) {
        const int64_t from = p->depth * piece / num_pieces;
        const int64_t to = p->depth * (piece + 1) / num_pieces;
        const int is_last = piece + 1 == num_pieces;
        const float *after = is_last ? next : panel + to * PANEL;
        const int64_t share = (to - from) * PANEL * sizeof(float) / (end - begin);
        for (int64_t t = begin; t < end; t++) {
            const int64_t row = p->num_rows * t / num_tiles;
            const int64_t rows = p->num_rows * (t + 1) / num_tiles - row;
            Tile tile = {
                .x = p->x + row * p->x_stride + from,
                .panel = panel + from * PANEL,
                .bias = p->bias && is_last ? p->bias + column : 0,
                .residual = p->residual && is_last
                                ? p->residual + row * p->residual_stride + column
                                : 0,
                .y = p->y + row * p->y_stride + column,
                .depth = to - from,
                .x_stride = p->x_stride,
                .y_stride = p->y_stride,
                .residual_stride = p->residual_stride,
                .is_continued = piece > 0,
            };
            if (end - begin > 1 && after) { /* each tile fetches its share of what comes next */
                tile.ahead = (const char *)after + (t - begin) * share;
                tile.ahead_apart = share / STREAMS;
                tile.ahead_step = tile.ahead_apart / tile.depth + 1;
            } else { /* used once: what is fetched is wanted soon */
                tile.ahead = (const char *)(tile.panel + NEAR * LINE);
                tile.ahead_apart = LINE * sizeof(float);
                tile.ahead_step = PANEL * sizeof(float);
            }
            if (width < PANEL)
                multiply_last(tile, rows, width);
            else
                kernels[rows](&tile);
        }
    }
}

/* Tiles [begin, end) of all, panel by panel, that a thread has still to do: two halves of one
 * number, so that the thread takes from the front and others, when they are done, from the back. */
typedef struct {
    _Alignas(64) _Atomic uint64_t range;
} Share;

static int take(Share *share, int64_t num_tiles, int from_back, int64_t *begin, int64_t *end,
                int64_t *left) {
    uint64_t range = atomic_load(&share->range), rest;
    do {
        const int64_t first = range >> 32, last = range & UINT32_MAX;
        if (first >= last) return 0;
        const int64_t front = (first / num_tiles + 1) * num_tiles;
        const int64_t back = (last - 1) / num_tiles * num_tiles;
        *begin = from_back && back > first ? back : first;
        *end = !from_back && front < last ? front : last;
        *left = last - *end;
        rest = from_back ? (uint64_t)first << 32 | *begin : (uint64_t)*end << 32 | last;
    } while (!atomic_compare_exchange_weak(&share->range, &range, rest));
    return 1;
}

static void work(const Product *p, Share *shares, int me, int num_threads) {
    const int64_t num_tiles = count_tiles(p);
    int64_t begin, end, left;
    for (int n = 0; n < num_threads; n++) {
        Share *share = shares + (me + n) % num_threads;
        while (take(share, num_tiles, n > 0, &begin, &end, &left)) {
            const int64_t panel = begin / num_tiles;
            const float *next = n == 0 && left ? p->weight + (panel + 1) * p->depth * PANEL : 0;
            multiply_panel(p, panel, begin - panel * num_tiles, end - panel * num_tiles, next);
        }
    }
}

int64_t gristmill_panel(void) { return PANEL; }

void gristmill_multiply(const Product *p) {
    const int64_t num_panels = (p->num_columns + PANEL - 1) / PANEL;
    const int64_t num_all = num_panels * count_tiles(p);
    Share shares[MAX_THREADS];
    int num_threads = omp_get_max_threads();
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    if (p->num_rows * p->num_columns * p->depth < SMALL) num_threads = 1;
    for (int n = 0; n < num_threads; n++) {
        const uint64_t begin = num_all * n / num_threads, end = num_all * (n + 1) / num_threads;
        atomic_init(&shares[n].range, begin << 32 | end);
    }
    if (num_threads == 1) {
        work(p, shares, 0, 1);
        return;
    }
#pragma omp parallel num_threads(num_threads)
    work(p, shares, omp_get_thread_num(), num_threads);
}
