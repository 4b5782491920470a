// Advances the position by `count` tokens less the padding, after a batch from which no token is sampled.
//
//   state   POSITION grows; PADDING becomes 0: the next step may have a single token, and no padding
//
// One invocation.

layout(local_size_x = 1) in;

layout(binding = 0) buffer State { uint state[]; };
layout(push_constant) uniform Arguments { uint count; };

void main() {
    state[POSITION] += count - state[PADDING];
    state[PADDING] = 0u;
}
