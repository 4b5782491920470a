// How much each token of a gated DeltaNet layer writes and fades, summed up over chunks of CHUNK tokens.
//
//   writes, fades  float32 (count, stride): see places_of_factors in delta.glsl
//   rate_words,    a rate and a bias for each value head, from byte rate_first and bias_first on; see
//   bias_words     vector.glsl. The rate is negative, or with LOG_RATES the logarithm of its magnitude
//   factors        float32 (count, VALUE_HEADS, 4). With g the logarithm of what is left of the state
//                  after token t that was there before its chunk: exp(g); how much t writes; exp(g of the
//                  chunk's last token - g); g
//   state          its last PADDING tokens neither fade nor write
//
// Groups (value heads, chunks); an invocation for each value head of a chunk.

layout(local_size_x_id = 0) in;

#include "vector.glsl"
#include "delta.glsl"

layout(binding = 0) readonly buffer Writes { float writes[]; };
layout(binding = 1) readonly buffer Fades { float fades[]; };
VECTOR_OF(RATE_KIND, 2, Rates, rate_words, rate_of)
VECTOR_OF(BIAS_KIND, 3, Biases, bias_words, bias_of)
layout(binding = 4) buffer Factors { float factors[]; };
layout(binding = 5) readonly buffer State { uint state[]; };
layout(push_constant) uniform Arguments { uint count; uint stride; uint rate_first; uint bias_first; };

void main() {
    uint head = gl_GlobalInvocationID.x;
    if (head >= uint(VALUE_HEADS)) return;
    float rate = rate_of(rate_first, head), bias = bias_of(bias_first, head);
#ifdef LOG_RATES
    rate = -exp(rate);
#endif
    uint begins = gl_WorkGroupID.y * uint(CHUNK), ends = min(begins + uint(CHUNK), count);
    uint real = count - state[PADDING];
    uvec2 places = places_of_factors(head);
    float left = 0.0;
    for (uint token = begins; token < ends; ++token) {
        float fade = rate * softplus(fades[token * stride + places.y] + bias);
        left += token < real ? fade : 0.0;
        uint at = 4u * (token * uint(VALUE_HEADS) + head);
        factors[at] = exp(left);
        factors[at + 1u] = token < real ? sigmoid(writes[token * stride + places.x]) : 0.0;
        factors[at + 3u] = left;
    }
    for (uint token = begins; token < ends; ++token) {
        uint at = 4u * (token * uint(VALUE_HEADS) + head);
        factors[at + 2u] = exp(left - factors[at + 3u]);
    }
}
