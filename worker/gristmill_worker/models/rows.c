/* What a model does to each row between its products, in one pass over memory each: RMS norms,
 * gated activations and the rotation of queries and keys. And what turns its logits into
 * log-probabilities.
 *
 * What must stay true: the floats of a row depend on that row only. Each element is computed by
 * the same instructions wherever its row lies, sums run in one fixed order over the columns, and
 * the number of threads decides only who computes a row, never how.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16 /* floats of one vector: one of AVX-512, two of AVX2 */

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float vec_u __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float half __attribute__((vector_size(2 * LANES)));
typedef double dvec __attribute__((vector_size(4 * LANES))); /* as many lanes as half a vec */

/* Fewer elements than this are done sooner than a second thread has begun. */
#define WORTH_THREADS(num_elements) ((num_elements) >= 16384)

static inline vec select_vec(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

static inline vec load_some(const float *from, int64_t count) {
    float whole[LANES] = {0};
    memcpy(whole, from, count * sizeof(float));
    return *(const vec_u *)whole;
}

static inline void store_some(float *to, vec x, int64_t count) {
    float whole[LANES];
    *(vec_u *)whole = x;
    memcpy(to, whole, count * sizeof(float));
}

/* e^x within 2 ulp for x between -87 and 87, and what it is at these ends beyond them: 2^n times a
 * polynomial of the rest (Cephes expf). */
static inline vec exp_vec(vec x) {
    const vec end = (vec){0} + 87.0f;
    x = select_vec(x < -end, -end, x);
    x = select_vec(x > end, end, x);
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
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
}

/* x * sigmoid(slope * (x + cubic * x^3)): SiLU, tanh-GELU and quick GELU are all of this form. */
static inline vec activate(vec x, float slope, float cubic) {
    vec inner = cubic == 0.0f ? x * -slope : (x + x * x * x * cubic) * -slope;
    return x / (1.0f + exp_vec(inner));
}

static float sum_of_squares(const float *x, int64_t width) {
    vec a = {0}, b = {0};
    int64_t d = 0;
    for (; d + 2 * LANES <= width; d += 2 * LANES) {
        vec xa = *(const vec_u *)(x + d), xb = *(const vec_u *)(x + d + LANES);
        a += xa * xa, b += xb * xb;
    }
    for (; d < width; d += LANES) {
        vec xa = width - d < LANES ? load_some(x + d, width - d) : *(const vec_u *)(x + d);
        a += xa * xa;
    }
    a += b;
    float total = 0.0f;
    for (int i = 0; i < LANES; i++) total += a[i];
    return total;
}

typedef struct {
    const float *x, *weight; /* weight may be NULL */
    float *out;
    int64_t outer, inner, width, outer_stride, inner_stride;
    float eps;
} Norm;

/* out = x / sqrt(mean(x^2) + eps) * weight; no weight where it is NULL. Row (i, j) of x begins at
 * i * outer_stride + j * inner_stride; out is dense. */
void gristmill_rms_norm(const Norm *n) {
    const float *x = n->x, *weight = n->weight;
    float *out = n->out;
    const int64_t outer = n->outer, inner = n->inner, width = n->width;
    const int64_t outer_stride = n->outer_stride, inner_stride = n->inner_stride;
    const float eps = n->eps;
#pragma omp parallel for schedule(static) if (WORTH_THREADS(outer * inner * width))
    for (int64_t row = 0; row < outer * inner; row++) {
        const float *restrict from = x + row / inner * outer_stride + row % inner * inner_stride;
        float *restrict to = out + row * width;
        const float scale = 1.0f / sqrtf(sum_of_squares(from, width) / (float)width + eps);
        if (weight)
            for (int64_t d = 0; d < width; d++) to[d] = from[d] * scale * weight[d];
        else
            for (int64_t d = 0; d < width; d++) to[d] = from[d] * scale;
    }
}

typedef struct {
    const float *gate, *up; /* up may be NULL */
    float *out;
    int64_t num_rows, width, gate_stride, up_stride;
    float slope, cubic;
} Gate;

/* out = activation(gate) * up, or the activation alone. */
void gristmill_gate(const Gate *call) {
    const float *gate = call->gate, *up = call->up;
    float *out = call->out;
    const int64_t num_rows = call->num_rows, width = call->width;
    const int64_t gate_stride = call->gate_stride, up_stride = call->up_stride;
    const float slope = call->slope, cubic = call->cubic;
#pragma omp parallel for schedule(static) if (WORTH_THREADS(num_rows * width))
    for (int64_t row = 0; row < num_rows; row++) {
        const float *g = gate + row * gate_stride, *u = up ? up + row * up_stride : NULL;
        float *to = out + row * width;
        int64_t d = 0;
        for (; d + LANES <= width; d += LANES) {
            vec y = activate(*(const vec_u *)(g + d), slope, cubic);
            *(vec_u *)(to + d) = u ? y * *(const vec_u *)(u + d) : y;
        }
        if (d < width) {
            vec y = activate(load_some(g + d, width - d), slope, cubic);
            store_some(to + d, u ? y * load_some(u + d, width - d) : y, width - d);
        }
    }
}

static inline void rotate_head(const float *restrict x, const float *restrict cos,
                               const float *restrict sin, float *restrict out, int64_t dim,
                               int64_t rotary_dim) {
    const int64_t half = rotary_dim / 2;
    for (int64_t d = 0; d < half; d++) {
        const float low = x[d], high = x[d + half];
        out[d] = low * cos[d] - high * sin[d];
        out[d + half] = high * cos[d + half] + low * sin[d + half];
    }
    for (int64_t d = rotary_dim; d < dim; d++) out[d] = x[d];
}

typedef struct {
    const float *q, *k, *cos, *sin;
    float *rotated_q, *rotated_k;
    int64_t num_tokens, num_heads, num_kv_heads, dim, rotary_dim;
    int64_t q_token_stride, q_head_stride, k_token_stride, k_head_stride;
} Rotation;

/* Both [T][heads][dim] in the end; cos and sin [T][rotary_dim]. */
void gristmill_rotate(const Rotation *r) {
    const float *q = r->q, *k = r->k, *cos = r->cos, *sin = r->sin;
    float *rotated_q = r->rotated_q, *rotated_k = r->rotated_k;
    const int64_t num_tokens = r->num_tokens, num_heads = r->num_heads;
    const int64_t num_kv_heads = r->num_kv_heads, dim = r->dim, rotary_dim = r->rotary_dim;
    const int64_t q_token_stride = r->q_token_stride, q_head_stride = r->q_head_stride;
    const int64_t k_token_stride = r->k_token_stride, k_head_stride = r->k_head_stride;
#pragma omp parallel for schedule(static) \
    if (WORTH_THREADS(num_tokens * (num_heads + num_kv_heads) * dim))
    for (int64_t t = 0; t < num_tokens; t++) {
        const float *c = cos + t * rotary_dim, *s = sin + t * rotary_dim;
        for (int64_t h = 0; h < num_heads; h++)
            rotate_head(q + t * q_token_stride + h * q_head_stride, c, s,
                        rotated_q + (t * num_heads + h) * dim, dim, rotary_dim);
        for (int64_t h = 0; h < num_kv_heads; h++)
            rotate_head(k + t * k_token_stride + h * k_head_stride, c, s,
                        rotated_k + (t * num_kv_heads + h) * dim, dim, rotary_dim);
    }
}

typedef struct {
    const float *x;
    double *out;
    int64_t num_rows, width, row_stride;
} LogSumExp;

/* out = log(sum(e^x)) of each row. The exponentials are floats and their sum is of doubles, so that
 * what is lost of 50,000 of them is less than what a float of the result can show. */
void gristmill_log_sum_exp(const LogSumExp *call) {
    const float *x = call->x;
    double *out = call->out;
    const int64_t num_rows = call->num_rows, width = call->width, row_stride = call->row_stride;
    const int64_t whole = width / LANES * LANES;
#pragma omp parallel for schedule(static) if (WORTH_THREADS(num_rows * width))
    for (int64_t row = 0; row < num_rows; row++) {
        const float *restrict from = x + row * row_stride;
        vec highest = (vec){0} - INFINITY;
        for (int64_t d = 0; d < whole; d += LANES) {
            vec a = *(const vec_u *)(from + d);
            highest = select_vec(a > highest, a, highest);
        }
        float top = -INFINITY;
        for (int i = 0; i < LANES; i++) top = highest[i] > top ? highest[i] : top;
        for (int64_t d = whole; d < width; d++) top = from[d] > top ? from[d] : top;
        dvec low = {0}, high = {0};
        for (int64_t d = 0; d < whole; d += LANES) {
            union {
                vec all;
                half parts[2];
            } p = {exp_vec(*(const vec_u *)(from + d) - top)};
            low += __builtin_convertvector(p.parts[0], dvec);
            high += __builtin_convertvector(p.parts[1], dvec);
        }
        double sum = 0.0;
        low += high;
        for (int i = 0; i < LANES / 2; i++) sum += low[i];
        vec rest = exp_vec(load_some(from + whole, width - whole) - top);
        for (int64_t i = 0; i < width - whole; i++) sum += rest[i];
        out[row] = log(sum) + top;
    }
}
