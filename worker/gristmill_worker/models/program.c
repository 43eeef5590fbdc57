/* Runs a list of kernel calls, so that one call from outside does what a layer, or all of them, do.
 *
 * Each call is a pointer to a kernel and to its struct, which stays in memory from step to step. What
 * changes with the step, such as the number of tokens or where a buffer lies, is put in before.
 */
#include <stdint.h>

typedef struct {
    void (*run)(const void *);
    const void *call;
} Operation;

/* *field = values[value] + factor * num_tokens + offset */
typedef struct {
    int64_t *field;
    int64_t value, factor, offset;
} Change;

typedef struct {
    const Operation *operations;
    const Change *changes;
    int64_t num_operations, num_changes, num_tokens;
    int64_t values[];
} Program;

void gristmill_run(const Program *p) {
    for (int64_t i = 0; i < p->num_changes; i++) {
        const Change *c = p->changes + i;
        *c->field = p->values[c->value] + c->factor * p->num_tokens + c->offset;
    }
    for (int64_t i = 0; i < p->num_operations; i++) p->operations[i].run(p->operations[i].call);
}

typedef struct {
    const float *a, *b;
    float *out;
    int64_t count;
} Sum;

/* out = a + b, all dense. */
void gristmill_add(const Sum *sum) {
    const float *a = sum->a, *b = sum->b;
    float *out = sum->out;
    const int64_t count = sum->count;
#pragma omp parallel for simd schedule(static) if (count >= 65536)
    for (int64_t i = 0; i < count; i++) out[i] = a[i] + b[i];
}
