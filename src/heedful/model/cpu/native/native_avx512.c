/* native.c for processors with AVX-512. */
#if !defined(__x86_64__)
#error AVX-512 is of x86-64
#endif
#define AVX512
#include "native.c"
