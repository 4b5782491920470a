// The words of GLSL that the shared files of the library use, in HIP C++. A compiler for the host,
// which the tests' stand-in uses, ignores the pragmas.

#pragma clang force_cuda_host_device begin
#pragma clang fp contract(off)

#define precise

typedef unsigned int uint;
typedef long long ps_i64;
typedef unsigned long long ps_u64;

struct vec2 {
    float x, y;
    vec2() = default;
    vec2(float x, float y) : x(x), y(y) {}
};

struct dvec2 {
    double x, y;
    dvec2() = default;
    dvec2(double x, double y) : x(x), y(y) {}
};

struct uvec2 {
    uint x, y;
    uvec2() = default;
    uvec2(uint x, uint y) : x(x), y(y) {}
};

inline uint ps_bits(float x) { return __builtin_bit_cast(uint, x); }
inline ps_u64 ps_bits(double x) { return __builtin_bit_cast(ps_u64, x); }
inline float ps_of_bits(uint x) { return __builtin_bit_cast(float, x); }
inline double ps_of_bits(ps_u64 x) { return __builtin_bit_cast(double, x); }

#define floatBitsToUint ps_bits
#define uintBitsToFloat ps_of_bits

#define PS_NAN_float __builtin_nanf("")
#define PS_INFINITY_float __builtin_inff()
#define PS_NAN_double __builtin_nan("")
#define PS_INFINITY_double __builtin_inf()
