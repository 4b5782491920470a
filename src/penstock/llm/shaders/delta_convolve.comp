// The causal convolution of a gated DeltaNet layer, channel by channel, and silu of its results.
//
//   mixed    float32 (count, stride), from number `mixed_first` on: see delta.glsl
//   words    (channels, TAPS) weights, from byte `first` on; see vector.glsl. The last is the token's own
//   state    its word POSITION is the position of token 0; the last PADDING tokens do not move the window
//   memory   the layer's memory, from number `memory_first` on; see delta.glsl. The window of the slot at
//            POSITION is read, and that of the slot at POSITION + count - PADDING is written; they may be
//            one slot
//   qk       float32 (count, 2 * KEYS), from number `qk_first` on: all queries, all keys
//   v        float32 (count, VALUES), from number `v_first` on
//
// An invocation for each channel, which takes all tokens: so it has read the window when it writes it.

layout(local_size_x_id = 0) in;

#include "repeat.glsl"
#include "quads.glsl"
#include "vector.glsl"
#include "delta.glsl"

#define CHANNELS (2 * KEYS + VALUES)

FLOATS(0, Mixed, mixed, load_mixed)
VECTOR(1, Words, words, weight)
layout(binding = 2) readonly buffer State { uint state[]; };
FLOATS_STORED(3, Memory, memory, load_memory, store_memory)
FLOATS_WRITTEN(4, Keys, qk, store_qk)
FLOATS_WRITTEN(5, Values, v, store_v)
layout(push_constant) uniform Arguments {
    uint count;
    uint stride;
    uint first;
    uint mixed_first;
    uint memory_first;
    uint qk_first;
    uint v_first;
};

void main() {
    uint channel = gl_GlobalInvocationID.x;
    if (channel >= uint(CHANNELS)) return;
    uint position = state[POSITION], real = count - state[PADDING];
    uint window = memory_first + uint(WINDOW_AT) + channel;
    uint from = position % uint(SLOTS) * uint(SLOT_SIZE) + window;
    uint to = (position + real) % uint(SLOTS) * uint(SLOT_SIZE) + window;

    float taps[TAPS], rows[TAPS];
#define BEGIN(n)                                                                              \
    taps[n] = weight(first, channel * uint(TAPS) + n);                                        \
    rows[n] = position == 0u || n == TAPS - 1 ? 0.0 : load_memory(from + n * CHANNELS);
    REPEAT(TAPS, BEGIN)

    uint at = mixed_first + place_of_channel(channel);
    bool of_key = channel < uint(2 * KEYS);
    for (uint token = 0u; token < count; ++token) {
        rows[TAPS - 1] = load_mixed(token * stride + at);
        float sum = 0.0;
#define ADD(n) sum += taps[n] * rows[n];
        REPEAT(TAPS, ADD)
        sum *= sigmoid(sum);
        if (of_key) store_qk(qk_first + token * uint(2 * KEYS) + channel, sum);
        else store_v(v_first + token * uint(VALUES) + channel - uint(2 * KEYS), sum);
#define MOVE(n) rows[n] = rows[min(n + 1, TAPS - 1)];
        if (token < real) {
            REPEAT(TAPS, MOVE)
        }
    }
#define KEEP(n) if (n < TAPS - 1) store_memory(to + n * CHANNELS, rows[n]);
    REPEAT(TAPS, KEEP)
}
