// The delta rule of a gated DeltaNet layer, for tokens in chunks of CHUNK.
//
// A token with key k, value v and query q fades the state S of its head, writes, and reads:
//
//   S = S * fade;   S += k ⊗ (write * (v - Sᵀk));   y = Sᵀq
//
// A chunk needs the state only as it was before: with w(s) what token s writes and left(t, s) the product of
// the fades after s, up to t,
//
//   w(t) = write(t) * (v(t) - left(t) * Sᵀk(t) - sum over s < t of left(t, s) * k(t)·k(s) * w(s))
//   y(t) = left(t) * Sᵀq(t) + sum over s <= t of left(t, s) * q(t)·k(s) * w(s)
//
// and then S = left * S + sum of left(last, s) * k(s) ⊗ w(s). So the state is read and written once for
// CHUNK tokens.
//
//   qk       float32 (count, 2 * KEYS), from quad `qk_first` on: queries and keys, normalised
//   v        float32 (count, VALUES), from number `v_first` on
//   state    its word POSITION is the position of token 0
//   memory   the layer's memory, from quad `memory_first` on; see delta.glsl. The states of the slot at
//            POSITION are read, and those of the slot at POSITION + count - PADDING are written
//   y        float32 (count, VALUES), from number `y_first` on
//   factors  from quad `factors_first` on; see delta_factors.comp
//   pairs    from quad `pairs_first` on; see delta_pairs.comp
//
// The launch takes the tokens first_token .. last_token - 1; first_token is a multiple of CHUNK.
//
//   CHUNK_QUADS   CHUNK / 4; CHUNK is a multiple of four
//
// ONE, with a CHUNK of 1: there is a single token; its queries and keys are not normalised yet, and instead
// of factors and pairs there are `writes`, `fades` and so on: see delta_factors.comp.
//
// Groups (columns of a state, VALUE_HEADS); an invocation for each column, which no other invocation reads or
// writes: so the slots may be one.

#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;

#include "repeat.glsl"
#include "quads.glsl"
#include "delta.glsl"

QUADS(0, Keys, qk, load_qk)
FLOATS(1, Values, v, load_v)
layout(binding = 2) readonly buffer State { uint state[]; };
QUADS_STORED(3, Memory, memory, load_memory, store_memory)
FLOATS_WRITTEN(4, Y, y, store_y)
#ifdef ONE
#include "vector.glsl"
layout(binding = 5) readonly buffer Writes { float writes[]; };
layout(binding = 6) readonly buffer Fades { float fades[]; };
VECTOR_OF(RATE_KIND, 7, Rates, rate_words, rate_of)
VECTOR_OF(BIAS_KIND, 8, Biases, bias_words, bias_of)
#else
QUADS(5, Factors, factors, load_factors)
QUADS(6, Pairs, pairs, load_pairs)
#endif
layout(push_constant) uniform Arguments {
    uint qk_first;
    uint v_first;
    uint memory_first;
    uint y_first;
#ifdef ONE
    uint rate_first;
    uint bias_first;
#else
    uint factors_first;
    uint pairs_first;
    uint count;
    uint first_token;
    uint last_token;
#endif
};

#define ROW (2 * KEYS / 4)             // quads of a token in qk

float of_keys[CHUNK], of_queries[CHUNK];  // Sᵀk and Sᵀq
float written[CHUNK];                     // w
uint head, column, keys_at;               // keys_at: where the head's key is in a row of qk
uint last;                                // of the tokens

#ifndef ONE
// Where the row of token n of the chunk is; of one that there is not, that of the last.
uint row_of(uint begins, const uint n) { return qk_first + min(begins + n, last) * uint(ROW); }

void read_quad(const uint n, uint begins, uint i, vec4 four) {
    uint at = row_of(begins, n) + keys_at + i;
    of_keys[n] += dot(load_qk(at), four);
    of_queries[n] += dot(load_qk(at - uint(KEYS / 4)), four);
}

float sum_of_pairs(uint at, const uint n, const bool own) {
    float sum = 0.0;
#define ADD_PAIRS(q)                                                                          \
    if (4 * q < n + (own ? 1u : 0u))                                                          \
        sum += dot(load_pairs(at + q),                                                        \
                   vec4(written[4 * q], written[4 * q + 1], written[4 * q + 2], written[4 * q + 3]));
    REPEAT(CHUNK_QUADS, ADD_PAIRS)
    return sum;
}

void take_token(const uint n, uint begins) {
    uint token = min(begins + n, last);
    bool live = begins + n <= last;
    vec4 factor = load_factors(factors_first + token * uint(VALUE_HEADS) + head);
    uint at = pairs_first + (head * count + token) * uint(2 * CHUNK_QUADS);
    uint place = token * uint(VALUES) + head * uint(VALUE_SIZE) + column;
    float wanted = load_v(v_first + place) - factor.x * of_keys[n] - sum_of_pairs(at, n, false);
    written[n] = live ? factor.y * wanted : 0.0;
    float found = factor.x * of_queries[n] + sum_of_pairs(at + uint(CHUNK_QUADS), n, true);
    if (live) store_y(y_first + place, found);
}

