/* The functions between the two maps of a feed-forward network, and their slopes, of a vector of numbers at a time.
   vectors.h includes this twice: for eight numbers, and for as many as the processor takes. It says what the vectors are
   (VALUE, WHOLE) and what the functions are called (NAMED). */

#ifndef FUNCTIONS_H
#define FUNCTIONS_H
/* Where such a network is not gated, a product does ReLU in passing. */
enum { RELU, GELU, GELU_TANH, SILU };
#endif

/* e^x for x <= 0, within 2e-7 of it: 2^n from the exponent's bits, the rest from a polynomial (Cephes' coefficients).
   What is too small for a float is zero. */
INLINE VALUE NAMED(exponential)(VALUE x) {
    WHOLE n = __builtin_convertvector(x * 1.44269504f - 0.5f, WHOLE);
    VALUE whole = __builtin_convertvector(n, VALUE), rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    VALUE value = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    value = value * rest + 8.3334519073e-3f;
    value = value * rest + 4.1665795894e-2f;
    value = value * rest + 1.6666665459e-1f;
    value = value * rest + 5.0000001201e-1f;
    value = (value * rest * rest + rest + 1) * (VALUE)((n + 127) << 23);
    return (VALUE)((WHOLE)value & (x > -87));
}

/* s = 1 / (1 + e^-x), by an exponent that is never positive, and its slope s (1 - s). */
INLINE VALUE NAMED(sigmoid_and_slope)(VALUE x, VALUE *slope) {
    VALUE small = NAMED(exponential)((VALUE)((WHOLE)x | INT32_MIN)), large = 1 / (1 + small), other = small * large;
    WHOLE negative = x < 0;
    *slope = large * other;
    return (VALUE)(((WHOLE)other & negative) | ((WHOLE)large & ~negative));
}

/* erf for x >= 0, within 2e-7 of it, and e^(-x^2) in passing.      Abramowitz and Stegun 1964, 7.1.26 */
INLINE VALUE NAMED(error_function)(VALUE x, VALUE *bell) {
    VALUE t = 1 / (1 + 0.3275911f * x);
    VALUE sum = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    *bell = NAMED(exponential)(-x * x);
    return 1 - sum * *bell;
}

/* f(x) and its slope f'(x). */
INLINE VALUE NAMED(function_and_slope)(int kind, VALUE x, VALUE *slope) {
    if (kind == RELU) {
        *slope = (VALUE)((WHOLE)((VALUE){0} + 1.0f) & ~(x <= 0));
        return (VALUE)((WHOLE)x & ~(x <= 0));
    }
    if (kind == GELU) {
        VALUE bell, size = (VALUE)((WHOLE)x & INT32_MAX), half = 0.5f * NAMED(error_function)(size * 0.70710678f, &bell);
        VALUE odd = (VALUE)((WHOLE)half | ((WHOLE)x & INT32_MIN));
        *slope = 0.5f + odd + x * 0.39894228f * bell;
        return x * 0.5f + size * half;
    }
    if (kind == SILU) {
        VALUE s = NAMED(sigmoid_and_slope)(x, slope);
        *slope = s + x * *slope;
        return x * s;
    }
    VALUE s = NAMED(sigmoid_and_slope)(1.5957691216f * (x + 0.044715f * x * x * x), slope);
    *slope = s + x * *slope * (1.5957691216f + 0.2140644488f * x * x);
    return x * s;
}

INLINE VALUE NAMED(function)(int kind, VALUE x) {
    VALUE slope;
    return NAMED(function_and_slope)(kind, x, &slope);
}
