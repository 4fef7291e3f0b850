/* Eight numbers at a time, with the vectors of GCC and Clang, and in products as many as the processor takes: sixteen
   where this is compiled for AVX-512, eight with AVX2 and elsewhere. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "fields.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(AVX512)
#define FAST __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")))
#define LANES 16
#define PROCESSOR "AVX-512"
#elif defined(__x86_64__)
#define FAST __attribute__((target("avx2,fma")))
#define LANES 8
#define PROCESSOR "AVX2"
#else
#define FAST
#define LANES 8
#define PROCESSOR "any processor"
#endif
#define INLINE static inline __attribute__((always_inline)) FAST

typedef float Eight __attribute__((vector_size(32)));
typedef float Loose __attribute__((vector_size(32), aligned(4), may_alias)); /* the same, anywhere in memory */
typedef int32_t Whole __attribute__((vector_size(32)));
typedef int16_t Short __attribute__((vector_size(16), aligned(2), may_alias));

typedef float Line __attribute__((vector_size(4 * LANES)));
typedef float LooseLine __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t WholeLine __attribute__((vector_size(4 * LANES)));

INLINE Line load_line(const float *at) { return *(const LooseLine *)at; }
INLINE void store_line(float *at, Line value) { *(LooseLine *)at = value; }
INLINE Eight load(const float *at) { return *(const Loose *)at; }
INLINE void store(float *at, Eight value) { *(Loose *)at = value; }

/* The same where there may be fewer than eight. */
INLINE Eight some_of(const float *at, Count size) {
    Eight value = {0};
    if (size >= 8) return load(at);
    for (int i = 0; i < size; i++) value[i] = at[i];
    return value;
}

INLINE void put(float *at, Eight value, Count size) {
    if (size >= 8)
        store(at, value);
    else
        for (int i = 0; i < size; i++) at[i] = value[i];
}

INLINE float sum_of(Eight x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

/* Of all numbers of one line, or of two. */
INLINE float sum_of_lines(const Line *lines, int count) {
    Line sum = lines[0];
    for (int i = 1; i < count; i++) sum += lines[i];
    Eight parts[LANES / 8], all;
    memcpy(parts, &sum, sizeof sum);
    all = parts[0];
    for (int i = 1; i < LANES / 8; i++) all += parts[i];
    return sum_of(all);
}

#define VALUE Eight
#define WHOLE Whole
#define NAMED(name) name
#include "functions.h"
#undef VALUE
#undef WHOLE
#undef NAMED
#define VALUE Line
#define WHOLE WholeLine
#define NAMED(name) line_##name
#include "functions.h"
#undef VALUE
#undef WHOLE
#undef NAMED

INLINE Eight larger(Eight a, Eight b) {
    Whole first = a > b;
    return (Eight)(((Whole)a & first) | ((Whole)b & ~first));
}

INLINE float largest_of(const float *x, Count size) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (Count i = 0; i < size; i++) most = x[i] > most ? x[i] : most;
    return most;
}

#define LARGE (1 << 18) /* operations from which on several threads are worth it */

static int threads_for(Count operations, int threads) { return operations < LARGE ? 1 : threads; }

/* `call` for each `one` of `count`, on `threads`, which are what they are called where this stands. */
#define EACH(one, count, call)                                   \
    do {                                                         \
        if (threads < 2) {                                       \
            for (Count one = 0; one < count; one++) call;        \
        } else {                                                 \
            _Pragma("omp parallel for num_threads(threads)")     \
            for (Count one = 0; one < count; one++) call;        \
        }                                                        \
    } while (0)
#define EACH_ROW(call) EACH(row, rows, call)