void fade_written(const uint n, uint begins) {
    written[n] *= load_factors(factors_first + min(begins + n, last) * uint(VALUE_HEADS) + head).z;
}

vec4 keys_written(const uint n, uint begins, uint i) {
    return load_qk(row_of(begins, n) + keys_at + i) * written[n];
}
#endif

void main() {
    column = gl_GlobalInvocationID.x;
    head = gl_WorkGroupID.y;
    if (column >= uint(VALUE_SIZE)) return;
    uint position = state[POSITION];
    keys_at = uint(KEYS / 4) + key_head_of(head) * uint(KEY_QUADS);
    uint place = memory_first + head * uint(KEY_QUADS * VALUE_SIZE) + column;
    uint from = position % uint(SLOTS) * uint(SLOT_SIZE / 4) + place;
    bool fresh = position == 0u;  // then the state is 0
#ifdef ONE
    uint to = (position + 1u) % uint(SLOTS) * uint(SLOT_SIZE / 4) + place;
    uint at = qk_first + keys_at;
    float key_squares = 0.0, query_squares = 0.0, key_query = 0.0, of_key = 0.0, of_query = 0.0;
    [[dont_unroll]] for (uint i = 0u; i < uint(KEY_QUADS); ++i) {
        vec4 four = load_memory(from + i * uint(VALUE_SIZE));
        four = fresh ? vec4(0.0) : four;
        vec4 key = load_qk(at + i), query = load_qk(at - uint(KEYS / 4) + i);
        key_squares += dot(key, key);
        query_squares += dot(query, query);
        key_query += dot(key, query);
        of_key += dot(four, key);
        of_query += dot(four, query);
    }
    float key_scale = 1.0 / sqrt(key_squares + LENGTH_EPSILON);
    float query_scale = QUERY_SCALE / sqrt(query_squares + LENGTH_EPSILON);
    float rate = rate_of(rate_first, head);
#ifdef LOG_RATES
    rate = -exp(rate);
#endif
    uvec2 places = places_of_factors(head);
    float fade = exp(rate * softplus(fades[places.y] + bias_of(bias_first, head)));
    uint value = head * uint(VALUE_SIZE) + column;
    float wanted = load_v(v_first + value) - fade * of_key * key_scale;
    float write = sigmoid(writes[places.x]) * wanted * key_scale;
    store_y(y_first + value, query_scale * (fade * of_query + key_query * write));
    [[dont_unroll]] for (uint i = 0u; i < uint(KEY_QUADS); ++i) {
        vec4 four = load_memory(from + i * uint(VALUE_SIZE));
        four = fresh ? vec4(0.0) : four;
        store_memory(to + i * uint(VALUE_SIZE), four * fade + load_qk(at + i) * write);
    }
#else
    uint to = (position + count - state[PADDING]) % uint(SLOTS) * uint(SLOT_SIZE / 4) + place;
    last = last_token - 1u;
#define CLEAR(n) written[n] = 0.0;
    for (uint begins = first_token; begins < last_token; begins += uint(CHUNK)) {
        uint source = begins == 0u ? from : to;
        bool none = fresh && begins == 0u;
        REPEAT(CHUNK, CLEAR)
#define CLEAR_SUMS(n) of_keys[n] = 0.0; of_queries[n] = 0.0;
        REPEAT(CHUNK, CLEAR_SUMS)
        [[dont_unroll]] for (uint i = 0u; i < uint(KEY_QUADS); ++i) {
            vec4 four = load_memory(source + i * uint(VALUE_SIZE));
            four = none ? vec4(0.0) : four;
#define READ(n) read_quad(n, begins, i, four);
            REPEAT(CHUNK, READ)
        }
#define TAKE(n) take_token(n, begins);
        REPEAT(CHUNK, TAKE)
#define FADE(n) fade_written(n, begins);
        REPEAT(CHUNK, FADE)
        float left = load_factors(
            factors_first + min(begins + uint(CHUNK - 1), last) * uint(VALUE_HEADS) + head).x;
        [[dont_unroll]] for (uint i = 0u; i < uint(KEY_QUADS); ++i) {
            vec4 four = load_memory(source + i * uint(VALUE_SIZE));
            four = none ? vec4(0.0) : four * left;
#define WRITE(n) four += keys_written(n, begins, i);
            REPEAT(CHUNK, WRITE)
            store_memory(to + i * uint(VALUE_SIZE), four);
        }
    }
#endif
}
